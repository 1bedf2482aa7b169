"""Repair of tables whose current rows lack files: a rollback to the newest version in which these files exist.

Files can be missing because an engine that got no response to its commit deleted the data files of the commit
(docs/operate/fsck.md). A table is rolled back only if files of its current snapshot are missing: if only an older
snapshot, a tag or statistics lack files, the current rows can be read, and a rollback would lose newer rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trinitylake import _core
from trinitylake.base.qualified_names import full_name, split
from trinitylake.definitions import MANAGED, parse_table_def
from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.handle import Handle
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.object_history import changes_of_object
from trinitylake.lakehouse.object_rollback import roll_back_objects


@dataclass(frozen=True, slots=True)
class IncompleteTable:
    """A table of the latest version whose current snapshot lacks files.

    Attributes:
        name: the full name.
        version: the newest version in which all files of its current snapshot exist; None if no kept version has them.
        former_name: the full name in that version.
    """

    name: str
    version: int | None = None
    former_name: str = ""

    @property
    def hint(self) -> str:
        """The next step, for the finding of fsck."""
        if self.version is None:
            return "no kept version has all files of the table's current snapshot"
        return (
            f"version {self.version} is the newest whose current snapshot of the table has all its files: "
            "`fsck --files --repair` rolls the table back to it"
        )

    @property
    def loss(self) -> str:
        """The changes that a repair loses, for its report."""
        return self.hint if self.version is None else f"its changes since version {self.version}"


def newest_whole_version(storage: _core.Storage, namespace: str, name: str) -> IncompleteTable:
    """Find the newest version in which the table's current snapshot has all its files, also under a former name."""
    lake = _core.Lakehouse.open(storage)
    table = full_name(namespace, name)
    try:
        for change in changes_of_object(lake, (*namespace.split("."), name)):
            former_name = change.former_name or change.name
            if current_problems(storage, lake.version(change.version - 1), *split(former_name)) == []:
                return IncompleteTable(table, change.version - 1, former_name)
    except TrinityLakeError:  # older versions have expired, or cannot be read
        pass
    return IncompleteTable(table)


def roll_back_tables(
    storage: _core.Storage, tables: Iterable[IncompleteTable], message: str, author: str
) -> int | None:
    """Roll each table back to `table.version`. Returns the newest new version; None if no table was rolled back."""
    handle, made = Handle(_core.Lakehouse.open(storage)), None
    for table in tables:
        if table.version is not None:
            past = LakehouseVersion(storage, handle.core.version(table.version))
            own = f"repair: roll back {table.name} to version {table.version}, the newest that has all its files"
            made = roll_back_objects(handle, past, [table.former_name], message or own, author).version
    return made


def current_problems(
    storage: _core.Storage, version: _core.Version, namespace: str, name: str, id: str | None = None
) -> list[str] | None:
    """Kinds of the problems with files that a scan of a table reads; None if `version` has no such managed table."""
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.table_files import NamedFiles
    from trinitylake.tables.table_definition import metadata_path

    if (data := version.read("table", namespace, name)) is None:
        return None
    definition = parse_table_def(data)
    if definition.table_type != MANAGED or id not in (None, definition.id):
        return None
    path = metadata_path(definition, full_name(namespace, name))
    named = NamedFiles(LakehouseFileIO(storage))
    return [kind for kind, _, _ in named.problems(path, definition.id, current_only=True)]
