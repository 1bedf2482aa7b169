"""The threads of a server, of which one principal has a share at a time.

A request may take long, and whoever sends many of those must leave threads for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from trinitylake.rest.errors import RestError

MAX_THREADS, MAX_THREADS_OF_ONE = 64, 48
_WAIT_SECONDS = 20.0


@dataclass
class _Share:
    """One principal's."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_THREADS_OF_ONE))
    n_requests: int = 0


class Turns:
    """Whose turn it is. For one event loop."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def taken(self, who: str) -> AsyncIterator[None]:
        """A thread is the principal's in the block. Waits for it; raises `RestError` 503 if that takes too long."""
        share = self._shares.setdefault(who, _Share())
        share.n_requests += 1
        try:
            try:
                async with asyncio.timeout(_WAIT_SECONDS):
                    await share.turns.acquire()
            except TimeoutError as error:
                message = "too many of your requests are at work: try again"
                raise RestError(503, "ServiceUnavailableException", message) from error
            try:
                yield
            finally:
                share.turns.release()
        finally:
            share.n_requests -= 1
            if not share.n_requests:
                del self._shares[who]
