"""What a query may take that somebody else has written: memory, disk, time; and whether anybody still waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: How often it is looked whether a query should end.
_LOOK_SECONDS = 0.1


def _always() -> bool:
    return True


@dataclass(frozen=True)
class QueryLimits:
    """Limits of one query.

    Attributes:
        memory_size_bytes: that DuckDB may take, and as much again on disk.
        seconds: after which it breaks off.
        is_wanted: whether somebody still waits for it; else it breaks off, too.
    """

    memory_size_bytes: int
    seconds: float
    is_wanted: Callable[[], bool] = _always

    @property
    def settings(self) -> dict[str, str | bool | int | float | list[str]]:
        """For a connection of DuckDB."""
        size = f"{self.memory_size_bytes}B"
        return {"memory_limit": size, "max_temp_directory_size": size, "threads": 2}

    @contextmanager
    def kept(self, connection: Any) -> Iterator[None]:
        """Break off what the connection does in the block once a limit is passed, which raises there."""
        is_over = threading.Event()
        deadline = time.monotonic() + self.seconds

        def watch() -> None:
            while not is_over.wait(_LOOK_SECONDS):
                if time.monotonic() > deadline or not self.is_wanted():
                    connection.interrupt()

        watching = threading.Thread(target=watch, name="trinitylake-query-limits", daemon=True)
        watching.start()
        try:
            yield
        finally:
            is_over.set()
            watching.join()
