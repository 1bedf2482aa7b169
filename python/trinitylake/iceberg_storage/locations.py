"""Locations of managed tables and of their files (format §9).

Readers in several languages, garbage collection and conflict checks all use the location of a file. Some of them decode
characters that others use literally, or cut off a query (`?…`). So a commit may name files only by qualified locations,
which all of them interpret in the same way.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from trinitylake import _core
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO

#: Outdated schemes of a store, which many readers do not accept.
_SCHEMES_OF_OTHERS = ("s3n", "gcs")
_TAKEN_DIFFERENTLY = re.compile(r"[?#\x00-\x1f\x7f]")


def default_location(io: LakehouseFileIO, namespace: str, name: str, id: str) -> str:
    """Default location of a table with that id (format §9)."""
    return io.uri_of(_core.managed_table_folder(namespace, name, id).rstrip("/"))


def managed_location(io: LakehouseFileIO, location: str) -> str:
    """Check a location that a user chose for a managed table. Returns it with the lakehouse's spelling of the root.

    Raises `InvalidLocation` for a location outside of the lakehouse or in an internal folder.
    """
    path = io.path_of(location.rstrip("/"))
    if path.startswith("_"):
        raise InvalidLocation(
            f"{location!r} cannot be the location of a table: folders whose names start with '_' are internal"
        )
    return io.uri_of(path)


def qualified_path(io: LakehouseFileIO, location: str) -> str:
    """The path below the root of a file that a commit names.

    Equivalent forms that engines write (`file:/x`, `s3a://…`, see `LakehouseFileIO.path_of`) are accepted.

    Raises:
        InvalidLocation: for a location outside of the root of `io` or in an internal folder of the lakehouse. Also for
            a location that readers interpret differently: with an outdated or upper-case scheme, a query, a fragment, a
            control character, or a segment that is empty, `.` or `..` (also as `%2e`).
    """
    path = io.path_of(location)
    if path.startswith("_"):
        raise InvalidLocation(f"{location!r} is in an internal folder of the lakehouse, whose name starts with '_'")
    scheme, colon, _ = location.partition(":")
    if colon and "/" not in scheme and (scheme != scheme.lower() or scheme in _SCHEMES_OF_OTHERS):
        raise _ambiguous(location, f"the scheme {scheme!r}")
    if (found := _TAKEN_DIFFERENTLY.search(path)) is not None:
        raise _ambiguous(location, f"the character {found[0]!r}")
    for segment in path.split("/") if "%" in path else ():
        if unquote(segment) in (".", ".."):
            raise _ambiguous(location, f"the segment {segment!r}")
    return path


def _ambiguous(location: str, what: str) -> InvalidLocation:
    return InvalidLocation(
        f"{location!r} is not a qualified location: it has {what}, which readers interpret differently"
    )


def check_data_file(io: FileIO, file: DataFile) -> None:
    """Check the location of an added data file, and record the file in `io`. Raises `InvalidLocation`."""
    if isinstance(io, LakehouseFileIO):
        io.add_incoming(qualified_path(io, file.file_path))
