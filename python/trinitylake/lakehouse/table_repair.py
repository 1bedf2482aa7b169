"""Repair of tables that lack files: a rollback to the newest version in which all of their files exist.

An engine that gets no answer to its commit may delete the data files that the commit names (docs/operate/fsck.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trinitylake import _core
from trinitylake.base.qualified_names import full_name, split
from trinitylake.definitions import parse_table_def
from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.handle import Handle
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.object_history import changes_of_object
from trinitylake.lakehouse.object_rollback import roll_back_objects


@dataclass(frozen=True, slots=True)
class IncompleteTable:
    """A table of the latest version that lacks files.

    Attributes:
        name: the full name.
        version: the newest version in which all of its files exist; None if no version that exists has them.
        former_name: the full name in that version.
    """

    name: str
    version: int | None = None
    former_name: str = ""

    @property
    def hint(self) -> str:
        """What fsck says about it."""
        if self.version is None:
            return "no version that exists has all files of the table"
        return (
            f"version {self.version} is the newest that has all files of the table: `fsck --files --repair` rolls "
            "the table back to it"
        )

    @property
    def loss(self) -> str:
        """What repair says about it."""
        return self.hint if self.version is None else f"its changes since version {self.version}"


def newest_whole_version(storage: _core.Storage, namespace: str, name: str) -> IncompleteTable:
    """Find the newest version in which all files of a table exist, through renames."""
    lake = _core.Lakehouse.open(storage)
    table = full_name(namespace, name)
    try:
        for change in changes_of_object(lake, (*namespace.split("."), name)):
            former_name = change.former_name or change.name
            if _is_whole(storage, lake.version(change.version - 1), former_name):
                return IncompleteTable(table, change.version - 1, former_name)
    except TrinityLakeError:  # older versions have expired, or cannot be read
        pass
    return IncompleteTable(table)


def roll_back_tables(storage: _core.Storage, tables: Iterable[IncompleteTable], author: str) -> int | None:
    """Roll tables back to their newest whole versions. Returns the version that this made, if any."""
    handle, made = Handle(_core.Lakehouse.open(storage)), None
    for table in tables:
        if table.version is not None:
            past = LakehouseVersion(storage, handle.core.version(table.version))
            message = f"repair: roll back {table.name} to version {table.version}, the newest that has all its files"
            made = roll_back_objects(handle, past, [table.former_name], message, author).version
    return made


def _is_whole(storage: _core.Storage, version: _core.Version, table: str) -> bool:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.table_files import NamedFiles
    from trinitylake.tables.table_definition import metadata_path

    if (data := version.read("table", *split(table))) is None:
        return False
    definition = parse_table_def(data)
    named = NamedFiles(LakehouseFileIO(storage))
    return not any(named.problems(metadata_path(definition, table), definition.id))
