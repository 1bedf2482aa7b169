"""Calls to other services, with a deadline: catalogs of federated tables, storage outside of the lakehouse, STS.

A peer may accept a connection and never answer. So each call has a deadline, and the number of calls in progress is
limited per peer: above the limit, calls are refused at once. A slow peer delays only the requests that need it.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from trinitylake.rest.errors import RestError, unavailable
from trinitylake.rest.limits import SharedLimit

CALL_SECONDS = 15.0
#: Maximum number of calls in progress to one peer, and to all peers. It is smaller than the number of request threads
#: (`limits.MAX_THREADS`).
MAX_WAITING_FOR_ONE = 4
MAX_WAITING = 32

Result = TypeVar("Result")


@dataclass(frozen=True)
class CallAtWork:
    """A call in progress, for the code that the call runs.

    Attributes:
        peer: the service that the call waits for.
        deadline: by the clock of `time.monotonic`. A later result is ignored.
    """

    peer: str
    deadline: float


_CALL: contextvars.ContextVar[CallAtWork | None] = contextvars.ContextVar("call", default=None)


def call_at_work() -> CallAtWork | None:
    """The outbound call of the current context, if there is one."""
    return _CALL.get()


class Outbound:
    """The calls of one server. Thread-safe.

    Args:
        seconds: the deadline of a call. The thread of the call continues after the deadline, and its result is ignored.
            Code that can stop in time gets the deadline from `call_at_work`.
    """

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self._seconds = seconds
        self.limit = SharedLimit(MAX_WAITING, MAX_WAITING_FOR_ONE)

    def run(self, peer: str, call: Callable[[], Result]) -> Result:
        """The result of a call that waits for `peer` only.

        Raises `RestError` 503 if too many calls wait for the peer, 504 at the deadline, and the errors of `call`.
        """
        slot = ExitStack()
        try:
            slot.enter_context(self.limit.lease(peer))
        except RestError:
            raise unavailable(f"{peer} does not answer, and others wait for it") from None
        result: Future[Result] = Future()

        def work() -> None:
            with slot:
                try:
                    result.set_result(call())
                except BaseException as error:
                    result.set_exception(error)

        context = contextvars.copy_context()
        context.run(_CALL.set, CallAtWork(peer, time.monotonic() + self._seconds))
        threading.Thread(target=context.run, args=(work,), daemon=True).start()
        try:
            return result.result(self._seconds)
        except TimeoutError as error:
            message = f"{peer} did not answer within {self._seconds:g} seconds"
            raise RestError(504, "GatewayTimeoutException", message) from error
