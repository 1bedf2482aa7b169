"""Output stream of a file. The file becomes visible when the stream is closed."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from trinitylake._core import FileInParts

#: A file on a local disk that is larger than this is written in parts of this size.
PART_SIZE_BYTES = 4 << 20


class WrittenFile(Protocol):
    """The methods of `LakehouseOutputFile` that a writer calls."""

    def put(self, data: bytes, overwrite: bool) -> None: ...
    def begin(self, overwrite: bool) -> FileInParts | None: ...
    def finish(self, parts: FileInParts, size_bytes: int) -> None: ...


class FileWriter(io.RawIOBase):
    """Buffers a file in memory and writes it when it is closed. An exception in the `with` block discards the file.

    If the store supports it, as a local disk does, a large file is written in parts, so that it is never completely in
    memory.
    """

    def __init__(self, file: WrittenFile, overwrite: bool) -> None:
        super().__init__()
        self._file = file
        self._overwrite = overwrite
        self._waiting = io.BytesIO()
        self._parts: FileInParts | None = None
        self._parts_size_bytes = 0
        self._takes_parts = True
        self._is_given_up = False

    @property
    def held_bytes(self) -> int:
        return self._waiting.tell()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._parts_size_bytes + self._waiting.tell()

    def write(self, data: Buffer) -> int:
        """Append `data` to the file. Raises `FileExistsError` and the errors of the storage."""
        if self._is_given_up:  # another thread has discarded the file
            return memoryview(data).nbytes
        size = self._waiting.write(data)
        if self._takes_parts and self.held_bytes >= PART_SIZE_BYTES:
            self._write_part()
        return size

    def _write_part(self) -> None:
        if self._parts is None:
            self._parts = self._file.begin(self._overwrite)
        if self._parts is None:
            self._takes_parts = False
            return
        part, self._waiting = self._waiting.getvalue(), io.BytesIO()
        self._parts.write(part)
        self._parts_size_bytes += len(part)

    def close(self) -> None:
        """Write the file or its last part. Raises as `write` does."""
        if self.closed:
            return
        super().close()
        if self._parts is None:
            self._file.put(self._waiting.getvalue(), self._overwrite)
            return
        if self.held_bytes:
            self._write_part()
        self._file.finish(self._parts, self._parts_size_bytes)

    def discard(self) -> None:
        """Write nothing, and delete the parts that were written."""
        self._is_given_up = True
        super().close()
        if self._parts is not None:
            self._parts.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        """Do nothing. `IOBase` would close a stream that was never closed, and so write the file."""
