"""Limits of a server that operators do not set; those that they do are in `options.py`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trinitylake.rest.errors import RestError

#: Threads for requests, those of one principal, and how long a request waits for one.
MAX_THREADS, MAX_THREADS_OF_ONE, THREAD_WAIT_SECONDS = 64, 48, 20.0
#: Requests of the page that search, compare versions or read rows, and those of one principal.
MAX_LONG_REQUESTS, MAX_LONG_REQUESTS_OF_ONE = 8, 4
#: Of the headers of a request; what is neither header nor body, such as trailers, counts too.
MAX_HEADERS_SIZE_BYTES = 64 << 10
#: How long a connection may send nothing: before its first byte or during a TLS handshake, and after a request. The
#: latter is longer than most clients and proxies keep theirs, so that they close it and lose no request.
SILENT_SECONDS, KEEP_ALIVE_SECONDS = 15, 75
#: How long a client may take to read the rest of an answer and to close TLS, when the server closes the connection.
TLS_CLOSE_SECONDS = 5
#: Time limits of a shutdown: for running requests, and for the remaining steps.
GRACE_SECONDS, SAVING_SECONDS = 30, 15.0


@dataclass(frozen=True)
class JobLimits:
    """Limits of one kind of job in worker processes (`workers/`).

    Attributes:
        at_work: jobs of the kind at the same time.
        of_owner: of those, jobs of one owner: a principal, or the peer that a job waits for.
        memory_size_bytes: memory of a job, and at most half of the machine's.
    """

    at_work: int
    of_owner: int
    memory_size_bytes: int


#: By kind: queries and rows for the page, files outside of the lakehouse, maintenance of tables.
JOBS = {
    "page": JobLimits(at_work=4, of_owner=2, memory_size_bytes=1280 << 20),
    "foreign": JobLimits(at_work=8, of_owner=2, memory_size_bytes=1 << 30),
    "maintenance": JobLimits(at_work=1, of_owner=1, memory_size_bytes=4 << 30),
}
#: How long a job waits for a worker where others are at work.
JOB_WAIT_SECONDS = 5.0
#: Of the result of a job.
MAX_RESULT_SIZE_BYTES = 256 << 20
#: Idle workers that are kept, for how long, and how much memory each may hold; starting one takes a second.
MAX_IDLE_WORKERS, IDLE_WORKER_SECONDS, MAX_IDLE_WORKER_SIZE_BYTES = 2, 120.0, 384 << 20


class SharedLimit:
    """Limit on what is at work at the same time, in all and of one owner. Safe to share between threads.

    Args:
        at_work: of all.
        of_owner: of one owner.
    """

    def __init__(self, at_work: int, of_owner: int) -> None:
        self._limits = at_work, of_owner
        self._at_work: Counter[str] = Counter()
        self._changed = threading.Condition()

    @property
    def n_at_work(self) -> int:
        """How many are at work."""
        with self._changed:
            return self._at_work.total()

    @contextmanager
    def taken(self, owner: str, wait_seconds: float = 0.0) -> Iterator[None]:
        """One more of the owner is at work in the block. Raises `RestError` 429 if the limit is still reached."""

        def is_free() -> bool:
            return self._at_work.total() < self._limits[0] and self._at_work[owner] < self._limits[1]

        with self._changed:
            if not self._changed.wait_for(is_free, wait_seconds):
                raise RestError(429, "TooManyRequestsException", "other such requests are at work: try again")
            self._at_work[owner] += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= Counter({owner: 1})
                self._changed.notify_all()
