"""Spark's Python workers with this package loaded: the module for the setting `spark.python.daemon.module`.

Spark forks its workers from a daemon, which has nothing loaded but PySpark, so each worker imports Iceberg, Arrow and
pandas again: more than a second, for tasks that may take a tenth of that. Workers of this daemon have them, and do not
read the lists of entries of Spark's archives before each task.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import pyspark.daemon

from trinitylake.spark import archives_on_path

#: Modules that tasks of this package need: reading, writing, merging, metadata tables, and the functions of the format.
NEEDED = (
    "pyiceberg.io.pyarrow",
    "trinitylake.spark.batch_read",
    "trinitylake.spark.batch_write",
    "trinitylake.spark.functions",
    "trinitylake.spark.row_changes",
    "trinitylake.spark.source",
)


def main() -> None:
    """Load what tasks need, then run Spark's daemon until it ends.

    A module that cannot be loaded here, such as the data source with PySpark 3.5, is left to the tasks that need it,
    because all tasks fail if the daemon ends.
    """
    archives_on_path.install()
    for name in NEEDED:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # a worker collects garbage after each task, only among the task's objects
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
