"""Bulk work on the executors of a Spark session that the caller passes.

The modules that do this work (`trinitylake.spark`) belong to a higher layer, so they are imported by name, and only
when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trinitylake.errors import InvalidArgument


def engine_module(session: object, work: str) -> Any:
    """Import the module for `work`: "registration", "export", "fsck" or "vacuum".

    Raises `InvalidArgument` if `session` is not a Spark session.
    """
    if not any(kind.__module__.startswith("pyspark.") for kind in type(session).__mro__):
        raise InvalidArgument(f"engine must be a session of pyspark, got {type(session).__name__}")
    return import_module(f"trinitylake.spark.{work}")
