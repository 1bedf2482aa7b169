"""Table locks: threads wait for each other's commits of a table, for a limited time."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

import trinitylake as tl
from trinitylake.tables import table_locks
from trinitylake.tables.table_locks import TableLocks

#: The results of all calls of `acquire`.
ACQUIRED: list[bool] = []


class RecordingLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        ACQUIRED.append(self._lock.acquire(timeout=timeout))
        return ACQUIRED[-1]


@pytest.fixture(autouse=True)
def recorded_with_a_short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_locks, "TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(table_locks._Lock, "__init__", lambda self: setattr(self, "lock", RecordingLock()))


def is_free(locks: TableLocks, *table_ids: str) -> bool:
    """Whether another thread gets the locks before the timeout."""

    def acquires_all() -> bool:
        ACQUIRED.clear()
        with locks.held(table_ids):
            return all(ACQUIRED)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(acquires_all).result()


def test_a_lock_excludes_other_threads_from_its_tables_only() -> None:
    locks = TableLocks()
    with locks.held(["a", "b"]):
        assert [is_free(locks, id) for id in "abc"] == [False, False, True]
    assert is_free(locks, "a", "b")


def test_a_thread_continues_without_the_lock_after_the_timeout() -> None:
    locks = TableLocks()
    with locks.held(["a"]):
        assert not is_free(locks, "a"), "the lock is not acquired after the timeout"
        assert not is_free(locks, "a"), "the first attempt did not release the lock of the holder"


def test_a_held_lock_is_not_collected() -> None:
    """The dictionary refers to locks weakly: two threads could get different locks for one table."""
    locks = TableLocks()
    with locks.held(["a"]):
        gc.collect()
        assert not is_free(locks, "a")
    gc.collect()
    assert len(locks._locks) == 0


@pytest.mark.parametrize("table_ids", [["a", "b"], (id for id in "ab")], ids=["list", "generator"])
def test_a_reserved_lock_is_free_for_the_reserving_thread_only(table_ids: Iterable[str]) -> None:
    locks = TableLocks()
    with locks.reserved(table_ids):
        ACQUIRED.clear()
        with locks.held(["a", "b"]):
            assert ACQUIRED == []
        assert not is_free(locks, "a")
        assert not is_free(locks, "b")
    assert is_free(locks, "a", "b")


def test_a_check_cannot_lock_a_table_of_its_transaction() -> None:
    locks = TableLocks()
    with locks.in_checks(["a"]):
        with pytest.raises(tl.InvalidArgument, match="a check must only read"), locks.held(["a", "b"]):
            pass
        with locks.held(["b"]):
            pass


def test_a_forked_child_has_no_locks_of_the_parent() -> None:
    with table_locks.table_locks.held(["a"]):
        child = os.fork()
        if child == 0:
            with ThreadPoolExecutor(1) as thread:
                os._exit(0 if thread.submit(is_free, table_locks.table_locks, "a").result() else 1)
        assert os.waitpid(child, 0)[1] == 0
