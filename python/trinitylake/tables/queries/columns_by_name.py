"""Checks whether the columns of a Parquet file have the names of the table's columns, so that DuckDB may use names.

Iceberg finds columns by id. DuckDB does so with a schema that has ids, but then it opens no file for planning, and has
no bounds of columns, by which it orders joins.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from trinitylake.tables.sql_sandbox import folded

#: Where Arrow has the id of a Parquet column.
_ID = b"PARQUET:field_id"
#: In the metadata of a file whose columns of bytes are shapes, which DuckDB reads as such.
_OF_SHAPES = b"geo"


def has_columns_by_name(path: str, columns: pa.Schema) -> bool:
    """Whether a file has each of the columns under its name, with its id and type, and none that DuckDB takes for it.

    False for a file that cannot be read, and for nested columns.

    Args:
        path: of a file on this machine.
        columns: of the table, with ids as Arrow has those of Parquet.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            found = file.schema_arrow
    except (OSError, pa.ArrowException):
        return False
    if len({folded(name) for name in found.names}) < len(found) or _OF_SHAPES in (found.metadata or {}):
        return False
    there = {field.name: _known_by(field) for field in found}
    return all(not pa.types.is_nested(one.type) and there.get(one.name) == _known_by(one) for one in columns)


def _known_by(field: pa.Field) -> tuple[bytes | None, pa.DataType]:
    """Id and type; of types that differ in Arrow alone, the same."""
    type = field.type
    if pa.types.is_large_string(type):
        type = pa.string()
    elif pa.types.is_large_binary(type):
        type = pa.binary()
    return (field.metadata or {}).get(_ID), type
