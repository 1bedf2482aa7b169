"""Schemas between the four shapes they have: declared (`types.py`), stored (protobuf, §6), Iceberg (§9) and Arrow.

    declared  <-> stored    lossless, both ways
    Iceberg    -> declared  lossless (what the format's types cannot tell, such as uuid, is kept in `Type.iceberg`)
    declared   -> Iceberg   by the table of §9: smallint becomes int, char and varchar become string, times that
                            Iceberg cannot hold (timetz, timestamp(3), …) become long
    Arrow     <-> declared  `arrow_schema.py`

PyIceberg is imported only when a function here needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from trinitylake.definitions import trinitylake_pb2 as proto
from trinitylake.definitions.types import KINDS, Column, Schema, Type
from trinitylake.errors import CorruptFile, InvalidArgument, UnsupportedVersion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.types import IcebergType, NestedField

#: Keys of `Column.properties` in stored schemas that hold what no field of the message does.
DOC_PROPERTY = "doc"
ICEBERG_TYPE_PROPERTY = "iceberg-type"


class ArrowStreamExportable(Protocol):
    """A pyarrow or polars table, a pandas data frame, a DuckDB relation, …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowSchemaExportable(Protocol):
    """A schema of any Arrow library."""

    def __arrow_c_schema__(self) -> object: ...


SchemaLike: TypeAlias = (
    "Schema | IcebergSchema | pa.Schema | proto.Schema | Mapping[str, str | Type] | ArrowStreamExportable"
    " | ArrowSchemaExportable | list[Column]"
)


def as_schema(schema: SchemaLike) -> Schema:
    """A declared schema from anything that has or is one.

    Accepts a `Schema`, a list of `Column`s or `(name, type)` tuples, a mapping of name to SQL type, a stored
    schema, a PyIceberg or pyarrow schema, and every object with the Arrow C stream or schema interface, of which
    only the schema is read.

    Raises:
        InvalidArgument: for anything else, or for a type that has no counterpart, naming the column.
    """
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, proto.Schema):
        return from_proto(schema)
    if isinstance(schema, Mapping) or (isinstance(schema, list | tuple) and not hasattr(schema, "__arrow_c_stream__")):
        return Schema(schema)
    if type(schema).__module__.startswith("pyiceberg."):
        from pyiceberg.schema import Schema as IcebergSchema

        if isinstance(schema, IcebergSchema):
            return from_iceberg(schema)
    from trinitylake.definitions.arrow_schema import arrow_schema_of, from_arrow

    arrow = arrow_schema_of(schema)
    if arrow is None:
        raise InvalidArgument(
            f"cannot read a schema from {type(schema).__name__}: expected a trinitylake, pyarrow or pyiceberg schema, "
            "a mapping of column name to SQL type, or data with the Arrow C stream interface"
        )
    return from_arrow(arrow)


def to_iceberg_schema(schema: SchemaLike) -> IcebergSchema:
    """A PyIceberg schema from anything that `as_schema` accepts; field ids are kept if all are assigned.

    An Iceberg schema is returned as it is.
    """
    if type(schema).__module__.startswith("pyiceberg."):
        from pyiceberg.schema import Schema as IcebergSchema

        if isinstance(schema, IcebergSchema):
            return schema
    return to_iceberg(as_schema(schema))


def to_proto(schema: Schema) -> proto.Schema:
    """The stored form. The primary key is not part of it: a table definition holds it beside the schema."""
    return proto.Schema(columns=[_column_to_proto(column) for column in schema.columns])


def from_proto(schema: proto.Schema, primary_key: tuple[str, ...] = (), path: str = "") -> Schema:
    """The declared form of a stored schema.

    Raises:
        UnsupportedVersion: for a type that this library does not know yet.
        CorruptFile: for a column that contradicts itself; `path` names the file.
    """
    try:
        return Schema([_column_from_proto(column) for column in schema.columns], primary_key)
    except InvalidArgument as error:
        raise CorruptFile(f"{path or 'schema'}: {error}", path=path) from error


def to_iceberg(schema: Schema) -> IcebergSchema:
    """The Iceberg schema of a declared one (§9); ids are assigned afresh unless every column has one."""
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.schema import assign_fresh_schema_ids

    result = IcebergSchema(*[_field_to_iceberg(column) for column in schema.columns])
    if not _all_ids_assigned(schema.columns):
        result = assign_fresh_schema_ids(result)
    if not schema.primary_key:
        return result
    identifiers = [result.find_field(name).field_id for name in schema.primary_key]
    return IcebergSchema(*result.fields, identifier_field_ids=identifiers)


def from_iceberg(schema: IcebergSchema) -> Schema:
    """The declared form of an Iceberg schema: with field ids, documentation and identifier fields."""
    columns = [_field_from_iceberg(field) for field in schema.fields]
    names = [schema.find_column_name(id) for id in schema.identifier_field_ids]
    return Schema(columns, sorted(name for name in names if name is not None))


def _column_to_proto(column: Column) -> proto.Column:
    type = column.type
    message = proto.Column(
        id=column.id,
        name=column.name,
        type=KINDS.index(type.kind),  # type: ignore[arg-type]
        nullable=column.nullable,
        properties=column.properties,
        length=type.length,
        precision=type.precision,
        scale=type.scale,
    )
    if column.doc:
        message.properties[DOC_PROPERTY] = column.doc
    if type.iceberg:
        message.properties[ICEBERG_TYPE_PROPERTY] = type.iceberg
    children = [_column_to_proto(child) for child in type.children]
    if type.kind == "struct":
        message.struct_fields.extend(children)
    elif type.kind == "list":
        message.list_element.CopyFrom(children[0])
    elif type.kind == "map":
        message.map_key.CopyFrom(children[0])
        message.map_value.CopyFrom(children[1])
    return message


def _column_from_proto(message: proto.Column) -> Column:
    if not 0 <= message.type < len(KINDS):
        raise UnsupportedVersion(f"column {message.name!r} has the type number {message.type}, unknown to this library")
    kind = KINDS[message.type]
    properties = dict(message.properties)
    doc = properties.pop(DOC_PROPERTY, "")
    iceberg = properties.pop(ICEBERG_TYPE_PROPERTY, "")
    children: list[proto.Column] = []
    if kind == "struct":
        children = list(message.struct_fields)
    elif kind == "list" and message.HasField("list_element"):
        children = [message.list_element]
    elif kind == "map" and message.HasField("map_key") and message.HasField("map_value"):
        children = [message.map_key, message.map_value]
    type = Type(
        kind,
        length=message.length,
        precision=message.precision,
        scale=message.scale,
        children=tuple(_column_from_proto(child) for child in children),
        iceberg=iceberg,
    )
    return Column(message.name, type, message.nullable, doc, id=message.id, properties=properties)


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
            return Type("fixed", length=len(type))
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
    # unknown, geometry, geography and whatever comes next: bytes to readers of the format, exact to Iceberg.
    return Type(kind) if kind else Type("binary", iceberg=str(type))


def _all_ids_assigned(columns: tuple[Column, ...]) -> bool:
    return all(column.id and _all_ids_assigned(column.type.children) for column in columns)


def arrow_schema(schema: Schema) -> Any:
    """The pyarrow schema in which a scan of a table with this schema answers."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(to_iceberg(schema), include_field_ids=False)
