"""Deletes rows by a filter: files whose rows all match are removed, others are rewritten or get a delete file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import RowDeletes, can_lose_rows
from trinitylake.iceberg_storage.data_files.row_lineage import carried_schema
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch, read_data_ahead
from trinitylake.iceberg_storage.row_filter import RowFilter


def delete_by_filter(
    metadata: TableMetadata,
    io: FileIO,
    filter: BooleanExpression,
    case_sensitive: bool,
    branch: str | None,
    in_place: bool,
) -> tuple[list[DataFile], list[DataFile], int]:
    """Delete rows of a branch. Returns the removed files, the added files, and the number of deleted rows.

    With `in_place`, delete files are written instead of rewriting data files (merge-on-read).
    """
    tasks = files_of_branch(metadata, io, filter, case_sensitive, branch)
    read_data_ahead(io, [task for task in tasks if task.residual != AlwaysTrue()])
    live = LiveRows(metadata, io, tasks)
    compiled = RowFilter.of(filter, metadata.schema(), case_sensitive)
    deletes = RowDeletes(live.deletes)
    split: list[FileScanTask] = []
    n_deleted = 0
    for task in tasks:
        rows = live.count(task)
        positions = None if task.residual == AlwaysTrue() else live.positions(task, compiled)
        matching = rows if positions is None else len(positions)
        n_deleted += matching
        if positions is None or matching == rows:
            deletes.remove(task)
        elif matching and in_place and can_lose_rows(task.file):
            deletes.delete(task, positions)
        elif matching:
            deletes.remove(task)
            split.append(task)
    added = deletes.write(metadata, io)
    if split:
        columns = [field.name for field in carried_schema(metadata).fields]
        writer = DataFileWriter(metadata, io, carries_rows=True)
        added += writer.written(_staying(live, split, compiled, columns))
    return deletes.removed, added, n_deleted


def _staying(
    live: LiveRows, tasks: list[FileScanTask], filter: RowFilter, columns: Sequence[str]
) -> Iterator[pa.Table]:
    for task in tasks:
        for batch in live.batches(task, columns):
            yield pa.Table.from_batches([filter.others(batch)])
