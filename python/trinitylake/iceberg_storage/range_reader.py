"""A file of a remote store as a stream, fetched by ranges."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from trinitylake.errors import CorruptFile

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
