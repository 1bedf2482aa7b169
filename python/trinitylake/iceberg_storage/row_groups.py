"""**The rule for which rows make a row group** of a data file, in whatever way its rows come to us.

Properties of the table say so, as for PyIceberg and Iceberg: `write.parquet.row-group-limit`, of how many rows one is,
and `write.parquet.row-group-size-bytes`, how large it may be, here as Arrow holds the rows. What the table does not say
is for who writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int

#: A row group is written when so many bytes of rows have come together, as Arrow holds them.
ROW_GROUP_SIZE_BYTES = 32 << 20
#: As large as the table may make one, since so much is in memory for each file that is written.
MAX_ROW_GROUP_SIZE_BYTES = 64 << 20
#: With threads to encode in, one is also written of so many rows and bytes: so they are encoded while others are read.
_ENCODED_AHEAD_ROWS = 100_000
_ENCODED_AHEAD_SIZE_BYTES = 2 << 20


@dataclass(frozen=True)
class RowGroups:
    """How rows are put into row groups.

    Attributes:
        rows: of one, at most.
        size_bytes: of rows that are enough for one.
        is_ahead: whether fewer are enough as well, since others are read while they are encoded.
    """

    rows: int
    size_bytes: int
    is_ahead: bool

    def complete(self, rows: int, size_bytes: int) -> int:
        """How many of the rows that wait make whole row groups; 0 if they are to wait for others."""
        if rows >= self.rows:
            return rows // self.rows * self.rows
        is_enough = size_bytes >= self.size_bytes or (
            self.is_ahead and rows >= _ENCODED_AHEAD_ROWS and size_bytes >= _ENCODED_AHEAD_SIZE_BYTES
        )
        return rows if is_enough else 0


def row_groups_of(properties: Mapping[str, str], size_bytes: int | None, is_ahead: bool) -> RowGroups:
    """The row groups of a table.

    A number that cannot be one, since it is not positive, counts as if it were not there.

    Args:
        properties: of the table.
        size_bytes, is_ahead: as `RowGroups` has them, if the table says nothing.

    Raises `ValueError` for a property that is no number.
    """
    rows = _told(properties, TableProperties.PARQUET_ROW_GROUP_LIMIT)
    told_size_bytes = _told(properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES)
    if rows is None and told_size_bytes is None:
        return RowGroups(TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT, size_bytes or ROW_GROUP_SIZE_BYTES, is_ahead)
    return RowGroups(
        rows=rows or TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT,
        size_bytes=min(told_size_bytes or MAX_ROW_GROUP_SIZE_BYTES, MAX_ROW_GROUP_SIZE_BYTES),
        is_ahead=False,
    )


def without_row_groups(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table without the size of row groups, of which PyIceberg would warn that it obeys none."""
    return {key: value for key, value in properties.items() if key != TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES}


def _told(properties: Mapping[str, str], name: str) -> int | None:
    number = property_as_int(dict(properties), name)
    return number if number is not None and number > 0 else None
