"""Reads the rows of a scan as a stream, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask

from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.read_ahead import ReadAhead
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.row_filter import RowFilter

#: Maximum number of sequences of files that are read concurrently.
READ_AHEAD = 4
#: Maximum number and total size of the files that one thread reads in sequence. A single file may be larger.
RUN_FILES, RUN_SIZE_BYTES = 32, 8 << 20


def streamed_rows(scan: DataScan, tasks: Sequence[FileScanTask], wanted: Schema) -> Iterator[pa.RecordBatch]:
    """The rows of planned files that match the filter of a scan, in the order of the files, up to the scan's limit.

    Args:
        scan: the scan for whose filter the files were planned.
        tasks: the files.
        wanted: the columns.
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
    run: list[FileScanTask] = []
    size_bytes = 0
    for task in tasks:
        if run and (len(run) == RUN_FILES or size_bytes + task.file.file_size_in_bytes > RUN_SIZE_BYTES):
            yield run
            run, size_bytes = [], 0
        run.append(task)
        size_bytes += task.file.file_size_in_bytes
    if run:
        yield run
