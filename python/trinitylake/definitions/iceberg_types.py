"""Conversion of columns to and from Iceberg schemas (format §9).

    Iceberg   -> declared  lossless: types that the format lacks, such as uuid, are kept in `Type.iceberg`
    declared  -> Iceberg   smallint becomes int, char and varchar become string, times that Iceberg cannot hold
                           (timetz, timestamp(3), …) become long

PyIceberg is imported only when a function here needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinitylake.definitions.sql_types import Column, Type, as_type
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.types import IcebergType, NestedField

    from trinitylake.definitions.sql_types import TypeLike

#: Maximum length of a type `fixed` in a definition.
_FIXED_MAX_LENGTH = (1 << 31) - 1


def to_iceberg(columns: tuple[Column, ...], primary_key: tuple[str, ...]) -> IcebergSchema:
    """The Iceberg schema of declared columns; new ids are assigned unless every column has one."""
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.schema import assign_fresh_schema_ids

    result = IcebergSchema(*[_field_to_iceberg(column) for column in columns])
    if not _all_ids_assigned(columns):
        result = assign_fresh_schema_ids(result)
    if not primary_key:
        return result
    identifiers = [result.find_field(name).field_id for name in primary_key]
    return IcebergSchema(*result.fields, identifier_field_ids=identifiers)


def from_iceberg(schema: IcebergSchema) -> tuple[list[Column], list[str]]:
    """The columns of an Iceberg schema, with field ids and documentation, and the names of its identifier fields."""
    columns = [_field_from_iceberg(field) for field in schema.fields]
    names = [schema.find_column_name(id) for id in schema.identifier_field_ids]
    return columns, sorted(name for name in names if name is not None)


def as_iceberg_type(type: IcebergType | TypeLike) -> IcebergType:
    """Convert a SQL type to an Iceberg type without field ids; keep Iceberg types. Raises `InvalidArgument`."""
    from pyiceberg.types import IcebergType

    return type if isinstance(type, IcebergType) else _type_to_iceberg(as_type(type))


def _field_to_iceberg(column: Column) -> NestedField:
    from pyiceberg.types import NestedField

    return NestedField(
        field_id=column.id,
        name=column.name,
        field_type=_type_to_iceberg(column.type),
        required=not column.nullable,
        doc=column.doc or None,
    )


def _type_to_iceberg(type: Type) -> IcebergType:
    from pyiceberg import types as iceberg

    if type.iceberg:
        return _exact_iceberg_type(type.iceberg)
    match type.kind:
        case "struct":
            return iceberg.StructType(*[_field_to_iceberg(child) for child in type.children])
        case "list":
            (element,) = type.children
            return iceberg.ListType(element.id, _type_to_iceberg(element.type), element_required=not element.nullable)
        case "map":
            key, value = type.children
            return iceberg.MapType(
                key.id, _type_to_iceberg(key.type), value.id, _type_to_iceberg(value.type), not value.nullable
            )
        case "decimal":
            return iceberg.DecimalType(type.precision, type.scale)
        case "fixed":
            return iceberg.FixedType(type.length)
        case "time":
            return iceberg.TimeType() if type.precision == 6 else iceberg.LongType()
        case "timestamp" | "timestamptz" if type.precision == 9:
            return iceberg.TimestampNanoType() if type.kind == "timestamp" else iceberg.TimestamptzNanoType()
        case "timestamp" | "timestamptz" if type.precision != 6:
            return iceberg.LongType()
    simple: dict[str, IcebergType] = {
        "boolean": iceberg.BooleanType(),
        "smallint": iceberg.IntegerType(),
        "int": iceberg.IntegerType(),
        "bigint": iceberg.LongType(),
        "real": iceberg.FloatType(),
        "double": iceberg.DoubleType(),
        "char": iceberg.StringType(),
        "varchar": iceberg.StringType(),
        "date": iceberg.DateType(),
        "timetz": iceberg.LongType(),
        "timestamp": iceberg.TimestampType(),
        "timestamptz": iceberg.TimestamptzType(),
        "binary": iceberg.BinaryType(),
    }
    return simple[type.kind]


def _exact_iceberg_type(text: str) -> IcebergType:
    from pyiceberg.types import IcebergType, NestedField

    try:
        parsed = NestedField.model_validate({"id": 1, "name": "type", "type": text, "required": False}).field_type
    except ValueError as error:
        raise InvalidArgument(f"unknown Iceberg type {text!r}") from error
    assert isinstance(parsed, IcebergType)
    return parsed


def _field_from_iceberg(field: NestedField) -> Column:
    type = _type_from_iceberg(field.field_type)
    return Column(field.name, type, not field.required, field.doc or "", id=field.field_id)


def sql_text(type: IcebergType) -> str:
    """The SQL name of an Iceberg type, for errors and descriptions."""
    return str(_type_from_iceberg(type))


def _type_from_iceberg(type: IcebergType) -> Type:
    from pyiceberg import types as iceberg

    match type:
        case iceberg.StructType():
            return Type("struct", children=tuple(_field_from_iceberg(field) for field in type.fields))
        case iceberg.ListType():
            return Type("list", children=(_field_from_iceberg(type.element_field),))
        case iceberg.MapType():
            return Type("map", children=(_field_from_iceberg(type.key_field), _field_from_iceberg(type.value_field)))
        case iceberg.DecimalType():
            return Type("decimal", precision=type.precision, scale=type.scale)
        case iceberg.FixedType():
            if type.root > _FIXED_MAX_LENGTH:
                raise InvalidArgument(f"{type} is too long: at most {_FIXED_MAX_LENGTH} bytes")
            return Type("fixed", length=type.root)
        case iceberg.UUIDType():
            return Type("fixed", length=16, iceberg="uuid")
        case iceberg.TimestampNanoType():
            return Type("timestamp", precision=9)
        case iceberg.TimestamptzNanoType():
            return Type("timestamptz", precision=9)
    simple: dict[str, str] = {
        "boolean": "boolean",
        "int": "int",
        "long": "bigint",
        "float": "real",
        "double": "double",
        "date": "date",
        "time": "time",
        "timestamp": "timestamp",
        "timestamptz": "timestamptz",
        "string": "varchar",
        "binary": "binary",
    }
    kind = simple.get(str(type))
    # unknown, geometry, geography and future types: binary in the format, and exact in `Type.iceberg`.
    return Type(kind) if kind else Type("binary", iceberg=str(type))


def _all_ids_assigned(columns: tuple[Column, ...]) -> bool:
    return all(column.id and _all_ids_assigned(column.type.children) for column in columns)
