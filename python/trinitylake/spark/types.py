"""Converts Iceberg types to Spark types, and Arrow batches to the layout that Spark's JVM reads."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Accessor, Schema
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from trinitylake.errors import InvalidArgument
from trinitylake.tables.text_casts import has_uuids, texts_of_uuids

#: The argument for the time zone, which Spark 4.2 and later need for timestamps; Spark 4.1 assumes UTC.
_IN_UTC: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def spark_schema(schema: Schema) -> spark.StructType:
    """The Spark schema of an Iceberg schema. Raises `InvalidArgument` for a type that Spark lacks."""
    return _spark_struct(schema.fields)


def quoted(name: str) -> str:
    """A name as an identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def path_to_field(schema: Schema, field_id: int) -> list[str]:
    """Names of the column and the nested fields that contain a field; an empty list for an unknown or dropped field."""
    if schema.find_column_name(field_id) is None:
        return []
    path: list[str] = []
    accessor: Accessor | None = schema.accessor_for_field(field_id)
    kind: iceberg.IcebergType = schema.as_struct()
    while accessor is not None:
        assert isinstance(kind, iceberg.StructType)
        field = kind.fields[accessor.position]
        path.append(field.name)
        accessor, kind = accessor.inner, field.field_type
    return path


def spelled(name: str, known: Iterable[str]) -> str:
    """The name in `known` that equals `name`, or else differs from it only in case; otherwise `name` itself."""
    known = list(known)
    return name if name in known else next((one for one in known if one.lower() == name.lower()), name)


def spelled_as(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type `given` with the spelling of `wanted` for fields whose names differ only in case, at any depth."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in wanted}
        named = [field.with_name(spelled(field.name, known)) for field in given]
        return pa.struct([one.with_type(spelled_as(one.type, known.get(one.name, one.type))) for one in named])
    for is_list, list_of in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_list(given) and (pa.types.is_list(wanted) or pa.types.is_large_list(wanted)):
            return list_of(given.value_field.with_type(spelled_as(given.value_type, wanted.value_type)))
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        key = given.key_field.with_type(spelled_as(given.key_type, wanted.key_type))
        return pa.map_(key, given.item_field.with_type(spelled_as(given.item_type, wanted.item_type)))
    return given


def with_names_of(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The schema of `rows` with the table's spelling of names, also in nested columns."""
    return pa.schema(list(spelled_as(pa.struct(list(rows)), pa.struct(list(table)))))


def to_spark_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the columns, order and types of `target`, a schema from `arrow_schema_of`."""
    selected = batch.select(target.names)
    if selected.schema.types == target.types:
        return pa.RecordBatch.from_arrays(selected.columns, schema=target)
    columns = [_cast(column, field) for column, field in zip(selected.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def from_spark_batch(batch: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of Spark's JVM: use the table's spelling of names, and add offsets to empty lists and maps.

    Spark ignores case in names. Java omits the offsets of empty lists and maps, but Arrow needs them.
    """
    schema = with_names_of(table, batch.schema)
    columns = [_with_offsets(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Give an array a type that differs only in names of fields. Arrow's `view` rejects null structs with required
    fields.
    """
    if pa.types.is_struct(kind):
        parts = [_with_offsets(array.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null()) if parts else array
    if not (pa.types.is_list(kind) or pa.types.is_map(kind)):
        return array
    if not len(array):
        return pa.array([], kind)
    entries = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    values = [_with_offsets(array.values, entries)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, values)


def optional(schema: spark.StructType) -> spark.StructType:
    """The schema with every column and nested part nullable, as in a table that Spark creates for a frame."""
    text = re.sub(r'("(?:nullable|containsNull|valueContainsNull)":)false', r"\1true", schema.json())
    return spark.StructType.fromJson(json.loads(text))


def check_assignable(rows: spark.StructType, table: Schema) -> None:
    """Raise `InvalidArgument` for a column of a frame whose type cannot be stored in the table's column.

    Spark does not check a write to a Python data source. The rule is Spark's ANSI store assignment, but conversions
    whose result depends on the session (time zone, format of strings) need a `CAST` in the query.
    """
    columns = {field.name: field.field_type for field in table.fields}
    for field in rows.fields:
        kind = columns.get(spelled(field.name, columns))
        if kind is not None and (wrong := _unassignable(field.dataType, kind, field.name)):
            name, given, wanted = wrong
            raise InvalidArgument(
                f"column {name} of the table is {wanted}, and the rows have {given.simpleString()}, which Spark does "
                f"not store there as it is: write CAST({name} AS …) in the query"
            )


def _unassignable(
    given: spark.DataType, wanted: iceberg.IcebergType, name: str
) -> tuple[str, spark.DataType, iceberg.IcebergType] | None:
    """Name and both types of the first nested part that does not fit; None if all parts fit."""
    parts: list[tuple[spark.DataType, iceberg.IcebergType, str]] = []
    if isinstance(given, spark.StructType) and isinstance(wanted, iceberg.StructType):
        fields = {field.name: field.field_type for field in wanted.fields}
        found = [(one, spelled(one.name, fields)) for one in given.fields]
        parts = [(one.dataType, fields[part], f"{name}.{part}") for one, part in found if part in fields]
    elif isinstance(given, spark.ArrayType) and isinstance(wanted, iceberg.ListType):
        parts = [(given.elementType, wanted.element_type, f"{name}.element")]
    elif isinstance(given, spark.MapType) and isinstance(wanted, iceberg.MapType):
        parts = [(given.keyType, wanted.key_type, f"{name}.key"), (given.valueType, wanted.value_type, f"{name}.value")]
    elif isinstance(given, spark.NullType) or type(given) in _ASSIGNABLE.get(type(wanted), (type(given),)):
        return None
    else:
        return name, given, wanted
    return next((wrong for part in parts if (wrong := _unassignable(*part))), None)


def arrow_schema_of(schema: spark.StructType) -> pa.Schema:
    """The Arrow types that Spark's JVM reads as the types of `schema`."""
    arrow: pa.Schema = to_arrow_schema(schema, **_IN_UTC)
    return arrow


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        if has_uuids(column.type):  # Spark represents UUIDs as strings
            column = texts_of_uuids(column, field.type)
        if (kind := spelled_as(column.type, field.type)) != column.type:
            column = column.view(kind)
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(f"column {field.name}: cannot read {column.type} as {field.type}: {error}") from error


_PRIMITIVE: dict[type[iceberg.IcebergType], spark.DataType] = {
    iceberg.BooleanType: spark.BooleanType(),
    iceberg.IntegerType: spark.IntegerType(),
    iceberg.LongType: spark.LongType(),
    iceberg.FloatType: spark.FloatType(),
    iceberg.DoubleType: spark.DoubleType(),
    iceberg.DateType: spark.DateType(),
    iceberg.TimestampType: spark.TimestampNTZType(),
    iceberg.TimestamptzType: spark.TimestampType(),
    iceberg.StringType: spark.StringType(),
    iceberg.UUIDType: spark.StringType(),
    iceberg.FixedType: spark.BinaryType(),
    iceberg.BinaryType: spark.BinaryType(),
    iceberg.UnknownType: spark.NullType(),
}


_NUMBERS: tuple[type[spark.DataType], ...] = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
)
_TEXTS: tuple[type[spark.DataType], ...] = (spark.StringType, spark.CharType, spark.VarcharType)
#: The Spark types that can be stored in a column without a conversion that depends on the session. Types that Spark
#: lacks are missing: the conversion raises an error for them.
_ASSIGNABLE: dict[type[iceberg.IcebergType], tuple[type[spark.DataType], ...]] = {
    iceberg.BooleanType: (spark.BooleanType,),
    iceberg.IntegerType: _NUMBERS,
    iceberg.LongType: _NUMBERS,
    iceberg.FloatType: _NUMBERS,
    iceberg.DoubleType: _NUMBERS,
    iceberg.DecimalType: _NUMBERS,
    iceberg.DateType: (spark.DateType,),
    iceberg.TimestampType: (spark.TimestampNTZType, spark.DateType),
    iceberg.TimestamptzType: (spark.TimestampType,),
    iceberg.StringType: (*_TEXTS, spark.BooleanType, spark.DateType, *_NUMBERS[:4]),
    iceberg.UUIDType: (*_TEXTS, spark.BinaryType),
    iceberg.FixedType: (spark.BinaryType,),
    iceberg.BinaryType: (spark.BinaryType, *_TEXTS),
    iceberg.UnknownType: (),
    iceberg.StructType: (),
    iceberg.ListType: (),
    iceberg.MapType: (),
}


def _spark_type(kind: iceberg.IcebergType) -> spark.DataType:
    match kind:
        case iceberg.StructType():
            return _spark_struct(kind.fields)
        case iceberg.ListType():
            return spark.ArrayType(_spark_type(kind.element_type), not kind.element_required)
        case iceberg.MapType():
            return spark.MapType(_spark_type(kind.key_type), _spark_type(kind.value_type), not kind.value_required)
        case iceberg.DecimalType():
            return spark.DecimalType(kind.precision, kind.scale)
    if (known := _PRIMITIVE.get(type(kind))) is None:
        raise InvalidArgument(f"Spark has no type for {kind} columns: name the others in the option columns")
    return known


def _spark_struct(fields: Iterable[iceberg.NestedField]) -> spark.StructType:
    struct = spark.StructType()
    for field in fields:
        struct.add(
            field.name, _spark_type(field.field_type), not field.required, {"comment": field.doc} if field.doc else None
        )
    return struct
