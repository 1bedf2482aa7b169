"""Keys of rows: columns in which equal keys have equal bytes, a check for duplicates, and look-up of dense integers.

A null equals nothing, as in SQL. NaN equals NaN, and -0.0 equals 0.0, as in joins of DuckDB and Spark. Dense integers,
such as most ids, are looked up in an array with one memory access instead of a hash join.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.partitioned_rows import comparable
from trinitylake.tables.merging.row_operations import take_rows

#: Maximum distance between the smallest and the greatest key. Its row numbers take 64 MiB.
MAX_SPAN = 1 << 24
#: Maximum length of the array per looked-up row, because creating the array also takes time.
_PLACES_PER_ROW = 16


class DenseKeys:
    """Index from keys to rows. Keys are unique; NULL is not a key.

    Args:
        values: the keys, at least one.
        rows: the row number of each key, below 2³¹.
    """

    def __init__(self, values: np.ndarray, rows: np.ndarray) -> None:
        self._low = int(values.min())
        self._span = int(values.max()) - self._low + 1
        # One more position, for all missing keys.
        self._rows = np.full(self._span + 1, -1, np.int32)
        self._rows[self._places(values)] = rows

    @classmethod
    def of(cls, source: pa.Table, keys: Sequence[str], rows: int) -> DenseKeys | None:
        """Index of the keys of `source`; None unless these are dense and unique. `rows` is the number of look-ups."""
        if len(keys) != 1 or not is_whole_number(source.schema.field(keys[0]).type):
            return None
        column = source.column(keys[0])
        values, numbers = whole_numbers(column.drop_null()), np.arange(len(column), dtype=np.int32)
        if column.null_count:
            numbers = numbers[column.is_valid().to_numpy()]
        if not len(values):
            return None
        span = int(values.max()) - int(values.min()) + 1
        if span > min(MAX_SPAN, _PLACES_PER_ROW * (rows + len(column))):
            return None
        found = cls(values, numbers)
        return found if (found._rows[found._places(values)] == numbers).all() else None

    def rows_of(self, column: pa.ChunkedArray) -> np.ndarray:
        """The row number for each value of a column; -1 for a value that is not a key."""
        found: np.ndarray = self._rows[self._places(whole_numbers(column.fill_null(0)))]
        if column.null_count:
            found[column.is_null().to_numpy()] = -1
        return found

    def _places(self, values: np.ndarray) -> np.ndarray:
        """Positions of keys in the array. A key below the smallest key wraps around to the last position."""
        away = values.view(np.uint64) - np.uint64(self._low % (1 << 64))
        places: np.ndarray = np.minimum(away, np.uint64(self._span)).view(np.int64)
        return places


def is_whole_number(kind: pa.DataType) -> bool:
    """Whether `whole_numbers` supports a column type: Iceberg's int, long and date."""
    return bool(kind in (pa.int32(), pa.int64(), pa.date32()))


def whole_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a column without nulls, as 64-bit integers."""
    if column.type == pa.date32():
        column = column.cast(pa.int32())
    values: np.ndarray = column.to_numpy().astype(np.int64, copy=False)
    return values


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
    if pa.types.is_nested(kind):
        raise InvalidArgument(f"column {name} is a {kind}, which cannot be a key")
    return comparable(pc.add(column, pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else column)  # -0.0 is 0.0
