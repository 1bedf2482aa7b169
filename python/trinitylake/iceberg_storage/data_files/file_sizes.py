"""Sizes of data files and of their row groups.

Without a property for the target size, files are smaller than Iceberg's 512 MiB, because a writer to an object store
holds several files in memory. The properties `write.parquet.row-group-limit`, a number of rows, and
`write.parquet.row-group-size-bytes`, the size of the Arrow data here, set the size of row groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int

Item = TypeVar("Item")

#: Target size if the table has no property for it. Smaller than Iceberg's 512 MiB, because a writer to an object store
#: holds several files in memory.
TARGET_FILE_SIZE_BYTES = 96 << 20
#: A file smaller than this part of the target size is small.
SMALL_PART = 0.75
#: Size below which a file is small, if the table has no property for the target size.
SMALL_FILE_SIZE_BYTES = int(TARGET_FILE_SIZE_BYTES * SMALL_PART)


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


def grouped(
    items: Iterable[Item], size_of: Callable[[Item], int], max_size_bytes: int, max_count: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Consecutive items in lists of at most this total size and number. A larger item is alone in its list."""
    group: list[Item] = []
    size_bytes = 0
    for item in items:
        more = size_of(item)
        if group and (size_bytes + more > max_size_bytes or len(group) == max_count):
            yield group
            group, size_bytes = [], 0
        group.append(item)
        size_bytes += more
    if group:
        yield group
