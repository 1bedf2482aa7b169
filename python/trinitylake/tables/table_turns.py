"""Taking turns: on one machine, transactions that changed the same table commit one after the other.

Without it every commit of one writer makes all the others redo theirs, so that eight writers do the work of thirty. It
saves work and decides nothing: writers on other machines, and those that miss each other here, still meet in the commit
itself. So a transaction that has waited for a while goes on out of turn: the other one may have stopped, or wait for
this one. For a process that had the turn all that time the next ones do not wait, before somebody has seen it free.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from weakref import WeakValueDictionary

from trinitylake import _core
from trinitylake.errors import InvalidArgument

#: How long to wait for other processes, for all tables of a transaction together.
PROCESS_TURN_TIMEOUT_SECONDS = 2.0
#: How long to wait for other threads of this process, for each table.
THREAD_TURN_TIMEOUT_SECONDS = 30.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.01


class Turn:
    """The turn of one table. Kept only as long as somebody holds it or waits for it."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


class ProcessTurns:
    """The turns among the processes of one user: locks on bytes of one empty file, a byte for each table.

    The system gives a lock back when its process ends, however it ends. Nothing is ever written.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._file: _core.ByteLocks | None = None
        self._is_opened = False
        #: The bytes for which somebody has waited in vain, and the process that had each.
        self._in_vain: dict[int, int] = {}

    @contextmanager
    def taken(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of these tables, or until that takes too long. No two threads may take the same one."""
        ours: list[int] = []
        try:
            self.take(table_ids, ours)
            yield
        finally:
            self.give_back(ours)

    def take(self, table_ids: Iterable[str], ours: list[int]) -> None:
        """As `taken`. `ours` gets what is taken, for `give_back`, also if the waiting is interrupted."""
        if (file := self._open()) is None:
            return
        deadline = time.monotonic() + PROCESS_TURN_TIMEOUT_SECONDS
        for id in table_ids:
            start = _place(id)
            if _try_lock(file, start, ours):
                if self._in_vain:
                    self._in_vain.pop(start, None)
            elif not self._is_in_vain(file, start):
                self._wait(file, start, ours, deadline)

    def _wait(self, file: _core.ByteLocks, start: int, ours: list[int], deadline: float) -> None:
        """Until the byte is ours, or it is late."""
        began, holder = time.monotonic(), _holder(file, start)
        pause = _FIRST_PAUSE_SECONDS
        while (now := time.monotonic()) < deadline:
            time.sleep(pause * (0.5 + random.random()))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if _try_lock(file, start, ours):
                return
        # Not if the time went into another table, nor if others had their turns meanwhile.
        if now - began >= PROCESS_TURN_TIMEOUT_SECONDS / 2 and holder is not None and _holder(file, start) == holder:
            self._in_vain[start] = holder

    def _is_in_vain(self, file: _core.ByteLocks, start: int) -> bool:
        """Whether somebody has waited for the process that has the byte, which has not given it back since."""
        if (holder := self._in_vain.get(start)) is None:
            return False
        if _holder(file, start) == holder:
            return True
        self._in_vain.pop(start, None)
        return False

    def give_back(self, ours: list[int]) -> None:
        """End the turns that `take` took."""
        if (file := self._file) is None:
            return
        for start in ours:
            with contextlib.suppress(OSError):
                file.unlock(start)

    def _open(self) -> _core.ByteLocks | None:
        """The file; None if there is none."""
        if self._is_opened:
            return self._file
        with self._guard:
            if not self._is_opened and hasattr(_core, "ByteLocks"):  # not on Windows: turns within a process only
                path = Path(tempfile.gettempdir()) / f"trinitylake-turns-{os.getuid()}"
                with contextlib.suppress(OSError):
                    self._file = _core.ByteLocks(str(path), os.getuid())
            self._is_opened = True
            return self._file


@lru_cache(4096)
def _place(table_id: str) -> int:
    """Which byte stands for a table."""
    return int.from_bytes(hashlib.blake2b(table_id.encode(), digest_size=7).digest(), "big")


def _try_lock(file: _core.ByteLocks, start: int, ours: list[int]) -> bool:
    """Whether there is nothing to wait for; `ours` gets what is taken."""
    try:
        if not file.try_lock(start):
            return False
    except OSError:  # the file system has no locks, and there is nothing to wait for
        return True
    ours.append(start)
    return True


def _holder(file: _core.ByteLocks, start: int) -> int | None:
    """The process that has the byte; None if no other has it, or nobody can tell."""
    with contextlib.suppress(OSError):
        return file.holder(start)
    return None


class _Held:
    """Turns that are ours, until they are given back."""

    __slots__ = ("bytes", "processes", "turns")

    def __init__(self, processes: ProcessTurns) -> None:
        self.processes = processes
        self.turns: list[Turn] = []  # not their locks: a turn that nobody refers to is forgotten, and made anew
        self.bytes: list[int] = []

    def give_back(self) -> None:
        if self.bytes:
            self.processes.give_back(self.bytes)
        for turn in self.turns:
            turn.lock.release()
        self.bytes.clear()
        self.turns.clear()


class Turns:
    """The turns of this process, by table id."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self._processes = ProcessTurns()
        self.ids_in_use: ContextVar[frozenset[str]] = ContextVar("tables in use", default=frozenset())
        self._kept: ContextVar[frozenset[str]] = ContextVar("tables whose turn is kept", default=frozenset())

    @contextmanager
    def taken(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of all these tables; in one order everywhere, so nobody waits in a circle.

        Raises `InvalidArgument` for a table that this thread has `in_use`.
        """
        ids = sorted(set(table_ids))
        before = self.ids_in_use.get()
        if not before.isdisjoint(ids):
            raise InvalidArgument(
                "a check must not write to a table that its own transaction changes: the commit would wait for itself; "
                "a check only reads"
            )
        held = self._lock(ids)
        try:
            self.ids_in_use.set(before.union(ids))
            yield
        finally:
            self.ids_in_use.set(before)
            held.give_back()

    @contextmanager
    def kept(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of these tables, before the transaction begins that has it in the block."""
        ids = sorted(set(table_ids))
        before = self._kept.get()
        held = self._lock(ids)
        self._kept.set(before.union(ids))
        try:
            yield
        finally:
            self._kept.set(before)
            held.give_back()

    def _lock(self, ids: Sequence[str]) -> _Held:
        """The turns of these tables that are not kept already, or those that were free before the timeout."""
        kept = self._kept.get()
        ids = [id for id in ids if id not in kept]
        held = _Held(self._processes)
        try:
            with self._guard:
                turns = [self._turns.setdefault(id, Turn()) for id in ids]
            for turn in turns:
                if turn.lock.acquire(timeout=THREAD_TURN_TIMEOUT_SECONDS):
                    held.turns.append(turn)
            self._processes.take(ids, held.bytes)
        except BaseException:
            held.give_back()
            raise
        return held

    @contextmanager
    def in_use(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Refuse `taken` of these tables in the context of the caller.

        Who asks for it inside is a check of the transaction that changes the tables: it would wait for itself, and the
        checks would have to run again after each of its writes.
        """
        before = self.ids_in_use.get()
        self.ids_in_use.set(before.union(table_ids))
        try:
            yield
        finally:
            self.ids_in_use.set(before)

    def forget(self) -> None:
        """In a forked child: locks that threads of the parent held have nobody to release them."""
        self.__init__()  # type: ignore[misc]


turns = Turns()
os.register_at_fork(after_in_child=turns.forget)
