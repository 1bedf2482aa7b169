"""Look-up of dense integer keys, such as most ids, in an array that has the row number of each key.

A look-up takes one memory access instead of a hash join.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

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
