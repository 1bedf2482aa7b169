"""The processes that read what others have: metadata and manifests of external and federated tables, and what other
catalogs say of these.

Access to it has limits for silence, or none, and none for the whole: whoever sends a byte now and then is waited for as
long as they like, in a library that nobody can interrupt. So it is read in a process for each peer, with the access and
the settings that the server would have, and one whose peer does not come to an end by the deadline of a call is ended.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, wait
from multiprocessing import Pipe as pipe

from trinitylake.rest.errors import RestError
from trinitylake.rest.state import reading_program
from trinitylake.rest.state.limited_memory import limited_environment
from trinitylake.rest.state.reading_program import Question

#: At a time: of peers that answer, and those that are about to be ended.
MAX_PROCESSES = 8
#: What a process may take besides what it has when it begins.
PROCESS_SIZE_BYTES = 1 << 30
#: How long one is kept that nobody asks.
KEPT_SECONDS = 120.0
_MAX_ANSWER_SIZE_BYTES = 256 << 20
_PROGRAM = f"""
import sys
from {reading_program.__name__} import main
main(*map(int, sys.argv[1:]))
"""
_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in reading_program.ERRORS}


class ReadingProcesses:
    """The processes of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_peer: OrderedDict[str, _Process] = OrderedDict()  # the one asked last comes last
        self._all: set[_Process] = set()
        self._is_closed = False

    def ask(self, peer: str, question: Question, deadline: float) -> bytes:
        """The answer to a question that waits for nobody but `peer`.

        Args:
            peer: those of one share a process.
            question: may say more than others should know; it goes to the process alone.
            deadline: on the clock of `time.monotonic`; whatever the peer does, the call ends by then.

        Raises `TimeoutError` at the deadline, `RestError` 503 where processes are at work for as many other peers as
        may be, and what the question raises (`reading_program.ERRORS`).
        """
        process = self._taken(peer)
        try:
            return process.ask(question, deadline)
        except _TooLate:
            self._retire(process)
            raise TimeoutError(f"{peer} did not send in time what was asked for") from None
        finally:
            self._give_back(process)

    def close(self) -> None:
        """End all of them, and begin none from now on."""
        with self._lock:
            self._is_closed = True
            ended = list(self._all)
            self._all.clear()
            self._of_peer.clear()
        _end(ended)

    @property
    def n_processes(self) -> int:
        """How many there are."""
        with self._lock:
            return len(self._all)

    def _taken(self, peer: str) -> _Process:
        ended = []
        try:
            with self._lock:
                if self._is_closed:
                    raise RestError(503, "ServiceUnavailableException", "the server ends")
                process = self._of_peer.get(peer)
                if process is not None and not process.is_alive:
                    ended.append(self._without(process))
                    process = None
                if process is None:
                    ended += self._without_idle(time.monotonic() - KEPT_SECONDS)
                    if len(self._all) >= MAX_PROCESSES:
                        ended += self._without_idle(time.monotonic())[:1]
                    if len(self._all) >= MAX_PROCESSES:
                        message = "too many others are waited for at the same time: try again"
                        raise RestError(503, "ServiceUnavailableException", message)
                    process = _Process()
                    self._all.add(process)
                    self._of_peer[peer] = process
                self._of_peer.move_to_end(peer)
                process.n_asking += 1
                return process
        finally:
            _end(ended)

    def _retire(self, process: _Process) -> None:
        """Let nobody ask it any more: threads of it wait for a peer that does not come to an end."""
        with self._lock:
            process.is_retired = True
            for peer, one in list(self._of_peer.items()):
                if one is process:
                    del self._of_peer[peer]

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            process.n_asking -= 1
            process.asked_last = time.monotonic()
            is_done = process.is_retired and not process.n_asking
            if is_done:
                self._all.discard(process)
        _end([process] if is_done else [])

    def end_idle(self) -> None:
        """End those that nobody has asked for some time."""
        with self._lock:
            ended = self._without_idle(time.monotonic() - KEPT_SECONDS)
        _end(ended)

    def _without_idle(self, since: float) -> list[_Process]:
        idle = [one for one in self._of_peer.values() if not one.n_asking and one.asked_last <= since]
        return [self._without(one) for one in idle]

    def _without(self, process: _Process) -> _Process:
        self._all.discard(process)
        for peer, one in list(self._of_peer.items()):
            if one is process:
                del self._of_peer[peer]
        return process


class _TooLate(Exception):
    """The deadline is over."""


class _Process:
    """One process. What is asked at the same time is answered in any order."""

    def __init__(self) -> None:
        self.n_asking = 0
        self.asked_last = time.monotonic()
        self.is_retired = False
        self._lock = threading.Lock()
        self._next_id = 0
        self._waiting: dict[int, Future[bytes]] = {}
        self._connection, theirs = pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(PROCESS_SIZE_BYTES)],
                pass_fds=[theirs.fileno()],
                env=limited_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        threading.Thread(target=self._receive, name="trinitylake-files-elsewhere", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, question: Question, deadline: float) -> bytes:
        """As `ReadingProcesses.ask`, but raises `_TooLate` at the deadline."""
        answer: Future[bytes] = Future()
        with self._lock:
            id = self._next_id
            self._next_id += 1
            self._waiting[id] = answer
            try:
                self._connection.send_bytes(pickle.dumps((id, question)))
            except OSError:
                self._waiting.pop(id, None)
                raise _broken() from None
        try:
            done, _ = wait([answer], max(deadline - time.monotonic(), 0.0))
            if not done:
                raise _TooLate
            return answer.result()
        finally:
            with self._lock:
                self._waiting.pop(id, None)

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                told, _, data = self._connection.recv_bytes(_MAX_ANSWER_SIZE_BYTES).partition(b"\n")
                head = json.loads(told)
                with self._lock:
                    answer = self._waiting.pop(head["id"], None)
                if answer is None:  # whoever asked is gone
                    continue
                if "error" in head:
                    answer.set_exception(_KINDS.get(head["error"], OSError)(head["message"]))
                else:
                    answer.set_result(data)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._connection.close()
        for answer in waiting.values():
            answer.set_exception(_broken())
        self._process.kill()  # an answer that is none


def _broken() -> OSError:
    return OSError("the process that reads what others have has ended: it took more memory than there is for that")


def _end(processes: Iterable[_Process]) -> None:
    for process in processes:
        process.end()
