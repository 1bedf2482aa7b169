"""A thread pool for what waits in asyncio, whose default pool is too small for many commits at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_COMMIT_THREADS = 64

_executor: ThreadPoolExecutor | None = None


async def run_blocking(work: Callable[..., Result], *given: Any, **arguments: Any) -> Result:
    """Run `work(*given, **arguments)` in a thread and wait for its result."""
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(MAX_COMMIT_THREADS, thread_name_prefix="trinitylake-commit")
    return await asyncio.get_running_loop().run_in_executor(_executor, partial(work, *given, **arguments))


def _forget() -> None:
    """In a forked child, where the threads of the parent do not run."""
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_forget)
