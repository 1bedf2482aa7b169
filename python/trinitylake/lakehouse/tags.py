"""Tags: names of versions. Neither expiry nor vacuum deletes a tagged version (format §7).

A tag is an entry of `LakehouseDef.exported_snapshots`, so creating or dropping a tag commits a version.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from trinitylake import _core
from trinitylake.base.arguments import checked, checked_as, version_reference
from trinitylake.base.timestamps import time_of
from trinitylake.base.version_reference import VersionReference, find_version
from trinitylake.errors import InvalidName, ObjectAlreadyExists, ObjectNotFound, VersionExpired

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.handle import Handle

#: Characters that are safe in the addresses of the server (`@tag/<name>`) and in paths.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Tag:
    """A named version, from `lake.tags`.

    Attributes:
        name: the name, which matches `[A-Za-z0-9._-]{1,100}`.
        version: the number of the version.
        created_at: time of the commit of the version, in UTC.
    """

    name: str
    version: int
    created_at: datetime


class Tags:
    """The tags of a lakehouse: `lake.tags`. `message` and `author` are stored in the log."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @checked_as(version=version_reference)
    def create(self, name: str, version: VersionReference | None = None, *, message: str = "", author: str = "") -> Tag:
        """Commit a tag for a version, by default for the latest. The version is kept until the tag is dropped.

        `lake.at("tag:NAME")` reads the version, also after the versions around it have expired. A second call with the
        same name and version changes nothing.

        Args:
            name: the name, of 1 to 100 characters `A-Z a-z 0-9 . _ -`; not `.` or `..`.
            version: the version to tag, as for `lake.at`.

        Raises:
            ObjectAlreadyExists: another version has this tag.
            VersionNotFound, VersionExpired: the version does not exist, or has expired.
            InvalidName: the name is too long or has other characters.
        """
        check_name(name)
        core = self._handle.core
        target = find_version(core, version)
        root = _core.root_path(target.number)
        is_new = True

        def add(definition: LakehouseDef) -> None:
            nonlocal is_new
            tagged = definition.exported_snapshots.get(name)
            if tagged is not None and tagged != root:
                other = _core.root_version(tagged)
                raise ObjectAlreadyExists(f"tag {name!r} exists, of version {other}; drop it first")
            is_new = tagged is None
            definition.exported_snapshots[name] = root

        self._handle.change_definition(add, message or f"create tag {name}", author)
        # An expiry publishes the new oldest version before it reads the tags. So either the expiry finds this tag, or
        # the new oldest version is found here.
        if is_new and (oldest := core.oldest()) > target.number:
            self.drop(name, message=f"version of tag {name} has expired", author=author)
            raise VersionExpired(f"version {target.number} has expired; the oldest kept version is {oldest}")
        return Tag(name, target.number, time_of(target.info.created_at_millis))

    def list(self) -> builtins.list[Tag]:
        """All tags, sorted by name."""
        core = self._handle.core
        versions = {name: core.tag(name) for name in sorted(self._handle.definition.exported_snapshots)}
        return [
            Tag(name, version.number, time_of(version.info.created_at_millis)) for name, version in versions.items()
        ]

    @checked
    def drop(self, name: str, *, message: str = "", author: str = "") -> None:
        """Drop a tag, in a commit. Its version can expire afterwards. Raises `ObjectNotFound`."""

        def remove(definition: LakehouseDef) -> None:
            if name not in definition.exported_snapshots:
                raise ObjectNotFound(f"tag {name!r} does not exist")
            del definition.exported_snapshots[name]

        self._handle.change_definition(remove, message or f"drop tag {name}", author)


def check_name(name: str) -> str:
    """`name`, if it can be the name of a tag. Raises `InvalidName` if it cannot."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 100 else f"{name[:100]}…"
        raise InvalidName(f"{shown!r} cannot be a tag: use 1 to 100 of the characters A-Z a-z 0-9 . _ -, not . or ..")
    return name
