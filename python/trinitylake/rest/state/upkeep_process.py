"""Tidying up the tables of a server in a process of its own.

Nobody knows what is in a file before it is read: a thousand bytes may be rows that take all memory. So the process has
as much as the system keeps it to, and ends when no file is done for a long time. The table that it was at is left out
then, until the server starts again, and the others are gone on with.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe as pipe

from trinitylake import _core
from trinitylake.lakehouse.upkeep import Skipped, Tidied
from trinitylake.reopening import StorageForTasks
from trinitylake.rest.state.limited_memory import limited_environment

#: What the process may take besides what it has when it begins; less on a machine that has less.
MAX_SIZE_BYTES = 4 << 30
#: Of the memory of the machine.
_MAX_PART = 2
#: Without a file that is done, or a table that is begun.
PATIENCE_SECONDS = 600.0
#: Why a table is left out.
_ENDED = Skipped(
    "ended_process",
    "the process that tidied it up took too much memory or time: it is left out until the server starts again",
)
#: How often it is looked whether the server ends.
_LOOK_SECONDS = 0.2


class UpkeepProcess:
    """Tidies up with the storage of one server, one run at a time.

    Attributes:
        left_out: tables that ended the process, and why.
    """

    def __init__(self, storage: _core.Storage) -> None:
        self._storage = StorageForTasks(storage)
        self.left_out: dict[str, str] = {}

    def run(self, look: Callable[[], object]) -> Tidied:
        """Tidy up all tables. `look` is called again and again, and may raise an error that ends the process.

        Raises the error that ended the program, or `RuntimeError` if it ended before its first table.
        """
        while True:
            done = self._attempt(look)
            if isinstance(done, Tidied):
                return done
            if isinstance(done, BaseException):
                raise done
            if not done or done in self.left_out:
                raise RuntimeError("the process that tidies up tables ended before it began")
            self.left_out[done] = _ENDED

    def _attempt(self, look: Callable[[], object]) -> Tidied | Exception | str:
        """What the process answered; the table that it was at if it ended without an answer."""
        connection, theirs = pipe()
        folder = tempfile.mkdtemp(prefix="trinitylake-upkeep-")
        table = ""
        with connection, suppress(EOFError, OSError):
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.upkeep_program", str(theirs.fileno()), str(_size_bytes())],
                pass_fds=[theirs.fileno()],
                env=limited_environment(TMPDIR=folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                theirs.close()
                connection.send_bytes(pickle.dumps((self._storage, self.left_out)))
                heard = time.monotonic()
                while time.monotonic() < heard + PATIENCE_SECONDS:
                    look()
                    if connection.poll(_LOOK_SECONDS):
                        answer = connection.recv()
                        if not isinstance(answer, str):
                            return answer  # type: ignore[no-any-return]
                        table, heard = answer, time.monotonic()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                shutil.rmtree(folder, ignore_errors=True)
        return table


def _size_bytes() -> int:
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return MAX_SIZE_BYTES
    return min(MAX_SIZE_BYTES, machine // _MAX_PART)
