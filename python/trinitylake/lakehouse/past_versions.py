"""The versions of a lakehouse: the methods of `Lakehouse` that look at them, name them and go back to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import TYPE_CHECKING, overload

from trinitylake import _core
from trinitylake.base.arguments import (
    checked,
    checked_as,
    moment,
    text,
)
from trinitylake.errors import (
    InvalidArgument,
)
from trinitylake.lakehouse import snapshots
from trinitylake.lakehouse.history import (
    Diff,
    Log,
    LogEntry,
    TransactionChanges,
    VersionLog,
    changes_of,
    diff_of,
    log_entry,
    millis_of,
)
from trinitylake.lakehouse.lakehouse_part import LakehousePart
from trinitylake.lakehouse.snapshots import Snapshot
from trinitylake.lakehouse.view_at import ViewAt

if TYPE_CHECKING:
    pass


class PastVersions(LakehousePart):
    """The log, earlier versions and their names."""

    @checked
    def rollback(self, version: int, *, message: str = "", author: str = "") -> int:
        """Make a new version with the content of an older one; returns its number. History stays as it is.

        Transactions that committed since are undone, and their ids stay used.

        Raises `VersionNotFound` or `VersionExpired`.
        """
        return self.core.rollback(version, message, author)

    @checked
    def snapshot(self, name: str, *, version: int | None = None, message: str = "", author: str = "") -> Snapshot:
        """Give a version a name, by a commit: the latest one, or `version`. It stays until the name is dropped.

        `lake.at(snapshot=name)` reads it, also after the versions around it have expired. The name has 1 to 100 of the
        characters `A-Z a-z 0-9 . _ -`, but `.` and `..` are none. To give the same version the same name again changes
        nothing.

        Raises:
            ObjectAlreadyExists: another version has that name.
            VersionNotFound, VersionExpired: there is no such version, or no more.
            InvalidName: for a name with other characters.
        """
        return snapshots.take(self, snapshots.checked_name(name), version, message, author)

    @checked
    def drop_snapshot(self, name: str, *, message: str = "", author: str = "") -> None:
        """Take a name back; its version expires as any other. Raises `ObjectNotFound`."""
        snapshots.drop(self, name, message, author)

    def snapshots(self) -> list[Snapshot]:
        """The versions that have names, by name."""
        return snapshots.listed(self, self.definition)

    @checked_as(snapshot=text)
    def at(
        self,
        *,
        version: int | None = None,
        timestamp: datetime | date | str | None = None,
        snapshot: str | None = None,
    ) -> ViewAt:
        """One version, frozen: of that number, the newest at `timestamp`, of that name, or the latest if none is given.

        `timestamp` is a datetime, a date or ISO 8601 text; without a time zone it is local time.

        Raises:
            VersionNotFound: there is no such version, or none that old.
            VersionExpired: it has passed its retention.
            ObjectNotFound: there is no snapshot of that name.
        """
        if [version, timestamp, snapshot].count(None) < 2:
            raise InvalidArgument("give a version, a timestamp or a snapshot, not several")
        if snapshot is not None:
            return ViewAt(self.storage, self.core.snapshot(snapshot))
        if version is not None:
            return ViewAt(self.storage, self.core.version(version))
        if timestamp is not None:
            return ViewAt(self.storage, self._version_at(moment(timestamp, "timestamp")))
        return ViewAt(self.storage, self.core.latest())

    @overload
    def log(self, limit: int = 20, *, before: int | None = None) -> list[LogEntry]: ...

    @overload
    def log(self, limit: None, *, before: int | None = None) -> VersionLog: ...

    @checked
    def log(self, limit: int | None = 20, *, before: int | None = None) -> list[LogEntry] | VersionLog:
        """The newest versions, newest first; all that are retained if `limit` is None; older than `before` if given.

        One that cannot be read is a gap, told in its `problem`. All of them are a sequence that reads 256 at a time, as
        they are looked at.
        """
        if limit is None:
            return VersionLog(self.core, before)
        return Log((log_entry(info) for info in self.core.log(limit, before)), self.core)

    @checked
    def diff(self, before: int, after: int | None = None) -> Diff:
        """Objects that differ between two versions; `after` is the latest if not given.

        The cost is in proportion to the change, not to the size of the lakehouse. Raises as `at` does.
        """
        older = self.core.version(before)
        newer = self.core.latest() if after is None else self.core.version(after)
        return diff_of(older.number, newer.number, older.diff(newer).to_pylist())

    @checked
    def changes(self, since: int, until: int | None = None) -> Iterator[TransactionChanges]:
        """What each transaction changed, in commit order, from the version after `since` to the latest or `until`.

        The feed for whoever follows the lakehouse: go on with the `version` of the last entry that was seen. Versions
        are read as the iterator advances. Raises `VersionExpired` if `since` is older than what is kept.
        """
        last = self.core.latest().number if until is None else until
        previous = self.core.version(since)
        for number in range(since + 1, last + 1):
            version = self.core.version(number)
            yield from changes_of(version.info, version.changes(previous).to_pylist())
            previous = version

    def _version_at(self, time: datetime) -> _core.Version:
        return self.core.version_at(millis_of(time))
