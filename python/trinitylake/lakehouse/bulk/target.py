"""What bulk operations need of a lakehouse, how they are asked to register objects, and what they report."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trinitylake.lakehouse.lakehouse_part import LakehousePart

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef


class BulkTarget(LakehousePart):
    """A lakehouse that objects are registered in."""

    @property
    @abstractmethod
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6)."""


@dataclass(frozen=True)
class RegistrationOptions:
    """How objects are registered, on one machine or by an engine; the fields are those of `Lakehouse.register`."""

    message: str = ""
    author: str = ""
    replace: bool = False
    dry_run: bool = False
    file_io_properties: Mapping[str, str] = field(default_factory=dict)


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
