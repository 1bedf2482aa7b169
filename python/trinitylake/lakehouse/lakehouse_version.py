"""One version of a lakehouse, read-only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trinitylake import _core
from trinitylake.base.markup import framed, heading, pairs, shown, utc_text
from trinitylake.base.timestamps import time_of
from trinitylake.base.version_reference import VersionReference, find_version
from trinitylake.lakehouse.history import LogEntry, log_entry
from trinitylake.lakehouse.reader import Reader, first_names

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.stats import Stats
    from trinitylake.tables.table import Table


class LakehouseVersion(Reader):
    """Read-only handle on one version of a lakehouse, from `lake.at(...)`.

    Safe to share between threads. Unpickling a handle opens the same version again. The tables of a version are
    read-only and do not change, except federated tables: the other catalog returns their present state (format §9).
    """

    __slots__ = ("_files", "_version")

    def __init__(self, storage: _core.Storage, version: _core.Version) -> None:
        self._files = storage
        self._version = version

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._version.number

    @property
    def created_at(self) -> datetime:
        """Time of the commit of the version, in UTC."""
        return time_of(self._version.info.created_at_millis)

    @property
    def entry(self) -> LogEntry:
        """The entry of the version in the log."""
        return log_entry(self._version.info)

    @property
    def definition(self) -> LakehouseDef:
        """The `LakehouseDef` of the version (format §6): settings and properties."""
        from trinitylake.definitions import parse_lakehouse_def

        return parse_lakehouse_def(self._version.definition)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the lakehouse in this version."""
        return dict(self.definition.properties)

    def stats(self) -> Stats:
        """Counts of objects and tree nodes."""
        from trinitylake.lakehouse.stats import stats_of

        return stats_of(self._version)

    def nodes(self) -> Any:
        """The tree, one row for each node file, the root first (format §5).

        A pyarrow record batch (path, parent, height, n_keys, n_messages, size_bytes, first_key, last_key).
        """
        return self._version.nodes()

    @property
    def _storage(self) -> _core.Storage:
        return self._files

    def _state(self) -> _core.Version:
        return self._version

    @property
    def _place(self) -> str:
        return f" in version {self.version}"

    def _at(self, reference: VersionReference) -> LakehouseVersion:
        return LakehouseVersion(self._files, find_version(_core.Lakehouse.open(self._files), reference))

    def _table(self, namespace: str, name: str, definition: bytes, state: object) -> Table:
        from trinitylake.tables.frozen_table import FrozenTable

        return FrozenTable(self._files, namespace, name, definition, self.version)

    @shown
    def _repr_html_(self) -> str:
        entry = self.entry
        facts = [
            ("created", utc_text(self.created_at)),
            ("message", entry.message),
            ("author", entry.author),
            ("namespaces", first_names(self._version, "namespace")),
            ("tables", first_names(self._version, "table")),
            ("views", first_names(self._version, "view")),
        ]
        return framed(heading("version", f"{self.version:,}", self._files.root), pairs(facts))

    def __reduce__(self) -> tuple[Callable[..., LakehouseVersion], tuple[_core.Storage, int]]:
        return _reopened, (self._files, self.version)

    def __repr__(self) -> str:
        created_at = self.created_at.isoformat(timespec="milliseconds")
        return f"LakehouseVersion(version={self.version}, created_at={created_at})"


def _reopened(storage: _core.Storage, version: int) -> LakehouseVersion:
    """Unpickle a handle. Raises `NotALakehouse` and `VersionExpired`."""
    return LakehouseVersion(storage, _core.Lakehouse.open(storage).version(version))
