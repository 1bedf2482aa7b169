"""Table locks: threads that changed the same table commit one after the other.

Without them, the commit of one thread makes all others repeat theirs; eight threads send twice as many requests. Locks
only save work. Correctness does not depend on them, because the commit itself detects conflicts, also with other
processes. So a thread that has waited for a while continues without the lock, whose holder may wait for this thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

from trinitylake.errors import InvalidArgument

#: How long to wait for each table.
TIMEOUT_SECONDS = 30.0


class _Lock:
    """The lock of one table. The dictionary drops it when no thread holds it or waits for it."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, or no lock after the timeout."""
        is_held = self.lock.acquire(timeout=TIMEOUT_SECONDS)
        try:
            yield
        finally:
            if is_held:
                self.lock.release()


class TableLocks:
    """The table locks of this process, by table id."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
        self._committing: ContextVar[frozenset[str]] = ContextVar("tables that commit", default=frozenset())
        self._reserved: ContextVar[frozenset[str]] = ContextVar(
            "tables locked for the next commit", default=frozenset()
        )

    @contextmanager
    def held(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Hold the locks of tables that commit.

        Raises `InvalidArgument` for a table of a transaction whose checks run in this thread (`in_checks`).
        """
        ids = set(table_ids)
        self.refuse_in_checks(ids)
        with self._acquired(ids), _added(self._committing, ids):
            yield

    @contextmanager
    def reserved(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Hold the locks for a transaction that begins and commits in the block."""
        ids = set(table_ids)
        with self._acquired(ids), _added(self._reserved, ids):
            yield

    def refuse_in_checks(self, table_ids: Iterable[str]) -> None:
        """Raise `InvalidArgument` if this thread commits, or checks, a transaction that changes one of the tables."""
        if not self._committing.get().isdisjoint(table_ids):
            raise InvalidArgument(
                "a check must not write to a table that its own transaction changes: the commit would wait for itself; "
                "a check must only read"
            )

    @contextmanager
    def in_checks(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Refuse `held` for tables whose transaction runs its checks in the block: it would wait for itself."""
        with _added(self._committing, set(table_ids)):
            yield

    @contextmanager
    def _acquired(self, ids: set[str]) -> Iterator[None]:
        """Acquire in the order of the ids, so that threads do not wait for each other in a circle."""
        with ExitStack() as held:
            with self._guard:
                locks = [self._locks.setdefault(id, _Lock()) for id in sorted(ids - self._reserved.get())]
            for lock in locks:
                held.enter_context(lock.held())
            yield


@contextmanager
def _added(variable: ContextVar[frozenset[str]], ids: set[str]) -> Iterator[None]:
    before = variable.get()
    variable.set(before.union(ids))
    try:
        yield
    finally:
        variable.set(before)


def _reset_after_fork() -> None:
    """Forget all locks in a forked process, where the threads that hold them do not exist."""
    table_locks.__init__()  # type: ignore[misc]


table_locks = TableLocks()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_reset_after_fork)
