"""A limit on the memory of a process, which the system keeps."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def limited_environment(**others: str) -> dict[str, str]:
    """The environment of a process that will limit its memory: that of this one, and `others`.

    In such a process no library reserves memory before it needs it. The system counts what is reserved as what the
    process has when its limit is set, and it is used without a question.
    """
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MIMALLOC_ARENA_EAGER_COMMIT": "0",  # a gigabyte of the core's
        "RUST_BACKTRACE": "0",  # to make one where memory is at its end, Rust waits for itself for ever
        **others,
    }


def limit_memory(size_bytes: int) -> None:
    """From now on, the process gets no more than so much besides what it has; where the system keeps such limits."""
    import resource

    status = Path("/proc/self/status")
    if not status.exists():
        return
    held_kilobytes = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
    most = (held_kilobytes << 10) + size_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
