"""A table of the latest version: each write commits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from trinitylake import _core
from trinitylake._core import Lakehouse as CoreLakehouse
from trinitylake._core import Transaction as CoreTransaction
from trinitylake._core import Version
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.qualified_names import Identifier, split
from trinitylake.definitions import TableDef, new_id, parse_table_def, serialize
from trinitylake.errors import CommitConflict, InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import CatalogTable
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.staging.summary import ChangeSummary
from trinitylake.tables.append_batch import Batch, OtherColumns, columns_text, of_ipc, to_ipc
from trinitylake.tables.autocommit_catalog import AutocommitCatalog
from trinitylake.tables.declared_limits import limits_of
from trinitylake.tables.frozen_table import FrozenTable
from trinitylake.tables.group_append import Committed, LostRace, Member, groups_of
from trinitylake.tables.merge import WriteResult, committed
from trinitylake.tables.table import Table
from trinitylake.tables.table_locks import table_locks

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.staging.staged_table import StagedTable
    from trinitylake.tables.ingestion.table_writer import Limits, TableWriter
    from trinitylake.tables.transaction_table import TransactionTable

Result = TypeVar("Result")
Take: TypeAlias = "Callable[[Callable[[Batch], bool]], list[Member[Batch]]]"


class TransactionWithTables(Protocol):
    """The part of a transaction that a table uses."""

    @property
    def version(self) -> int | None: ...
    @property
    def base_version(self) -> int: ...
    def table(self, identifier: Identifier) -> Table: ...

    _gives_way: bool

    def _add_companion(self, companion: _core.Transaction, replaced: bool = False) -> _core.Transaction: ...
    def _add_queued_appends(self, queued: _core.QueuedAppends) -> None: ...


class LatestVersion(Protocol):
    """The part of a lakehouse that a table uses."""

    @property
    def _storage(self) -> _core.Storage: ...
    @property
    def version(self) -> int: ...
    @property
    def _core(self) -> CoreLakehouse: ...
    def _state(self) -> Version: ...
    def _recent_version(self) -> Version | None: ...
    def _begin_entry(self, note: CommitInfo) -> CoreTransaction: ...
    def _read_definition(self, kind: Literal["table"], namespace: str, name: str) -> bytes: ...
    def _execute(
        self,
        statement: Callable[[TransactionWithTables], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: Version | None = None,
    ) -> Result: ...
    def _compact(self, table: Identifier, target_file_size_bytes: int | None = None) -> None: ...
    def begin(self, *, message: str = "", author: str = "") -> AbstractContextManager[TransactionWithTables]: ...
    def _begin_statement(self, note: CommitInfo) -> AbstractContextManager[TransactionWithTables]: ...


class AutocommitTable(FrozenTable):
    """A table from `lake.table(...)`.

    Until `refresh`, it reads the version that was the latest when it was opened, or the version of its last write. A
    write is a transaction on the latest version, which is repeated if it loses a race. The table is looked up by name.
    If another table has the name, `CommitConflict` is raised.

    Args:
        version: a version that contains `definition`, if one is known.
    """

    def __init__(
        self, lakehouse: LatestVersion, namespace: str, name: str, definition: bytes, version: int | None = None
    ) -> None:
        super().__init__(lakehouse._storage, namespace, name, definition, version)
        self._lakehouse = lakehouse

    def _shown_version(self) -> int:
        return self._lakehouse.version

    def _history(self) -> tuple[_core.Lakehouse, _core.Version]:
        return self._lakehouse._core, self._lakehouse._state()

    def refresh(self) -> None:
        """Read the latest version from now on. Raises `ObjectNotFound` if the table was dropped."""
        latest, version = self._latest()
        self._show(parse_table_def(latest), version)

    def __reduce__(self) -> tuple[Callable[..., FrozenTable], tuple[Any, ...]]:
        definition = serialize(self._definition)
        return AutocommitTable, (self._lakehouse, self._namespace, self._name, definition, self._version)

    def _open_writer(
        self, limits: Limits, producer: str | None, dead_letters: Identifier | None, compact: bool, note: CommitInfo
    ) -> TableWriter:
        from trinitylake.tables.ingestion.table_writer import TableWriter
        from trinitylake.tables.ingestion.writer_transaction import Target

        if self.type != "managed":
            raise InvalidArgument(f"table {self.name} is {self.type}: only managed tables have writers")
        name = self._namespace, self._name
        target = Target(name, self.id, None if dead_letters is None else split(dead_letters), new_id())
        compaction = partial(self._lakehouse._compact, name) if compact else None
        return TableWriter(self._lakehouse, target, self, limits, producer, note, compaction)

    _repeats_writes = True

    def _write(
        self, operation: Callable[[IcebergTable], Result], *, is_append: bool = False, note: CommitInfo = NO_COMMIT_INFO
    ) -> Result:
        def statement(transaction: TransactionWithTables) -> tuple[Result, Table, TransactionWithTables]:
            table = self._in(transaction)
            with table._writing() as iceberg:
                return operation(iceberg), table, transaction

        result, written, transaction = self._run(statement, note, is_append)
        self._show_written(written)
        return committed(result, transaction.version, transaction.base_version)

    def _run(
        self,
        statement: Callable[[TransactionWithTables], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        is_append: bool = False,
    ) -> Result:
        """Run a statement on the table in its own transaction. Raises `CommitConflict` if another table has the name.

        To save a request, an append begins on a version that was the latest a short time ago. Its commit notices newer
        versions. A write to a table in another catalog cannot be repeated, so it begins on the latest version.
        """
        base = self._lakehouse._recent_version() if is_append and self.type == "managed" else None
        try:
            return self._lakehouse._execute(statement, note, base)
        except _AnotherTable as error:
            raise self._conflict() from error
        except OtherColumns as error:
            message = f"the columns of table {self.name} have changed since the transaction began: begin again"
            raise CommitConflict(message, keys=[f"table {self.name}"]) from error

    def _append_few(self, given: pa.Table, info: CommitInfo) -> WriteResult:
        if self.type != "managed" or not given.num_rows:
            return self._append(given, info)
        table_locks.refuse_in_checks([self.id])
        done = self._append_in_group(partial(self._prepared, given, info), partial(self._lead_appends, given, info))
        if done is None:
            return self._append(given, info)
        self._show(done.table._definition, done.version)
        return committed(WriteResult(0, 0, given.num_rows), done.version)

    def _commit_batch(self, batch: Batch, commit: Callable[[], int]) -> int | None:
        """Commit the append of a transaction, `batch.entry`, in a group. Returns the version; None if not committed.

        After None, the transaction must commit without a group.

        Args:
            commit: commits the transaction without a group. Called if no other thread appends and the lakehouse has no
                intent queue. With the queue, the rows must be able to wait in it, because a commit that loses one race
                may lose all later races.

        Raises as `AppendGroups.append` and `commit` do.
        """

        def lead(take: Take, own: Member[Batch]) -> Committed:
            own.table = self
            with table_locks.reserved([self.id]):
                if take(batch.is_like) or self._lakehouse._core.has_queue:
                    return self._lead_appends(batch.rows, batch.info, take, own, batch)
                return Committed(self, commit())

        done = self._append_in_group(lambda: batch, lead)
        return None if done is None else done.version

    def _append_in_group(
        self, prepare: Callable[[], Batch | None], lead: Callable[[Take, Member[Batch]], Committed]
    ) -> Committed | None:
        return groups_of(self._lakehouse._core, self.id, Batch).append(prepare, lead)

    def _prepared(self, given: pa.Table, info: CommitInfo) -> Batch | None:
        """The batch for a group; None if the rows do not fit the table of this handle, whose schema may be outdated."""
        try:
            with translated(self._subject):
                schema = self._iceberg().schema()
                rows = Batch.of_rows(given, schema, limits_of(self.schema))
        except TrinityLakeError:
            return None
        return Batch(rows, schema, self._definition.schema, info)

    def _lead_appends(
        self, given: pa.Table, info: CommitInfo, take: Take, own: Member[Batch], batch: Batch | None = None
    ) -> Committed:
        """Append the rows together with rows of other members and processes.

        Args:
            given, info: the rows, and their commit info.
            take: returns the other members of the group.
            own: the member of this thread.
            batch: the rows, if they are the append of a user's transaction.
        """
        core, of_transaction = self._lakehouse._core, batch
        if batch is not None:
            own.companion, own.repeats = batch.entry, True
        with table_locks.reserved([self.id]):
            if core.has_queue and (batch is None or batch.may_wait_in_queue):
                batch = batch or self._prepared(given, info)
                if batch is not None and not core.is_contended:
                    with suppress(LostRace):
                        return self._append_group(given, info, take, own, of_transaction, gives_way=True)
                if batch is not None:
                    return self._append_in_queue(batch, take, own)
            return self._append_group(given, info, take, own, of_transaction)

    def _append_group(
        self,
        given: pa.Table,
        info: CommitInfo,
        take: Take,
        own: Member[Batch],
        batch: Batch | None,
        *,
        gives_way: bool = False,
    ) -> Committed:
        """Append without rows of other processes. With `batch`, the append is the commit of a user's transaction."""

        # With `gives_way`, raises `LostRace` if another process changes the table first.
        def statement(transaction: TransactionWithTables) -> TransactionTable:
            transaction._gives_way = gives_way
            table = cast("TransactionTable", self._in(transaction))
            with table._writing() as iceberg, translated(self._subject), iceberg.transaction() as change:
                assert isinstance(change, StagedTransaction)
                if batch is not None and batch.schema != change.table_metadata.schema():
                    raise OtherColumns
                rows = self._conformed(given, change).rows
                schema, declared = change.table_metadata.schema(), table._definition.schema
                members = take(lambda batch: batch.schema == schema and batch.declared == declared)
                joined = [member.batch.rows for member in members if member.batch is not None]
                change.append_rows([rows, pa.concat_tables(joined)] if joined else [rows])
            own.table = table
            own.repeats = own.repeats or bool(members)
            if members:
                table._open_staged().own_changes = [ChangeSummary("append", given.num_rows)]
            if batch is not None and batch.entry is not None:
                transaction._add_companion(batch.entry, replaced=True)
            for member in members:
                assert member.batch is not None
                member.companion = transaction._add_companion(self._log_entry(member.batch))
            return table

        table = self._run(statement, info, is_append=True)
        assert table._committed_version is not None
        return Committed(table, table._committed_version)

    def _log_entry(self, batch: Batch) -> _core.Transaction:
        """A transaction without writes, for the log of the version that contains the rows."""
        entry = batch.entry or self._lakehouse._begin_entry(batch.info)
        entry.describe(self._namespace, self._name, [ChangeSummary("append", batch.rows.num_rows)])
        return entry

    def _append_in_queue(self, batch: Batch, take: Take, own: Member[Batch]) -> Committed:
        """Append the rows through the intent queue. This or another process commits them with other queued rows."""
        members = take(lambda other: other.is_like(batch) and other.may_wait_in_queue)
        batches = [batch, *(member.batch for member in members if member.batch is not None)]
        entries = [self._log_entry(one) for one in batches]
        for member, entry in zip(members, entries[1:], strict=True):
            member.companion = entry
        own.table, own.companion = self, entries[0]
        own.repeats = batch.entry is None
        rows = pa.concat_tables([one.rows for one in batches])
        name, data = (self._namespace, self._name), to_ipc(rows, batch.schema)
        queued = self._lakehouse._core.queue_appends(self.id, name, entries, data)
        try:
            while (others := queued.wait()) is not None:
                with suppress(LostRace):
                    return self._append_queued(rows, batch, queued, others, own)
        except BaseException as error:
            try:
                if queued.withdraw() is None:
                    for member in members:
                        if member.batch is not None and member.batch.entry is not None:
                            member.settle(CommitConflict(f"another append of the group failed, begin again: {error}"))
                    raise
            finally:
                if not isinstance(error, Exception):  # Ctrl-C, also if the appends cannot be withdrawn
                    raise error
        version = entries[0].committed_version
        assert version is not None
        with suppress(TrinityLakeError):  # the rows are committed: this handle shows them after `refresh`
            own.table = self._in_version(version)
        return Committed(own.table, version)

    def _append_queued(
        self, rows: pa.Table, own_batch: Batch, queued: _core.QueuedAppends, others: list[bytes], own: Member[Batch]
    ) -> Committed:
        """Append queued rows of this and other processes, which were all prepared for the present columns.

        Raises `LostRace` if a version already contains some of the rows.
        """
        attempts = iter(range(1))

        def statement(transaction: TransactionWithTables) -> TransactionTable:
            if next(attempts, None) is None:  # the commit of the first attempt found a conflict
                raise LostRace
            table = cast("TransactionTable", self._in(transaction))
            with table._writing() as iceberg, translated(self._subject), iceberg.transaction() as change:
                assert isinstance(change, StagedTransaction)
                schema = change.table_metadata.schema()
                if own_batch.schema != schema:
                    raise OtherColumns
                columns = columns_text(schema)
                parts, refused = [self._conformed(rows, change).rows], []
                for position, data in enumerate(others):
                    try:
                        parts.append(self._conformed(of_ipc(data, columns), change).rows)
                    except (TrinityLakeError, OtherColumns, pa.ArrowException):  # the owner of the rows gets the error
                        refused.append(position)
                queued.refuse(refused)
                change.append_rows(parts)
            own.table = table
            table._open_staged().own_changes = [ChangeSummary("append", own_batch.rows.num_rows)]
            transaction._add_queued_appends(queued)
            return table

        table = self._run(statement, own_batch.info, is_append=True)
        assert table._committed_version is not None
        return Committed(table, table._committed_version)

    def _in_version(self, number: int) -> AutocommitTable:
        """A handle that shows the table in a version that another process committed."""
        # If the table has another name in that version, the handle shows the same definition as this handle.
        definition = self._lakehouse._core.version(number).read("table", self._namespace, self._name)
        shown = serialize(self._definition) if definition is None else definition
        return AutocommitTable(self._lakehouse, self._namespace, self._name, shown, number)

    @contextmanager
    def _writing(self, note: CommitInfo = NO_COMMIT_INFO) -> Iterator[IcebergTable]:
        try:
            with self._lakehouse._begin_statement(note) as transaction:
                table = self._in(transaction)
                with table._writing() as iceberg:
                    yield iceberg
        except _AnotherTable as error:
            raise self._conflict() from error
        self._show_written(table)

    def _handle(
        self, identifier: tuple[str, ...], metadata: TableMetadata, uri: str, io: LakehouseFileIO
    ) -> IcebergTable:
        return CatalogTable(identifier, metadata, uri, io, AutocommitCatalog(self._commit, self._newest, identifier))

    def _commit(
        self, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate], base: IcebergTable
    ) -> StagedTable:
        """Commit the changes of a PyIceberg table as a transaction. Returns the staged table.

        `base` is the table as its writer saw it. Raises `CommitConflict` if another table has the name now, and as
        `StagedTable.commit_from` does.
        """

        def statement(transaction: TransactionWithTables) -> tuple[StagedTable, Table]:
            table = cast("TransactionTable", self._in(transaction))
            staged = table._open_staged()
            staged.commit_from(base.metadata, requirements, updates)
            return staged, table

        staged, written = self._run(statement)
        self._show_written(written)
        return staged

    def _newest(self) -> IcebergTable:
        """The PyIceberg table in the latest version. Raises `ObjectNotFound`."""
        latest, version = self._latest()
        return AutocommitTable(self._lakehouse, self._namespace, self._name, latest, version).iceberg

    def _latest(self) -> tuple[bytes, int]:
        """The definition in the latest version, and the version number. Raises `ObjectNotFound` for a dropped table."""
        state = self._lakehouse._state()
        definition = state.read("table", self._namespace, self._name)
        if definition is None:
            definition = self._lakehouse._read_definition("table", self._namespace, self._name)
        return definition, state.number

    def _show_written(self, written: Table) -> None:
        self._show(written._definition, cast("TransactionTable", written)._committed_version)

    def _show(self, definition: TableDef, version: int | None) -> None:
        """Let this handle show the definition of a version."""
        self._definition = definition
        self._version = version
        self._opened = None

    def _in(self, transaction: TransactionWithTables) -> Table:
        table = transaction.table((self._namespace, self._name))
        if table.id != self.id:
            raise _AnotherTable
        return table

    def _conflict(self) -> CommitConflict:
        message = f"table {self.name} was dropped, and another table has its name now: open it again"
        return CommitConflict(message, keys=[f"table {self.name}"])


class _AnotherTable(Exception):
    """Another table has the name. It is not a `CommitConflict`, because the statement must not be repeated."""
