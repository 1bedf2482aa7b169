"""Sizes of row groups in data files.

Two Iceberg properties of the table set them: `write.parquet.row-group-limit`, a number of rows, and
`write.parquet.row-group-size-bytes`, which is the size of the Arrow data here. Without these properties the writer
chooses the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int

#: Default size of the Arrow data of a row group.
ROW_GROUP_SIZE_BYTES = 32 << 20
#: Larger values of the property are reduced to this, because the writer holds a row group of each open file in memory.
MAX_ROW_GROUP_SIZE_BYTES = 64 << 20


@dataclass(frozen=True)
class RowGroups:
    """Limits of a row group: maximum number of rows, and size of the Arrow data at which it is complete."""

    rows: int
    size_bytes: int

    def complete(self, rows: int, size_bytes: int) -> int:
        """The number of buffered rows that complete row groups; 0 if none is complete."""
        if rows >= self.rows:
            return rows // self.rows * self.rows
        return rows if size_bytes >= self.size_bytes else 0


def row_groups_of(properties: Mapping[str, str], size_bytes: int | None = None) -> RowGroups:
    """The limits of a table; `size_bytes` applies if no property is set.

    A property that is not positive is ignored. Raises `ValueError` for a property that is not a number.
    """
    rows = _positive(properties, TableProperties.PARQUET_ROW_GROUP_LIMIT)
    max_size_bytes = _positive(properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES)
    if rows is None and max_size_bytes is None:
        return RowGroups(TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT, size_bytes or ROW_GROUP_SIZE_BYTES)
    return RowGroups(
        rows or TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT,
        min(max_size_bytes or MAX_ROW_GROUP_SIZE_BYTES, MAX_ROW_GROUP_SIZE_BYTES),
    )


def _positive(properties: Mapping[str, str], name: str) -> int | None:
    number = property_as_int(dict(properties), name)
    return number if number is not None and number > 0 else None
