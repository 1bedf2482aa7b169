"""Compaction of the data files of a table: fewer and larger files with the same rows.

Files of one partition are merged in the order of their age or of a sort order, and written with the current schema and
partition spec, without deleted rows. The snapshot has the operation `replace`. It is rebased on concurrent commits, and
conflicts only if one of them removes the replaced files or deletes rows from them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.utils.properties import property_as_int

from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.file_sizes import ROW_GROUP_SIZE_BYTES, TARGET_FILE_SIZE_BYTES, grouped
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.parquet_batches import BATCH_SIZE_BYTES
from trinitylake.iceberg_storage.data_files.row_lineage import PlannedFile, carried_schema
from trinitylake.iceberg_storage.data_files.row_order import RowOrder
from trinitylake.iceberg_storage.data_files.streamed_rows import READ_AHEAD, ReadAhead, runs
from trinitylake.iceberg_storage.delete_files import file_key, of_one_data_file
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.snapshot_counts import count_in, summary_of
from trinitylake.iceberg_storage.table_file_io import own_files
from trinitylake.tables.file_groups import FileGroups, Group
from trinitylake.tables.partitioning_and_sorting import row_order

#: Maximum number of groups of files that are written at the same time.
WORKERS = min(4, os.cpu_count() or 1)
#: Maximum size in memory of rows that are sorted together.
SORTED_ROWS_SIZE_BYTES = 256 << 20
#: Maximum number of rounds in which new files are merged again. Each round creates fewer files.
_MOST_ROUNDS = 3
#: Minimum size in memory of a row group in the smallest files.
LEAST_ROW_GROUP_SIZE_BYTES = 8 << 20


class CompactResult(NamedTuple):
    """Number and bytes of the replaced files and of the new files.

    After a dry run `files_added` is an estimate by size, and `bytes_added` is 0.
    """

    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int


def compact(
    iceberg: IcebergTable,
    filter: BooleanExpression,
    target_file_size_bytes: int | None,
    min_files: int,
    min_deleted_percent: int,
    sort_by: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
    dry_run: bool = False,
    shared_folders: Sequence[str] = (),
) -> CompactResult:
    """Replace small files by larger ones, in one snapshot.

    Args:
        filter: only files that may hold matching rows are compacted.
        target_file_size_bytes: of the new files; by default the table's property.
        min_files: partitions with fewer small files are skipped, unless deletes are applied or files are sorted.
        min_deleted_percent: deletes are applied to a file if they delete at least this percentage of its rows.
        sort_by: columns by which the rows of a partition are sorted. With columns, files of any size are rewritten.
        progress: called with the number of files read, and of all files.
        dry_run: only choose the files, without reading or writing files.
        shared_folders: for a clone, folders of its source tables, whose files it shares.

    Raises `InvalidArgument` for a table that is not managed, and `InvalidLocation` if the table names files outside of
    its folder.
    """
    with iceberg.transaction() as change:
        if not isinstance(change, StagedTransaction):
            raise InvalidArgument("only managed tables are compacted: others belong to their own catalogs")
        metadata = change.table_metadata
        if metadata.current_snapshot_id is None or not (sort_by or _may_have_small_files(metadata, min_files)):
            return CompactResult(0, 0, 0, 0)
        size = target_file_size_bytes or property_as_int(
            metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TARGET_FILE_SIZE_BYTES
        )
        assert size is not None
        order = row_order(sort_by, metadata.schema()) if sort_by else None
        readable = own_files(change.io, metadata, shared_folders)
        scan = ReadAheadScan(metadata, readable, row_filter=filter)
        tasks = sorted(scan.plan_files(), key=_age)
        choice = FileGroups(metadata, size, min_files, min_deleted_percent)
        groups = choice.of(tasks, order is not None)
        removed = _files_in(groups)
        if not removed:
            return CompactResult(0, 0, 0, 0)
        if dry_run:
            for file in removed:
                readable.new_input(file.file_path)  # raises for a file that may not be read
            return CompactResult(len(removed), _files_of(groups, size), _size_bytes(removed), 0)
        writing = _Writing(metadata, change.io, readable, size, order, progress)
        kept: list[FileScanTask] = []
        if not all(group.is_of_one_partition for group in groups):
            # After a change of partitioning, rows may move to partitions with small files, which are merged as well.
            gone = {file.file_path for file in removed}
            kept = [task for task in tasks if task.file.file_path not in gone]
        added, others = _at_rest(writing, choice, kept, writing.run(groups))
        removed += others
        deletes = _deletes_of_snapshot(metadata, readable) if filter == AlwaysTrue() else None
        obsolete = _obsolete_deletes(tasks, removed, deletes)
        change.replace_files(
            [*removed, *obsolete], added, Operation.REPLACE, sequence_number=_data_sequence_number(metadata)
        )
    return CompactResult(len(removed), len(added), _size_bytes(removed), _size_bytes(added))


def _at_rest(
    writing: _Writing, choice: FileGroups, kept: Sequence[FileScanTask], written: list[DataFile]
) -> tuple[list[DataFile], list[DataFile]]:
    """Merge new files again as long as another compaction would merge them.

    Each group may leave one small file in each of its partitions, so a partition may get several small files.

    Args:
        kept: files that no group contains, and that have no deleted rows.

    Returns the final new files, and the files of `kept` that they replace.
    """
    before = {task.file.file_path: task for task in kept}
    new = {file.file_path: file for file in written}
    gone: list[DataFile] = []
    for _ in range(_MOST_ROUNDS):
        groups = choice.again([*before.values(), *map(FileScanTask, new.values())], writing.is_sorted)
        if not groups:
            break
        added = writing.run(groups)
        for file in _files_in(groups):
            if before.pop(file.file_path, None) is not None:
                gone.append(file)
            else:
                del new[file.file_path]
                writing.delete(file)
        new.update((file.file_path, file) for file in added)
    return list(new.values()), gone


def _deletes_of_snapshot(metadata: TableMetadata, io: FileIO) -> list[DataFile]:
    snapshot = metadata.current_snapshot()
    manifests = () if snapshot is None else read_list(io, snapshot)
    deletes = [one for one in manifests if one.content == ManifestContent.DELETES]
    return [entry.data_file for manifest in deletes for entry in read_entries(io, manifest)]


def _obsolete_deletes(
    tasks: Sequence[FileScanTask], removed: Sequence[DataFile], deletes: Sequence[DataFile] | None
) -> list[DataFile]:
    """The delete files that no remaining data file needs.

    Args:
        tasks: all data files of the table, or some.
        removed: the data files among `tasks` that are removed.
        deletes: all delete files of the table; None if `tasks` are not all data files.
    """
    gone = {file.file_path for file in removed}
    if deletes is None:
        return [file for task in tasks if task.file.file_path in gone for file in of_one_data_file(task.delete_files)]
    used = {file_key(file) for task in tasks if task.file.file_path not in gone for file in task.delete_files}
    return [file for file in deletes if file_key(file) not in used]


def _age(task: FileScanTask) -> tuple[int, str]:
    """Sort key by age. So rows keep the order of their commits, and each new file covers a short time."""
    number = task.sequence_number if isinstance(task, PlannedFile) else None
    return number or 0, task.file.file_path


def _files_in(groups: Sequence[Group]) -> list[DataFile]:
    return [task.file for group in groups for task in group.tasks]


def _may_have_small_files(metadata: TableMetadata, min_files: int) -> bool:
    """Whether the table may have small files, by the summary of the snapshot, without reading manifests."""
    summary = summary_of(metadata.current_snapshot())
    data, deletes = count_in(summary, "total-data-files"), count_in(summary, "total-delete-files")
    return data is None or deletes is None or data >= min_files or deletes > 0


def _size_bytes(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)


def _files_of(groups: Sequence[Group], size: int) -> int:
    """Estimated number of new files for the rows of these groups, if their total size does not change."""
    return sum(math.ceil(max(_size_bytes([task.file for task in group.tasks]), 1) / size) for group in groups)


class _Writing:
    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        readable: FileIO,
        size: int,
        order: RowOrder | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self._metadata = metadata
        self._io = io
        self._readable = readable
        self._live = LiveRows(metadata, readable, [])
        self._target = arrow_schema(carried_schema(metadata))
        self._size = size
        self._order = order
        self._progress = progress
        self._total = self._done = 0
        self._lock = threading.Lock()
        self._writers: list[DataFileWriter] = []

    @property
    def is_sorted(self) -> bool:
        return self._order is not None

    def delete(self, file: DataFile) -> None:
        """Delete a file that was written here and is not needed."""
        with suppress(TrinityLakeError, OSError):  # after an error, vacuum deletes the file
            self._io.delete(file.file_path)

    def run(self, groups: Sequence[Group]) -> list[DataFile]:
        tasks = [task for group in groups for task in group.tasks]
        self._live = LiveRows(self._metadata, self._readable, tasks)
        self._total += len(tasks)
        with ThreadPoolExecutor(WORKERS, "trinitylake-compact") as pool:
            try:
                return [file for files in pool.map(self._group, groups) for file in files]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for writer in self._writers:
                    writer.discard()
                raise

    def _group(self, group: Group) -> list[DataFile]:
        stored = _size_bytes([task.file for task in group.tasks])
        # Rows take about twice their stored size in memory. With this size, rows are written while others are read.
        row_group = min(ROW_GROUP_SIZE_BYTES, max(LEAST_ROW_GROUP_SIZE_BYTES, stored // 2))
        writer = DataFileWriter(self._metadata, self._io, self._size, row_group, self.is_sorted, carries_rows=True)
        with self._lock:
            self._writers.append(writer)
        if self._order is None:
            writer.write_all(self._rows(group))
            return writer.close()
        for rows in together(self._rows(group), SORTED_ROWS_SIZE_BYTES):
            writer.write_all(_sorted(rows, self._order))
            writer.close()  # the next rows are sorted separately
        return writer.files

    def _rows(self, group: Group) -> Iterator[pa.Table]:
        def read(run: list[FileScanTask]) -> Iterator[pa.Table]:
            for batch in self._live.batches_of(run, self._target.names):
                yield pa.Table.from_batches([batch]).cast(self._target)
            with self._lock:
                for _ in run:
                    self._done += 1
                    self._progress(self._done, self._total)

        return iter(ReadAhead(list(runs(group.tasks)), read, READ_AHEAD))


def _sorted(rows: pa.Table, order: RowOrder) -> Iterator[pa.Table]:
    """Yield the sorted rows in parts, so that not all rows are in memory twice."""
    indices = order.indices(rows)
    length = max(1, rows.num_rows * BATCH_SIZE_BYTES // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, length):
        yield rows.take(indices[start : start + length])


def together(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """Concatenate consecutive tables up to a size. A larger table is not divided."""
    parts = grouped(tables, lambda table: table.nbytes, size_bytes)
    return (pa.concat_tables(some).combine_chunks() for some in parts)


def _data_sequence_number(metadata: TableMetadata) -> int | None:
    """Data sequence number of the new files, so that concurrent equality deletes still apply to their rows."""
    snapshot = metadata.current_snapshot()
    return snapshot.sequence_number if snapshot is not None else None
