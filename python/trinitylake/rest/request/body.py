"""Limits on request bodies: number of values, memory, and bodies in progress.

Values are counted without creating them (`trinitylake.base.json_memory_size`). Bodies with very many values are
processed one at a time: Python runs one thread at a time, and its garbage collector visits all objects, so a dozen such
bodies would stop a server for seconds.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trinitylake.base.json_memory_size import count_values
from trinitylake.rest.errors import too_large
from trinitylake.rest.limits import SharedLimit

#: Maximum number of values in one body. The metadata of a table with a thousand columns has about ten thousand.
MAX_VALUES = 250_000
#: Maximum size of the large bodies in progress, in total and of one principal.
MAX_IN_PROGRESS_SIZE_BYTES, MAX_IN_PROGRESS_OF_ONE_SIZE_BYTES = 48 << 20, 24 << 20
#: Garbage is collected after large bodies of this size in total.
COLLECTED_AFTER_SIZE_BYTES = 32 << 20
#: Size of the largest body that does not count as large.
SMALL_SIZE_BYTES = 64 << 10
#: Number of values of a heavy body: a table of 2,000 columns, which takes a tenth of a second.
HEAVY_VALUES = 20_000
#: How long a request waits until other large or heavy bodies are processed.
WAIT_SECONDS = 20.0


def check_values(body: bytes | bytearray) -> int:
    """Upper bound of the number of values of a body. Raises `RestError` 413 for too many."""
    if (found := count_values(body)) > MAX_VALUES:
        raise too_large(f"a body has at most {MAX_VALUES} values")
    return found


class BodyLimits:
    """Limits of one server: on the total size of large bodies, and to one heavy body at a time."""

    def __init__(self) -> None:
        busy = "too many large requests at the same time: try again"
        self._large = SharedLimit(MAX_IN_PROGRESS_SIZE_BYTES, MAX_IN_PROGRESS_OF_ONE_SIZE_BYTES, busy)
        self._heavy = SharedLimit(1, 1, busy)
        self._done_size_bytes = 0

    @asynccontextmanager
    async def large(self, principal: str, size_bytes: int) -> AsyncIterator[None]:
        """Context manager for holding a body of `size_bytes` in memory. Raises `RestError` 503 after `WAIT_SECONDS`.

        A transaction and its tables refer to each other, so only the garbage collector frees the parts of a body that
        they hold. Python runs the collector after a number of new objects, not of bytes, so this method runs it after
        bodies of many bytes.
        """
        if size_bytes <= SMALL_SIZE_BYTES:
            yield
            return
        async with self._large.lease_async(principal, size_bytes, WAIT_SECONDS):
            try:
                yield
            finally:
                self._done_size_bytes += size_bytes
                if self._done_size_bytes >= COLLECTED_AFTER_SIZE_BYTES:
                    self._done_size_bytes = 0
                    asyncio.get_running_loop().run_in_executor(None, gc.collect)

    @asynccontextmanager
    async def heavy(self, principal: str, n_values: int) -> AsyncIterator[None]:
        """Context manager for processing a body of `n_values` values. Raises `RestError` 503 after `WAIT_SECONDS`."""
        if n_values < HEAVY_VALUES:
            yield
            return
        async with self._heavy.lease_async(principal, wait_seconds=WAIT_SECONDS):
            yield
