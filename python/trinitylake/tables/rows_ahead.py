"""Rows of many files in the order of the files, which several threads read at once, as far as memory goes."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

Part = TypeVar("Part")
#: Tables or batches of Arrow.
Rows: TypeAlias = Any

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
        read: Callable[[Part], Iterable[Rows]],
        threads: int,
        is_read: Callable[[Part], object],
    ) -> None:
        self._parts = parts
        self._read = read
        self._threads = threads
        self._is_read = is_read
        self._changed = threading.Condition()
        self._waiting: list[deque[Rows]] = [deque() for _ in parts]
        self._waiting_size_bytes = 0
        self._begun: dict[int, Iterator[Rows]] = {}
        #: Parts that were begun and stopped for want of room, the first one first; and the first that was not begun.
        self._stopped: list[int] = []
        self._next_part = 0
        self._failed: dict[int, BaseException] = {}
        self._ended = [False for _ in parts]
        self._asked_for = 0
        self._working = 0
        self._is_over = False

    def __iter__(self) -> Iterator[Rows]:
        """The rows. Raises what reading them raises.

        No thread waits for room, so a program may end with rows that nobody takes.
        """
        with ThreadPoolExecutor(self._threads, "trinitylake-rows") as pool:
            try:
                for number, part in enumerate(self._parts):
                    self._asked_for = number
                    while (table := self._next(number, pool)) is not None:
                        yield table
                    if (error := self._failed.get(number)) is not None:
                        raise error
                    self._is_read(part)
            finally:
                with self._changed:
                    self._is_over = True
                pool.shutdown(cancel_futures=True)
                self._begun.clear()

    def _next(self, number: int, pool: ThreadPoolExecutor) -> Rows | None:
        """The next rows of a part; None if there are no more."""
        waiting = self._waiting[number]
        with self._changed:
            table = waiting.popleft() if waiting else None
            if table is not None:
                self._waiting_size_bytes -= table.nbytes
            self._set_to_work(pool)
            if table is None:
                self._changed.wait_for(lambda: waiting or self._ended[number])
                if waiting:
                    table = waiting.popleft()
                    self._waiting_size_bytes -= table.nbytes
            return table

    def _set_to_work(self, pool: ThreadPoolExecutor) -> None:
        """As many threads as may be, if there is something to read that there is room for."""
        for _ in range(self._threads - self._working):
            if self._candidate() is None:
                return
            self._working += 1
            pool.submit(self._work)

    def _work(self) -> None:
        while (number := self._chosen()) is not None:
            error: BaseException | None = None
            try:
                is_stopped = self._fill(number)
            except BaseException as caught:
                error, is_stopped = caught, False
            with self._changed:
                if error is not None:
                    self._failed[number] = error
                if is_stopped:
                    heapq.heappush(self._stopped, number)
                else:
                    self._ended[number] = True
                    self._begun.pop(number, None)
                self._changed.notify_all()

    def _fill(self, number: int) -> bool:
        """Read a part as far as there is room; whether there may be more of it."""
        if number not in self._begun:
            self._begun[number] = iter(self._read(self._parts[number]))
        for table in self._begun[number]:
            with self._changed:
                self._waiting[number].append(table)
                self._waiting_size_bytes += table.nbytes
                self._changed.notify_all()
                if self._is_over or not self._has_room(number):
                    return True
        return False

    def _chosen(self) -> int | None:
        """The part to go on with, which is nobody else's then; None if there is none, and the thread ends."""
        with self._changed:
            number = None if self._is_over else self._candidate()
            if number is None:
                self._working -= 1
            elif self._stopped and self._stopped[0] == number:
                heapq.heappop(self._stopped)
            else:
                self._next_part += 1
            return number

    def _candidate(self) -> int | None:
        if self._stopped:
            number = self._stopped[0]
        elif self._next_part < len(self._parts):
            number = self._next_part
        else:
            return None
        return number if self._has_room(number) else None

    def _has_room(self, number: int) -> bool:
        """Always for the part that is waited for."""
        is_next = number == self._asked_for and not self._waiting[number]
        return is_next or self._waiting_size_bytes < WAITING_SIZE_BYTES


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
