"""The memory of a worker process is limited, including that of the core's allocator."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trinitylake.rest.workers.pool import worker_environment

#: Takes pieces of fifty kilobytes of the core's memory, and keeps them, within 64 MiB.
PROGRAM = """
import sys
import pyarrow as pa
from trinitylake import _core
from trinitylake.rest.workers.worker import limit_memory

paths = pa.array(["x" * 1000] * 50)
limit_memory(64 << 20)
kept = [_core.optimize_paths(paths) for _ in range(int(sys.argv[1]))]
"""


def test_memory_of_the_core_counts_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allocator reserves a gigabyte when the core is loaded. That was taken for what the process had, so the core
    could use all of it beyond the limit. And with `RUST_BACKTRACE=1` a process hung at the end of its memory."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    environment = worker_environment(str(tmp_path))

    def ends_with(pieces: int) -> int:
        program = [sys.executable, "-c", PROGRAM, str(pieces)]
        return subprocess.run(program, env=environment, timeout=60, check=False).returncode

    assert (ends_with(100), ends_with(5000)) == (0, -signal.SIGABRT)
