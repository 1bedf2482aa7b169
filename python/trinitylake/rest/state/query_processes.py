"""The processes that read rows, of queries in SQL and of tables: a few at a time, each within limits that the system
keeps.

One that has answered in good order is kept for the next query, since Python takes a second to start. Any other is
ended, and what it left on disk goes with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe as pipe

from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.state.limited_memory import limited_environment
from trinitylake.rest.state.query_folders import QueryFolder

#: Processes at work in one server, and for one principal; how long one more waits for its turn.
MAX_AT_WORK, MAX_AT_WORK_OF_ONE = 4, 2
_TURN_SECONDS = 5.0
#: Of an answer: more than a page can show.
MAX_ANSWER_SIZE_BYTES = 64 << 20
#: What a process may take besides what it has when it is ready: four of them, and no more than that.
PROCESS_SIZE_BYTES = 1280 << 20
_PROGRAM = """
import sys
from trinitylake.rest.page.without_pandas import leave_out_pandas
leave_out_pandas()
from trinitylake.rest.page.query_program import main
main(*map(int, sys.argv[1:]))
"""
#: How long a process may take to start, and how much longer than its alarm says one is waited for.
_START_SECONDS, _GRACE_SECONDS = 60.0, 5.0
#: How often it is looked whether anybody still waits for an answer.
_LOOK_SECONDS = 0.1
#: How long an idle process is kept.
_KEPT_SECONDS = 300.0
#: One that has grown by more is not kept.
_MAX_GROWTH_SIZE_BYTES = 128 << 20


class QueryProcesses:
    """The processes of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = threading.Condition(self._lock)
        self._idle: _Process | None = None
        self._end_of_idle: threading.Timer | None = None
        self._at_work: Counter[str] = Counter()
        self._is_closed = False

    @property
    def n_at_work(self) -> int:
        """How many queries are at work."""
        with self._lock:
            return self._at_work.total()

    def run(self, request: bytes, who: str, seconds: float, is_wanted: Callable[[], bool]) -> bytes:
        """The answer of the program to a request of a principal, which ends itself after so many seconds.

        Raises `RestError` 429 if as many are at work as may be, and 400 for one that took more than it may, that made
        the program fail, or that nobody waits for any more.
        """
        with self._taken(who) as process:
            answer = process.asked(request, seconds, is_wanted)
            self._give_back(process)
        return answer

    def close(self) -> None:
        """End the process that is idle, and keep none from now on."""
        with self._lock:
            self._is_closed = True
        self._end_idle()

    @contextmanager
    def _taken(self, who: str) -> Iterator[_Process]:
        with self._turns:
            if not self._turns.wait_for(lambda: self._has_room(who), _TURN_SECONDS):
                raise RestError(429, "TooManyRequestsException", "other queries are at work: try again")
            self._at_work[who] += 1
        process = self._without_idle()
        try:
            if process is None or not process.is_alive:
                process = _Process()
            try:
                yield process
            except BaseException:
                process.end()
                raise
        finally:
            with self._lock:
                self._at_work -= Counter({who: 1})
                self._turns.notify_all()

    def _has_room(self, who: str) -> bool:
        return self._at_work[who] < MAX_AT_WORK_OF_ONE and self._at_work.total() < MAX_AT_WORK

    def _give_back(self, process: _Process) -> None:
        is_kept = process.growth_size_bytes <= _MAX_GROWTH_SIZE_BYTES
        with self._lock:
            if is_kept := is_kept and self._idle is None and not self._is_closed:
                self._idle = process
                self._end_of_idle = threading.Timer(_KEPT_SECONDS, self._end_idle)
                self._end_of_idle.daemon = True
                self._end_of_idle.start()
        if not is_kept:
            process.end()

    def _without_idle(self) -> _Process | None:
        """The process that was idle, which is the caller's from now on."""
        with self._lock:
            idle, self._idle = self._idle, None
            if self._end_of_idle is not None:
                self._end_of_idle.cancel()
                self._end_of_idle = None
            return idle

    def _end_idle(self) -> None:
        idle = self._without_idle()
        if idle is not None:
            idle.end()


class _Process:
    """One process, which has a folder of its own for what it writes to disk."""

    def __init__(self) -> None:
        self._folder = QueryFolder()
        self._connection, theirs = pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(PROCESS_SIZE_BYTES)],
                pass_fds=[theirs.fileno(), self._folder.descriptor],
                env=limited_environment(TMPDIR=self._folder.path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._connection.close()
            self._folder.remove()
            raise
        finally:
            theirs.close()
        self.n_answers = 0
        self._first_size_bytes = 0

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    @property
    def growth_size_bytes(self) -> int:
        """How much memory it holds besides what it held when it was ready, as far as the system tells."""
        return _resident_size_bytes(self._process.pid) - self._first_size_bytes

    def asked(self, request: bytes, seconds: float, is_wanted: Callable[[], bool]) -> bytes:
        """The answer to a request. Raises `RestError` as `QueryProcesses.run` does."""
        if not self.n_answers:
            self._received(_START_SECONDS, is_wanted)
            self._first_size_bytes = _resident_size_bytes(self._process.pid)
        try:
            self._connection.send_bytes(request)
        except OSError:
            raise self._broken() from None
        answer = self._received(seconds + _GRACE_SECONDS, is_wanted)
        self.n_answers += 1
        return answer

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._folder.remove()

    def _received(self, seconds: float, is_wanted: Callable[[], bool]) -> bytes:
        deadline = time.monotonic() + seconds
        with suppress(EOFError, OSError):
            while not self._connection.poll(_LOOK_SECONDS):
                if not is_wanted():
                    raise bad_request("the query was ended, since nobody waits for it")
                if time.monotonic() > deadline:
                    raise _too_long()
            return self._connection.recv_bytes(MAX_ANSWER_SIZE_BYTES)
        raise self._broken()

    def _broken(self) -> RestError:
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            if self._process.wait(_GRACE_SECONDS) == -signal.SIGALRM:
                return _too_long()
        return bad_request("the query broke off: it took more than a query may, or made DuckDB fail")


def _too_long() -> RestError:
    return bad_request("the query broke off: it took longer than a query may")


def _resident_size_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
