"""A daemon for Spark's Python workers with imported libraries: for the setting `spark.python.daemon.module`.

Spark forks its workers from a daemon that has imported only PySpark. So each worker imports PyIceberg, Arrow and pandas
again, which takes more than a second, while a task may take a tenth of a second. Workers of this daemon have these
libraries, and do not read the lists of entries of Spark's archives before each task.
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
    """Import the modules that tasks need, then run Spark's daemon until it ends.

    A module that cannot be imported, such as the data source with PySpark 3.5, is skipped, because all tasks fail if
    the daemon ends.
    """
    archives_on_path.install()
    for name in NEEDED:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # so the garbage collection of a worker after each task visits only objects of tasks
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
