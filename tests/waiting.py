"""Waiting for the work of another thread or process, for as long as it may take on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Below the time limit of a test, so that the failed test shows what it waited for.
PATIENCE_SECONDS = 200


def wait_until(holds: Callable[[], object]) -> None:
    """Raises `AssertionError` if the condition is not true within `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s"
        time.sleep(0.005)
