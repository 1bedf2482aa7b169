"""Taking turns: within a process, transactions that changed the same table commit one after the other.

Without it every commit of one thread makes all the others redo theirs, so that eight threads do the work of thirty.
It saves work and decides nothing: processes, and handles that miss each other here, still meet in the commit itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakValueDictionary


class Turn:
    """The turn of one table. Kept only as long as somebody holds it or waits for it."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Turns:
    """The turns of this process, by table id."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()

    @contextmanager
    def taken(self, table_ids: Iterable[str]) -> Iterator[None]:
        """Wait for the turn of all these tables; in one order everywhere, so nobody waits in a circle."""
        with self._guard:
            turns = [self._turns.setdefault(id, Turn()) for id in sorted(set(table_ids))]
        with ExitStack() as stack:
            for turn in turns:
                stack.enter_context(turn.lock)
            yield

    def forget(self) -> None:
        """In a forked child: locks that threads of the parent held have nobody to release them."""
        self.__init__()  # type: ignore[misc]


turns = Turns()
os.register_at_fork(after_in_child=turns.forget)
