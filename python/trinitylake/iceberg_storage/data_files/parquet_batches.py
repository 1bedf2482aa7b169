"""Rows of Parquet files in batches that take little memory, however wide the rows are.

From what a file says about the bytes of its columns follows how many rows make a batch. It does not for texts that are
stored once and referred to: a megabyte of a file may stand for gigabytes of them. Columns that have such a dictionary
are read as they are stored, and made plain piece by piece, unless the file says that all their texts are few bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import SEEK_END
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import InputStream

from trinitylake._core import text_sizes
from trinitylake.errors import CorruptFile, TrinityLakeError

#: Of one batch, as Arrow holds it, unless a single row takes more.
BATCH_SIZE_BYTES = 16 << 20
BATCH_ROWS = 131_072
#: Row groups that are fetched together from afar, as they are stored.
_FETCHED_SIZE_BYTES = 16 << 20
#: Row groups that are larger, as they are stored, are decoded by several threads, a column by each. To hand over a
#: smaller one takes longer than to decode it.
_SHARED_SIZE_BYTES = 1 << 20
#: What a value takes at most that has no length of its own: a decimal of 128 bits. A file may need a bit for it.
_VALUE_SIZE_BYTES = 16
#: A column takes more where its dictionary was given up, and later texts stand where they belong: how many bytes its
#: texts have is known then on average, and to put them into a dictionary would take five times as long as to read them.
_REFERENCE_SIZE_BYTES, _DICTIONARY_SIZE_BYTES = 3, 5 << 19
#: Texts of a row group that take no more than this part of a batch together are made plain at once: all of them may
#: stand in one, beside the other columns. To read them with their dictionary takes nearly twice as long.
_TEXTS_OF_BATCH = 0.75
#: Behind the footer: its length, and what a file of Parquet ends with.
_TAIL_SIZE_BYTES = 8


def open_parquet(stream: InputStream, metadata: pq.FileMetaData | None = None, **options: object) -> pq.ParquetFile:
    """A file to be read, with the checksums of its pages verified; from a remote store in few requests."""
    return pq.ParquetFile(
        stream,
        metadata=metadata,
        pre_buffer=not isinstance(stream, pa.OSFile),
        page_checksum_verification=True,
        **options,
    )


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Raise `CorruptFile` for what Arrow raises for a damaged file. Errors of the storage pass."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        is_of_storage = isinstance(error, TrinityLakeError | FileNotFoundError)
        if is_of_storage or getattr(error, "errno", None) is not None:
            raise
        raise CorruptFile(f"{location} is damaged, or is no Parquet file: {error}", path=location) from error


class Layout:
    """What files of the same columns have in common: looked at once, as a look takes as long as to open a small file.

    Args:
        file: one of them.

    Attributes:
        columns: as Arrow reads them.
    """

    def __init__(self, file: pq.ParquetFile) -> None:
        self.columns: pa.Schema = file.schema_arrow
        self._schema, self._key_values = file.metadata.schema, file.metadata.metadata
        types = self.columns.types
        self._is_flat = not any(map(pa.types.is_nested, types))
        self._of_any_length = [number for number, type in enumerate(types) if not pa.types.is_primitive(type)]
        self._size_bytes = _VALUE_SIZE_BYTES * (len(types) - len(self._of_any_length))

    def is_of(self, file: pq.ParquetFile) -> bool:
        """Whether a file has these columns, with these ids. False for nested ones, whose leaves alone are compared."""
        metadata = file.metadata
        return bool(self._is_flat and metadata.schema.equals(self._schema) and metadata.metadata == self._key_values)

    def is_one_batch(self, metadata: pq.FileMetaData) -> bool:
        """Whether all rows of a file of this layout take little memory, by so few looks that a thousand small files are
        read in less time.

        What is no number may be as long in each row as all of its column. False for files with nested columns, whose
        rows may have any number of values.
        """
        if metadata.num_row_groups != 1 or not self._is_flat:
            return False
        group = metadata.row_group(0)
        rows = group.num_rows
        if rows > BATCH_ROWS or group.total_byte_size >= _SHARED_SIZE_BYTES:
            return False
        texts = sum(group.column(number).total_uncompressed_size for number in self._of_any_length)
        return bool(rows * (self._size_bytes + texts) <= BATCH_SIZE_BYTES)


def batches_of(
    stream: InputStream,
    file: pq.ParquetFile,
    columns: Sequence[str],
    layout: Layout | None = None,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """All rows of a file in their order, with some of its columns.

    Args:
        stream: what the file was opened from.
        file: as `open_parquet` gives it.
        columns: names of the uppermost level; may be empty.
        layout: of the file, if it is known.
        row_groups: that are read; by default all.
    """
    if columns and (layout or Layout(file)).is_one_batch(file.metadata):
        every = len(columns) == file.metadata.num_columns
        yield from file.iter_batches(BATCH_ROWS, columns=None if every else list(columns), use_threads=False)
        return
    leaves = _leaves(file.metadata, columns)
    if any(leaf.is_referred for leaf in leaves):
        leaves = _plain_if_few(stream, file.metadata, leaves)
    if referred := sorted({leaf.path for leaf in leaves if leaf.is_referred}):
        file = open_parquet(stream, file.metadata, read_dictionary=referred)
    every_group = range(file.metadata.num_row_groups) if row_groups is None else row_groups
    for groups in _fetched_together(every_group, leaves):
        rows = min(_rows_of_batch(file.metadata.row_group(group).num_rows, group, leaves) for group in groups)
        stored = sum(leaf.stored_size_bytes for leaf in leaves if leaf.row_group in groups)
        in_threads = stored >= _SHARED_SIZE_BYTES
        for batch in file.iter_batches(rows, row_groups=groups, columns=list(columns), use_threads=in_threads):
            yield from _plain(batch) if referred else (batch,)


class _Leaf(NamedTuple):
    """A column, or a part of one, in one row group.

    Attributes:
        path: in the file.
        place: among the columns of the file.
        row_group: its number.
        is_referred: it has texts that stand in a dictionary, all or nearly all, and is not a part of a column: Arrow
            reads those as they are stored.
        stored_size_bytes: in the file.
        read_size_bytes: about what its rows take in memory, without what they refer to.
        most_size_bytes: what they take at most, if they are texts.
        texts_size_bytes: what its texts take beside, all of which may stand in one batch.
    """

    path: str
    place: int
    row_group: int
    is_referred: bool
    stored_size_bytes: int
    read_size_bytes: int
    most_size_bytes: int
    texts_size_bytes: int = 0


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
            is_referred = False
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                if "." in path:
                    width += _dictionary_size_bytes(column)
                else:
                    is_referred = size_bytes <= values * _REFERENCE_SIZE_BYTES + _DICTIONARY_SIZE_BYTES
            read = max(size_bytes, values * width)
            found.append(_Leaf(path, place, number, is_referred, stored, read, values * size_bytes))
    return _plain_if_small(found)


def _plain_if_small(leaves: list[_Leaf]) -> list[_Leaf]:
    """The columns of a file so small that its texts take little memory though each were as long as all together.

    To open it again, for its dictionaries, would take longer than to read it.
    """
    if sum(leaf.most_size_bytes for leaf in leaves if leaf.is_referred) > BATCH_SIZE_BYTES:
        return leaves
    return [
        leaf._replace(is_referred=False, read_size_bytes=leaf.most_size_bytes) if leaf.is_referred else leaf
        for leaf in leaves
    ]


def _plain_if_few(stream: InputStream, metadata: pq.FileMetaData, leaves: list[_Leaf]) -> list[_Leaf]:
    """The columns of a file that says of all texts that are referred to how many bytes they have, and few in each row
    group."""
    end = metadata.serialized_size + _TAIL_SIZE_BYTES
    stream.seek(-end, SEEK_END)
    sizes = text_sizes(stream.read(end))
    if sizes is None:
        return leaves
    found = []
    together = [0] * metadata.num_row_groups
    for leaf in leaves:
        if leaf.is_referred:
            size_bytes = sizes[leaf.row_group][leaf.place]
            if size_bytes is None:
                return leaves
            together[leaf.row_group] += size_bytes
            references = metadata.row_group(leaf.row_group).num_rows * _VALUE_SIZE_BYTES
            leaf = leaf._replace(is_referred=False, read_size_bytes=references, texts_size_bytes=size_bytes)
        found.append(leaf)
    return found if max(together) <= _TEXTS_OF_BATCH * BATCH_SIZE_BYTES else leaves


def _dictionary_size_bytes(column: pq.ColumnChunkMetaData) -> int:
    """What a dictionary takes at most, and so each of its texts: the rest of the column takes no less decompressed."""
    begin = column.dictionary_page_offset
    stored = column.data_page_offset - begin if begin else column.total_compressed_size
    return max(0, int(column.total_uncompressed_size - (column.total_compressed_size - stored) * 9 // 10))


def _fetched_together(row_groups: Sequence[int], leaves: Sequence[_Leaf]) -> Iterator[list[int]]:
    stored = dict.fromkeys(row_groups, 0)
    for leaf in leaves:
        if leaf.row_group in stored:
            stored[leaf.row_group] += leaf.stored_size_bytes
    groups: list[int] = []
    size_bytes = 0
    for number, more in stored.items():
        if groups and size_bytes + more > _FETCHED_SIZE_BYTES:
            yield groups
            groups, size_bytes = [], 0
        groups.append(number)
        size_bytes += more
    if groups:
        yield groups


def _rows_of_batch(rows: int, row_group: int, leaves: Sequence[_Leaf]) -> int:
    of_group = [leaf for leaf in leaves if leaf.row_group == row_group]
    left = BATCH_SIZE_BYTES - sum(leaf.texts_size_bytes for leaf in of_group)
    return max(1, min(BATCH_ROWS, left * rows // max(sum(leaf.read_size_bytes for leaf in of_group), 1)))


def _plain(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows without dictionaries, in pieces of which none is too large."""
    fields = list(batch.schema)
    referring = [number for number, field in enumerate(fields) if pa.types.is_dictionary(field.type)]
    lengths = {number: _lengths(batch.column(number)) for number in referring}
    for number in referring:
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
    """The bytes of each text in the dictionary, and 0 for none at the end."""
    return np.append(pc.binary_length(array.dictionary).to_numpy(zero_copy_only=False).astype(np.int64), 0)
