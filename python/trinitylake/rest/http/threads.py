"""Threads for what blocks, of one event loop.

Most requests need a thread for well under a millisecond, and what `asyncio` and `anyio` do around such a call takes a
good part of that. So the outcome goes straight from the thread to the future that the request waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from trinitylake.rest.errors import RestError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Threads:
    """At most `max_threads`, each of which begins when it is needed."""

    def __init__(self, max_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="trinitylake-rest")

    async def run(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """What the function returns or raises on a thread, in the context of the caller.

        Where the caller is cancelled the function goes on to its end, and nobody hears of it; it does not begin if it
        has not yet.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def work() -> None:
            if outcome.cancelled():
                return
            try:
                tell = partial(_succeed, outcome, function(*arguments, **options))
            except BaseException as error:
                tell = partial(_fail, outcome, error)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell)

        self.start(partial(copy_context().run, work))
        return await outcome

    def start(self, work: Callable[[], None]) -> None:
        """Run what tells its outcome itself. Raises `RestError` 503 if there is no thread for it, and never will be."""
        submit(self._pool, work)

    def end(self) -> None:
        """Begin nothing more; threads end when they have nothing left to do."""
        self._pool.shutdown(wait=False)


def submit(pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
    """Run it on a thread of a pool. Raises `RestError` 503 if that cannot be, and then it is never run.

    A pool that has ended takes nothing. One that cannot begin a thread says so, and keeps the work for later.
    """
    once = threading.Lock()

    def run_once() -> None:
        if once.acquire(blocking=False):
            work()

    try:
        pool.submit(run_once)
    except RuntimeError as error:
        if once.acquire(blocking=False):
            raise no_thread() from error


def no_thread() -> RestError:
    """503: there is none, and never will be."""
    return RestError(503, "ServiceUnavailableException", "the server has no thread for this request: try again")


def _succeed(outcome: asyncio.Future[Result], result: Result) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
