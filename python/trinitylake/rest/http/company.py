"""Requests that commit, of several clients at a time, on few threads.

A commit waits for a disk that makes many files last in the time of one, and a thread for each request is a change of
threads for each of its waits. So requests are run in steps here (`commit_steps.py`), one after the other as far as
their commits, which the core then makes together, and the event loop hears of all of them at once. While the core waits
for the disk, those who have come meanwhile are run.

What may wait for anything else goes on in a thread of its own (`threads.py`), and comes back here for its commit.
Those that have the turn of a table have threads for themselves: all others may be taken by requests that wait for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from trinitylake import _core
from trinitylake.lakehouse.commit_steps import CommitPause, MayWait, Pause, Steps
from trinitylake.rest.errors import RestError
from trinitylake.rest.http.threads import Threads, no_thread, submit
from trinitylake.rest.http.turns import MAX_THREADS

#: So many are run at a time; then the core may commit them, and whoever has been committed goes on.
MAX_TAKEN = 8
#: Those in the line wait for so long for others whose steps are run, in all, until some of them are committed.
_HOLD_SECONDS = 0.005
#: How often it is looked whether the program ends.
_LOOK_SECONDS = 0.5

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

    One thread of Python runs the steps of all requests, before their commit and after it: Python runs one thread at a
    time, so two would only be in each other's way. The core commits them meanwhile, one company after the other, on a
    thread that never waits for Python (`_core.CommitLine`).

    Args:
        threads: for what may wait.
        prepare: called before the first steps of those who have come; what it returns is run in the context of each.
    """

    def __init__(self, threads: Threads, prepare: Callable[[], Callable[[], None]] | None = None) -> None:
        self._prepare = prepare
        self._others = threads
        self._with_turn = Threads(MAX_THREADS)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trinitylake-rest-commits")
        self._line = _core.CommitLine()
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._is_working = False
        #: While those are finished that have come.
        self._refuses = False
        #: In the line, and for how long they may be held up yet. Only the thread that works asks.
        self._n_committing = 0
        self._hold_seconds = _HOLD_SECONDS

    async def run(self, steps: Steps[Result]) -> Result:
        """What the steps return or raise.

        Where the caller is cancelled they go on to their end, if they have begun, and nobody hears of it. Raises
        `RestError` 503 if there is no thread for them.
        """
        if self._refuses:
            raise no_thread()
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
            if not self._is_working:
                try:
                    self._begin_to_work(is_new=request.pause is None)
                except RestError:
                    self._waiting.pop()
                    raise
        self._line.wake()

    def _begin_to_work(self, is_new: bool) -> None:
        try:
            submit(self._pool, self._work)
        except RestError as refused:
            if is_new:
                raise
            try:  # perhaps the server has ended, and a request that nobody waits for has not
                threading.Thread(target=self._work, name="trinitylake-rest-commits").start()
            except RuntimeError:
                raise refused from None
        self._is_working = True

    def _work(self) -> None:
        """Until nobody waits for anything."""
        look_at = time.monotonic() + _LOOK_SECONDS
        while (company := self._taken()) is not None:
            if time.monotonic() > look_at:
                # Python waits for this thread where the program ends without the server: for ever, if clients go on.
                self._refuses = not self._pool_goes_on()
                look_at = time.monotonic() + _LOOK_SECONDS
            if company:
                self._begin(company)
            self._finish(self._line.take(waits=not self._waiting))

    def _pool_goes_on(self) -> bool:
        try:
            self._pool.submit(int)
        except RuntimeError:
            return False
        return True

    def _taken(self) -> list[_Request] | None:
        """Those who have come, the first of them. None if nobody has, and nobody is being committed."""
        with self._lock:
            if not self._waiting and not self._n_committing:
                self._is_working = self._refuses = False
                return None
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TAKEN))]

    def _begin(self, company: Sequence[_Request]) -> None:
        """Run their first steps, and have the core commit those that are to be committed."""
        committing: list[_Committing] = []
        ended: list[_Request] = []
        prepare = None
        if not self._n_committing:
            self._hold_seconds = _HOLD_SECONDS
        if self._hold_seconds > 0:  # for these, too: what a disk does for one takes as long as for many
            self._line.hold()
        release_at = time.monotonic() + self._hold_seconds
        for request in company:
            if time.monotonic() > release_at:  # steps that take long, or many that end without a commit
                self._commit(committing)
                committing = []
            if request.pause is None:
                if request.outcome.cancelled():
                    continue
                if self._prepare is not None:
                    prepare = prepare or self._prepare()
                    request.context.run(prepare)
            pause = request.pause or request.go_on()
            if isinstance(pause, CommitPause):
                committing.append((request, pause))
            else:
                self._go_on_or_end(request, pause, ended)
        self._commit(committing)
        self._hold_seconds = release_at - time.monotonic()
        _tell(ended)

    def _commit(self, committing: Sequence[_Committing]) -> None:
        """Have the core commit these, if there are any; it goes on with others in any case."""
        self._n_committing += len(committing)
        try:
            self._line.add([(request, pause.core, pause.files) for request, pause in committing])
        except Exception as error:
            self._line.add([])  # it may be held yet, with others in it
            answer = no_thread() if isinstance(error, OSError) else error  # the line could not begin its own
            self._finish([(request, answer) for request, _ in committing])

    def _finish(self, answered: Sequence[tuple[_Request, Answer]]) -> None:
        """Run the steps of those who have been in the line."""
        self._n_committing -= len(answered)
        if answered:
            self._hold_seconds = _HOLD_SECONDS
        ended: list[_Request] = []
        for request, answer in answered:
            pause = request.go_on(answer)
            if isinstance(pause, CommitPause):
                self._add(request)
            else:
                self._go_on_or_end(request, pause, ended)
        _tell(ended)

    def _go_on_or_end(self, request: _Request, pause: MayWait | None, ended: list[_Request]) -> None:
        if pause is None:
            ended.append(request)
        else:
            self._go_on_elsewhere(request, pause)

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
