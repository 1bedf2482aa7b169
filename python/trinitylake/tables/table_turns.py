"""Taking turns: on one machine, transactions that changed the same table commit one after the other.

Without it every commit of one writer makes all the others redo theirs, so that eight writers do the work of thirty. It
saves work and decides nothing: writers on other machines, and those that miss each other here, still meet in the commit
itself. So a transaction that has waited for a while goes on out of turn: the other one may have stopped, or wait for
this one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakValueDictionary

from trinitylake.errors import InvalidArgument

try:
    import fcntl
except ImportError:  # Windows: turns within a process only
    fcntl = None  # type: ignore[assignment]

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
        self._file: int | None = None
        self._is_opened = False

    @contextmanager
    def taken(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of these tables, or until that takes too long. No two threads may take the same one."""
        ours: list[int] = []
        try:
            self.take(table_ids, ours)
            yield
        finally:
            self.give_back(ours)

    def take(self, table_ids: Iterable[str], ours: list[int], *, waits: bool = True) -> bool:
        """As `taken`. `ours` gets what is taken, for `give_back`, also if the waiting is interrupted.

        Who does not wait is told whether all of it was free.
        """
        if (file := self._open()) is None:
            return True
        deadline = time.monotonic() + PROCESS_TURN_TIMEOUT_SECONDS if waits else 0.0
        for id in table_ids:
            start = int.from_bytes(hashlib.blake2b(id.encode(), digest_size=7).digest(), "big")
            pause = _FIRST_PAUSE_SECONDS
            while not _try_lock(file, start, ours):
                if not waits:
                    return False
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return True

    def give_back(self, ours: list[int]) -> None:
        """End the turns that `take` took."""
        if (file := self._file) is None:
            return
        for start in ours:
            with contextlib.suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN, 1, start)

    def _open(self) -> int | None:
        """The file, open for the life of the process: to close it would give back all locks. None if there is none."""
        if self._is_opened:
            return self._file
        with self._guard:
            if not self._is_opened and fcntl is not None:
                path = Path(tempfile.gettempdir()) / f"trinitylake-turns-{os.getuid()}"
                with contextlib.suppress(OSError):
                    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                    self._file = file if os.fstat(file).st_uid == os.getuid() else None
            self._is_opened = True
            return self._file


def _try_lock(file: int, start: int, ours: list[int]) -> bool:
    """Whether there is nothing to wait for; `ours` gets what is taken."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
    except OSError as error:
        # Else the file system has no locks, and there is nothing to wait for.
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    ours.append(start)
    return True


class Turns:
    """The turns of this process, by table id."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self._processes = ProcessTurns()
        self._in_use: ContextVar[frozenset[str]] = ContextVar("tables in use", default=frozenset())
        self._kept: ContextVar[frozenset[str]] = ContextVar("tables whose turn is kept", default=frozenset())

    @contextmanager
    def taken(self, table_ids: Iterable[str], *, waits: bool = True) -> Iterator[bool]:
        """Wait for the turn of all these tables; in one order everywhere, so nobody waits in a circle.

        Who does not wait is told whether it was free; if not, nothing is taken.

        Raises `InvalidArgument` for a table that this thread has `in_use`.
        """
        ids = sorted(set(table_ids))
        if not self._in_use.get().isdisjoint(ids):
            raise InvalidArgument(
                "a check must not write to a table that its own transaction changes: the commit would wait for itself; "
                "a check only reads"
            )
        kept = self._kept.get()
        with self._locked([id for id in ids if id not in kept], waits) as is_taken:
            if not is_taken:
                yield False
                return
            with self.in_use(ids):
                yield True

    @contextmanager
    def kept(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of these tables, before the transaction begins that has it in the block."""
        ids = sorted(set(table_ids))
        before = self._kept.get()
        with self._locked([id for id in ids if id not in before], waits=True):
            self._kept.set(before.union(ids))
            try:
                yield
            finally:
                self._kept.set(before)

    @contextmanager
    def _locked(self, ids: Sequence[str], waits: bool) -> Iterator[bool]:
        """Whether the turn of these is ours in the block, or we have waited long enough; else nothing is taken."""
        held: list[threading.Lock] = []
        ours: list[int] = []
        with self._guard:
            turns = [self._turns.setdefault(id, Turn()) for id in ids]

        def give_back() -> None:
            self._processes.give_back(ours)
            for lock in held:
                lock.release()
            ours.clear()
            held.clear()

        try:
            is_taken = self._take_locks(turns, held, waits) and self._processes.take(ids, ours, waits=waits)
            if not is_taken:
                give_back()
            yield is_taken
        finally:
            give_back()

    def _take_locks(self, turns: Iterable[Turn], held: list[threading.Lock], waits: bool) -> bool:
        """Whether all are ours, or we have waited long enough. `held` gets those that are."""
        for turn in turns:
            if turn.lock.acquire(timeout=THREAD_TURN_TIMEOUT_SECONDS if waits else 0):
                held.append(turn.lock)
            elif not waits:
                return False
        return True

    @contextmanager
    def in_use(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Refuse `taken` of these tables in the context of the caller.

        Who asks for it inside is a check of the transaction that changes the tables: it would wait for itself, and the
        checks would have to run again after each of its writes. A context, not a thread: a server commits several
        transactions by one thread, each in a context of its own.
        """
        before = self._in_use.get()
        self._in_use.set(before.union(table_ids))
        try:
            yield
        finally:
            self._in_use.set(before)

    def forget(self) -> None:
        """In a forked child: locks that threads of the parent held have nobody to release them."""
        self.__init__()  # type: ignore[misc]


turns = Turns()
os.register_at_fork(after_in_child=turns.forget)
