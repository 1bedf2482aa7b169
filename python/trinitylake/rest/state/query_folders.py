"""Folders for what processes of queries write to disk. Each is locked as long as its server or its process lives, so
that a server finds those of servers that were killed, and removes them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where a server has no such processes
    fcntl = None  # type: ignore[assignment]

_PREFIX, _LOCK = "trinitylake-query-", "lock"
#: A folder without a lock is about to get one, unless it is older than this.
_UNLOCKED_SECONDS = 60.0


class QueryFolder:
    """A new folder, and the lock on it, which a process keeps that inherits `descriptor`.

    Attributes:
        path: of the folder.
        descriptor: of the lock: whoever has it open holds the lock.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            self.descriptor = os.open(Path(self.path, _LOCK), os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove it and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    state = folder.lstat()
    if state.st_uid != os.geteuid():
        return False
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - state.st_mtime > _UNLOCKED_SECONDS
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
