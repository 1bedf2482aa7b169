"""PyIceberg's table and transaction with our writers, and without deep copies of metadata.

Each transaction works on its own copy of the table. So two threads that write at the same time conflict only in
`commit_table`, where the later transaction is rebased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import (
    ALWAYS_TRUE,
    CreateTableTransaction,
    Table,
    TableProperties,
    Transaction,
    UpsertResult,
    upsert_util,
)
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate, UpgradeFormatVersionUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots, UpdateSnapshot
from pyiceberg.table.update.sorting import UpdateSortOrder
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT, Identifier, TableVersion
from pyiceberg.types import DoubleType, FloatType, IcebergType
from pyiceberg.utils.concurrent import ExecutorFactory

from trinitylake.definitions.iceberg_types import as_iceberg_type
from trinitylake.definitions.sql_types import TypeLike
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, typed
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.existing_files import existing_data_file
from trinitylake.iceberg_storage.data_files.partitioned_rows import in_partitions, spelled
from trinitylake.iceberg_storage.data_files.position_deletes import RowDeletes, is_merge_on_read
from trinitylake.iceberg_storage.data_files.streamed_rows import streamed_rows
from trinitylake.iceberg_storage.data_files.written_values import check_values, filled
from trinitylake.iceberg_storage.extended_pyiceberg.delete_by_filter import delete_by_filter
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.qualified_snapshots import QualifiedSnapshots
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import (
    RowCounts,
    RowsRead,
    key_filter,
    match_filter,
    rows_read,
)
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan, ReadAheadTable, files_of_branch
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer, manifest_content
from trinitylake.iceberg_storage.pyiceberg_patches import check_columns_fit
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE
from trinitylake.iceberg_storage.update_checks import check_writable


class StagedTransaction(Transaction):
    """Changes of one table that become visible to its lakehouse transaction together.

    Attributes:
        n_deleted: number of rows that `delete` and the overwrites have removed.
    """

    def __init__(self, table: Table, *autocommit: bool) -> None:
        super().__init__(table, *autocommit)
        if isinstance(table.io, LakehouseFileIO):
            table.io = table.io.part()
        self._was_sent = False
        self._statement = ""
        self._rows_read: list[RowsRead] = []
        self.n_deleted = 0
        self._applied: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with all changes of this transaction. Other objects share it, so it must not be changed."""
        base, updates = self._table.metadata, self._updates
        if self._applied is None or self._applied[0] is not base or self._applied[1] is not updates:
            self._applied = base, updates, apply_updates(base, updates)
        return self._applied[2]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or delete the written files after an exception."""
        super().__exit__(kind, error, traceback)
        if kind is not None and not self._was_sent and isinstance(self._table.io, LakehouseFileIO):
            self._table.io.discard()

    def commit_transaction(self) -> Table:
        self._was_sent = True
        has_updates = bool(self._updates)
        token = rows_read.set(tuple(self._rows_read))
        try:
            table = super().commit_transaction()
            # A statement that found no rows is recorded too, because another commit may add matching rows.
            if self._rows_read and not has_updates:
                self._table._do_commit((), ())
        finally:
            rows_read.reset(token)
        self._rows_read = []
        return table

    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        check_writable(self.table_metadata)
        self.append_files(self._written(self._checked(df)), snapshot_properties, branch)

    def dynamic_partition_overwrite(
        self, df: pa.Table, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> None:
        spec = self.table_metadata.spec()
        if spec.is_unpartitioned():
            raise ValueError("Cannot apply dynamic overwrite on an unpartitioned table.")
        for field in spec.fields:
            if not isinstance(field.transform, IdentityTransform):
                raise ValueError(
                    f"For now dynamic overwrite does not support a table with non-identity-transform field in the "
                    f"latest partition spec: {field}"
                )
        with self._as_statement("dynamic_partition_overwrite"):
            files = self._written(self._checked(df))
            if files:
                self.remove_partitions(files, snapshot_properties, branch)
                self.append_files(files, snapshot_properties, branch)

    def remove_partitions(
        self,
        files: Iterable[DataFile],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Remove all rows in the partitions of `files`, which will be added to the table."""
        metadata = self.table_metadata
        schema, spec = metadata.schema(), metadata.spec()
        written = {spelled(file.partition): file.partition for file in files}
        columns = {schema.find_column_name(field.source_id) or "": field for field in spec.fields}
        if all(
            isinstance(field.transform, IdentityTransform)
            and not isinstance(schema.find_type(column), FloatType | DoubleType)
            for column, field in columns.items()
        ):
            replaced = in_partitions(written.values(), list(columns))
            self.delete(replaced, snapshot_properties, branch=branch, _isolation_operation=Operation.OVERWRITE)
            return
        # No filter can select the rows of a bucket, or distinguish 0.0 from -0.0. So all files of the partition are
        # removed, and every other change of the table is a conflict.
        with self.looking_for("overwrite", ALWAYS_TRUE, branch=branch):
            deletes = RowDeletes({})
            for task in files_of_branch(metadata, self.io, ALWAYS_TRUE, True, branch):
                if task.file.spec_id == spec.spec_id and spelled(task.file.partition) in written:
                    deletes.remove(task)
            if deletes.removed:
                self.replace_files(deletes.removed, [], snapshot_properties=snapshot_properties, branch=branch)

    def overwrite(
        self,
        df: pa.Table | pa.RecordBatchReader,
        overwrite_filter: BooleanExpression | str = ALWAYS_TRUE,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        with self._as_statement("overwrite"):
            files = self._written(self._checked(df))
            self.delete(overwrite_filter, snapshot_properties, case_sensitive, branch, Operation.OVERWRITE)
            if files:
                self.append_files(files, snapshot_properties, branch)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        filter = parse_filter(delete_filter)
        operation = _isolation_operation or Operation.DELETE
        with self.looking_for("delete", filter, case_sensitive, branch, operation):
            metadata = self.table_metadata
            in_place = is_merge_on_read(metadata, self._statement)
            removed, added, n_deleted = delete_by_filter(metadata, self.io, filter, case_sensitive, branch, in_place)
            self.n_deleted += n_deleted
            if n_deleted or removed:
                self.replace_files(removed, added, snapshot_properties=snapshot_properties, branch=branch)

    def upsert(
        self,
        df: pa.Table,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Like PyIceberg's `upsert`, with our scan."""
        (rows,) = self._checked(df)
        schema = self.table_metadata.schema()
        keys = list(schema.identifier_field_names() if join_cols is None else join_cols)
        if not keys:
            raise ValueError("Join columns could not be found, please set identifier-field-ids or pass in explicitly.")
        if not when_matched_update_all and not when_not_matched_insert_all:
            raise ValueError("no upsert options selected...exiting")
        if upsert_util.has_duplicate_rows(rows, keys):
            raise ValueError("Duplicate rows found in source dataset based on the key columns. No upsert executed")
        with self.looking_for("upsert", key_filter(rows, sorted(keys)), case_sensitive, branch):
            matching = match_filter(rows, keys)
            tasks = files_of_branch(self.table_metadata, self._table.io, matching, case_sensitive, branch)
            scan = ReadAheadScan(self.table_metadata, self._table.io, matching, case_sensitive=case_sensitive)
            updates, found = [], []
            for batch in streamed_rows(scan, tasks, schema):
                there = typed(pa.Table.from_batches([batch]), arrow_schema(schema))
                found.append(match_filter(there, keys))
                if when_matched_update_all and len(part := upsert_util.get_rows_to_update(rows, there, keys)):
                    updates.append(part)
            updated = pa.concat_tables(updates) if updates else None
            if updated is not None:
                replaced = match_filter(updated, keys)
                self.overwrite(updated, replaced, snapshot_properties, case_sensitive, branch)
            inserted = rows
            for filter in found:
                inserted = RowFilter.of(filter, schema, case_sensitive).others(inserted)
            if not when_not_matched_insert_all:
                inserted = rows.slice(0, 0)
            if len(inserted):
                self.append(inserted, snapshot_properties, branch)
            return UpsertResult(rows_updated=0 if updated is None else len(updated), rows_inserted=len(inserted))

    def add_files(
        self,
        file_paths: list[str],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        check_duplicate_files: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        check_writable(self.table_metadata)
        if len(file_paths) != len(set(file_paths)):
            raise ValueError("File paths must be unique")
        if check_duplicate_files and (known := self._known_among(file_paths, branch)):
            raise ValueError(f"Cannot add files that are already referenced by table, files: {', '.join(known)}")
        if self.table_metadata.name_mapping() is None:
            mapping = self.table_metadata.schema().name_mapping.model_dump_json()
            self.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        io, metadata = self._table.io, self.table_metadata
        files = ExecutorFactory.get_or_create().map(lambda path: existing_data_file(io, metadata, path), file_paths)
        self.append_files(files, snapshot_properties, branch)

    def _known_among(self, paths: Iterable[str], branch: str | None) -> list[str]:
        snapshot, io, wanted = self.table_metadata.snapshot_by_name(branch), self._table.io, set(paths)
        manifests = () if snapshot is None else read_list(io, snapshot)
        return sorted({entry.data_file.file_path for one in manifests for entry in read_entries(io, one)} & wanted)

    def _checked(self, rows: pa.Table | pa.RecordBatchReader) -> Iterable[pa.Table | pa.RecordBatch]:
        """Check rows from a caller, and fill default values. Raises `ValueError` for columns that do not fit."""
        if not isinstance(rows, pa.Table | pa.RecordBatchReader):
            raise ValueError(f"Expected pa.Table or pa.RecordBatchReader, got: {rows}")
        metadata = self.table_metadata
        rows = filled(rows, metadata.schema())
        check_columns_fit(metadata.schema(), rows.schema, metadata.format_version)
        for part in [rows] if isinstance(rows, pa.Table) else rows:
            for name, column in zip(part.schema.names, part.columns, strict=True):
                check_values(column, name)
            yield part

    def upgrade_table_version(self, format_version: TableVersion) -> Transaction:
        """Set the format version to 2 or 3. Raises `ValueError` for a version lower than the present one."""
        if format_version != ROW_IDS_SINCE:
            return super().upgrade_table_version(format_version)
        if self.table_metadata.format_version < ROW_IDS_SINCE:
            self._apply((UpgradeFormatVersionUpdate.model_validate({"format-version": format_version}),))
        return self

    def update_snapshot(
        self, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> UpdateSnapshot:
        """PyIceberg's own snapshots. Raises `InvalidArgument` for format version 3, which PyIceberg cannot write."""
        _check_pyiceberg_writes(self.table_metadata)
        return QualifiedSnapshots(self, self._table.io, branch, snapshot_properties)

    def append_files(
        self,
        files: Iterable[DataFile],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        self._commit_snapshot(self._producer(Operation.APPEND, snapshot_properties, branch).add(files))

    def _producer(
        self, operation: Operation, properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> SnapshotProducer:
        return SnapshotProducer(self.table_metadata, self._table.io, operation, properties, branch)

    def _commit_snapshot(self, producer: SnapshotProducer) -> None:
        self._apply(*producer.updates())

    def append_rows(self, parts: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Append rows in bounded memory. The rows must have the types of the table, and may lack optional columns."""
        check_writable(self.table_metadata)
        if files := self._written(parts):
            self.append_files(files)

    def overwrite_rows(self, parts: Iterable[pa.Table | pa.RecordBatch], filter: BooleanExpression) -> None:
        """Replace the rows that match `filter` by rows as for `append_rows`."""
        with self._as_statement("overwrite"):
            files = self._written(parts)
            self.delete(filter, _isolation_operation=Operation.OVERWRITE)
            if files:
                self.append_files(files)

    def _written(self, parts: Iterable[pa.Table | pa.RecordBatch]) -> list[DataFile]:
        """Write rows as data files. PyIceberg's threads store the files of several partitions at the same time."""
        writer = DataFileWriter(self.table_metadata, self._table.io, finishers=ExecutorFactory.get_or_create())
        return writer.written(part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in parts)

    @property
    def io(self) -> FileIO:
        return self._table.io

    def replace_files(
        self,
        removed: Iterable[DataFile],
        added: Iterable[DataFile],
        operation: Operation | None = None,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
        sequence_number: int | None = None,
    ) -> None:
        """Replace data files and delete files by other, already written files in one snapshot.

        By default the operation follows from the files. The added data files get `sequence_number`, so that newer
        delete files apply to them. Raises `RowConflict` if a removed data file is absent.
        """
        gone, files = list(removed), list(added)
        if operation is None:
            adds = {manifest_content(file) for file in files}
            is_append = not gone and adds == {ManifestContent.DATA}
            changed = Operation.OVERWRITE if ManifestContent.DATA in adds else Operation.DELETE
            operation = Operation.APPEND if is_append else changed
        numbers = {} if sequence_number is None else {file.file_path: sequence_number for file in files}
        producer = SnapshotProducer(
            self.table_metadata, self._table.io, operation, snapshot_properties, branch, sequence_numbers=numbers
        )
        self._commit_snapshot(producer.add(files).remove(gone))

    def rewrite_manifests(self) -> None:
        """Rewrite the manifests of the main branch in one snapshot, sorted by partition and with the target size."""
        self._commit_snapshot(self._producer(Operation.REPLACE))

    @contextmanager
    def looking_for(
        self,
        statement: str,
        filter: BooleanExpression,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        operation: Operation = Operation.OVERWRITE,
    ) -> Iterator[None]:
        """Context manager: the changes in the block depend on the rows that match `filter`, even if no row matches."""
        RowFilter.of(filter, self.table_metadata.schema(), case_sensitive)
        with self._as_statement(statement):
            self._rows_read.append(RowsRead(self._statement, filter, case_sensitive, branch, operation))
            yield

    def count_rows(self, counts: RowCounts) -> None:
        """Record the row counts of the current statement."""
        self._rows_read[-1] = replace(self._rows_read[-1], counts=counts)

    @contextmanager
    def _as_statement(self, name: str) -> Iterator[None]:
        """Context manager: the changes in the block belong to one statement, or to the enclosing statement if any."""
        check_writable(self.table_metadata)
        if self._statement:
            yield
            return
        updates_before, reads_before = len(self._updates), len(self._rows_read)
        self._statement = name
        try:
            yield
        finally:
            self._statement = ""
        made = self._updates[updates_before:]
        ids = tuple(update.snapshot.snapshot_id for update in made if isinstance(update, AddSnapshotUpdate))
        self._rows_read[reads_before:] = [replace(read, snapshot_ids=ids) for read in self._rows_read[reads_before:]]


def _check_pyiceberg_writes(metadata: TableMetadata) -> None:
    if metadata.format_version >= ROW_IDS_SINCE:
        raise InvalidArgument(
            "the table has format version 3, and PyIceberg writes no snapshots of that version: use append, overwrite, "
            "delete or add_files in the place of update_snapshot"
        )


class CreatingTransaction(StagedTransaction, CreateTableTransaction):
    """Creation of a table with its first rows."""


class StagedIcebergTable(ReadAheadTable):
    """A table that shows the metadata after each commit through it or through one of its transactions."""

    def __init__(
        self,
        identifier: Identifier,
        metadata: TableMetadata,
        metadata_location: str,
        io: FileIO,
        catalog: Catalog,
        check_use: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(identifier, metadata, metadata_location, io, catalog, {})
        self._check_use = check_use  # raises before files are written for a commit that would fail

    def transaction(self) -> StagedTransaction:
        return self._begin(autocommit=False)

    def autocommit_transaction(self) -> StagedTransaction:
        """A transaction that commits after each change."""
        return self._begin(autocommit=True)

    def _begin(self, autocommit: bool) -> StagedTransaction:
        if self._check_use is not None:
            self._check_use()
        return StagedTransaction(self.frozen(), autocommit)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        return SchemaUpdate(
            transaction=self.autocommit_transaction(),
            allow_incompatible_changes=allow_incompatible_changes,
            case_sensitive=case_sensitive,
            name_mapping=self.name_mapping(),
        )

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        return UpdateSpec(self.autocommit_transaction(), case_sensitive=case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        return UpdateSortOrder(transaction=self.autocommit_transaction(), case_sensitive=case_sensitive)

    def update_statistics(self) -> UpdateStatistics:
        return UpdateStatistics(transaction=self.autocommit_transaction())

    def manage_snapshots(self) -> ManageSnapshots:
        return ManageSnapshots(transaction=self.autocommit_transaction())

    @property
    def maintenance(self) -> MaintenanceTable:
        return _StagedMaintenance(self)

    def frozen(self) -> Table:
        """A table with the present metadata, which later commits do not change."""
        return Table(self._identifier, self.metadata, self.metadata_location, self.io, self.catalog, self.config)


class SchemaUpdate(UpdateSchema):
    """PyIceberg's update of a schema that also accepts SQL types, such as "decimal(10, 2)"."""

    def add_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType | TypeLike,
        doc: str | None = None,
        required: bool = False,
        default_value: Any = None,
    ) -> UpdateSchema:
        return super().add_column(path, as_iceberg_type(field_type), doc, required, default_value)

    def update_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType | TypeLike | None = None,
        required: bool | None = None,
        doc: str | None = None,
    ) -> UpdateSchema:
        type = None if field_type is None else as_iceberg_type(field_type)
        return super().update_column(path, type, required, doc)


def set_and_remove(table: Table, properties: Mapping[str, str], removed: Iterable[str]) -> None:
    """Set and remove properties of a table in one commit. A property to remove may be missing."""
    present = [name for name in dict.fromkeys(removed) if name in table.metadata.properties]
    if properties or present:
        with table.transaction() as change:
            if properties:
                change.set_properties(dict(properties))
            if present:
                change.remove_properties(*present)


class _StagedMaintenance(MaintenanceTable):
    tbl: StagedIcebergTable

    def expire_snapshots(self) -> ExpireSnapshots:
        return ExpireSnapshots(transaction=self.tbl.autocommit_transaction())
