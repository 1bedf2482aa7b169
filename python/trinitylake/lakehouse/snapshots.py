"""Snapshots: versions with a name, which no expiry and no vacuum takes away as long as they have it (format §7).

A name is an entry of `LakehouseDef.exported_snapshots`, so giving one and taking it back are commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from trinitylake import _core
from trinitylake.errors import InvalidName, ObjectAlreadyExists, ObjectNotFound, VersionExpired
from trinitylake.lakehouse.history import time_of

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef

#: What stands in addresses (`@snapshot/<name>`) and paths.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version with a name, from `lake.snapshots()`.

    Attributes:
        name: of `[A-Za-z0-9._-]{1,100}`.
        version: the number.
        created_at: when the version was committed, in UTC.
    """

    name: str
    version: int
    created_at: datetime


class Snapshots(Protocol):
    """A lakehouse, as far as snapshots need it."""

    core: _core.Lakehouse

    def change_definition(self, change: Callable[[LakehouseDef], None], message: str, author: str) -> None:
        """Commit a change of the lakehouse's own definition."""


def checked_name(name: str) -> str:
    """The name of a snapshot. Raises `InvalidName`."""
    if not _NAME.fullmatch(name):
        told = name if len(name) <= 100 else f"{name[:100]}…"
        raise InvalidName(
            f"{told!r} is no name of a snapshot: it has 1 to 100 of the characters A-Z a-z 0-9 . _ -, not . or .."
        )
    return name


def take(lake: Snapshots, name: str, version: int | None, message: str, author: str) -> Snapshot:
    """See `Lakehouse.snapshot`."""
    target = lake.core.latest() if version is None else lake.core.version(version)
    root = _core.root_path(target.number)
    is_new = True

    def name_it(definition: LakehouseDef) -> None:
        nonlocal is_new
        named = definition.exported_snapshots.get(checked_name(name))
        if named is not None and named != root:
            raise ObjectAlreadyExists(
                f"there is a snapshot {name!r} of version {_core.root_version(named)}; drop it first"
            )
        is_new = named is None
        definition.exported_snapshots[name] = root

    lake.change_definition(name_it, message or f"snapshot {name}", author)
    # An expiry looks at the names after it has published its boundary, so one of the two sees the other.
    if is_new and (oldest := lake.core.oldest()) > target.number:
        drop(lake, name, f"snapshot {name} came too late", author)
        raise VersionExpired(f"version {target.number} has expired; the oldest kept is {oldest}")
    return Snapshot(name, target.number, time_of(target.info.created_at_millis))


def drop(lake: Snapshots, name: str, message: str, author: str) -> None:
    """See `Lakehouse.drop_snapshot`."""

    def forget_it(definition: LakehouseDef) -> None:
        if name not in definition.exported_snapshots:
            raise ObjectNotFound(f"there is no snapshot {name!r}")
        del definition.exported_snapshots[name]

    lake.change_definition(forget_it, message or f"drop snapshot {name}", author)


def listed(lake: Snapshots, definition: LakehouseDef) -> list[Snapshot]:
    """See `Lakehouse.snapshots`."""
    versions = {name: lake.core.snapshot(name) for name in sorted(definition.exported_snapshots)}
    return [
        Snapshot(name, version.number, time_of(version.info.created_at_millis)) for name, version in versions.items()
    ]
