"""Engines that do bulk work on many machines, found by the session that a user hands over.

An engine belongs to a layer above this one, so its modules are not imported but named: each sort of work is a module of
the engine's package, with a function of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trinitylake.errors import InvalidArgument

#: The package that the class of a session is in -> the package that works with it.
_PACKAGES = {"pyspark": "trinitylake.spark"}


def engine_module(session: object, work: str) -> Any:
    """The module for a sort of work: "registration", "export", "fsck" or "vacuum".

    Raises `InvalidArgument` for an object that is no session of a known engine.
    """
    for ancestor in type(session).__mro__:
        package = _PACKAGES.get(ancestor.__module__.partition(".")[0])
        if package is not None:
            return import_module(f"{package}.{work}")
    raise InvalidArgument(f"engine must be a session of {' or '.join(_PACKAGES)}, got {type(session).__name__}")
