"""Keys of rows: conversion to columns in which equal keys have equal bytes, and a check for duplicates.

A null equals nothing, as in SQL. NaN equals NaN, and -0.0 equals 0.0, as in joins of DuckDB and Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.errors import InvalidArgument
from trinitylake.tables.merging.dense_keys import is_whole_number, whole_numbers
from trinitylake.tables.merging.take_rows import take_rows

#: Number of keys that an error names.
_SHOWN = 5


def join_columns(rows: pa.Table, columns: Sequence[str]) -> list[pa.ChunkedArray]:
    """The key columns of some rows in the form for joins. Raises `InvalidArgument` for a type that cannot be a key."""
    return [_comparable(rows.column(name), name) for name in columns]


def key_names(columns: Sequence[str]) -> list[str]:
    """Names for join columns, which no column of a table has."""
    return [f"trinitylake:key{number}" for number in range(len(columns))]


def check_unique(rows: pa.Table, columns: Sequence[str]) -> None:
    """Raise `InvalidArgument` if two rows have the same key. Keys with a NULL are not duplicates."""
    names = key_names(columns)
    keys = pa.table(dict(zip(names, join_columns(rows, columns), strict=True)))
    if len(names) == 1 and _all_differ(keys[0].drop_null()):
        return
    keys = keys.append_column("trinitylake:row", pa.array(np.arange(rows.num_rows)))
    grouped = keys.group_by(names).aggregate([("trinitylake:row", "min"), ([], "count_all")])
    repeated = grouped.filter(pc.greater(grouped["count_all"], 1)).drop_null()
    if repeated.num_rows:
        positions = repeated["trinitylake:row_min"].combine_chunks().sort()
        count = "1 key occurs" if repeated.num_rows == 1 else f"{repeated.num_rows} keys occur"
        raise InvalidArgument(f"{count} more than once in the data: {shown(rows, columns, positions)}")


def _all_differ(column: pa.ChunkedArray) -> bool:
    if not is_whole_number(column.type):
        return bool(pc.count_distinct(column).as_py() == len(column))
    ascending = np.sort(whole_numbers(column))  # takes a tenth of the time of hashing
    return not (ascending[1:] == ascending[:-1]).any()


def shown(rows: pa.Table, columns: Sequence[str], positions: pa.Array) -> str:
    """The first few keys of these rows, for an error."""
    keys = take_rows(rows.select(columns), positions.slice(0, _SHOWN).to_numpy()).to_pylist()
    text = ", ".join("(" + ", ".join(f"{name}={value!r}" for name, value in key.items()) + ")" for key in keys)
    return f"{text}, …" if len(positions) > _SHOWN else text


def _comparable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):  # Arrow cannot group or join by UUIDs
        return _comparable(pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type), name)
    if pa.types.is_nested(kind):
        raise InvalidArgument(f"column {name} is a {kind}, which cannot be a key")
    if not pa.types.is_floating(kind):
        return column
    bits = pa.int64() if kind == pa.float64() else pa.int32()
    plain = pc.add(column, pa.scalar(0.0, kind))  # -0.0 becomes 0.0
    plain = pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), kind), plain)
    return pa.chunked_array([chunk.view(bits) for chunk in plain.chunks], bits)
