"""A stream of record batches that can be read again, kept in memory or, beyond a size, in a temporary file.

A join needs rows by their numbers, so for it the file is mapped into memory. The file has no name, so the operating
system removes it when the process ends.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import pyarrow as pa

#: Maximum size of a stream that stays in memory.
MEMORY_MAX_SIZE_BYTES = 128 << 20


class Spool:
    """All batches of a stream, which is read once. Not thread-safe.

    Args:
        batches: its batches, all of that schema.
        is_mapped: whether `read_all` maps the file instead of reading it into memory. The table is valid until `close`.

    Attributes:
        schema: of every batch.

    Raises the errors of the stream, and `OSError` if the disk is full.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, is_mapped: bool = False) -> None:
        self.schema = schema
        self._is_mapped = is_mapped
        self._kept: list[pa.RecordBatch] = []
        self._file: BinaryIO | None = None
        try:
            self._fill(iter(batches))
        except BaseException:
            self.close()
            raise

    @property
    def is_on_disk(self) -> bool:
        """Whether the batches are on disk, because they exceeded the memory limit."""
        return self._file is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, from the first on. Only one iterator may be in use at a time."""
        yield from self._kept
        if self._file is not None:
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                yield from reader

    def read_all(self) -> pa.Table:
        """All rows, in memory or mapped."""
        if self._is_mapped and self._file is not None:
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped with the last array of it
            return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def close(self) -> None:
        """Close the file, which deletes it."""
        self._kept = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fill(self, batches: Iterator[pa.RecordBatch]) -> None:
        size_bytes = 0
        for batch in batches:
            self._kept.append(batch)
            # Count the buffers that a slice references, not its rows: it keeps all of them in memory.
            size_bytes += batch.get_total_buffer_size()
            if size_bytes > MEMORY_MAX_SIZE_BYTES:
                self._spill(batches)
                return

    def _spill(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="trinitylake-rows-"))  # noqa: SIM115
        # Compressed batches cannot be used from the mapping.
        options = pa.ipc.IpcWriteOptions(compression=None if self._is_mapped else "lz4")
        with pa.ipc.new_stream(self._file, self.schema, options=options) as writer:
            for batch in self._kept:
                writer.write_batch(batch)
            self._kept = []
            for batch in rest:
                writer.write_batch(batch)
        self._file.flush()
