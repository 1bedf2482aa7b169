"""What bulk operations need of a lakehouse, and what they tell of what they registered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.definitions import LakehouseDef


class BulkTarget(ABC):
    """A lakehouse that objects are registered in.

    Attributes:
        core: the handle of the core.
    """

    core: _core.Lakehouse

    @property
    @abstractmethod
    def storage(self) -> _core.Storage:
        """The files of the lakehouse."""

    @property
    @abstractmethod
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6)."""


@dataclass(frozen=True)
class Registration:
    """What was registered.

    Attributes:
        version: the version with all of it; None after a dry run.
        namespaces, tables, views: how many.
    """

    version: int | None
    namespaces: int
    tables: int
    views: int
