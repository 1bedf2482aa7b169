"""One transaction: reads see its base version and its own writes; all of it becomes visible at once, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from trinitylake.errors import (
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
    from trinitylake.staged_tables import StagedTables
    from trinitylake.table import Table

Result = TypeVar("Result")

#: What `commit` raises only when it is certain that nothing was committed, so that staged files may go.
_CERTAINLY_LOST = (CommitConflict, TransactionExpired, ObjectNotFound, ObjectAlreadyExists, NamespaceNotEmpty)


class Transaction(Statements):
    """A transaction, from `lake.transaction()` or `lake.begin()`. Not for two threads at once.

    As a context manager it commits when the block ends and rolls back when an exception leaves it.
    """

    def __init__(self, lakehouse: _core.Lakehouse, core: _core.Transaction) -> None:
        self._lakehouse = lakehouse
        self._core = core
        self._lakehouse_definition = core.base.definition
        self._staged: StagedTables | None = None
        self._closed = ""
        self._version: int | None = None

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

    def commit(self, *, timeout_seconds: float | None = None) -> int:
        """Make everything visible at once; returns the version.

        After an error the transaction is closed. Its files are removed if it is certain that nothing was
        committed, and left to `vacuum` otherwise.

        Raises:
            CommitConflict: another transaction committed first and touched the same things.
            CommitStateUnknown: the storage did not tell whether the commit happened; look at the log.
            TransactionExpired: the transaction was open for too long.
        """
        self._open_core()
        with ExitStack() as turn:
            try:
                if self._staged is not None:
                    turn.enter_context(self._staged.turn())
                    self._staged.write()
            except BaseException:
                self.rollback()
                raise
            try:
                self._version = self._commit_core(timeout_seconds)
            except _CERTAINLY_LOST:
                self.rollback()
                raise
            except BaseException:  # an interrupt too: the root may be written, so nothing is deleted
                self._closed = "ended in an unknown state"
                raise
        self._closed = "was committed"
        if self._staged is not None:
            self._staged.discard_superseded()
        return self._version

    def rollback(self) -> None:
        """Give up: nothing becomes visible, and the data files that were written are deleted as far as possible."""
        if self._closed:
            return
        self._closed = "was rolled back"
        if self._staged is not None:
            self._staged.discard()
        with suppress(TrinityLakeError):  # what could not be removed is for vacuum
            self._core.rollback()

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

    def _commit_core(self, timeout_seconds: float | None) -> int:
        """Commit, and re-apply changed tables on what won against them until nothing is in the way."""
        while True:
            outcome = self._core.commit(timeout_seconds=timeout_seconds)
            if isinstance(outcome, int):
                return outcome
            self._tables.reapply(outcome)
