"""Patches of PySpark for `format("trinitylake")`: the session in other threads, and `partitionBy`.

Spark 4.1 looks for a Python data source in the active session of the JVM's thread, not in the session of the frame
(`DataSource.lookupDataSource`). A thread that Python starts has its own thread in the JVM, without an active session;
`pyspark.InheritableThread` copies local properties, not the session. So without the patch, a write in such a thread
fails with `DATA_SOURCE_NOT_FOUND`. With our format, the session of the frame is activated first.

Spark compares the columns of `partitionBy` with the partitioning of the table before it calls the source, and for Spark
the table of a Python data source has no partitions. With our format the columns become an option, which the source
compares with the table.
"""

from __future__ import annotations

import functools
from typing import Any

_FORMAT = "trinitylake"
#: Attributes of a writer: whether it has our format, and the columns of `partitionBy`.
_IS_OURS, _COLUMNS = "_trinitylake_is_format", "_trinitylake_partition_by"


def activate(spark: Any) -> None:
    """Activate a session in this thread, if no session is active. Does nothing with Spark Connect."""
    if getattr(spark, "_jvm", None) is None:
        return
    # PySpark has no public way to the JVM. The class has another name in Spark 3.5.
    companion = getattr(spark._jvm, spark._jsparkSession.getClass().getName())  # noqa: SLF001
    if companion.getActiveSession().isEmpty():
        companion.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def install() -> None:
    """Patch PySpark's readers and writers in this process."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    kinds: tuple[Any, ...] = (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter)
    for kind in kinds:
        kind.format = _activating(kind.format)
    writer: Any = DataFrameWriter
    writer.partitionBy = _as_option(writer.partitionBy)


def _as_option(chosen: Any) -> Any:
    @functools.wraps(chosen)
    def partitionBy(self: Any, *columns: Any) -> Any:
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        setattr(self, _COLUMNS, names)
        if names and getattr(self, _IS_OURS, False):
            return self.option("partitionBy", ", ".join(names))
        return chosen(self, *columns)

    return partitionBy


def _activating(chosen: Any) -> Any:
    @functools.wraps(chosen)
    def format(self: Any, source: str) -> Any:
        is_ours = source.lower() == _FORMAT
        setattr(self, _IS_OURS, is_ours)
        if is_ours:
            activate(getattr(self, "_spark", None))
            if names := getattr(self, _COLUMNS, ()):
                self.partitionBy.__wrapped__(self)  # resets Spark's own list of columns
                self.option("partitionBy", ", ".join(names))
        return chosen(self, source)

    return format
