"""Rules for the location of a managed table below the root (format §9)."""

from __future__ import annotations

from trinitylake import _core
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO


def default_location(io: LakehouseFileIO, namespace: str, name: str, id: str) -> str:
    """Default location of a table with that id (format §9)."""
    return io.uri_of(_core.managed_table_folder(namespace, name, id).rstrip("/"))


def managed_location(io: LakehouseFileIO, location: str) -> str:
    """A chosen location of a managed table, in the spelling of the root.

    Raises `InvalidLocation` for one outside of the lakehouse, and for the lakehouse's own folders.
    """
    path = io.path_of(location.rstrip("/"))
    if path.startswith("_"):
        raise InvalidLocation(
            f"{location!r} cannot be the location of a table: folders whose names start with '_' are internal"
        )
    return io.uri_of(path)
