"""Saves time in the processes in which Spark plans and commits for Python data sources, on the driver's machine.

Spark forks these processes from a daemon whose module cannot be set (unlike the module of the tasks' daemon,
`worker_daemon.py`), and uses a process again for the next step of the same kind.
"""

from __future__ import annotations

import gc
import sys

from trinitylake.spark import archives_on_path


def spare_repeated_work() -> None:
    """In a process that Spark's own daemon forked, read the lists of entries of archives only once, and leave objects
    that exist after the first step out of garbage collections. Does nothing in other processes.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", None) != "pyspark.daemon" or _leave_out_what_is_old in gc.callbacks:
        return
    archives_on_path.install()
    gc.callbacks.append(_leave_out_what_is_old)


def _leave_out_what_is_old(phase: str, info: dict[str, int]) -> None:
    """Freeze all objects, mostly of modules, after the first full garbage collection, which Spark runs after a step."""
    if phase == "stop" and info["generation"] == 2 and not gc.get_freeze_count():
        gc.freeze()
