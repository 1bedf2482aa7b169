"""Requests that commit, of several clients at a time, on few threads.

A commit waits for a disk that makes many files last in the time of one, and a thread for each request is a change of
threads for each of its waits. So requests are run in steps here (`commit_steps.py`), one after the other as far as
their commits, which are then one call of the core, and the event loop hears of all of them at once. While one thread
waits for the disk another one takes those who have come meanwhile.

What may wait for anything else goes on in a thread of its own (`threads.py`), and comes back here for its commit.
Those that have the turn of a table have threads for themselves: all others may be taken by requests that wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from trinitylake import _core
from trinitylake.lakehouse.commit_steps import CommitPause, MayWait, Pause, Steps
from trinitylake.rest.errors import RestError
from trinitylake.rest.http.threads import Threads, submit
from trinitylake.rest.http.turns import MAX_THREADS

#: So many are committed by one call at the most.
MAX_COMPANY = 64
#: One waits for the disk while the other one takes the next.
_THREADS = 2


Result = TypeVar("Result")
Answer = int | _core.Clashes | BaseException


@dataclass(slots=True)
class _Request:
    """One that is under way.

    Attributes:
        steps: what is run, in this context.
        outcome: what the event loop waits for.
        pause: where it stands; None before its first step, and when it has ended.
    """

    steps: Steps[Any]
    outcome: asyncio.Future[Any]
    context: Context
    pause: Pause | None = None
    _result: Any = None
    _error: BaseException | None = None

    def go_on(self, answer: Answer | None = None) -> Pause | None:
        """Run the next step, with the answer to a commit; where it stands then."""
        try:
            if isinstance(answer, BaseException):
                self.pause = self.context.run(self.steps.throw, answer)
            else:
                self.pause = self.context.run(self.steps.send, answer)
        except StopIteration as end:
            self.pause, self._result = None, end.value
        except BaseException as error:
            self.pause, self._error = None, error
        return self.pause

    def settle(self) -> None:
        """Tell what it has ended with, in the event loop."""
        if self.outcome.done():
            return
        if self._error is None:
            self.outcome.set_result(self._result)
        else:
            self.outcome.set_exception(self._error)


#: A request, and where it stands.
_Committing: TypeAlias = tuple[_Request, CommitPause]


class Company:
    """The threads that commit for a server, of one event loop.

    One at a time takes requests and runs their first steps: Python runs one thread at a time, so two would only be in
    each other's way. The other one waits for the disk meanwhile; when it is done, all that have been taken are next.

    Args:
        threads: for what may wait.
    """

    def __init__(self, threads: Threads) -> None:
        self._others = threads
        self._with_turn = Threads(MAX_THREADS)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="trinitylake-rest-commits")
        self._lock = threading.Lock()
        #: Somebody has come, or the commit that was under way is over.
        self._has_changed = threading.Condition(self._lock)
        self._waiting: deque[_Request] = deque()
        self._n_threads = 0
        self._is_taking = False
        self._is_committing = False

    async def run(self, steps: Steps[Result]) -> Result:
        """What the steps return or raise.

        Where the caller is cancelled they go on to their end, if they have begun, and nobody hears of it.
        """
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._add(_Request(steps, outcome, copy_context()))
        return await outcome

    def end(self) -> None:
        """Begin nothing more; the threads end when nothing is left to do."""
        self._pool.shutdown(wait=False)
        self._with_turn.end()

    def _add(self, request: _Request) -> None:
        """Raises `RestError` 503 if there is no thread that would ever take it."""
        with self._lock:
            self._waiting.append(request)
            try:
                self._begin_if_needed()
            except RestError:
                self._waiting.pop()
                raise
            self._has_changed.notify()

    def _begin_if_needed(self) -> None:
        if not self._waiting or self._is_taking or self._n_threads == _THREADS:
            return
        try:
            submit(self._pool, self._work)
        except RestError as no_thread:  # perhaps the server has ended, and a request that nobody waits for has not
            try:
                threading.Thread(target=self._work, name="trinitylake-rest-commits").start()
            except RuntimeError:
                if self._n_threads:
                    return  # the one that waits for the disk takes them afterwards
                raise no_thread from None
        self._n_threads += 1
        self._is_taking = True

    def _work(self) -> None:
        """Of one thread, which is the one that takes."""
        while committing := self._gathered():
            self._commit(committing)
            with self._lock:
                if self._is_taking:  # another one does
                    self._n_threads -= 1
                    return
                self._is_taking = True

    def _gathered(self) -> list[_Committing]:
        """Those who are to be committed next; nobody, and then the thread ends, if nobody waits for anything.

        As long as others are being committed they grow more: what a disk does for one takes as long as for many.
        """
        committing: list[_Committing] = []
        while True:
            with self._lock:
                while True:
                    if committing and not self._is_committing:
                        self._is_committing, self._is_taking = True, False
                        self._begin_if_needed()
                        return committing
                    if self._waiting and len(committing) < MAX_COMPANY:
                        break
                    if not committing:
                        self._is_taking = False
                        self._n_threads -= 1
                        return committing
                    self._has_changed.wait()
                room = MAX_COMPANY - len(committing)
                company = [self._waiting.popleft() for _ in range(min(len(self._waiting), room))]
            committing += self._begin(company)

    def _begin(self, company: Sequence[_Request]) -> list[_Committing]:
        """Run their first steps; returns those that are to be committed."""
        ended = []
        committing = []
        for request in company:
            if request.pause is None and request.outcome.cancelled():
                continue
            pause = request.pause or request.go_on()
            if pause is None:
                ended.append(request)
            elif isinstance(pause, CommitPause):
                committing.append((request, pause))
            else:
                self._go_on_elsewhere(request, pause)
        _tell(ended)
        return committing

    def _commit(self, committing: Sequence[_Committing]) -> None:
        answers: Sequence[Answer]
        try:
            answers = _core.commit_together([(pause.core, pause.files) for _, pause in committing])
        except BaseException as error:
            answers = [error] * len(committing)
        with self._lock:
            self._is_committing = False
            self._has_changed.notify()
        ended = []
        for (request, _), answer in zip(committing, answers, strict=True):
            pause = request.go_on(answer)
            if pause is None:
                ended.append(request)
            elif isinstance(pause, CommitPause):
                self._add(request)
            else:
                self._go_on_elsewhere(request, pause)
        _tell(ended)

    def _go_on_elsewhere(self, request: _Request, pause: MayWait) -> None:
        """Run the steps that may wait, until the request ends, commits, or must go on in another thread."""

        def work() -> None:
            while (going_on := request.go_on()) == pause:
                pass
            if going_on is None:
                _tell([request])
            elif isinstance(going_on, CommitPause):
                try:
                    self._add(request)
                except RestError as error:
                    _break_off(request, error)
            else:
                self._go_on_elsewhere(request, going_on)

        try:
            (self._with_turn if pause.has_turn else self._others).start(work)
        except RestError as error:
            _break_off(request, error)


def _break_off(request: _Request, error: RestError) -> None:
    """It has nowhere to go on: it gives back what it has, and is answered with the error."""
    while request.go_on(error) is not None:
        pass
    _tell([request])


def _tell(ended: Sequence[_Request]) -> None:
    """Have the event loop hear of all of them at once."""

    def tell() -> None:
        for request in ended:
            request.settle()

    if ended:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            ended[0].outcome.get_loop().call_soon_threadsafe(tell)
