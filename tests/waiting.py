"""Waiting for the work of another thread or process, for as long as it may take on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")

#: Below the time limit of a test, so that the failed test shows what it waited for.
PATIENCE_SECONDS = 200


def wait_until(holds: Callable[[], object]) -> None:
    """Raises `AssertionError` if the condition is not true within `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s"
        time.sleep(0.005)


def in_threads(work: Callable[[Argument], object], arguments: Iterable[Argument]) -> None:
    """Call `work` for all arguments at once, in as many threads, and raise the first error."""
    calls = list(arguments)
    with ThreadPoolExecutor(len(calls)) as threads:
        for one in [threads.submit(work, argument) for argument in calls]:
            one.result()
