"""One transaction: reads see its base version and its own writes; all of it becomes visible at once, or nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from trinitylake.blocking import run_blocking
from trinitylake.checks import Check, Checks
from trinitylake.errors import (
    CheckFailed,
    CommitConflict,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
    TransactionClosed,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake.statements import Statements

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.settings import Coordination
    from trinitylake.staged_tables import StagedTables
    from trinitylake.table import Table

Result = TypeVar("Result")

#: How often others may change what the checks read.
_MAX_CHECKS = 200

#: What `commit` raises only when it is certain that nothing was committed, so that staged files may go.
_CERTAINLY_LOST = (
    CheckFailed,
    CommitConflict,
    TransactionExpired,
    ObjectNotFound,
    ObjectAlreadyExists,
    NamespaceNotEmpty,
)


class Transaction(Statements):
    """A transaction, from `lake.transaction()` or `lake.begin()`. Not for two threads at once.

    As a context manager it commits when the block ends and rolls back when an exception leaves it.
    """

    def __init__(self, lakehouse: _core.Lakehouse, core: _core.Transaction) -> None:
        self._lakehouse = lakehouse
        self._core = core
        self._lakehouse_definition = core.base.definition
        self._staged: StagedTables | None = None
        self._checks = Checks(core.checks)
        self._closed = ""
        self._version: int | None = core.committed_version
        if core.sequence and self._version is None and core.attachment:
            self._tables.resume(core.attachment)

    @property
    def id(self) -> str:
        """The id that was chosen, or a random one."""
        return self._core.id

    @property
    def isolation(self) -> str:
        """ "snapshot" or "serializable"."""
        return self._core.isolation

    @property
    def base_version(self) -> int:
        """The version that the transaction reads."""
        return self._core.base.number

    @property
    def version(self) -> int | None:
        """The version that the transaction became, its base version if it wrote nothing; None until committed."""
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether the transaction has been neither committed nor rolled back."""
        return not self._closed

    def commit(
        self,
        *,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        coordination: Coordination | None = None,
    ) -> int:
        """Make everything visible at once; returns the version.

        Transactions that commit through one `Lakehouse` at the same time share a version. After an error the
        transaction is closed. Its files are removed if it is certain that nothing was committed, and left to
        `vacuum` otherwise.

        Args:
            timeout_seconds: how long to go on when other writers are always faster; 120 if not given. Tables that have
                to be redone on newer metadata are redone without end unless it is given.
            max_attempts: how often to try then, and how often to run the checks; 200 if not given.
            coordination: "none" or "queue" (after a lost race line up behind other processes; whoever leads commits
                for all who wait); the lakehouse's property `commit.coordination` if not given, else "none".

        Raises:
            CommitConflict: another transaction committed first and touched the same things.
            CheckFailed: a check does not hold.
            CommitStateUnknown: the storage did not tell whether the commit happened; ask `lake.outcome(txn.id)`.
            TransactionExpired: the transaction was open for too long.
        """
        core = self._open_core()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        checks_left = _MAX_CHECKS if max_attempts is None else max_attempts
        with self._prepared():
            try:
                while True:
                    outcome = core.commit(max_attempts, timeout_seconds, coordination)
                    if isinstance(outcome, int):
                        break
                    if deadline is not None:
                        timeout_seconds = deadline - time.monotonic()
                        if timeout_seconds <= 0:
                            raise CommitConflict(
                                "gave up: others changed the same things first every time; try again, or raise the "
                                "timeout",
                                keys=outcome.watched,
                            )
                    is_new = bool(outcome.tables) and self._tables.reapply(outcome.tables)
                    if is_new or outcome.watched:
                        checks_left -= 1
                        if self._checks and checks_left <= 0:
                            raise CommitConflict(
                                "gave up: each time that the checks had been run, others had changed what they read",
                                keys=outcome.watched,
                            )
                        self._check()
            except BaseException as error:
                self._failed(error)
                raise
        return self._committed(outcome)

    async def commit_async(
        self,
        *,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        coordination: Coordination | None = None,
    ) -> int:
        """`commit` for asyncio: any number of tasks wait for theirs without a thread each.

        The commit goes on when the task that waits for it is cancelled; `lake.outcome(txn.id)` tells how it ended.
        """
        core = self._open_core()
        if self._staged is not None or self._checks:  # PyIceberg blocks
            return await run_blocking(
                self.commit,
                timeout_seconds=timeout_seconds,
                max_attempts=max_attempts,
                coordination=coordination,
            )
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()

        def settle(outcome: int | _core.Clashes | None, error: BaseException | None) -> None:
            if error is None and not isinstance(outcome, int):
                error = CommitConflict("a table was changed by another transaction")
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            elif isinstance(outcome, int):
                done.set_result(outcome)

        core.commit_in_background(
            lambda outcome, error: loop.call_soon_threadsafe(settle, outcome, error),
            max_attempts,
            timeout_seconds,
            coordination,
        )
        try:
            return self._committed(await done)
        except BaseException as error:
            self._failed(error)
            raise

    def rollback(self) -> None:
        """Give up: nothing becomes visible, and the data files that were written are deleted as far as possible.

        A transaction that was saved is rolled back for everybody; `CommitConflict` if somebody else went on with it.
        """
        if self._closed:
            return
        self._closed = "was rolled back"
        if self._core.sequence:
            self._core.discard()
        if self._staged is not None:
            self._staged.discard()
        with suppress(TrinityLakeError):  # what could not be removed is for vacuum
            self._core.rollback()

    def save(self) -> None:
        """Hand over: write the state of the transaction, so that `lake.resume(txn.id)` goes on with it elsewhere.

        It may be saved again, here or there. Whoever comes second to save or commit the same state is told. It can be
        resumed until the `txn_ttl_millis` of the lakehouse have passed (format §8).

        Raises:
            CommitConflict: somebody else who resumed it saved, committed or rolled it back.
        """
        core = self._open_core()
        attachment = b""
        if self._staged is not None:
            self._staged.write()
            attachment = self._staged.saved()
        core.save(attachment, self._checks.names())

    def add_check(self, check: str | Check) -> None:
        """Something that must hold when the transaction commits, such as "no flight without an airport".

        Checks see the transaction's own writes. They run before the commit. If another transaction has changed
        anything that they read, or a table that this transaction writes, they run again, on the newest version. If one
        fails nothing is committed.

        Args:
            check: SQL for DuckDB over tables and views named as here, true if the first value of its result is; or the
                name of a function, `package.module:function`, called with the transaction; or a function, which a
                saved transaction cannot keep.
        """
        self._open_core()
        self._checks.add(check)

    def __enter__(self) -> Self:
        self._open_core()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._closed:
            self.commit()

    def __repr__(self) -> str:
        state = f"version={self._version}" if self._version is not None else self._closed or "open"
        return f"Transaction(id={self.id!r}, isolation={self.isolation!r}, base_version={self.base_version}, {state})"

    def _open_core(self) -> _core.Transaction:
        if self._closed:
            raise TransactionClosed(f"transaction {self.id} {self._closed}; begin another one")
        return self._core

    def _state(self) -> _core.Transaction:
        return self._open_core()

    def _table(self, namespace: str, name: str, definition: bytes) -> Table:
        return self._tables.open(namespace, name, definition)

    def _execute(self, statement: Callable[[Transaction], Result]) -> Result:
        return statement(self)

    @property
    def _tables(self) -> StagedTables:
        """Made when the first table is touched, so that a transaction without one never loads PyIceberg."""
        if self._staged is None:
            from trinitylake.staged_tables import StagedTables

            self._staged = StagedTables(self._lakehouse, self._open_core)
        return self._staged

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Checked and written as far as can be before the core commits, with the turn of the tables that changed."""
        with ExitStack() as turn:
            try:
                self._check()
                if self._staged is not None:
                    turn.enter_context(self._staged.turn())
                    self._staged.write()
            except BaseException:
                self.rollback()
                raise
            yield

    def _check(self) -> None:
        """Run the checks, on the newest version that the transaction is known to fit. What they read is watched."""
        if not self._checks:
            return
        before = self._core.base
        self._core.watch_anew()
        uses = {}
        if self._staged is not None:
            self._staged.follow(before)
            uses = self._staged.uses()
        self._checks.run(self)
        if self._staged is not None:
            self._staged.watch_used_since(uses)
        self._core.end_watch()

    def _committed(self, version: int) -> int:
        self._version = version
        self._closed = "was committed"
        if self._staged is not None:
            self._staged.discard_superseded()
        return version

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, _CERTAINLY_LOST):
            with suppress(CommitConflict):  # somebody else went on with a saved transaction: its files are theirs
                self.rollback()
        else:  # an interrupt too: the root may be written, so nothing is deleted
            self._closed = "ended in an unknown state"
