"""Reads of files on a remote store: prefetch of whole files, ranges of leaf columns, and a stream over fetched ranges.

PyIceberg fetches a file when one of its threads reads it, and Arrow reads one range after another from a file that
Python opened. So without these classes a scan mostly waits for the store. Prefetched files stay within a memory limit.
"""

from __future__ import annotations

import io
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trinitylake.errors import CorruptFile

#: Limits of prefetched files that are not read yet. The cache of the storage is twice as large.
MAX_SIZE_BYTES = 8 << 20
MAX_FILES = 64


class Prefetch:
    """Fetches files in the order in which they will be read.

    Args:
        fetch: begins to fetch files, by their paths.
        files: the path and the recorded size of each file. A wrong size only costs time.
    """

    def __init__(self, fetch: Callable[[list[str]], None], files: Iterable[tuple[str, int]]) -> None:
        self._fetch = fetch
        self._left = deque(files)
        self._waiting: dict[str, int] = {}
        self._waiting_size_bytes = 0
        self._lock = threading.Lock()

    def fetch_more(self) -> None:
        """Fetch as many files as the memory limit allows."""
        batch = []
        with self._lock:
            while self._left and len(self._waiting) < MAX_FILES:
                path, size_bytes = self._left[0]
                if self._waiting and self._waiting_size_bytes + size_bytes > MAX_SIZE_BYTES:
                    break
                self._left.popleft()
                if path not in self._waiting:
                    self._waiting[path] = size_bytes
                    self._waiting_size_bytes += size_bytes
                    batch.append(path)
        if batch:
            self._fetch(batch)

    def opened(self, path: str) -> None:
        """Record that a file is read, so that other files can be fetched."""
        with self._lock:
            size_bytes = self._waiting.pop(path, None)
            self._waiting_size_bytes -= size_bytes or 0
            # Files are requested in batches, because each request costs a call.
            is_worth_it = self._left and len(self._waiting) <= MAX_FILES // 2
        if is_worth_it:
            self.fetch_more()


#: Minimum size of a range request.
READ_AHEAD_SIZE_BYTES = 256 << 10


class RangeReader(io.RawIOBase):
    """Seekable stream over one object, by range requests with read-ahead. Not thread-safe.

    Args:
        read_range: returns the bytes of a path from an offset with a length; fewer if the file ends.
        end: the last bytes of the object, which are already known.
        parts: offsets and contents of other known parts.
    """

    def __init__(
        self,
        read_range: Callable[[str, int, int], bytes],
        path: str,
        size_bytes: int,
        end: bytes = b"",
        parts: Iterable[tuple[int, bytes]] = (),
    ) -> None:
        super().__init__()
        self._read_range = read_range
        self._path = path
        self._size_bytes = size_bytes
        self._end = end
        self._end_start = size_bytes - len(end)
        self._parts = sorted(parts, key=itemgetter(0))
        self._position = 0
        self._buffer = b""
        self._buffer_start = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}, before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, or all remaining bytes without `size`; b"" at the end."""
        left = max(self._size_bytes - self._position, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        data = self._before_end(min(wanted, max(self._end_start - self._position, 0)))
        if len(data) < wanted:
            start = self._position + len(data) - self._end_start
            rest = self._end[start : start + wanted - len(data)]
            data = data + rest if data else rest
        self._position += len(data)
        return data

    def _before_end(self, wanted: int) -> bytes:
        """Read `wanted` bytes from the present position, all of them before `end`."""
        if wanted == 0:
            return b""
        number = bisect_right(self._parts, self._position, key=itemgetter(0)) - 1
        if number >= 0:
            offset, part = self._parts[number]
            start = self._position - offset
            if start + wanted <= len(part):
                return part[start : start + wanted]
        start = self._position - self._buffer_start
        if start < 0 or start + wanted > len(self._buffer):
            length = min(max(wanted, READ_AHEAD_SIZE_BYTES), self._end_start - self._position)
            self._buffer = self._read_range(self._path, self._position, length)
            self._buffer_start = self._position
            start = 0
            if len(self._buffer) < wanted:
                raise CorruptFile(
                    f"{self._path}: the file ends before its {self._size_bytes} bytes: another process replaced it",
                    path=self._path,
                )
        return self._buffer[start : start + wanted]

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)


#: Two columns whose distance in the file is at most this are fetched in one request, which is faster than two requests.
HOLE_MAX_SIZE_BYTES = 1 << 20
#: Largest compressed size of columns that is prefetched from one file. Above it, Arrow fetches each part separately.
MAX_COLUMNS_SIZE_BYTES = 32 << 20
_FIELD_ID = b"PARQUET:field_id"


def column_ranges(end: bytes, size_bytes: int, field_ids: Container[int]) -> list[tuple[int, int]]:
    """Byte ranges (offset and length) of leaf columns in a file, without the part that `end` contains.

    Args:
        end: the last bytes of the file.

    Returns:
        Ascending ranges. The list is empty if no column has such an id, if the ranges exceed `MAX_COLUMNS_SIZE_BYTES`,
        or if `end` lacks the footer.
    """
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
    return lengths if sum(length for _, length in lengths) <= MAX_COLUMNS_SIZE_BYTES else []


def leaf_ids(metadata: pq.FileMetaData, columns: pa.Schema) -> list[int | None]:
    """The field ids of the leaf columns of a Parquet file, in the order of the file.

    Args:
        columns: of the file, as Arrow reads them.

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
