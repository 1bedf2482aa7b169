"""Converts Arrow schemas to columns (format §9), for tables that are created from data, and columns to Arrow schemas.

More Arrow types are accepted than by PyIceberg: unsigned integers become the next wider signed type, nanoseconds become
microseconds before format version 3, times with a zone become UTC instants, dictionaries become their values.
The Arrow schemas of tables equal those of PyIceberg's `schema_to_pyarrow`, except that geometries are always bytes,
whichever packages are installed. PyIceberg is not imported, because its import takes longer than a small command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from trinitylake.definitions.sql_types import (
    DEFAULT_FRACTION_DIGITS,
    MAX_DECIMAL_PRECISION,
    MAX_FRACTION_DIGITS,
    Column,
    Type,
)
from trinitylake.errors import InvalidArgument

_DOC = b"doc"
#: Metadata key of an Arrow field for the id of its Parquet column.
_FIELD_ID = b"PARQUET:field_id"
#: The first format version with nanoseconds and the type `unknown`.
_V3 = 3


def arrow_schema_of(data: Any) -> pa.Schema | None:
    """The Arrow schema of a schema, or of an object with the Arrow C interface; None for anything else.

    Only the schema is read; a stream is consumed no further than its library needs for that.
    """
    if isinstance(data, pa.Schema):
        return data
    for attribute in (data, getattr(data, "schema", None)):
        if isinstance(attribute, pa.Schema):
            return attribute
    if hasattr(data, "__arrow_c_schema__"):
        return pa.schema(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).schema
    if hasattr(data, "__arrow_c_array__"):
        return pa.record_batch(data).schema
    return None


def from_arrow(schema: pa.Schema, format_version: int) -> list[Column]:
    """The columns of an Arrow schema in a table of an Iceberg format version.

    Raises `InvalidArgument` for a column whose type Iceberg lacks.
    """
    return [_column(field, field.name, format_version) for field in schema]


def _column(field: pa.Field, path: str, version: int) -> Column:
    doc = (field.metadata or {}).get(_DOC, b"").decode("utf-8", "replace")
    return Column(field.name, _type(field.type, path, version), field.nullable, doc)


def _nested(name: str, field: pa.Field, path: str, nullable: bool, version: int) -> Column:
    return Column(name, _type(field.type, f"{path}.{name}", version), nullable)


def _type(type: pa.DataType, path: str, version: int) -> Type:
    is_ = pa.types
    if is_.is_struct(type):
        fields = [type.field(position) for position in range(type.num_fields)]
        return Type("struct", children=tuple(_column(field, f"{path}.{field.name}", version) for field in fields))
    if is_.is_map(type):
        key = _nested("key", type.key_field, path, False, version)
        return Type("map", children=(key, _nested("value", type.item_field, path, type.item_field.nullable, version)))
    if is_list(type):
        field = type.value_field
        return Type("list", children=(_nested("element", field, path, field.nullable, version),))
    if is_.is_dictionary(type) or is_.is_run_end_encoded(type):
        return _type(type.value_type, path, version)
    if isinstance(type, pa.UuidType):
        return Type("fixed", length=16, iceberg="uuid")
    if isinstance(type, pa.BaseExtensionType):
        return _type(type.storage_type, path, version)
    if is_.is_integer(type):
        return _integer(type)
    if is_.is_decimal(type):
        return _decimal(type, path)
    if is_.is_fixed_size_binary(type):
        return Type("fixed", length=type.byte_width)
    if is_.is_timestamp(type):
        kind = "timestamptz" if type.tz else "timestamp"
        return Type(kind, precision=9) if type.unit == "ns" and version >= _V3 else Type(kind)
    if is_.is_null(type) and version >= _V3:
        return Type("binary", iceberg="unknown")
    for test, kind in _SIMPLE:
        if test(type):
            return Type(kind)
    raise InvalidArgument(f"column {path!r}: the Arrow type {type} has no counterpart in Iceberg; cast it first")


def type_text(type: pa.DataType) -> str:
    """The name of a type for error messages: in SQL, or Arrow's name if tables have no such type."""
    try:
        return str(_type(type, "", _V3))
    except InvalidArgument:
        return str(type)


def is_list(type: pa.DataType) -> bool:
    """Whether a type is a list, in any of Arrow's layouts."""
    is_ = pa.types
    return bool(
        is_.is_list(type)
        or is_.is_large_list(type)
        or is_.is_fixed_size_list(type)
        or is_.is_list_view(type)
        or is_.is_large_list_view(type)
    )


def _integer(type: pa.DataType) -> Type:
    if pa.types.is_uint64(type):
        return Type("decimal", precision=20)
    if pa.types.is_uint32(type) or type.bit_width == 64:
        return Type("bigint")
    if type.bit_width == 32 or pa.types.is_uint16(type):
        return Type("int")
    return Type("smallint")


def _decimal(type: pa.DataType, path: str) -> Type:
    if type.precision > MAX_DECIMAL_PRECISION or not 0 <= type.scale <= type.precision:
        raise InvalidArgument(f"column {path!r}: {type} does not fit a decimal of up to 38 digits; cast it first")
    return Type("decimal", precision=type.precision, scale=type.scale)


_SIMPLE = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_float16, "real"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "varchar"),
    (pa.types.is_large_string, "varchar"),
    (pa.types.is_string_view, "varchar"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
)


def to_arrow(columns: Iterable[Column], *, with_ids: bool) -> pa.Schema:
    """The Arrow schema for rows with these columns, optionally with field ids as in Parquet files.

    Raises `InvalidArgument` for a type that Arrow lacks.
    """
    return pa.schema([_arrow_field(column, with_ids) for column in columns])


def _arrow_field(column: Column, with_ids: bool) -> pa.Field:
    metadata = {_DOC: column.doc.encode()} if column.doc else {}
    if with_ids:
        metadata[_FIELD_ID] = str(column.id).encode()
    return pa.field(column.name, _arrow_type(column, with_ids), column.nullable, metadata)


def _arrow_type(column: Column, with_ids: bool) -> pa.DataType:
    type = column.type
    match type.kind:
        case "struct":
            return pa.struct([_arrow_field(child, with_ids) for child in type.children])
        case "list":
            return pa.large_list(_arrow_field(type.children[0], with_ids))
        case "map":
            return pa.map_(*(_arrow_field(child, with_ids) for child in type.children))
        case "decimal":
            return pa.decimal128(type.precision, type.scale)
        case _ if type.iceberg.startswith(("geometry", "geography")):
            return pa.large_binary()
        case _ if type.iceberg:
            if (found := _ARROW.get(type.iceberg)) is None:
                raise InvalidArgument(
                    f"column {column.name} is a {type.iceberg}, for which Arrow has no type: name other columns, or "
                    "let an engine that knows the type process the table, for instance Spark"
                )
            return found
        case "fixed":
            return pa.binary(type.length)
        case "timestamp" | "timestamptz" if type.precision == MAX_FRACTION_DIGITS:
            return pa.timestamp("ns", None if type.kind == "timestamp" else "UTC")
        case "time" | "timestamp" | "timestamptz" if type.precision != DEFAULT_FRACTION_DIGITS:
            return pa.int64()
    return _ARROW[type.kind]


#: Arrow types by the kind of a declared type, or by the name of an Iceberg type. smallint, char and timetz have the
#: Arrow type of the Iceberg type in which they are stored.
_ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "char": pa.large_string(),
    "varchar": pa.large_string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timetz": pa.int64(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "binary": pa.large_binary(),
    "uuid": pa.uuid(),
    "unknown": pa.null(),
}
