"""Rows of many files in the order of the files, which several threads read at once, as far as memory goes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import pyarrow as pa

Part = TypeVar("Part")

#: Rows that were read and that nobody has taken yet. Each thread has one more batch in its hands.
WAITING_SIZE_BYTES = 64 << 20


class RowsAhead(Generic[Part]):
    """The rows of some parts, one part after the other. To be gone through once.

    Args:
        parts: in the order in which their rows are wanted.
        read: gives the rows of a part, batch by batch. Is called in threads.
        threads: so many parts are read at the same time.
        is_read: is called, in the thread of who asks, when all rows of a part have been taken.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        read: Callable[[Part], Iterable[pa.Table]],
        threads: int,
        is_read: Callable[[Part], object],
    ) -> None:
        self._parts = parts
        self._read = read
        self._threads = threads
        self._is_read = is_read
        self._changed = threading.Condition()
        self._waiting: list[deque[pa.Table]] = [deque() for _ in parts]
        self._waiting_size_bytes = 0
        self._ended = [False for _ in parts]
        self._asked_for = 0
        self._is_over = False

    def __iter__(self) -> Iterator[pa.Table]:
        """The rows. Raises what reading them raises."""
        with ThreadPoolExecutor(self._threads, "trinitylake-rows") as pool:
            # Begun in this order, so the part that is asked for never stands behind one that waits for room.
            reading = [pool.submit(self._fill, number) for number in range(len(self._parts))]
            try:
                for number, part in enumerate(self._parts):
                    with self._changed:
                        self._asked_for = number
                        self._changed.notify_all()
                    while (table := self._next(number)) is not None:
                        yield table
                    reading[number].result()
                    self._is_read(part)
            finally:
                with self._changed:
                    self._is_over = True
                    self._changed.notify_all()
                pool.shutdown(cancel_futures=True)

    def _fill(self, number: int) -> None:
        try:
            for table in self._read(self._parts[number]):
                if not self._put(number, table, table.nbytes):
                    return
        finally:
            with self._changed:
                self._ended[number] = True
                self._changed.notify_all()

    def _put(self, number: int, table: pa.Table, size_bytes: int) -> bool:
        """Wait for room; False if nobody asks any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._has_room(number, size_bytes))
            if not self._is_over:
                self._waiting[number].append(table)
                self._waiting_size_bytes += size_bytes
                self._changed.notify_all()
            return not self._is_over

    def _has_room(self, number: int, size_bytes: int) -> bool:
        """Always for a batch that is waited for."""
        is_next = number == self._asked_for and not self._waiting[number]
        return is_next or self._waiting_size_bytes + size_bytes <= WAITING_SIZE_BYTES

    def _next(self, number: int) -> pa.Table | None:
        """The next rows of a part; None if there are no more."""
        waiting = self._waiting[number]
        with self._changed:
            self._changed.wait_for(lambda: waiting or self._ended[number])
            if not waiting:
                return None
            table = waiting.popleft()
            self._waiting_size_bytes -= table.nbytes
            self._changed.notify_all()
            return table


def together(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """The same rows, as many of them in one table as take that much memory; more if the tables that come do."""
    parts: list[pa.Table] = []
    found = 0
    for table in tables:
        if parts and found + table.nbytes > size_bytes:
            rows = pa.concat_tables(parts).combine_chunks()
            parts, found = [], 0
            yield rows
            del rows
        parts.append(table)
        found += table.nbytes
    if parts:
        yield pa.concat_tables(parts).combine_chunks()
