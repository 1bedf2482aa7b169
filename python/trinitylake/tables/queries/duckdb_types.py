"""Mapping between types of Iceberg columns and DuckDB types, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.schema_projection import has_plain_part_names
from trinitylake.iceberg_storage.pyiceberg_patches import VariantType
from trinitylake.tables.sql_sandbox import quoted

_PRIMITIVE: dict[type[iceberg.IcebergType], str] = {
    iceberg.BooleanType: "BOOLEAN",
    iceberg.IntegerType: "INTEGER",
    iceberg.LongType: "BIGINT",
    iceberg.FloatType: "FLOAT",
    iceberg.DoubleType: "DOUBLE",
    iceberg.DateType: "DATE",
    iceberg.TimeType: "TIME",
    iceberg.TimestampType: "TIMESTAMP",
    iceberg.TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    iceberg.TimestampNanoType: "TIMESTAMP_NS",
    iceberg.TimestamptzNanoType: "TIMESTAMP WITH TIME ZONE",
    iceberg.StringType: "VARCHAR",
    iceberg.BinaryType: "BLOB",
    iceberg.FixedType: "BLOB",
    iceberg.UUIDType: "UUID",
    iceberg.UnknownType: "INTEGER",
    VariantType: "VARIANT",
}
_UUID = "UUID"
#: Maximum nesting for reading files with DuckDB. Its time for a Parquet file doubles with each level of lists and maps.
_DEPTH = 12
#: Types that DuckDB reads from Parquet files with the same result as PyIceberg.
_READ_ALIKE = frozenset(_PRIMITIVE) - {
    iceberg.TimestampNanoType,
    iceberg.TimestamptzNanoType,
    iceberg.UUIDType,
    iceberg.UnknownType,
    VariantType,
}


def duckdb_type(type: iceberg.IcebergType, column: str) -> str:
    """The DuckDB type of an Iceberg type. Raises `InvalidArgument` for a type that queries do not support."""
    match type:
        case iceberg.DecimalType():
            return f"DECIMAL({type.precision},{type.scale})"
        case iceberg.StructType():
            inner = (f"{quoted(one.name)} {duckdb_type(one.field_type, column)}" for one in type.fields)
            return f"STRUCT({', '.join(inner)})"
        case iceberg.ListType():
            return f"{duckdb_type(type.element_type, column)}[]"
        case iceberg.MapType():
            return f"MAP({duckdb_type(type.key_type, column)}, {duckdb_type(type.value_type, column)})"
    if (name := _PRIMITIVE.get(type.__class__)) is None:
        raise InvalidArgument(
            f"column {column} has the type {type}, which SQL queries do not support: read others with scan(columns=[…])"
        )
    return name


def is_filtered_alike(type: iceberg.IcebergType) -> bool:
    """Whether filters on a column of this type have the same result in Iceberg and DuckDB.

    False for times with a zone and nanoseconds, which DuckDB truncates, and for nested columns, which PyIceberg cannot
    filter.
    """
    return type.is_primitive and not isinstance(type, iceberg.TimestamptzNanoType | iceberg.UnknownType | VariantType)


def are_read_alike(metadata: TableMetadata) -> bool:
    """Whether DuckDB, given the ids of the columns, reads every Parquet file of a table as Iceberg requires.

    DuckDB finds columns by id, but fields of a nested column by name. So a nested column must not have changed since
    the table was created, and its fields must have the same names in files.
    """
    if metadata.name_mapping() is not None:  # files without ids
        return False
    ids = {schema.schema_id for schema in metadata.schemas}
    is_whole_history = ids == set(range(len(ids)))
    for field in metadata.schema().fields:
        if field.initial_default is not None or not _is_read_alike(field.field_type):
            return False
        if not has_plain_part_names(field.field_type):
            return False
        # In files from before a column was widened to double, DuckDB would compare floats as floats.
        if (not field.field_type.is_primitive or isinstance(field.field_type, iceberg.DoubleType)) and not (
            is_whole_history and all(_is_same(schema, field) for schema in metadata.schemas)
        ):
            return False
    return True


def _is_read_alike(type: iceberg.IcebergType, depth: int = 0) -> bool:
    if depth > _DEPTH:
        return False
    match type:
        case iceberg.DecimalType():
            return True
        case iceberg.StructType():
            return all(one.initial_default is None and _is_read_alike(one.field_type, depth + 1) for one in type.fields)
        case iceberg.ListType():
            return _is_read_alike(type.element_type, depth + 1)
        case iceberg.MapType():
            return _is_read_alike(type.key_type, depth + 1) and _is_read_alike(type.value_type, depth + 1)
    return type.__class__ in _READ_ALIKE


def _is_same(schema: Schema, field: iceberg.NestedField) -> bool:
    """Whether a schema lacks a column, or has it with the same type."""
    there = next((one for one in schema.fields if one.field_id == field.field_id), None)
    return there is None or there.field_type == field.field_type


def with_uuids(schema: pa.Schema, types: Sequence[str], connection: Any) -> pa.Schema:
    """Set Arrow's UUID type for columns of type UUID, which DuckDB returns as strings.

    Args:
        types: the DuckDB types of the columns, as strings.
        connection: of DuckDB, which parses the types.
    """
    fields = [
        field.with_type(_with_uuids(field.type, connection.sqltype(type))) if _UUID in type else field
        for field, type in zip(schema, types, strict=True)
    ]
    return pa.schema(fields)


def _with_uuids(kind: pa.DataType, duckdb_type: Any) -> pa.DataType:
    """An Arrow type with UUIDs at all places where the DuckDB type has UUIDs."""
    if duckdb_type.id == _UUID.lower():
        return pa.uuid()
    if duckdb_type.id not in ("struct", "list", "array", "map") or _UUID not in str(duckdb_type):
        return kind
    children = [child for _, child in duckdb_type.children if not isinstance(child, int)]  # the length of an array
    parts = [part.with_type(_with_uuids(part.type, child)) for part, child in zip(_parts(kind), children, strict=True)]
    match duckdb_type.id:
        case "struct":
            return pa.struct(parts)
        case "map":
            return pa.map_(*parts)
    return pa.large_list(*parts)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]
