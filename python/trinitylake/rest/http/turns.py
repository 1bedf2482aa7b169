"""The threads of a server, of which one principal has a share at a time.

A request may take long, and whoever sends many of those must leave threads for others.
"""

from __future__ import annotations

import asyncio
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

    def taken(self, who: str) -> _Turn:
        """A thread is the principal's in the block. Waits for it; raises `RestError` 503 if that takes too long."""
        return _Turn(self._shares, who)


class _Turn:
    """A turn of one request. A class, since each request takes one: a generator takes ten times as long."""

    def __init__(self, shares: dict[str, _Share], who: str) -> None:
        self._shares = shares
        self._who = who

    async def __aenter__(self) -> None:
        self._share = share = self._shares.get(self._who) or self._shares.setdefault(self._who, _Share())
        share.n_requests += 1
        try:
            if share.turns.locked():
                async with asyncio.timeout(_WAIT_SECONDS):
                    await share.turns.acquire()
            else:
                await share.turns.acquire()  # at once
        except TimeoutError as error:
            self._leave()
            message = "too many of your requests are at work: try again"
            raise RestError(503, "ServiceUnavailableException", message) from error
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._share.turns.release()
        self._leave()

    def _leave(self) -> None:
        self._share.n_requests -= 1
        if not self._share.n_requests:
            del self._shares[self._who]
