"""Room for requests that may take long although they are allowed: a few at a time, fewer of one principal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from trinitylake.rest.errors import RestError

MAX_AT_WORK, MAX_AT_WORK_OF_ONE = 8, 4


class WorkRoom:
    """The long requests of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_work: Counter[str] = Counter()

    @contextmanager
    def taken(self, who: str) -> Iterator[None]:
        """Work in the block. Raises `RestError` 429 where as much is at work as may be."""
        with self._lock:
            if self._at_work[who] >= MAX_AT_WORK_OF_ONE or self._at_work.total() >= MAX_AT_WORK:
                raise RestError(429, "TooManyRequestsException", "others are at work on such a request: try again")
            self._at_work[who] += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work[who] -= 1
                if not self._at_work[who]:
                    del self._at_work[who]
