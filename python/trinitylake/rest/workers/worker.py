"""The program of a worker process: runs the jobs that a server sends, one at a time (`pool.py`).

The operating system enforces the limits of a job, because libraries do not: DuckDB evaluates constants while it plans
and does not count all memory, a Parquet file of 30 kB may decode to a gigabyte, and a store may send one byte per
second. `RLIMIT_DATA` limits the memory. `SIGALRM` ends a worker that exceeds its time, also after its server was
killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from trinitylake.base.import_hook import ImportHook
from trinitylake.rest import limits

_STATUS = Path("/proc/self/status")
#: Modules that are imported before a worker is ready, so that imports count neither as time nor as memory of a job.
_PRELOADED = (
    "trinitylake.rest.workers.page_jobs",
    "trinitylake.rest.workers.foreign_files",
    "pyiceberg.io.pyarrow",
    "duckdb",
)


class Job(ABC):
    """Work for a worker process. Subclasses are dataclasses that can be pickled.

    Attributes:
        kind: key of the limits in `limits.JOBS`.
    """

    kind: ClassVar[str]

    @abstractmethod
    def run(self, report: Callable[[str], None]) -> Any:
        """Return the result, which can be pickled.

        `report` sends a line of progress to the server, and restarts the time limit.
        """


def worker_main(descriptor: int) -> None:
    """Run jobs until the server closes the connection, whose file descriptor is given."""
    if sys.platform == "win32":
        raise RuntimeError("Windows has no worker processes")
    sys.meta_path.insert(0, ImportHook())
    for module in _PRELOADED:
        with suppress(ImportError):
            import_module(module)
    connection = Connection(descriptor)
    connection.send(("ready", None, True))
    is_reusable = True
    while is_reusable:
        try:
            job, seconds, memory_size_bytes = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        limit_memory(memory_size_bytes)

        def report(progress: str, seconds: float = seconds) -> None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            connection.send(("progress", progress, True))

        signal.setitimer(signal.ITIMER_REAL, seconds)
        outcome: tuple[str, Any]
        try:
            outcome = "done", job.run(report)
        except Exception as error:
            outcome = "failed", _picklable(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        is_reusable = _status_size_bytes("VmRSS") <= limits.MAX_IDLE_WORKER_SIZE_BYTES
        connection.send((*outcome, is_reusable))


def limit_memory(size_bytes: int) -> None:
    """On Linux, limit the memory that this process allocates from now on. More raises `MemoryError` or aborts."""
    if sys.platform == "win32" or not _STATUS.exists():
        return
    import resource

    machine_size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = _status_size_bytes("VmData") + min(size_bytes, machine_size_bytes // 2)
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _status_size_bytes(name: str) -> int:
    """A size in `/proc/self/status` of this process; 0 on systems without this file."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _picklable(error: Exception) -> Exception:
    """The error with its traceback as a note, or a `RuntimeError` with its text if it cannot be pickled."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in a worker process:\n{trace}")
    return error
