"""Limits of a server that operators cannot set (`options.py` has the others), and `SharedLimit`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from trinitylake.rest.errors import RestError, unavailable

#: Maximum number of requests in threads, in total and of one principal, and how long a request waits for a thread.
MAX_THREADS, MAX_THREADS_OF_ONE, THREAD_WAIT_SECONDS = 64, 48, 20.0
#: Maximum number of requests of the page that search, compare versions or read rows: in total, and of one principal.
MAX_LONG_REQUESTS, MAX_LONG_REQUESTS_OF_ONE = 8, 4
#: Maximum size of the headers of a request, including trailers.
MAX_HEADERS_SIZE_BYTES = 64 << 10
#: How long a connection may be silent: before its first byte or during a TLS handshake, and between requests.
#: Most clients and proxies have a shorter timeout than the second one. So they close an idle connection, and no request
#: is lost because the server closes it at the same time.
SILENT_SECONDS, KEEP_ALIVE_SECONDS = 15, 75
#: How long a client may take to read the rest of a response and close TLS after the server closed the connection.
TLS_CLOSE_SECONDS = 5
#: Time limits of a shutdown: for running requests, and for the remaining steps.
GRACE_SECONDS, SAVING_SECONDS = 30, 15.0


@dataclass(frozen=True)
class JobLimits:
    """Limits of one kind of job in worker processes (`workers/`).

    Attributes:
        at_work: maximum number of jobs of the kind at the same time.
        of_owner: maximum number of jobs of one owner, which is a principal or the peer that a job waits for.
        memory_size_bytes: memory limit of a job; it is also limited to half of the machine's memory.
    """

    at_work: int
    of_owner: int
    memory_size_bytes: int


#: Limits by kind of job: queries and rows for the page, files outside of the lakehouse, maintenance of tables.
JOBS = {
    "page": JobLimits(at_work=4, of_owner=2, memory_size_bytes=1280 << 20),
    "foreign": JobLimits(at_work=8, of_owner=2, memory_size_bytes=1 << 30),
    "maintenance": JobLimits(at_work=1, of_owner=1, memory_size_bytes=4 << 30),
}
#: How long a job waits for a worker.
JOB_WAIT_SECONDS = 5.0
#: Maximum size of the result of a job.
MAX_RESULT_SIZE_BYTES = 256 << 20
#: Limits of idle workers: number, lifetime, and memory of each. Starting a worker takes a second.
MAX_IDLE_WORKERS, IDLE_WORKER_SECONDS, MAX_IDLE_WORKER_SIZE_BYTES = 2, 120.0, 384 << 20


class Lease:
    """The part of a `SharedLimit` that an owner uses. `grow` increases it."""

    def __init__(self, limit: SharedLimit, owner: str) -> None:
        self.owner = owner
        self.amount = 0
        self._limit = limit

    def grow(self, amount: int) -> None:
        """Increase the lease without waiting. Raises the refusal of the limit if the limit would be exceeded."""
        self._limit.grow(self, amount)


@dataclass(eq=False)
class _Waiter:
    lease: Lease
    amount: int
    admitted: Future[None] = field(default_factory=Future)


class SharedLimit:
    """Limit on an amount in use, in total and per owner, for threads and for coroutines. Thread-safe.

    A single lease may exceed both limits, and the only lease of an owner may exceed the limit per owner. Waiting owners
    are served in turn, and the requests of one owner in order.

    Args:
        total: amount of all leases.
        of_owner: amount of the leases of one owner.
        busy: message of the response 503 for a lease that is not admitted in time; without it, the response is 429.
    """

    def __init__(self, total: int, of_owner: int, busy: str | None = None) -> None:
        self._total, self._of_owner = total, of_owner
        self._busy = busy
        self._amounts: Counter[str] = Counter()
        self._n_leases: Counter[str] = Counter()
        self._waiters: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._lock = threading.Lock()

    def _refusal(self) -> RestError:
        if self._busy is not None:
            return unavailable(self._busy)
        return RestError(429, "TooManyRequestsException", "other such requests are in progress: try again")

    @property
    def n_leases(self) -> int:
        """Number of leases."""
        with self._lock:
            return self._n_leases.total()

    @contextmanager
    def lease(self, owner: str, amount: int = 1, wait_seconds: float = 0.0) -> Iterator[Lease]:
        """A lease for the block. Blocks the thread up to `wait_seconds`, then raises the refusal."""
        waiter = self._enter(owner, amount)
        try:
            waiter.admitted.result(wait_seconds)
        except BaseException as error:
            self._leave(waiter)
            raise (self._refusal() if isinstance(error, TimeoutError) else error) from None
        try:
            yield waiter.lease
        finally:
            self._release(waiter.lease)

    @asynccontextmanager
    async def lease_async(self, owner: str, amount: int = 1, wait_seconds: float = 0.0) -> AsyncIterator[Lease]:
        """Like `lease`, for a coroutine."""
        waiter = self._enter(owner, amount)
        if not waiter.admitted.done():
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(waiter.admitted)), wait_seconds)
            except BaseException as error:
                self._leave(waiter)
                raise (self._refusal() if isinstance(error, TimeoutError) else error) from None
        try:
            yield waiter.lease
        finally:
            self._release(waiter.lease)

    def grow(self, lease: Lease, amount: int) -> None:
        """See `Lease.grow`."""
        with self._lock:
            if not self._fits(lease, amount):
                raise self._refusal()
            self._add(lease, amount)

    def _fits(self, lease: Lease, amount: int) -> bool:
        is_counted = lease.amount > 0
        if amount == 0 or self._n_leases.total() == is_counted:
            return True
        if self._amounts.total() + amount > self._total:
            return False
        return self._n_leases[lease.owner] == is_counted or self._amounts[lease.owner] + amount <= self._of_owner

    def _add(self, lease: Lease, amount: int) -> None:
        self._n_leases[lease.owner] += lease.amount == 0 and amount > 0
        self._amounts[lease.owner] += amount
        lease.amount += amount

    def _enter(self, owner: str, amount: int) -> _Waiter:
        waiter = _Waiter(Lease(self, owner), amount)
        with self._lock:
            self._waiters.setdefault(owner, deque()).append(waiter)
            self._admit()
        return waiter

    def _leave(self, waiter: _Waiter) -> None:
        """Stop waiting; an admission that came too late is released."""
        with self._lock:
            if not waiter.admitted.done():
                self._waiters[waiter.lease.owner].remove(waiter)
                self._admit()
                return
        self._release(waiter.lease)

    def _release(self, lease: Lease) -> None:
        with self._lock:
            if lease.amount:
                self._amounts -= Counter({lease.owner: lease.amount})
                self._n_leases -= Counter({lease.owner: 1})
                lease.amount = 0
            self._admit()

    def _admit(self) -> None:
        """Admit all waiting requests that fit, alternating between owners."""
        is_changed = True
        while is_changed:
            is_changed = False
            for owner in list(self._waiters):
                queue = self._waiters[owner]
                if queue and self._fits(queue[0].lease, queue[0].amount):
                    waiter = queue.popleft()
                    self._add(waiter.lease, waiter.amount)
                    self._waiters.move_to_end(owner)
                    waiter.admitted.set_result(None)
                    is_changed = True
                if not queue:
                    del self._waiters[owner]
