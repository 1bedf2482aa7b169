"""Folders in which no lakehouse may be created: those that another one has for its own files."""

from __future__ import annotations

from collections.abc import Mapping

from trinitylake import _core
from trinitylake.errors import CorruptFile, InvalidLocation, TrinityLakeError

#: How the names of such folders, and of files beside them, start (format §3).
_OWN = "_"


def require_no_own_folder(root: str, storage_options: Mapping[str, str] | None) -> None:
    """Refuse a root below `_txn`, `_expired` and their like of a lakehouse, which lists and deletes what is there.

    Raises `InvalidLocation`.
    """
    scheme, separator, path = root.partition("://")
    segments = path.rstrip("/").split("/")
    for position, segment in enumerate(segments):
        above = f"{scheme}{separator}{'/'.join(segments[:position])}/"
        if position > 0 and segment.startswith(_OWN) and _is_lakehouse(above, storage_options):
            raise InvalidLocation(f"{root!r} lies in a folder that the lakehouse {above!r} has for its own files")


def _is_lakehouse(root: str, storage_options: Mapping[str, str] | None) -> bool:
    try:
        _core.Lakehouse.open(_core.Storage(root, storage_options))
    except CorruptFile:
        return True
    except TrinityLakeError:  # there is none, or whoever may not look there cannot tell
        return False
    return True
