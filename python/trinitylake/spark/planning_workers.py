"""The processes beside the driver in which Spark plans and commits for data sources in Python.

Spark forks them from a daemon of its own, whose module cannot be set as that of tasks can (`worker_daemon.py`), and
uses each again for the next step of the same kind. What such a step does in vain each time, it does once where this
package has been loaded.
"""

from __future__ import annotations

import gc
import sys

from trinitylake.spark import archives_on_path


def spare_repeated_work() -> None:
    """In a process that Spark's own daemon forked, read the lists of archives once, and look for garbage only among
    what is newer than the first step. Does nothing elsewhere."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", None) != "pyspark.daemon" or _leave_out_what_is_old in gc.callbacks:
        return
    archives_on_path.install()
    gc.callbacks.append(_leave_out_what_is_old)


def _leave_out_what_is_old(phase: str, info: dict[str, int]) -> None:
    """After the first step Spark lets Python look through all objects; those that stay are mostly loaded modules."""
    if phase == "stop" and info["generation"] == 2 and not gc.get_freeze_count():
        gc.freeze()
