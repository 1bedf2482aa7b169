"""Bulk work on the executors of a Spark session that a user hands over.

The modules for it belong to a layer above this one, so they are named here and imported when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trinitylake.errors import InvalidArgument


def engine_module(session: object, work: str) -> Any:
    """The module for a sort of work: "registration", "export", "fsck" or "vacuum".

    Raises `InvalidArgument` for an object that is no session of Spark.
    """
    if not any(kind.__module__.startswith("pyspark.") for kind in type(session).__mro__):
        raise InvalidArgument(f"engine must be a session of pyspark, got {type(session).__name__}")
    return import_module(f"trinitylake.spark.{work}")
