"""A stream of record batches that can be read again: in memory while it is small, in a temporary file beyond that.

The file has no name, so the system removes it with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import pyarrow as pa

#: Up to this size a stream stays in memory.
MEMORY_MAX_SIZE_BYTES = 128 << 20


class Spool:
    """All batches of a stream, read from it once. Not for two threads at once.

    Attributes:
        schema: of every batch.

    Raises what the stream raises, `TypeError` for a batch of another schema, and `OSError` if the disk is full.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self.schema = schema
        self._kept: list[pa.RecordBatch] = []
        self._file: BinaryIO | None = None
        try:
            self._fill(iter(batches))
        except BaseException:
            self.close()
            raise

    @property
    def is_on_disk(self) -> bool:
        """Whether it was too large for memory."""
        return self._file is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches from the first on. One reading at a time."""
        yield from self._kept
        if self._file is not None:
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                yield from reader

    def read_all(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def close(self) -> None:
        """Give up the file."""
        self._kept = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fill(self, batches: Iterator[pa.RecordBatch]) -> None:
        size_bytes = 0
        for batch in batches:
            self._check(batch)
            self._kept.append(batch)
            # What a slice refers to, not what it shows: that is what it keeps in memory.
            size_bytes += batch.get_total_buffer_size()
            if size_bytes > MEMORY_MAX_SIZE_BYTES:
                self._spill(batches)
                return

    def _spill(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="trinitylake-rows-"))  # noqa: SIM115
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(self._file, self.schema, options=options) as writer:
            for batch in self._kept:
                writer.write_batch(batch)
            self._kept = []
            for batch in rest:
                self._check(batch)
                writer.write_batch(batch)

    def _check(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self.schema):
            raise TypeError(f"a record batch has the columns {batch.schema.names} or types unlike those before it")
