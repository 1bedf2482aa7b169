"""Processes next to the driver in which Spark plans and commits for Python data sources.

Spark forks them from a daemon whose module cannot be set (unlike that of tasks, `worker_daemon.py`), and uses each
again for the next step of the same kind. Once this package is loaded, they do repeated work only once.
"""

from __future__ import annotations

import gc
import sys

from trinitylake.spark import archives_on_path


def spare_repeated_work() -> None:
    """In a process that Spark's own daemon forked, read the lists of archives once, and collect garbage only among
    objects that are newer than the first step. Does nothing elsewhere."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", None) != "pyspark.daemon" or _leave_out_what_is_old in gc.callbacks:
        return
    archives_on_path.install()
    gc.callbacks.append(_leave_out_what_is_old)


def _leave_out_what_is_old(phase: str, info: dict[str, int]) -> None:
    """Freeze old objects, mostly modules: after the first step Spark runs a garbage collection over all objects."""
    if phase == "stop" and info["generation"] == 2 and not gc.get_freeze_count():
        gc.freeze()
