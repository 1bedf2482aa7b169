"""PyIceberg's table and transaction, made for staging: no deep copies, appends that can be redone.

A `StagedIcebergTable` behaves like any PyIceberg table. Each of its transactions works on a frozen view of the
table, so two threads that write at once meet in `commit_table`, where the later one is redone, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction, UpsertResult
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots
from pyiceberg.table.update.sorting import UpdateSortOrder
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT, Identifier

from trinitylake.iceberg.append import AppendFiles
from trinitylake.iceberg.metadata import apply_updates
from trinitylake.iceberg.rules import check_writable

if TYPE_CHECKING:
    import pyarrow as pa

#: The operation, if any, whose result depends on the rows it found: "delete", "overwrite", "upsert" or "".
#: Read by `commit_table` in the same call stack; PyIceberg's commit has no argument that could carry it.
depends_on: ContextVar[str] = ContextVar("trinitylake_depends_on", default="")


class StagedTransaction(Transaction):
    """Changes of one table that become visible to its lakehouse transaction together.

    Attributes:
        added_files: takes the data files of each append, by the id of its snapshot.
    """

    def __init__(self, table: Table, added_files: dict[int, list[DataFile]], autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self.added_files = added_files
        self._depends_on = ""
        self._view: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with all changes of this transaction so far. Shared, never to be changed."""
        view = self._view
        if view is None or view[0] is not self._table.metadata or view[1] is not self._updates:
            view = (self._table.metadata, self._updates, apply_updates(self._table.metadata, self._updates))
            self._view = view
        return view[2]

    def commit_transaction(self) -> Table:
        token = depends_on.set(self._depends_on)
        try:
            return super().commit_transaction()
        finally:
            depends_on.reset(token)

    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        check_writable(self.table_metadata)
        super().append(df, snapshot_properties, branch)

    def dynamic_partition_overwrite(
        self, df: pa.Table, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> None:
        with self._depending_on("dynamic_partition_overwrite"):
            super().dynamic_partition_overwrite(df, snapshot_properties, branch)

    def overwrite(
        self,
        df: pa.Table | pa.RecordBatchReader,
        overwrite_filter: BooleanExpression | str = ALWAYS_TRUE,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        with self._depending_on("overwrite"):
            super().overwrite(df, overwrite_filter, snapshot_properties, case_sensitive, branch)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        with self._depending_on("delete"):
            super().delete(delete_filter, snapshot_properties, case_sensitive, branch, _isolation_operation)

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
        with self._depending_on("upsert"):
            return super().upsert(
                df,
                join_cols,
                when_matched_update_all,
                when_not_matched_insert_all,
                case_sensitive,
                branch,
                snapshot_properties,
            )

    def _append_snapshot_producer(
        self, snapshot_properties: dict[str, str], branch: str | None = MAIN_BRANCH
    ) -> AppendFiles:
        return AppendFiles(self, self._table.io, snapshot_properties, branch)

    @contextmanager
    def _depending_on(self, operation: str) -> Iterator[None]:
        check_writable(self.table_metadata)
        self._depends_on = self._depends_on or operation
        yield


class StagedIcebergTable(Table):
    """The live state of a staged table: every commit through it, or through one of its transactions, shows here.

    Attributes:
        added_files: the data files of every append so far, by the id of its snapshot.
    """

    def __init__(
        self, identifier: Identifier, metadata: TableMetadata, metadata_location: str, io: FileIO, catalog: Catalog
    ) -> None:
        super().__init__(identifier, metadata, metadata_location, io, catalog, {})
        self.added_files: dict[int, list[DataFile]] = {}

    def transaction(self) -> StagedTransaction:
        return StagedTransaction(self._frozen(self.metadata), self.added_files)

    def transaction_on(self, metadata: TableMetadata) -> StagedTransaction:
        """A transaction on this table as if `metadata` were its state."""
        return StagedTransaction(self._frozen(metadata), self.added_files)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        return UpdateSchema(
            transaction=self._autocommit(),
            allow_incompatible_changes=allow_incompatible_changes,
            case_sensitive=case_sensitive,
            name_mapping=self.name_mapping(),
        )

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        return UpdateSpec(self._autocommit(), case_sensitive=case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        return UpdateSortOrder(transaction=self._autocommit(), case_sensitive=case_sensitive)

    def update_statistics(self) -> UpdateStatistics:
        return UpdateStatistics(transaction=self._autocommit())

    def manage_snapshots(self) -> ManageSnapshots:
        return ManageSnapshots(transaction=self._autocommit())

    @property
    def maintenance(self) -> MaintenanceTable:
        return _StagedMaintenance(self)

    def _autocommit(self) -> StagedTransaction:
        return StagedTransaction(self._frozen(self.metadata), self.added_files, autocommit=True)

    def _frozen(self, metadata: TableMetadata) -> Table:
        return Table(self._identifier, metadata, self.metadata_location, self.io, self.catalog, self.config)


class _StagedMaintenance(MaintenanceTable):
    tbl: StagedIcebergTable

    def expire_snapshots(self) -> ExpireSnapshots:
        return ExpireSnapshots(transaction=self.tbl._autocommit())
