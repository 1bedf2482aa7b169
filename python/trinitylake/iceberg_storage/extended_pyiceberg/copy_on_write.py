"""Deleting by a filter: files all of whose rows match go as they are, others are written again without those rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import carried_schema
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch, read_data_ahead
from trinitylake.iceberg_storage.row_filter import RowFilter


def rows_without(
    metadata: TableMetadata, io: FileIO, filter: BooleanExpression, case_sensitive: bool, branch: str | None
) -> tuple[list[DataFile], list[DataFile], int]:
    """The files of a branch that lose rows, new files with their other rows, and the number of rows that go."""
    tasks = files_of_branch(metadata, io, filter, case_sensitive, branch)
    read_data_ahead(io, [task for task in tasks if task.residual != AlwaysTrue()])
    live = LiveRows(metadata, io, tasks)
    compiled = RowFilter.of(filter, metadata.schema(), case_sensitive)
    removed: list[DataFile] = []
    split: list[FileScanTask] = []
    n_deleted = 0
    for task in tasks:
        if task.residual != AlwaysTrue():
            matching, rows = _count(live, task, compiled)
            if not matching:
                continue
            if matching < rows:
                split.append(task)
        elif task.delete_files:
            matching = sum(batch.num_rows for batch in live.matching(task, Schema()))
        else:
            matching = task.file.record_count
        n_deleted += matching
        removed.append(task.file)
    if not split:
        return removed, [], n_deleted
    columns = carried_schema(metadata).column_names
    writer = DataFileWriter(metadata, io, carries_rows=True)
    return removed, writer.written(_staying(live, split, compiled, columns)), n_deleted


def _count(live: LiveRows, task: FileScanTask, filter: RowFilter) -> tuple[int, int]:
    """How many rows of a file match, and how many it has."""
    if task.file.file_path not in live.deletes:
        return sum(batch.num_rows for batch in live.matching(task, Schema(), filter)), task.file.record_count
    rows = sum(batch.num_rows for batch in live.matching(task, Schema()))
    return sum(batch.num_rows for batch in live.matching(task, Schema(), filter)), rows


def _staying(
    live: LiveRows, tasks: list[FileScanTask], filter: RowFilter, columns: Sequence[str]
) -> Iterator[pa.Table]:
    for task in tasks:
        for batch in live.batches(task, columns):
            yield pa.Table.from_batches([filter.others(batch)])
