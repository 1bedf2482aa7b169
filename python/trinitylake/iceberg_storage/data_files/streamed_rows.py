"""Reads the rows of a scan as a stream, in bounded memory: several threads read files ahead of the consumer."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask

from trinitylake.iceberg_storage.data_files.file_sizes import grouped
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.row_filter import RowFilter

Part = TypeVar("Part")
#: Tables or batches of Arrow.
Rows: TypeAlias = Any

#: Memory for rows that threads have read and the consumer has not taken. Each thread holds one more batch.
BUFFER_SIZE_BYTES = 64 << 20


class ReadAhead(Generic[Part]):
    """Iterable over the rows of some parts, one part after the other.

    Args:
        parts: the parts, in the order of the result.
        read: returns the rows of a part, batch by batch. Called in threads.
        threads: number of parts that are read at the same time.
    """

    def __init__(self, parts: Sequence[Part], read: Callable[[Part], Iterable[Rows]], threads: int) -> None:
        self._parts = parts
        self._read = read
        self._n_threads = threads
        self._changed = threading.Condition()
        self._buffers: list[deque[Rows]] = [deque() for _ in parts]
        self._buffer_size_bytes = 0
        self._is_complete = [False for _ in parts]
        self._errors: dict[int, BaseException] = {}
        self._threads: list[threading.Thread] = []
        self._current = 0
        self._is_stopped = False

    def __iter__(self) -> Iterator[Rows]:
        """The rows. Raises the errors of reading them."""
        _ACTIVE.add(self)
        try:
            for number in range(len(self._parts)):
                with self._changed:
                    self._current = number
                    self._changed.notify_all()
                for ahead in range(len(self._threads), min(number + self._n_threads, len(self._parts))):
                    self._threads.append(threading.Thread(target=self._fill, args=(ahead,), daemon=True))
                    self._threads[ahead].start()
                while (rows := self._next(number)) is not None:
                    yield rows
                if (error := self._errors.get(number)) is not None:
                    raise error
        finally:
            self.stop()

    def stop(self) -> None:
        """End all threads. A thread that is reading a batch finishes this batch."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _next(self, number: int) -> Rows | None:
        with self._changed:
            self._changed.wait_for(lambda: self._buffers[number] or self._is_complete[number])
            if not self._buffers[number]:
                return None
            rows = self._buffers[number].popleft()
            self._buffer_size_bytes -= rows.nbytes
            self._changed.notify_all()
            return rows

    def _fill(self, number: int) -> None:
        """Read one part. Waits while the buffer is full, unless the consumer waits for this part."""

        def has_space() -> bool:
            is_wanted = number == self._current and not self._buffers[number]
            return self._is_stopped or is_wanted or self._buffer_size_bytes < BUFFER_SIZE_BYTES

        try:
            for rows in self._read(self._parts[number]):
                with self._changed:
                    self._buffers[number].append(rows)
                    self._buffer_size_bytes += rows.nbytes
                    self._changed.notify_all()
                    self._changed.wait_for(has_space)
                    if self._is_stopped:
                        return
        except BaseException as error:
            self._errors[number] = error
        finally:
            with self._changed:
                self._is_complete[number] = True
                self._changed.notify_all()


_ACTIVE: WeakSet[ReadAhead[Any]] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop all threads, because a thread must not run while the interpreter shuts down."""
    for one in list(_ACTIVE):
        one.stop()


#: Maximum number of sequences of files that are read concurrently.
READ_AHEAD = 4
#: Maximum number and total size of the files that one thread reads in sequence. A single file may be larger.
RUN_FILES, RUN_SIZE_BYTES = 32, 8 << 20


def streamed_rows(scan: DataScan, tasks: Sequence[FileScanTask], wanted: Schema) -> Iterator[pa.RecordBatch]:
    """The rows of planned files that match the filter of a scan, in the order of the files, up to the scan's limit.

    Args:
        scan: the scan for whose filter the files were planned.
    """
    metadata = scan.table_metadata
    filter = RowFilter.of(scan.row_filter, metadata.schema(), scan.case_sensitive)
    live = LiveRows(metadata, scan.io, tasks)
    columns = {field.name: field for field in (*LINEAGE, *metadata.schema().fields)}
    is_whole = scan.row_filter == AlwaysTrue() and all(columns.get(field.name) == field for field in wanted.fields)
    names = [field.name for field in wanted.fields]

    def read(run: list[FileScanTask]) -> Iterator[pa.RecordBatch]:
        if not is_whole:
            filters = [None if task.residual == AlwaysTrue() else filter for task in run]
            return (batch for task, one in zip(run, filters, strict=True) for batch in live.matching(task, wanted, one))
        if scan.limit is not None:  # without `batches_of`, which would read rows ahead to join batches
            return (batch for task in run for batch in live.batches(task, names))
        return live.batches_of(run, names)

    left = scan.limit
    if left == 0:
        return
    # With a limit, one thread reads the files one after the other, so that few rows beyond the limit are read.
    threads = READ_AHEAD if left is None else 1
    for batch in ReadAhead(list(runs(tasks)), read, threads):
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield batch
        if left == 0:
            return


def runs(tasks: Sequence[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Split the files into sequences, each of which is read by one thread. A thread for each small file would cost
    more.
    """
    return grouped(tasks, lambda task: task.file.file_size_in_bytes, RUN_SIZE_BYTES, RUN_FILES)
