"""A transaction: reads see its base version and its own writes; all writes become visible at once, or none."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar, cast
from weakref import ref

from trinitylake.base import tracing
from trinitylake.base.arguments import checked
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.markup import framed, heading, listed, pairs, shown
from trinitylake.base.pickling import refuse_transaction
from trinitylake.base.qualified_names import Identifier, split
from trinitylake.base.version_reference import VersionReference, find_version
from trinitylake.errors import (
    CheckFailed,
    CommitConflict,
    InvalidArgument,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
    TransactionClosed,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake.lakehouse.checks import Check, Checks
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.statements import OpenTransaction

if TYPE_CHECKING:
    from typing import Any

    from trinitylake import _core
    from trinitylake.lakehouse.asynchronous import AsyncTransaction
    from trinitylake.lakehouse.settings import Coordination
    from trinitylake.tables.append_batch import Batch
    from trinitylake.tables.group_append import Member
    from trinitylake.tables.staged_tables import StagedTables
    from trinitylake.tables.table import Table
    from trinitylake.tables.transaction_table import TransactionTable

Result = TypeVar("Result")


class TransactionStatus(Enum):
    """The status of a transaction. The values are words for error messages and `repr`."""

    OPEN = "open"
    COMMITTED = "was committed"
    ROLLED_BACK = "was rolled back"
    FAILED = "failed to commit"
    UNKNOWN = "ended in an unknown state"


class _Core:
    """The core of a transaction, and its status. Calling this object returns the core while the transaction is open.

    Tables of the transaction refer to this object instead of the transaction, so that there is no reference cycle: a
    server makes thousands of transactions, and Python frees a cycle only in a garbage collection.
    """

    __slots__ = ("_core", "status")

    def __init__(self, core: _core.Transaction) -> None:
        self._core = core
        self.status = TransactionStatus.OPEN

    def __call__(self) -> _core.Transaction:
        if self.status is not TransactionStatus.OPEN:
            raise TransactionClosed(f"transaction {self._core.id} {self.status.value}; begin another one")
        return self._core


#: Property of a transaction that was begun with `restart`: a random name, which distinguishes attempts of its id.
ATTEMPT = "attempt-id"
#: After these errors no process can commit the transaction, so a saved transaction is rolled back for all processes.
_FINAL_ERRORS = (CheckFailed, TransactionExpired, ObjectNotFound, ObjectAlreadyExists, NamespaceNotEmpty)


def _span_attributes(core: _core.Transaction, base: _core.Version) -> dict[str, tracing.Value]:
    return {
        "trinitylake.transaction.id": core.id,
        "trinitylake.transaction.isolation": core.isolation,
        "trinitylake.transaction.base_version": base.number,
    }


class _Blocks(threading.local):
    """The transactions in whose `with` block this thread is, each with its lakehouse."""

    def __init__(self) -> None:
        self.entered: list[tuple[ref[Transaction], _core.Lakehouse]] = []


_blocks = _Blocks()


def warn_in_block(lakehouse: _core.Lakehouse) -> None:
    """Warn, once per transaction, if code in its `with` block calls a statement of the lakehouse instead."""
    for entry in list(_blocks.entered):
        transaction = entry[0]()
        if transaction is not None and transaction.is_open and entry[1] is not lakehouse:
            continue
        _blocks.entered.remove(entry)
        if transaction is None or not transaction.is_open:
            continue
        frame, level = inspect.currentframe(), 1
        while frame is not None and frame.f_globals.get("__name__", "").startswith(("trinitylake.", "contextlib")):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            "a statement of the lakehouse inside `with lake.transaction() as txn` commits alone and is not part "
            "of that transaction: write to txn.table(…), and call the other methods of txn",
            UserWarning,
            stacklevel=level,
        )


class Transaction(OpenTransaction):
    """A transaction, from `lake.transaction()` or `lake.begin()`. Not thread-safe.

    As a context manager it commits at the end of the block, and rolls back if an exception leaves the block. It cannot
    be pickled; another process can resume it after `save`.
    """

    def __init__(
        self,
        lakehouse: _core.Lakehouse,
        core: _core.Transaction,
        allowed_checks: Iterable[str] = (),
        commit_append: Callable[[TransactionTable, Batch, Callable[[], int]], int | None] | None = None,
    ) -> None:
        self._lakehouse = lakehouse
        self._commit_append = commit_append
        self._core = core
        base = core.base
        self._lakehouse_definition = base.definition
        self._staged: StagedTables | None = None
        self._checks: Checks[Transaction] = Checks(core.checks, allowed_checks)
        self._is_checking = False
        self._companions: list[_core.Transaction] = []
        self._queued_appends: _core.QueuedAppends | None = None
        self._gives_way = False
        self._replaces_first = False
        self._open_core = _Core(core)
        self._version: int | None = core.committed_version
        self._span = tracing.begin("transaction", attributes=lambda: _span_attributes(core, base))
        if core.sequence and self._version is None and core.attachment:
            self._staged_tables.resume(core.attachment)

    @property
    def id(self) -> str:
        """The id that the user chose, or a random id."""
        return self._core.id

    @property
    def _attempt(self) -> str:
        """The id and the name of this attempt, if the transaction was begun with `restart`; otherwise the id."""
        name = self._core.properties.get(ATTEMPT)
        return self.id if name is None else f"{self.id}~{name}"

    @property
    def isolation(self) -> str:
        """ "snapshot" or "serializable"."""
        return self._core.isolation

    @property
    def _base_size_bytes(self) -> int:
        """Upper bound of the memory of the transaction's opened tables, in bytes, without staged changes."""
        return 0 if self._staged is None else self._staged.base_size_bytes

    @property
    def _saved_state(self) -> bytes:
        """The state of the transaction's tables at the last `save`, in JSON; empty if it was never saved."""
        return self._core.attachment

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the transaction, which are stored in the log."""
        return self._core.properties

    @property
    def summary(self) -> str:
        """Summary of the changes for the log in one line, such as "append +3,000 rows shop.orders".

        While the transaction is open, the summary has the changes of tables up to the last `save`.
        """
        return self._core.summary

    @property
    def base_version(self) -> int:
        """The version that the transaction reads."""
        return self._core.base.number

    @property
    def version(self) -> int | None:
        """The version that the transaction committed (its base version if it wrote nothing); None before the commit."""
        return self._version

    @property
    def tables_read(self) -> list[str]:
        """Sorted full names of the tables that the transaction has read so far, for the lineage of its results.

        The list has the tables whose rows were scanned, and the tables that were opened and not changed. It does not
        have a table that was only written to (also by an upsert or a merge), or that the transaction dropped or created
        without scanning it.
        """
        return [] if self._staged is None else self._staged.read()

    @property
    def aio(self) -> AsyncTransaction:
        """The methods of the transaction for asyncio, one at a time: `await txn.aio.table("a.t").append(rows)`."""
        from trinitylake.lakehouse.asynchronous import AsyncTransaction

        return AsyncTransaction(self)

    @property
    def is_open(self) -> bool:
        """Whether the transaction has been neither committed nor rolled back."""
        return self._open_core.status is TransactionStatus.OPEN

    @property
    def status(self) -> TransactionStatus:
        """Whether the transaction is open, and otherwise how it ended."""
        return self._open_core.status

    @property
    def _is_unknown(self) -> bool:
        """Whether the storage did not answer the commit, so that the outcome is unknown. `rollback` finds it out."""
        return self._open_core.status is TransactionStatus.UNKNOWN

    @property
    def _files_are_unreachable(self) -> bool:
        """Whether the transaction is over and no version can ever refer to a file that it wrote."""
        return self._core.files_are_unreachable

    @checked
    def commit(
        self,
        *,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        coordination: Coordination | None = None,
    ) -> int:
        """Make all changes visible at once; returns the version.

        Transactions that commit through one `Lakehouse` at the same time share a version. After an error the
        transaction is closed. If it is certain that nothing was committed, the transaction's files are deleted;
        otherwise `vacuum` deletes them later.

        Args:
            timeout_seconds: how long to retry while other writers are faster or change the same tables, or the store
                fails; 120 if not given.
            max_attempts: the limit for each of: attempts, rebases of tables, and runs of the checks; 200 if not given.
            coordination: "none", or "queue": if another process commits first, wait in a queue with other processes,
                one of which commits for all. By default the lakehouse's property `commit.coordination`, or else "none".

        Raises:
            CommitConflict: another transaction committed first, and changed the same objects.
            CheckFailed: a check does not hold.
            CommitStateUnknown: the storage did not answer; ask `lake.transactions.outcome(txn.id)` later.
            TransactionExpired: the transaction was open for too long.
            InvalidArgument: the transaction was saved with checks that `Lakehouse.resume` did not allow; it stays open.
        """
        self._state_to_change()
        if self._version is None:
            self._checks.require_allowed(self.id)
            if (timeout_seconds, max_attempts, coordination) == (None, None, None):
                version = self._commit_with_other_appends()
                if version is not None:
                    return version
        return self._commit_alone(timeout_seconds, max_attempts, coordination)

    def _commit_alone(
        self,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        coordination: Coordination | None = None,
    ) -> int:
        """Commit, but not together with appends of other transactions."""
        core, redone = self._core, 0
        with self._span.part("commit") as span, ExitStack() as locks:
            if self._staged is not None or self._checks:
                self._prepare(locks)
            try:
                while True:
                    files = self._take_metadata()
                    outcome = core.commit(
                        max_attempts,
                        timeout_seconds,
                        coordination,
                        files,
                        self._companions,
                        self._queued_appends,
                        self._replaces_first,
                    )
                    if isinstance(outcome, int):
                        break
                    if self._gives_way and outcome.tables:
                        from trinitylake.tables.group_append import LostRace

                        raise LostRace
                    redone += len(outcome.tables)
                    is_new = bool(outcome.tables) and self._staged_tables.rebase(outcome.tables)
                    if is_new or outcome.watched:
                        self._check()
            except BaseException as error:
                self._failed(error)
                raise
            span.set("trinitylake.version", outcome)
            span.set("trinitylake.commit.redone_tables", redone)
        return self._committed(outcome)

    def _commit_with_other_appends(self) -> int | None:
        """Commit an append of few rows together with concurrent appends; None if the transaction must commit alone.

        The transaction must commit alone if it has done anything else, or if it has a check, which has to see the rows
        of all earlier transactions.
        """
        core = self._core
        if self._staged is None or self._commit_append is None or self._checks or core.sequence or core.has_writes:
            return None
        if (found := self._staged.take_lone_rows()) is None:
            return None
        try:
            version = self._commit_append(*found, self._commit_alone)
        except BaseException as error:
            if not self.is_open:
                raise
            version = core.committed_version
            if version is None:
                self._failed(error)
                raise
            if not isinstance(error, Exception):
                self._committed(version)
                raise
        return version if version is None or not self.is_open else self._committed(version)

    def _commit_in_group(self) -> int:
        """Commit an append of files that a client wrote, together with concurrent appends to the same table.

        A transaction with other changes commits alone. Raises the errors of `commit`.
        """
        from trinitylake.iceberg_storage.errors import TableConflict
        from trinitylake.tables.group_append import Committed, Task, WrittenAppend, groups_of
        from trinitylake.tables.table_locks import table_locks

        core, table = self._core, None if self._staged is None else self._staged.lone_append
        if table is None or self._checks or self.isolation != "snapshot" or core.written_keys().num_rows:
            return self.commit()
        staged = table._open_staged()

        def prepare() -> WrittenAppend:
            core.describe(table.namespace, table._own_name, staged.summarize())
            return WrittenAppend(table, core)

        def lead(take: Callable[[Any], list[Member[WrittenAppend]]], own: Member[WrittenAppend]) -> Committed:
            own.table = table
            with table_locks.reserved([table.id]):
                if members := take(lambda append: True):
                    with suppress(TableConflict):  # the commit raises it as `CommitConflict`
                        self._staged_tables.rebase_on(self._lakehouse.latest(), table)
                    staged.own_changes = staged.summarize()
                for member in members:
                    assert member.batch is not None
                    try:
                        staged.absorb(member.batch.table._open_staged())
                    except Exception:
                        member.settle(Task.ALONE)
                    else:
                        member.companion = member.batch.transaction
                        self._companions.append(member.batch.transaction)
                return Committed(table, self.commit())

        try:
            done = groups_of(self._lakehouse, table.id, WrittenAppend).append(prepare, lead)
        except BaseException as error:
            if self.is_open and core.committed_version is None:
                self._failed(error)
            raise
        if done is None:
            return self.commit()
        if self._version is None:
            leader = cast("TransactionTable", done.table)._staged
            assert leader is not None
            staged.follow(leader)
            self._committed(done.version)
        return done.version

    def rollback(self) -> None:
        """Roll back: no change becomes visible, and the written data files are deleted as far as possible.

        If the transaction was saved, or its commit ended without an answer, another process could still commit it. Then
        it is rolled back for all processes, which commits a version with a record of the rollback.

        Raises:
            CommitConflict: it was committed, or another process has resumed and saved it in the meantime.
            CommitStateUnknown: the storage does not answer whether it was committed; nothing was deleted.
        """
        self._require_no_check()
        if self._open_core.status not in (TransactionStatus.OPEN, TransactionStatus.UNKNOWN):
            return
        self._core.rollback()
        self._open_core.status = TransactionStatus.ROLLED_BACK
        self._end_span()
        self._remove_files()

    def save(self) -> str:
        """Write the state of the transaction to the storage, for `lake.resume` in another process.

        Returns the id. With `restart`, returns the id together with the name of this attempt: `resume` with this name
        raises `CommitConflict` after the id was begun again, whereas `resume` with the id alone continues the latest
        attempt of any process. Any process may save the transaction again. If two processes save or commit the same
        state, the second gets an error. The transaction can be resumed for `txn_ttl_millis`, a setting of the lakehouse
        (format §8).

        Raises:
            CommitConflict: another process resumed the transaction, and saved, committed or rolled it back.
        """
        core = self._state_to_change()
        attachment = b""
        if self._staged is not None:
            self._staged.write()
            self._storage.put_many(self._staged.take_metadata())
            attachment = self._staged.saved()
        core.save(attachment, self._checks.names())
        return self._attempt

    def add_check(self, check: str | Check[Transaction]) -> None:
        """Add a condition that must hold when the transaction commits, such as "no flight without an airport".

        Checks see the transaction's own writes. They run before the commit. If another transaction has changed
        something that the checks read, or a table that this transaction writes, the checks run again, on the newest
        version. If a check fails, nothing is committed.

        Args:
            check: SQL for DuckDB, which holds if the first value of its result is true; or a function that is called
                with the transaction; or the name of such a function, `package.module:function`. A transaction with a
                function that has no such name cannot be saved.
        """
        self._state_to_change()
        self._checks.add(check)

    def __enter__(self) -> Self:
        self._state()
        self._span.enter()
        _blocks.entered = [entry for entry in _blocks.entered if entry[0]() is not None]
        _blocks.entered.append((ref(self), self._lakehouse))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                with suppress(TrinityLakeError):  # `vacuum` deletes the files that a failed rollback leaves
                    self.rollback()
            elif self.is_open:
                self.commit()
        finally:
            self._span.leave()

    @shown
    def _repr_html_(self) -> str:
        """HTML for notebooks. Reads no files."""
        state = (
            self._open_core.status.value
            if self._version is None
            else f"{self._open_core.status.value}, as version {self._version:,}"
        )
        facts = [
            ("state", state),
            ("isolation", self.isolation),
            ("reads version", f"{self.base_version:,}"),
            ("changes tables", listed([] if self._staged is None else self._staged.changed_names, False)),
            ("saved", f"{self._core.sequence} times" if self._core.sequence else "never"),
        ]
        return framed(heading("transaction", self.id), pairs(facts), pairs(self.properties.items()))

    def __reduce__(self) -> NoReturn:
        refuse_transaction(self.id)

    def __repr__(self) -> str:
        state = f"version={self._version}" if self._version is not None else self._open_core.status.value
        did = f", {self.summary!r}" if self._version is not None and self.summary else ""
        return (
            f"Transaction(id={self.id!r}, isolation={self.isolation!r}, base_version={self.base_version}, {state}{did})"
        )

    def table(self, identifier: Identifier) -> Table:
        """A table in the state that this transaction sees. Raises `ObjectNotFound`."""
        namespace, name = split(identifier)
        return self._find_table(namespace, name) or super().table(identifier)

    def _find_table(self, namespace: str, name: str) -> TransactionTable | None:
        """The handle of a table, which records its reads; None if the table does not exist."""
        with self._located("table", namespace, name):
            definition = self._state().open_table(namespace, name)
            return None if definition is None else self._staged_tables.open(namespace, name, definition)

    def _has_table(self, namespace: str, name: str) -> bool:
        return self._find_table(namespace, name) is not None

    @property
    def _storage(self) -> _core.Storage:
        return self._core.storage

    def _state(self) -> _core.Transaction:
        self._open_core()
        return self._core

    def _at(self, reference: VersionReference) -> LakehouseVersion:
        return LakehouseVersion(self._storage, find_version(self._lakehouse, reference))

    def _table(self, namespace: str, name: str, definition: bytes, state: object) -> Table:
        return self._staged_tables.open(namespace, name, definition)

    def _afterwards(self, namespace: str, name: str, table: Table) -> Table:
        return table

    def _execute(
        self,
        statement: Callable[[Transaction], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: _core.Version | None = None,
    ) -> Result:
        note.refuse()
        self._require_no_check()
        return statement(self)

    def _recent_version(self) -> None:
        return None

    def _state_to_change(self) -> _core.Transaction:
        self._require_no_check()
        return self._state()

    def _require_no_check(self) -> None:
        """Raise `InvalidArgument` while checks run, in the middle of the commit."""
        if self._is_checking:
            raise InvalidArgument("a check must not change or end its transaction: it must only read")

    @property
    def _staged_tables(self) -> StagedTables:
        """The tables that the transaction has opened or created.

        The object is created for the first table, so that a transaction without tables never imports PyIceberg.
        """
        if self._staged is None:
            from trinitylake.tables.staged_tables import StagedTables

            self._staged = StagedTables(self._lakehouse, self._storage, self._open_core)
        return self._staged

    def _locks_reserved(self) -> AbstractContextManager[None]:
        """Hold the locks of the changed tables for another transaction that begins in the block."""
        return nullcontext() if self._staged is None else self._staged.locks_reserved()

    def _prepare(self, locks: ExitStack) -> None:
        """Run the checks, lock the changed tables and write their metadata, before the core commits."""
        try:
            if self._has_conditions:
                self._check()
            if self._staged is not None:
                locks.enter_context(self._staged.locked())
                self._staged.write()
        except BaseException as error:
            self._failed(error)
            raise

    def _add_companion(self, companion: _core.Transaction, replaced: bool = False) -> _core.Transaction:
        """Commit another transaction's log entry together with this transaction, which has staged its changes.

        Args:
            companion: the transaction of the log entry.
            replaced: whether `companion`, which must be the first companion, replaces this transaction in the log.
        """
        self._replaces_first |= replaced
        self._companions.append(companion)
        return companion

    def _add_queued_appends(self, queued: _core.QueuedAppends) -> None:
        """Commit queued appends. This transaction has staged their rows and the rows of other processes."""
        self._queued_appends = queued

    def _take_metadata(self) -> list[tuple[str, bytes]]:
        """Metadata files that the commit has to write; each file is returned once."""
        return [] if self._staged is None else self._staged.take_metadata()

    def _check(self) -> None:
        """Run the checks on the newest version on which the transaction is valid; the core watches what they read.

        The core then also watches tables that the transaction does not change, but on which an Iceberg client has
        requirements.
        """
        if not self._has_conditions:
            return
        before = self._core.base
        self._core.begin_watch()
        staged = self._staged_tables
        staged.follow(before)
        uses = staged.uses()
        with staged.being_checked():
            self._run_checks()
        staged.watch_used_since(uses)
        staged.watch_required()
        self._core.end_watch()

    def _run_checks(self) -> None:
        self._is_checking = True
        try:
            self._checks.run(self)
        finally:
            self._is_checking = False

    @property
    def _has_conditions(self) -> bool:
        """Whether the commit depends on more than the objects that it writes."""
        return bool(self._checks) or (self._staged is not None and self._staged.has_requirements)

    def _committed(self, version: int) -> int:
        self._version = version
        self._open_core.status = TransactionStatus.COMMITTED
        self._span.set("trinitylake.version", version)
        self._end_span()
        if self._staged is not None:
            self._staged.committed(version)
        return version

    def _failed(self, error: BaseException) -> None:
        """After a failed commit: roll back, if no process can commit the transaction, and delete unreachable files."""
        if self._core.is_unknown:
            self._open_core.status = TransactionStatus.UNKNOWN
            self._end_span(error)
            return
        self._open_core.status = TransactionStatus.FAILED
        self._end_span(error)
        is_lost = isinstance(error, _FINAL_ERRORS) or (isinstance(error, CommitConflict) and bool(error.winners))
        if is_lost or not self._core.sequence:
            # The rollback fails if another process has continued the transaction.
            with suppress(TrinityLakeError):
                self._core.rollback()
                self._open_core.status = TransactionStatus.ROLLED_BACK
        self._remove_files()

    def _end_span(self, error: BaseException | None = None) -> None:
        if self._span.is_on:
            self._span.set("trinitylake.transaction.status", self._open_core.status.name.lower())
            self._span.end(error)

    def _remove_files(self) -> None:
        if self._staged is not None and self._files_are_unreachable:
            self._staged.discard()
