"""`lake.aio`: the methods of a lakehouse for asyncio. Each call runs in a thread while other tasks continue.

A chain of names and calls, `lake.aio.table("a.t").scan("x > 1").to_arrow()`, is recorded, and runs in a thread when it
is awaited. So every method of the handles is available, with the same arguments and errors.

After its task was cancelled, a call continues in its thread, because a thread cannot be stopped; docs/guide/asyncio.md
says what this means for statements and commits. Statements of one transaction run one after the other, also after a
cancellation, because two threads must not use a transaction at the same time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from types import TracebackType
from typing import Any, Protocol

from trinitylake.errors import TrinityLakeError

#: Names of classes with further methods to await: a result of such a class becomes the beginning of another chain.
_HANDLES = frozenset({"Table", "Scan", "Query", "TableMaintenance", "TableWriter", "Merge"})


#: Maximum number of threads of a process for `aio`; the default pool of asyncio is too small for many commits at once.
MAX_THREADS = 64


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="trinitylake-aio")


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_executor.cache_clear)  # a forked process has no threads of its parent


class Abandoned(Exception):
    """The task that produces rows for a statement was cancelled, so the statement fails."""


class ThreadRunner:
    """Runs calls in threads: concurrently, or one after the other (`is_exclusive`, for a transaction)."""

    def __init__(self, is_exclusive: bool = False) -> None:
        self._lock = threading.Lock() if is_exclusive else None

    async def run(self, work: Callable[[], Any]) -> Any:

        def locked() -> Any:
            if self._lock is None:
                return work()
            with self._lock:
                return work()

        return await asyncio.get_running_loop().run_in_executor(_executor(), copy_context().run, locked)


class Steps:
    """A chain of names and calls that begins at a handle. It runs when it is awaited, iterated or entered.

    - `await` returns the result. If it is a table, a scan or the like, the result is the beginning of another chain.
    - `async for` iterates over the result of the last call, such as record batches or entries of the log.
    - `async with` enters the result of the last call, such as `lake.aio.transaction()` and `table.update_schema()`.
    """

    def __init__(
        self, make: Callable[[], Any], runner: ThreadRunner, *, waits: str = "", stopped: threading.Event | None = None
    ) -> None:
        self._make = make
        self._runner = runner
        self._waits = waits
        self._context: Any = None
        self._stopped = stopped or threading.Event()

    def __getattr__(self, name: str) -> Steps:
        if name.startswith("_"):
            raise AttributeError(name)
        self._waits, make = "", self._make
        return self._next(lambda: getattr(make(), name))

    def __call__(self, *args: Any, **kwargs: Any) -> Steps:
        self._waits, make, given = "", self._make, _Given(self._stopped)

        def called() -> Any:
            named = {name: given(value) for name, value in kwargs.items()}
            return make()(*map(given, args), **named)

        return self._next(called, waits="a call")

    def _next(self, make: Callable[[], Any], waits: str = "") -> Steps:
        return Steps(make, self._runner, waits=waits, stopped=self._stopped)

    def made(self) -> Any:
        """Compute the result in the calling thread."""
        self._waits = ""
        return self._make()

    async def _run(self, work: Callable[[], Any]) -> Any:
        self._waits = ""
        try:
            return await self._runner.run(work)
        except asyncio.CancelledError:
            self._stopped.set()
            raise

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        result = await self._run(self._make)
        if isinstance(result, Future):  # `TableWriter.write` returns one
            result = await asyncio.wrap_future(result)
        return self._shown(result)

    def _shown(self, result: Any) -> Any:
        of = type(result)
        if not of.__module__.startswith("trinitylake."):
            return result
        if hasattr(of, "aio"):
            return result.aio
        if not _HANDLES.isdisjoint(one.__name__ for one in of.__mro__):
            return Steps(lambda: result, self._runner)
        return result

    async def __aiter__(self) -> AsyncIterator[Any]:
        nothing = object()
        steps = await self._run(lambda: iter(self._make()))
        while (one := await self._run(lambda: next(steps, nothing))) is not nothing:
            yield one

    async def __aenter__(self) -> Any:
        made = await self._run(self._make)
        shown = self._shown(made)
        self._context = shown if isinstance(shown, AsyncTransaction) else _InThread(made, self._runner)
        return self._shown(await self._context.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._context.__aexit__(kind, error, traceback)
        return ended

    def __del__(self) -> None:
        if getattr(self, "_waits", ""):
            warnings.warn(f"{self._waits} of lake.aio was never awaited", RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return "Steps that have not been awaited"


class _Given:
    """Converts arguments for a synchronous method: async iterables become iterators.

    Args:
        stopped: an event that is set when no task waits for the method any more.
    """

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Steps):
            return value.made()
        if hasattr(value, "__aiter__") and not hasattr(value, "__iter__"):
            return self._from_loop(aiter(value))
        return value

    def _from_loop(self, steps: AsyncIterator[Any]) -> Iterator[Any]:
        """Iterate in a thread over an async iterable. Raises `Abandoned` when no task waits for the method any more."""
        nothing = object()

        async def following() -> Any:
            return await anext(steps, nothing)

        while (one := asyncio.run_coroutine_threadsafe(following(), self._loop).result()) is not nothing:
            yield one
            if self._stopped.is_set():
                raise Abandoned


class _InThread:
    """An async context manager that enters and exits a synchronous one in threads."""

    def __init__(self, of: Any, runner: ThreadRunner) -> None:
        self._of = of
        self._runner = runner

    async def __aenter__(self) -> Any:
        return await self._runner.run(self._of.__enter__)

    async def __aexit__(self, *error: Any) -> bool | None:
        ended: bool | None = await self._runner.run(lambda: self._of.__exit__(*error))
        return ended


class OpenTransaction(Protocol):
    """The methods of a transaction that this module calls."""

    @property
    def id(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    def commit(self) -> int: ...
    def rollback(self) -> None: ...


class AsyncTransaction(Steps):
    """A transaction whose methods are awaited, from `async with lake.aio.transaction()` or `await lake.aio.begin()`.

    As a context manager it commits when the block ends, and rolls back when an exception leaves the block. If its
    task is cancelled, it rolls back after the call that is in progress.

    Attributes:
        id: id of the transaction, with which `await lake.aio.outcome(id)` returns the outcome of its commit.
    """

    def __init__(self, transaction: OpenTransaction) -> None:
        super().__init__(lambda: transaction, ThreadRunner(is_exclusive=True))
        self._transaction = transaction
        self.id = transaction.id

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transaction = self._transaction
        if kind is not None:
            with suppress(TrinityLakeError):  # `vacuum` deletes the files that a failed rollback leaves
                await self._runner.run(transaction.rollback)
        elif transaction.is_open:
            await self._runner.run(transaction.commit)
