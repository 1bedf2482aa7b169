"""Engines that can do bulk work on many machines, found by the session that a user hands over.

An engine belongs to a layer above this one, so it is not imported here but named: its module is loaded when a session
of its package is passed. Another engine is one more line in `_MODULES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.bulk.target import BulkTarget, Registration, RegistrationOptions

#: The package that a session's class is of -> the module that works with it.
_MODULES = {"pyspark": "trinitylake.spark.registration"}


class Engine(Protocol):
    """A module that registers objects by the executors of a session."""

    def register(
        self,
        session: Any,
        lake: BulkTarget,
        objects: Any,
        options: RegistrationOptions,
        /,
    ) -> Registration:
        """See `Lakehouse.register`."""


def engine_of(session: object) -> Engine:
    """The engine that a session belongs to. Raises `InvalidArgument` for what is no session of a known engine."""
    for ancestor in type(session).__mro__:
        module = _MODULES.get(ancestor.__module__.partition(".")[0])
        if module is not None:
            return cast(Engine, import_module(module))
    raise InvalidArgument(f"engine must be a session of {' or '.join(_MODULES)}, got {type(session).__name__}")
