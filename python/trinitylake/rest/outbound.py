"""Calls to other services, with a deadline: catalogs of federated tables, storage outside of the lakehouse, STS.

Such a peer may accept a connection and never answer. So each call has a deadline, and the number of calls that wait for
one peer is limited: one more is refused at once. A slow peer thus delays the requests that need it, and no others.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from trinitylake.rest.errors import RestError

CALL_SECONDS = 15.0
#: Fewer in sum than requests at work (`turns.MAX_THREADS`).
MAX_WAITING_FOR_ONE = 4
MAX_WAITING = 32

Result = TypeVar("Result")


@dataclass(frozen=True)
class CallAtWork:
    """A call as those see it who do its work.

    Attributes:
        peer: for whom it waits.
        deadline: on the clock of `time.monotonic`; nobody takes an answer after it.
    """

    peer: str
    deadline: float


_CALL: contextvars.ContextVar[CallAtWork | None] = contextvars.ContextVar("call", default=None)


def call_at_work() -> CallAtWork | None:
    """The call that this is a part of."""
    return _CALL.get()


class Outbound:
    """The calls of one server. Safe to share between threads.

    Args:
        seconds: the deadline of a call. What it is still doing then is left to itself, and its answer to nobody; what
            can end by the deadline asks for it (`call_at_work`).
    """

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self._seconds = seconds
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self, peer: str, call: Callable[[], Result]) -> Result:
        """The result of a call that waits for nobody but `peer`.

        Raises `RestError` 503 if too many wait for it already, 504 at the deadline, and what the call raises.
        """
        with self._lock:
            if self._waiting[peer] >= MAX_WAITING_FOR_ONE or self._waiting.total() >= MAX_WAITING:
                raise RestError(503, "ServiceUnavailableException", f"{peer} does not answer, and others wait for it")
            self._waiting[peer] += 1
        result: Future[Result] = Future()
        context = contextvars.copy_context()
        context.run(_CALL.set, CallAtWork(peer, time.monotonic() + self._seconds))
        threading.Thread(target=context.run, args=(self._run, peer, call, result), daemon=True).start()
        try:
            return result.result(self._seconds)
        except TimeoutError as error:
            message = f"{peer} did not answer within {self._seconds:g} seconds"
            raise RestError(504, "GatewayTimeoutException", message) from error

    def _run(self, peer: str, call: Callable[[], Result], result: Future[Result]) -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)
        finally:
            with self._lock:
                self._waiting[peer] -= 1
                if not self._waiting[peer]:
                    del self._waiting[peer]
