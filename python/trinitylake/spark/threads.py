"""Activation of the session of a frame, for threads that use `format("trinitylake")`.

Spark 4.1 searches for a Python data source in the active session of the JVM's thread, not in that of the frame
(`DataSource.lookupDataSource`). A thread that Python starts has its own thread in the JVM, without an active session;
`pyspark.InheritableThread` copies local properties, not the session. So a write fails there with
`DATA_SOURCE_NOT_FOUND`. With our format, the session of the frame is activated first.
"""

from __future__ import annotations

import functools
from typing import Any

_FORMAT = "trinitylake"
_MARK = "_trinitylake_activates"


def activate(spark: Any) -> None:
    """Activate a session in this thread, if none is active. Does nothing with Spark Connect."""
    if getattr(spark, "_jvm", None) is None:
        return
    # PySpark has no public way to the JVM.
    companion = type(spark)._get_j_spark_session_class(spark._jvm)  # noqa: SLF001
    if companion.getActiveSession().isEmpty():
        companion.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def install() -> None:
    """Activate sessions in all threads of this process that use our format. Idempotent."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    kinds: tuple[Any, ...] = (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter)
    for kind in kinds:
        if not hasattr(kind.format, _MARK):
            kind.format = _activating(kind.format)


def _activating(chosen: Any) -> Any:
    @functools.wraps(chosen)
    def format(self: Any, source: str) -> Any:
        if source.lower() == _FORMAT:
            activate(getattr(self, "_spark", None))
        return chosen(self, source)

    setattr(format, _MARK, True)
    return format
