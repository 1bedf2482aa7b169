"""Byte ranges of leaf columns in a Parquet file.

With these ranges, a large file is fetched by parallel requests. Arrow itself reads one range after another from a file
that Python opened, and each range costs one round trip to a remote store.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Two columns whose distance in the file is at most this are fetched in one request, which is faster than two requests.
HOLE_MAX_SIZE_BYTES = 1 << 20
#: Largest compressed size of columns that is prefetched from one file. Above it, Arrow fetches each part separately.
MAX_SIZE_BYTES = 32 << 20
_FIELD_ID = b"PARQUET:field_id"


def column_ranges(end: bytes, size_bytes: int, field_ids: Container[int]) -> list[tuple[int, int]]:
    """Byte ranges (offset and length) of leaf columns in a file, without the part that `end` contains.

    Args:
        end: the last bytes of the file.
        size_bytes: the size of the whole file.
        field_ids: the ids of the leaf columns.

    Returns:
        Ascending ranges. The list is empty if no column has such an id, if the ranges exceed `MAX_SIZE_BYTES`, or if
        `end` lacks the footer.
    """
    import pyarrow.parquet as pq  # takes half of the time to load Arrow

    try:
        metadata = pq.read_metadata(pa.BufferReader(end))
        ids = leaf_ids(metadata, metadata.schema.to_arrow_schema())
    except (pa.ArrowException, OSError):  # the reader of the file raises the error
        return []
    ranges: list[tuple[int, int]] = []
    wanted = [number for number, id in enumerate(ids) if id in field_ids]
    for row_group in range(metadata.num_row_groups):
        for number in wanted:
            column = metadata.row_group(row_group).column(number)
            start = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
            ranges.append((start, start + column.total_compressed_size))
    joined: list[tuple[int, int]] = []
    end_start = size_bytes - len(end)
    for start, stop in sorted(ranges):
        if not 0 <= start < min(stop, end_start):
            continue
        stop = min(stop, end_start)
        if joined and start - joined[-1][1] <= HOLE_MAX_SIZE_BYTES:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    lengths = [(start, stop - start) for start, stop in joined]
    return lengths if sum(length for _, length in lengths) <= MAX_SIZE_BYTES else []


def leaf_ids(metadata: pq.FileMetaData, columns: pa.Schema) -> list[int | None]:
    """The field ids of the leaf columns of a Parquet file, in the order of the file.

    Args:
        metadata: the metadata of the file.
        columns: the columns of the file, as Arrow reads them.

    Returns:
        An id for each leaf column, or None for a column without id. The list is empty if Arrow reads another number of
        leaf columns than the file has.
    """
    ids = [_id(field) for field in _leaves(columns)]
    return ids if len(ids) == metadata.num_columns else []


def _leaves(fields: pa.Schema | pa.StructType) -> Iterator[pa.Field]:
    for field in fields:
        type = field.type
        if pa.types.is_map(type):
            yield from _leaves(pa.struct([type.key_field, type.item_field]))
        elif pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
            yield from _leaves(pa.struct([type.value_field]))
        elif pa.types.is_struct(type):
            yield from _leaves(type)
        else:
            yield field


def _id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)
