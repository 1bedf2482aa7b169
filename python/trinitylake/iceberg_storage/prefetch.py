"""Prefetch of files that a scan will read, within a memory limit.

PyIceberg fetches a file when one of its threads reads it, and has about as many threads as the machine has processors.
A statement that removes rows reads one file after another. Without prefetching, both mostly wait for a remote store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

#: Limits of prefetched files that are not read yet. The cache of the storage is twice as large.
MAX_SIZE_BYTES = 8 << 20
MAX_FILES = 64


class Prefetch:
    """Fetches files in the order in which they will be read.

    Args:
        fetch: begins to fetch files, by their paths.
        files: the path and the recorded size of each file. A wrong size only costs time.
    """

    def __init__(self, fetch: Callable[[list[str]], None], files: Iterable[tuple[str, int]]) -> None:
        self._fetch = fetch
        self._left = deque(files)
        self._waiting: dict[str, int] = {}
        self._waiting_size_bytes = 0
        self._lock = threading.Lock()

    def fetch_more(self) -> None:
        """Fetch as many files as the memory limit allows."""
        batch = []
        with self._lock:
            while self._left and len(self._waiting) < MAX_FILES:
                path, size_bytes = self._left[0]
                if self._waiting and self._waiting_size_bytes + size_bytes > MAX_SIZE_BYTES:
                    break
                self._left.popleft()
                if path not in self._waiting:
                    self._waiting[path] = size_bytes
                    self._waiting_size_bytes += size_bytes
                    batch.append(path)
        if batch:
            self._fetch(batch)

    def opened(self, path: str) -> None:
        """Record that a file is read, so that other files can be fetched."""
        with self._lock:
            size_bytes = self._waiting.pop(path, None)
            self._waiting_size_bytes -= size_bytes or 0
            # Files are requested in batches, because each request costs a call.
            is_worth_it = self._left and len(self._waiting) <= MAX_FILES // 2
        if is_worth_it:
            self.fetch_more()
