"""Threads by which PyIceberg reads manifests, for work that may wait for somebody else.

It has one small pool of them for all of a process, so a few plans that wait take them from all others.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from pyiceberg.utils.concurrent import ExecutorFactory

N_THREADS = 4

_OWN: contextvars.ContextVar[Executor | None] = contextvars.ContextVar("threads", default=None)
_of_process = ExecutorFactory.get_or_create


def _get_or_create() -> Executor:
    return _OWN.get() or _of_process()


ExecutorFactory.get_or_create = staticmethod(_get_or_create)  # type: ignore[method-assign]


@contextmanager
def own_threads() -> Iterator[None]:
    """What PyIceberg does in the block has threads of its own. At the end they are waited for."""
    executor = ThreadPoolExecutor(N_THREADS, "elsewhere")
    token = _OWN.set(executor)
    try:
        yield
    finally:
        _OWN.reset(token)
        executor.shutdown(cancel_futures=True)
