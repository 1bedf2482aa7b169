"""Where the tables of a namespace lie, for clients that want to name the location of a new table themselves.

Trino asks a namespace for its property `location` and creates a table at `<location>/<name>-<random digits>`; without
that property it creates the table first, finds its metadata file, and refuses a location that is not empty. Such a
location only has to be a new one, so the lakehouse chooses its own (format §9), which a role on the name opens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trinitylake import _core
from trinitylake.iceberg.catalog.identifiers import object_name

if TYPE_CHECKING:
    from trinitylake.iceberg.io import LakehouseFileIO

LOCATION = "location"
_RANDOM_DIGITS = re.compile(r"-[0-9a-f]{32}")


def location_of(io: LakehouseFileIO, namespace: tuple[str, ...]) -> str:
    """The folder below which the lakehouse places the tables of a namespace."""
    return io.uri_of(_folder((*namespace, "table")))


def is_any(io: LakehouseFileIO, location: str, identifier: tuple[str, ...]) -> bool:
    """Whether a location inside of the lakehouse stands for any that is new.

    Raises `InvalidLocation` for one that is not inside.
    """
    path, start = io.path_of(location.rstrip("/")), f"{_folder(identifier)}/{identifier[-1]}"
    return path.startswith(start) and _RANDOM_DIGITS.fullmatch(path[len(start) :]) is not None


def _folder(identifier: tuple[str, ...]) -> str:
    return _core.table_location(*object_name(identifier), "0" * 8).rstrip("/").rpartition("/")[0]
