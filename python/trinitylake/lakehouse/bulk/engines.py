"""Engines that can do bulk work on many machines, found by the session that a user hands over.

An engine belongs to a layer above this one, so it is not imported here but named: its modules are loaded when a session
of its package is passed, one for each sort of work. Another engine is one more line in `_PACKAGES`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.bulk.registration_options import Registration, RegistrationOptions

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.lakehouse.fsck import FsckReport, Versions
    from trinitylake.lakehouse.handle import Handle
    from trinitylake.lakehouse.object_copier import ExportWorkers, OnProgress
    from trinitylake.lakehouse.vacuum import Vacuumed, VacuumRequest

#: The package that a session's class is of -> the package that works with it.
_PACKAGES = {"pyspark": "trinitylake.spark"}


class Engine(Protocol):
    """A module that registers objects by the executors of a session."""

    def register(
        self,
        session: Any,
        lake: Handle,
        objects: Any,
        options: RegistrationOptions,
        /,
    ) -> Registration:
        """See `Lakehouse.register`."""


class Collector(Protocol):
    """A module that collects garbage by the executors of a session."""

    def vacuum(self, session: Any, core: _core.Lakehouse, asked: VacuumRequest, /) -> Vacuumed:
        """See `Lakehouse.vacuum`."""


class Exporter(Protocol):
    """A module that copies by the executors of a session."""

    def workers(self, session: Any, progress: OnProgress | None, /) -> ExportWorkers:
        """See `Lakehouse.export`."""


class Checker(Protocol):
    """A module that checks a version by the executors of a session."""

    def fsck(self, session: Any, core: _core.Lakehouse, version: Versions, files: bool, data: bool, /) -> FsckReport:
        """See `LakehouseMaintenance.fsck`."""


def engine_of(session: object) -> Engine:
    """The engine that a session belongs to. Raises `InvalidArgument` for what is no session of a known engine."""
    return cast(Engine, _module(session, "registration"))


def collector_of(session: object) -> Collector:
    """As `engine_of`, for garbage collection."""
    return cast(Collector, _module(session, "vacuum"))


def exporter_of(session: object) -> Exporter:
    """As `engine_of`, for copies at another root."""
    return cast(Exporter, _module(session, "export"))


def checker_of(session: object) -> Checker:
    """As `engine_of`, for consistency checks."""
    return cast(Checker, _module(session, "fsck"))


def _module(session: object, work: str) -> ModuleType:
    for ancestor in type(session).__mro__:
        package = _PACKAGES.get(ancestor.__module__.partition(".")[0])
        if package is not None:
            return import_module(f"{package}.{work}")
    raise InvalidArgument(f"engine must be a session of {' or '.join(_PACKAGES)}, got {type(session).__name__}")
