"""Waiting for other threads and processes, with a limit that a busy machine does not exceed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")

#: Less than the time limit of a test, so that the failure shows the condition.
PATIENCE_SECONDS = 200


def wait_until(holds: Callable[[], object]) -> None:
    """Wait until the condition is true. Raises `AssertionError` after `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s"
        time.sleep(0.005)


def in_threads(work: Callable[[Argument], object], arguments: Iterable[Argument]) -> None:
    """Call `work` with each argument in a thread of its own, and raise the first error."""
    calls = list(arguments)
    with ThreadPoolExecutor(len(calls)) as threads:
        for one in [threads.submit(work, argument) for argument in calls]:
            one.result()
