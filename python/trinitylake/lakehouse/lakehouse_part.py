"""What each group of a lakehouse's methods needs of the lakehouse that it belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.lakehouse.view_at import ViewAt


class LakehousePart(ABC):
    """A group of methods of `Lakehouse`, in a file of its own.

    Attributes:
        core: the handle of the core.
    """

    core: _core.Lakehouse

    @property
    @abstractmethod
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6)."""

    @abstractmethod
    def change_definition(self, change: Callable[[LakehouseDef], None], message: str, author: str) -> None:
        """Commit a change of the lakehouse's own definition, made again on the newer one after a lost race."""

    @abstractmethod
    def _version_at(self, time: datetime) -> _core.Version:
        """The version that was the latest at a moment."""

    @property
    @abstractmethod
    def storage(self) -> _core.Storage:
        """The files of the lakehouse."""

    @abstractmethod
    def at(
        self, *, version: int | None = None, timestamp: datetime | str | None = None, snapshot: str | None = None
    ) -> ViewAt:
        """One version, frozen."""

    @abstractmethod
    def begin(self, *, message: str = "", author: str = "") -> Transaction:
        """A transaction on the latest version."""
