"""Rows of Parquet files in batches of bounded memory, however wide the rows are.

The number of rows in a batch is computed from the sizes of the columns in the footer. For columns with a dictionary,
these sizes say little: one megabyte of a file may stand for gigabytes of repeated strings. Such columns are read as
Arrow dictionaries and decoded piece by piece, unless even the upper limit of their decoded size is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trinitylake.errors import CorruptFile, InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.data_files.file_sizes import grouped

if TYPE_CHECKING:
    from pyiceberg.io import InputStream

#: Maximum size of a batch in memory. A batch of one row may exceed it.
BATCH_SIZE_BYTES = 16 << 20
BATCH_ROWS = 131_072
#: Maximum compressed size of row groups that are fetched together.
_FETCHED_SIZE_BYTES = 16 << 20
#: Compressed size above which several threads decode row groups; one thread decodes a smaller one faster.
_SHARED_SIZE_BYTES = 1 << 20
#: Upper bound of the size of a fixed-length value: a decimal of 128 bits. In a file such a value may take one bit.
_VALUE_SIZE_BYTES = 16
#: A column counts as dictionary-encoded if its size is at most this number of bytes per value, and for the dictionary.
#: A larger column also has strings outside of the dictionary. Then the footer has the size of these strings, and Arrow
#: reads them five times faster without dictionaries.
_REFERENCE_SIZE_BYTES, _DICTIONARY_SIZE_BYTES = 3, 5 << 19


def open_parquet(stream: InputStream, metadata: pq.FileMetaData | None = None, **options: object) -> pq.ParquetFile:
    """Open a file for reading. Page checksums are verified, and columns of a remote file are fetched in few requests.

    Timestamps of 96 bits (INT96) are read as microseconds, because nanoseconds overflow before 1678 and after 2261.
    """
    return pq.ParquetFile(
        stream,
        coerce_int96_timestamp_unit="us",
        metadata=metadata,
        pre_buffer=not isinstance(stream, pa.OSFile),
        page_checksum_verification=True,
        **options,
    )


@contextmanager
def reading(location: str, *, has_known_types: bool = False) -> Iterator[None]:
    """Context manager that converts Arrow's errors about a damaged file to `CorruptFile`, but no storage errors.

    Raises `InvalidArgument` for a type, encoding or compression that Arrow does not read. With `has_known_types`, as
    for position delete files, Arrow reads all types, so such a file is damaged.
    """
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, KeyError) as error:
        is_of_storage = isinstance(error, TrinityLakeError | FileNotFoundError)
        if is_of_storage or getattr(error, "errno", None) is not None:
            raise
        if isinstance(error, pa.ArrowNotImplementedError) and not has_known_types:
            raise InvalidArgument(
                f"{location} has a type, encoding or compression that is not read here, or a damaged footer: {error}"
            ) from error
        raise CorruptFile(f"{location} is damaged, or is no Parquet file: {error}", path=location) from error


def batches_of(
    stream: InputStream, file: pq.ParquetFile, columns: Sequence[str], row_groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in their order, with some of its columns.

    Args:
        stream: from which the file was opened.
        file: from `open_parquet`.
        columns: names of top-level columns; may be empty.
        row_groups: numbers of the row groups to read; by default all.
    """
    leaves = _leaves(file.metadata, columns)
    if has_dictionary := sorted({leaf.path for leaf in leaves if leaf.has_dictionary}):
        file = open_parquet(stream, file.metadata, read_dictionary=has_dictionary)
    every_group = range(file.metadata.num_row_groups) if row_groups is None else row_groups
    for groups in _fetched_together(every_group, leaves):
        rows = min(_rows_of_batch(file.metadata.row_group(group).num_rows, group, leaves) for group in groups)
        stored = sum(leaf.stored_size_bytes for leaf in leaves if leaf.row_group in groups)
        in_threads = stored >= _SHARED_SIZE_BYTES
        for batch in file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=in_threads):
            yield from _plain(batch) if has_dictionary else (batch,)


class _Leaf(NamedTuple):
    """A column, or a part of a nested column, in one row group.

    Attributes:
        has_dictionary: whether the column is a top-level column with (nearly) all strings in a dictionary.
        read_size_bytes: approximate size of the values in memory, without the strings of a dictionary.
        max_size_bytes: upper bound of the size of strings in memory.
    """

    path: str
    row_group: int
    has_dictionary: bool
    stored_size_bytes: int
    read_size_bytes: int
    max_size_bytes: int


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[_Leaf]:
    wanted = set(columns)
    schema = metadata.schema
    places = []
    for place in range(metadata.num_columns):
        path = schema.column(place).path
        if path in wanted or ("." in path and not wanted.isdisjoint(accumulate(path.split("."), "{}.{}".format))):
            places.append((place, max(schema.column(place).length, _VALUE_SIZE_BYTES)))
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place, width in places:
            column = group.column(place)
            path, values = column.path_in_schema, column.num_values
            stored, size_bytes = column.total_compressed_size, column.total_uncompressed_size
            has_dictionary = False
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                if "." in path:
                    width += _dictionary_size_bytes(column)
                else:
                    has_dictionary = size_bytes <= values * _REFERENCE_SIZE_BYTES + _DICTIONARY_SIZE_BYTES
            read = max(size_bytes, values * width)
            found.append(_Leaf(path, number, has_dictionary, stored, read, values * size_bytes))
    return _plain_if_small(found)


def _plain_if_small(leaves: list[_Leaf]) -> list[_Leaf]:
    """Unset `has_dictionary` of all columns if even the upper bound of the size of their strings is small."""
    # For such columns it would take longer to open the file again with dictionaries than to read the strings.
    if sum(leaf.max_size_bytes for leaf in leaves if leaf.has_dictionary) > BATCH_SIZE_BYTES:
        return leaves
    return [
        leaf._replace(has_dictionary=False, read_size_bytes=leaf.max_size_bytes) if leaf.has_dictionary else leaf
        for leaf in leaves
    ]


def _dictionary_size_bytes(column: pq.ColumnChunkMetaData) -> int:
    """Upper bound of the size of a dictionary, and so of each string in it."""
    # The other pages do not shrink when decompressed, so their compressed size is subtracted from the uncompressed
    # size.
    begin = column.dictionary_page_offset
    stored = column.data_page_offset - begin if begin else column.total_compressed_size
    return max(0, int(column.total_uncompressed_size - (column.total_compressed_size - stored) * 9 // 10))


def _fetched_together(row_groups: Sequence[int], leaves: Sequence[_Leaf]) -> Iterator[list[int]]:
    stored = dict.fromkeys(row_groups, 0)
    for leaf in leaves:
        if leaf.row_group in stored:
            stored[leaf.row_group] += leaf.stored_size_bytes
    return grouped(row_groups, stored.__getitem__, _FETCHED_SIZE_BYTES)


def _rows_of_batch(rows: int, row_group: int, leaves: Sequence[_Leaf]) -> int:
    size_bytes = sum(leaf.read_size_bytes for leaf in leaves if leaf.row_group == row_group)
    return max(1, min(BATCH_ROWS, BATCH_SIZE_BYTES * rows // max(size_bytes, 1)))


def _plain(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Decode the dictionaries of a batch. Yields batches with at most `BATCH_SIZE_BYTES` of strings, or of one row."""
    fields = list(batch.schema)
    encoded = [number for number, field in enumerate(fields) if pa.types.is_dictionary(field.type)]
    lengths = {number: _lengths(batch.column(number)) for number in encoded}
    for number in encoded:
        fields[number] = fields[number].with_type(fields[number].type.value_type)
    schema = pa.schema(fields)
    if sum(int(one.max()) for one in lengths.values()) * batch.num_rows <= BATCH_SIZE_BYTES:
        yield batch.cast(schema)
        return
    sizes = np.zeros(batch.num_rows, np.int64)
    for number, one in lengths.items():
        sizes += one[batch.column(number).indices.fill_null(len(one) - 1).to_numpy()]
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        end = max(int(np.searchsorted(ends, before + BATCH_SIZE_BYTES, "right")), start + 1)
        yield batch.slice(start, end - start).cast(schema)
        start = end


def _lengths(array: pa.DictionaryArray) -> np.ndarray:
    """The size of each string in the dictionary, then 0 for NULL."""
    return np.append(pc.binary_length(array.dictionary).to_numpy(zero_copy_only=False).astype(np.int64), 0)
