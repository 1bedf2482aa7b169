"""Limits on request bodies: their size as sent, and the memory and the time that they take once parsed.

What counts is the number of values, found without making any of them (`trinitylake.base.parsed_size`), and how many
bytes of large bodies are at work at the same time. Bodies of very many values are at work one at a time.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from trinitylake.base.parsed_size import count_values
from trinitylake.rest.errors import RestError

#: Of one body. The metadata of a table with a thousand columns has about ten thousand.
MAX_VALUES = 250_000
#: Of all large bodies at work, and of those of one principal.
MAX_AT_WORK_SIZE_BYTES = 48 << 20
MAX_AT_WORK_OF_ONE_SIZE_BYTES = 24 << 20
#: After so much of large bodies, what requests have left behind is collected.
COLLECTED_AFTER_SIZE_BYTES = 32 << 20
#: Smaller ones do not count: they weigh less than the rest of a request.
SMALL_SIZE_BYTES = 64 << 10
#: From so many values on a body is a heavy one: a table of 2,000 columns, which takes a tenth of a second.
HEAVY_VALUES = 20_000
_WAIT_SECONDS = 20.0


def check_values(body: bytes | bytearray) -> int:
    """How many values a body has, at most. Raises `RestError` 413 for too many."""
    if (found := count_values(body)) > MAX_VALUES:
        raise RestError(413, "RequestTooLargeException", f"a body has at most {MAX_VALUES} values")
    return found


class HeavyBodies:
    """Bodies of so many values that they take a second, of which one is at work at a time. For one event loop.

    Python runs one thread at a time, so they are done no later. But what they are made of is looked through, all of it,
    whenever Python collects garbage, and nothing else runs meanwhile: a dozen of them together stopped a server for
    seconds. Who sends many waits behind whoever else sends one.
    """

    def __init__(self) -> None:
        self._at_work = asyncio.Lock()
        self._of_one: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def taken(self, principal: str, n_values: int) -> AsyncIterator[None]:
        """A body is at work in the block. Waits for its turn; raises `RestError` 503 if that takes too long."""
        if n_values < HEAVY_VALUES:
            yield
            return
        mine = self._of_one.setdefault(principal, asyncio.Lock())
        self._waiting[principal] += 1
        try:
            async with AsyncExitStack() as turn:
                try:
                    async with asyncio.timeout(_WAIT_SECONDS):
                        await turn.enter_async_context(mine)
                        await turn.enter_async_context(self._at_work)
                except TimeoutError as error:
                    raise _too_many() from error
                yield
        finally:
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal], self._of_one[principal]


class BodiesAtWork:
    """The large bodies that one server has in memory. For one event loop.

    A transaction and its tables refer to each other, so what they hold of a body is freed by Python's collector. That
    one counts objects and not what they weigh: a few texts of megabytes may stay for minutes.
    """

    def __init__(self) -> None:
        self._done_size_bytes = 0
        self._size_bytes: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, principal: str, size_bytes: int) -> AsyncIterator[None]:
        """Room for a body, as long as the block runs. Waits for it; raises `RestError` 503 if that takes too long."""
        if size_bytes <= SMALL_SIZE_BYTES:
            yield
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._has_room(principal, size_bytes))
                self._size_bytes[principal] += size_bytes
        except TimeoutError as error:
            raise _too_many() from error
        try:
            yield
        finally:
            self._size_bytes[principal] -= size_bytes
            if not self._size_bytes[principal]:
                del self._size_bytes[principal]
            self._done_size_bytes += size_bytes
            if self._done_size_bytes >= COLLECTED_AFTER_SIZE_BYTES:
                self._done_size_bytes = 0
                asyncio.get_running_loop().run_in_executor(None, gc.collect)
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self, principal: str, size_bytes: int) -> bool:
        mine, all = self._size_bytes[principal], self._size_bytes.total()
        fits = mine + size_bytes <= MAX_AT_WORK_OF_ONE_SIZE_BYTES and all + size_bytes <= MAX_AT_WORK_SIZE_BYTES
        return fits or not all  # one alone, however large the limit of a body was set


def _too_many() -> RestError:
    return RestError(503, "ServiceUnavailableException", "too many large requests at the same time: try again")
