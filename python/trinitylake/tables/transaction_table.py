"""A table in an open transaction: other transactions see its writes after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, NoReturn
from weakref import ref

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from trinitylake import _core
from trinitylake.base.arguments import checked_as, flag, text
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.pickling import refuse_staged_table
from trinitylake.definitions import MANIFEST_LIST, PREVIOUS_METADATA_LOCATION, Schema, TableDef, serialize
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.iceberg_storage.staging.summary import ChangeSummary
from trinitylake.tables.append_batch import Batch, of_ipc, to_ipc
from trinitylake.tables.change_feed.table_versions import (
    TableName,
    TableState,
    first_step,
    net_step_of_table,
    state_of,
    steps_of_table,
)
from trinitylake.tables.declared_limits import limits_of
from trinitylake.tables.merge import WriteResult
from trinitylake.tables.table import FEW_ROWS_SIZE_BYTES, Table
from trinitylake.tables.table_definition import describe, metadata_path, name_metadata


class TransactionTable(Table):
    """A table from `txn.table(...)` or `txn.create_table(...)`.

    A write to a federated table is committed at once in its own catalog; the transaction can neither hide nor undo it.

    Under SERIALIZABLE the staged state records what is read: columns, specs and properties by opening the table, rows
    by filter, or everything. Before the commit the transaction watches the tables that it has only read
    (`StagedTables.watch_required`).

    Attributes:
        _staged: the staged state of a managed table; None before the first use of the table, and for other types.
        _uses: the number of reads and writes of the table.
        _scans: the number of scans.
        _committed_version: the version of the commit; None while the transaction is open.
        _waiting_rows: the rows of small appends. The next other use of the table stages them, or the commit does, which
            may instead write them to one data file together with concurrent appends (`group_append.py`).
    """

    def __init__(
        self,
        open_core: Callable[[], _core.Transaction],
        io: LakehouseFileIO,
        namespace: str,
        name: str,
        definition: TableDef,
        staged: StagedTable | None = None,
    ) -> None:
        super().__init__(namespace, name, definition)
        self._open_core = open_core
        self._io = io
        self._outside: IcebergTable | None = None
        self._dropped_by: Literal["this", "another"] | None = None
        self._is_serializable = open_core().isolation == "serializable"
        self._staged = self._asked(staged) if staged is not None else None
        self._uses = 0
        self._scans = 0
        self._committed_version: int | None = None
        self._waiting_rows: list[pa.Table] = []
        self._described = _shape(staged.metadata) if staged is not None else None

    def __reduce__(self) -> NoReturn:
        refuse_staged_table(self.name)

    def _shown_version(self) -> int:
        return self._open_core().base.number

    def _history(self) -> tuple[_core.Lakehouse, _core.Version]:
        core = self._open_core()
        return _core.Lakehouse.open(core.storage), core.base

    @checked_as(consumer=text, net=flag)
    def consume(self, consumer: str, *, net: bool = False) -> pa.RecordBatchReader:
        """The rows that changed since a consumer's last call. Arguments and errors are as for `Table.consume`."""
        core, since, base, now = self._advance(consumer)
        if since is None:
            return self._change_feed(core, base.number, now).reader([first_step(base, now)])
        feed = self._change_feed(core, since.number, now, then=state_of(since, now.key, self.id))
        return feed.reader((net_step_of_table if net else steps_of_table)(core, self.id, now.key, since, base))

    def _advance(self, consumer: str) -> tuple[_core.Lakehouse, _core.Version | None, _core.Version, TableState]:
        """Advance a consumer to the base version of the transaction.

        Returns the handle of the lakehouse, the version that was consumed before (None: no version), the base version,
        and the state of the table in the base version.
        """
        from trinitylake.tables.change_feed.consumers import advance

        transaction, key = self._open_core(), TableName(self._namespace, self._name)
        base = transaction.base
        now = state_of(base, key, self.id)
        if now is None:
            raise InvalidArgument(
                f"table {self.name} is not in version {base.number}, on which the transaction began: consume it before "
                "it is renamed, and after the commit that creates it"
            )
        core, since = advance(transaction, consumer, self.id, key, now)
        return core, since, base, now

    def _past(self, state: TableState) -> IcebergTable:
        from trinitylake.tables.frozen_table import table_of_state

        return table_of_state(self._open_core().storage, state)

    def _iceberg(self) -> IcebergTable:
        self._use()
        if self.type != "managed":
            if self._outside is None:
                from trinitylake.tables.frozen_table import open_elsewhere

                self._outside = open_elsewhere(self._definition)
            return self._outside
        return self._load().table

    def _use(self) -> None:
        """Count a use of the table. Raises as `check_use` does."""
        self._stage_waiting_rows()
        self._open_core()
        self._uses += 1
        self._check_use()

    def _append_few(self, given: pa.Table, info: CommitInfo) -> WriteResult:
        """Keep the rows until the commit, after checking that their values fit the columns."""
        waiting_size_bytes = sum(rows.nbytes for rows in self._waiting_rows)
        is_full = waiting_size_bytes + given.nbytes > FEW_ROWS_SIZE_BYTES
        if self.type != "managed" or self._is_serializable or is_full:
            return self._append(given, info)
        info.refuse()
        self._open_core().check_writable()
        self._check_use()
        with translated(self._subject):
            metadata = self._load().metadata
            self._update_description(metadata)
            limits = limits_of(Schema.from_definition(self._definition.schema))
            rows = Batch.of_rows(given, metadata.schema(), limits)
        # A copy: the caller may change the arrays before the commit.
        self._waiting_rows.append(of_ipc(to_ipc(rows)))
        return WriteResult(0, 0, given.num_rows)

    def _take_lone_rows(self) -> Batch | None:
        """Remove and return the rows that wait for the commit; None if the table has another change."""
        if not self._waiting_rows or self._staged is None or self._staged.changed:
            return None
        rows = pa.concat_tables(self._waiting_rows)
        entry = self._open_core()
        entry.describe(self._namespace, self._name, [ChangeSummary("append", rows.num_rows)])
        return Batch(rows, self._staged.metadata.schema(), self._definition.schema, NO_COMMIT_INFO, entry)

    def _stage_waiting_rows(self) -> None:
        """Write the rows of small appends to a data file of the transaction."""
        waiting, self._waiting_rows = self._waiting_rows, []
        if not waiting:
            return
        try:
            with self._writing() as iceberg, translated(self._subject), iceberg.transaction() as change:
                assert isinstance(change, StagedTransaction)
                change.append_rows(waiting)
        except BaseException:
            self._waiting_rows = waiting  # the caller may still commit
            raise

    def _check_use(self) -> None:
        """Raise `TransactionClosed` if the transaction has ended, and `ObjectNotFound` if the table was dropped."""
        self._open_core()
        if self._dropped_by:
            raise ObjectNotFound(f"table {self.name} was dropped by {self._dropped_by} transaction")

    def _load(self) -> StagedTable:
        if self._staged is None:
            identifier = (*self._namespace.split("."), self._name)
            path = metadata_path(self._definition, self.name)
            self._io.begin_to_fetch(self._definition.format_properties.get(MANIFEST_LIST, ""))
            self._staged = self._asked(StagedTable.load(identifier, path, io=self._io, table_id=self._definition.id))
            self._described = _shape(self._staged.metadata)
        return self._staged

    def _asked(self, staged: StagedTable) -> StagedTable:
        staged.ask_before_use(partial(_check_use, ref(self)))
        staged.is_serializable = self._is_serializable
        return staged

    @property
    def schema(self) -> Schema:
        """The columns, in TrinityLake's types, with the changes of this transaction."""
        self._iceberg()
        if self._staged is None:
            return super().schema
        self._update_description(self._staged.metadata)
        return Schema.from_definition(self._definition.schema, tuple(self._definition.primary_keys))

    def _note_scan(self, filter: BooleanExpression, snapshot_id: int | None, case_sensitive: bool = True) -> None:
        self._scans += 1
        if self._is_serializable and self.type == "managed":
            staged = self._load()
            if snapshot_id in (None, staged.metadata.current_snapshot_id):
                staged.read_rows(filter, case_sensitive)
            else:
                staged.read_whole()

    def _note_whole(self) -> None:
        if self._is_serializable and self.type == "managed":
            self._use()
            self._load().read_whole()

    @contextmanager
    def _writing(self, note: CommitInfo = NO_COMMIT_INFO) -> Iterator[IcebergTable]:
        note.refuse()
        self._open_core().check_writable()
        iceberg = self._iceberg()
        if self.type == "external":
            raise InvalidArgument(
                f"table {self.name} is external and read-only here: write to it through its own catalog"
            )
        yield iceberg

    def _open_staged(self) -> StagedTable:
        """The staged state of a managed table, loaded if necessary."""
        self._use()
        assert self.type == "managed"
        return self._load()

    @property
    def _own_name(self) -> str:
        return self._name

    def _rename(self, namespace: str, name: str) -> None:
        self._namespace, self._name = namespace, name

    def _drop(self, by: Literal["this", "another"] = "this") -> None:
        """Refuse every use from now on."""
        self._dropped_by = by

    def _forget(self) -> None:
        """Forget the loaded metadata of an external or federated table; the next use reads it again."""
        self._outside = None

    def _rebase(self, winner: TableDef) -> None:
        """Adopt the committed definition; `_staged` was rebased on its metadata."""
        self._definition = winner
        self._described = None

    @property
    def _is_required(self) -> bool:
        """Whether the commit requires that the table did not change, although the transaction does not change it."""
        if self._is_serializable and self.type == "managed":
            return self._staged is None or not self._staged.changed
        return self._staged is not None and self._staged.required

    def _take_over(self, winner: TableDef) -> list[str]:
        """Show the state of another version of an unchanged table; returns files that are not needed any more."""
        self._definition = winner
        unused = [] if self._staged is None else self._staged.written_paths
        self._staged = None
        self._outside = None
        self._described = None
        return unused

    def _definition_to_commit(self) -> bytes:
        """The definition of a managed table with the metadata file that `staged.finish` named."""
        assert self._staged is not None
        self._update_description(self._staged.metadata)
        name_metadata(self._definition, self._staged.put_forward(), self._staged.manifest_list)
        if self._staged.base_metadata_path is not None:
            self._definition.format_properties[PREVIOUS_METADATA_LOCATION] = self._staged.base_metadata_path
        return serialize(self._definition)

    def _update_description(self, metadata: TableMetadata) -> None:
        shape = _shape(metadata)
        if self._described != shape:
            describe(self._definition, metadata)
            self._described = shape


def _check_use(table: ref[TransactionTable]) -> None:
    """`TransactionTable._check_use` without a reference from the staged state to the table, which would be a cycle."""
    if (known := table()) is not None:
        known._check_use()


def _shape(metadata: TableMetadata) -> tuple[int, int]:
    """Ids of the schema and sort order, which a definition repeats: with unchanged ids it stays valid."""
    return metadata.current_schema_id, metadata.default_sort_order_id
