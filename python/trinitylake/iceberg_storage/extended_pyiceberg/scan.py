"""PyIceberg's scan over our plan (`scan_planner.py`) and our reader (`live_rows.py`).

A scan of an older snapshot uses that snapshot's schema for its filter, its columns and its rows. Manifests and data
files of a remote store are prefetched before the threads that decode them need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, NoReturn, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, DataScan, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, ancestors_between_ids, is_parent_ancestor_of
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows, typed
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE, PlannedFile
from trinitylake.iceberg_storage.data_files.streamed_rows import streamed_rows
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter, plan_files
from trinitylake.iceberg_storage.file_io import WHOLE_FILE_MAX_SIZE_BYTES, LakehouseFileIO
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE


class ReadAheadScan(DataScan):
    """Scan that prefetches files in parallel, within a memory limit.

    Raises `ValueError` and `TypeError` for a filter that does not fit the columns.
    """

    _reads_rows = False
    _max_looks: int | None = None

    def __init__(
        self,
        table_metadata: TableMetadata,
        io: FileIO,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
        catalog: Catalog | None = None,
        table_identifier: Identifier | None = None,
    ) -> None:
        super().__init__(
            table_metadata=_as_of(table_metadata, snapshot_id),
            io=io,
            row_filter=parse_filter(row_filter),
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            snapshot_id=snapshot_id,
            options=options,
            limit=limit,
            catalog=catalog,
            table_identifier=table_identifier,
        )
        if self.row_filter != ALWAYS_TRUE:
            RowFilter.of(self.row_filter, self.table_metadata.schema(), self.case_sensitive)  # may raise

    def projection(self) -> Schema:
        """The columns of the result: columns of the table, then selected lineage columns (`row_lineage.py`)."""
        metadata = self.table_metadata
        computed = [
            field
            for field in LINEAGE
            if field.name in self.selected_fields and field.name not in metadata.schema().column_names
        ]
        if not computed:
            return super().projection()
        if metadata.format_version < ROW_IDS_SINCE:
            raise ValueError(
                f"rows have {computed[0].name} since format version {ROW_IDS_SINCE}, and the table has version "
                f"{metadata.format_version}: upgrade it"
            )
        names = {field.name for field in computed}
        own = tuple(name for name in self.selected_fields if name not in names)
        columns = super(ReadAheadScan, self.update(selected_fields=own)).projection() if own else Schema()
        return Schema(*columns.fields, *computed)

    def plan_files(self) -> Iterable[FileScanTask]:
        if self.catalog is not None and self.catalog.supports_server_side_planning():
            return super().plan_files()
        if (snapshot := self.snapshot()) is None:
            return []
        files = FilesOfFilter(self.table_metadata, self.row_filter, self.case_sensitive, max_looks=self._max_looks)
        tasks = plan_files(self.io, read_list(self.io, snapshot), files)
        if self._reads_rows:
            read_data_ahead(self.io, tasks, self._columns())
        return tasks

    def bounded(self, max_looks: int) -> Self:
        """A copy whose planning raises `PlanTooLarge` if it evaluates more than `max_looks` predicates and values."""
        scan = copy(self)
        scan._max_looks = max_looks
        return scan

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        """All matching rows. The columns in `dictionary_columns` are dictionary-encoded."""
        schema, batches = arrow_schema(self.projection()), list(self.batches())
        rows = pa.Table.from_batches(batches) if batches else no_rows(schema)
        for place, name in enumerate(schema.names):
            if name in dictionary_columns:
                rows = rows.set_column(place, name, rows.column(place).dictionary_encode())
        return rows

    def to_arrow_batch_reader(self, dictionary_columns: tuple[str, ...] = ()) -> pa.RecordBatchReader:
        """The matching rows as a stream."""
        if dictionary_columns:
            return self.to_arrow(dictionary_columns).to_reader()
        return pa.RecordBatchReader.from_batches(arrow_schema(self.projection()), self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The matching rows. Files are planned by this call, and read as the iterator advances."""
        wanted, tasks = self.projection(), list(self.for_reading().plan_files())
        return (typed(batch, arrow_schema(wanted)) for batch in streamed_rows(self, tasks, wanted))

    def count(self) -> int:
        """The number of matching rows."""
        tasks = list(self.plan_files())
        whole = [task for task in tasks if task.residual == ALWAYS_TRUE]
        live = LiveRows(self.table_metadata, self.io, whole)
        read = [task for task in tasks if task.residual != ALWAYS_TRUE]
        rows = streamed_rows(self.update(limit=None), read, Schema())
        return sum(map(live.count, whole)) + sum(int(batch.num_rows) for batch in rows)

    def for_reading(self) -> ReadAheadScan:
        """A copy for a caller that reads all planned files, so that they can be prefetched."""
        scan = copy(self)
        scan._reads_rows = self.limit is None  # a scan with a limit may not read most of the files
        return scan

    def _columns(self) -> frozenset[int]:
        """The ids of the columns to prefetch from all row groups. Empty with a filter, which may skip row groups."""
        if self.row_filter != ALWAYS_TRUE:
            return frozenset()
        wanted = self.projection()
        return frozenset(id for id in wanted.field_ids if wanted.find_type(id).is_primitive)

    def update(self, **overrides: Any) -> Self:
        """A copy with some fields changed."""
        scan = super().update(**overrides)
        scan._reads_rows, scan._max_looks = self._reads_rows, self._max_looks
        return scan


class ReadAheadTable(Table):
    """A table whose scans read ahead."""

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
    ) -> ReadAheadScan:
        given = row_filter, selected_fields, case_sensitive, snapshot_id, options, limit
        return ReadAheadScan(self.metadata, self.io, *given, self.catalog, self.name())


class ReadOnlyTable(ReadAheadTable):
    """A table that refuses to begin a transaction."""

    catalog: ReadOnlyCatalog  # or a `TrinityLakeCatalog` of one version

    def transaction(self) -> NoReturn:
        self.catalog.refuse_write()


class ReadOnlyCatalog(NoopCatalog):
    """The catalog of a read-only table. Every write raises `InvalidArgument` with the message `refusal`."""

    def __init__(self, refusal: str) -> None:
        super().__init__("read-only")
        self._refusal = refusal

    def refuse_write(self) -> NoReturn:
        raise InvalidArgument(self._refusal)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> NoReturn:
        self.refuse_write()

    def supports_server_side_planning(self) -> bool:
        return False


def scan_of(table: Table, **options: Any) -> ReadAheadScan:
    """A scan of any PyIceberg table, also of another catalog. `options` are as for `Table.scan`."""
    return ReadAheadScan(table.metadata, table.io, catalog=table.catalog, table_identifier=table.name(), **options)


def files_of_branch(
    metadata: TableMetadata,
    io: FileIO,
    filter: BooleanExpression | RowFilter,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
) -> list[PlannedFile]:
    """The files of a branch's newest snapshot that may contain matching rows, under the current schema."""
    snapshot = metadata.snapshot_by_name(branch)
    if snapshot is None:
        return []
    return plan_files(io, read_list(io, snapshot), FilesOfFilter(metadata, filter, case_sensitive))


def appended_files(
    metadata: TableMetadata,
    io: FileIO,
    filter: BooleanExpression,
    case_sensitive: bool,
    after: int,
    until: int | None,
    max_looks: int | None = None,
) -> list[PlannedFile]:
    """The files with possibly matching rows that were appended after snapshot `after`, up to snapshot `until`.

    `until` is the current snapshot by default. Raises `ValueError` if it does not descend from `after`.
    """
    until = metadata.current_snapshot_id if until is None else until
    if until is None:
        return []
    if not is_parent_ancestor_of(until, after, metadata):
        raise ValueError(f"snapshot {after} is not the parent of an ancestor of snapshot {until}")
    appends = [
        one
        for one in ancestors_between_ids(after, until, metadata)
        if one.summary is not None and one.summary.operation == Operation.APPEND
    ]
    ids = {one.snapshot_id for one in appends}
    manifests = {
        manifest.manifest_path: manifest
        for one in appends
        for manifest in read_list(io, one)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id in ids
    }
    files = FilesOfFilter(metadata, filter, case_sensitive, max_looks=max_looks)
    return plan_files(
        io,
        manifests.values(),
        files,
        lambda entry: entry.snapshot_id in ids and entry.status == ManifestEntryStatus.ADDED,
    )


def _as_of(metadata: TableMetadata, snapshot_id: int | None) -> TableMetadata:
    """The metadata with the schema of a snapshot as its current schema."""
    snapshot = None if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
    id = None if snapshot is None else snapshot.schema_id
    if id is None or id == metadata.current_schema_id or all(one.schema_id != id for one in metadata.schemas):
        return metadata
    return metadata.model_copy(update={"current_schema_id": id})


def read_data_ahead(io: object, tasks: Iterable[FileScanTask], columns: frozenset[int] = frozenset()) -> None:
    """Begin to fetch the small files of some tasks, delete files first.

    When a large file is opened, its `columns` are fetched by parallel requests.
    """
    if isinstance(io, LakehouseFileIO) and io.is_remote:
        tasks = list(tasks)
        deletes = {file.file_path: file for task in tasks for file in task.delete_files}
        files = [*deletes.values(), *(task.file for task in tasks)]
        io.read_ahead([(file.file_path, file.file_size_in_bytes) for file in files])
        if columns:
            large = (task.file for task in tasks if task.file.file_size_in_bytes > WHOLE_FILE_MAX_SIZE_BYTES)
            io.expect_columns((file.file_path for file in large), columns)
