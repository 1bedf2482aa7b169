"""A limit on the memory of a process, which the system keeps."""

from __future__ import annotations

from pathlib import Path


def limit_memory(size_bytes: int) -> None:
    """From now on, the process gets no more than so much besides what it has; where the system keeps such limits."""
    import resource

    status = Path("/proc/self/status")
    if not status.exists():
        return
    held_kilobytes = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
    most = (held_kilobytes << 10) + size_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
