"""Whether a location belongs to the name of its table, so that a role on the name is enough to open it.

It does if the lakehouse has chosen it for that name and id (format §9). One that a client has chosen, or that a table
has kept through a rename, may lie around files of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinitylake import _core
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg.catalog.identifiers import object_name
from trinitylake.rest.principals import EVERYTHING, Principal, Role

if TYPE_CHECKING:
    from trinitylake.iceberg.io import LakehouseFileIO


def path_of_table(io: LakehouseFileIO, location: str) -> str | None:
    """The folder of a table, below the root; None for a table from elsewhere, and the lakehouse's own folders."""
    try:
        path = io.path_of(location.rstrip("/"))
    except InvalidLocation:
        return None
    return None if path.startswith("_") else path


def is_own(path: str, identifier: tuple[str, ...], table_id: str) -> bool:
    """Whether the lakehouse would choose that folder for a table of that name and id."""
    namespace, name = object_name(identifier)
    return path == _core.table_location(namespace, name, table_id).rstrip("/")


def may(principal: Principal, role: Role, identifier: tuple[str, ...], is_own: bool) -> bool:
    """Whether a principal has a role on the files of a table: on its name, and on everything if that is not enough."""
    return principal.may(role, ".".join(identifier)) and (is_own or principal.may(role, EVERYTHING))
