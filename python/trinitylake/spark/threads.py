"""Threads of a driver that write with `format("trinitylake")`.

Spark 4.1 looks for a Python data source in the session that is active in the JVM's thread, not in that of the frame
(`DataSource.lookupDataSource`). A thread that Python starts has a thread of the JVM to itself, with no active session;
`pyspark.InheritableThread` takes local properties along, and not the session. So a write from there says
`DATA_SOURCE_NOT_FOUND`. Here a write with our format makes the session of its frame active first.
"""

from __future__ import annotations

import functools
from typing import Any

_FORMAT = "trinitylake"
_MARK = "_trinitylake_activates"


def activate(spark: Any) -> None:
    """Make a session the active one of this thread, if none is. Nothing to do with Spark Connect."""
    if getattr(spark, "_jvm", None) is None:
        return
    # PySpark has no public way to the JVM.
    companion = type(spark)._get_j_spark_session_class(spark._jvm)  # noqa: SLF001
    if companion.getActiveSession().isEmpty():
        companion.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def install() -> None:
    """Let our format be found in any thread of this process. Doing it twice changes nothing."""
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
