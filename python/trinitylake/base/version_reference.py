"""References to a version: a number, a time, a relative time or a tag, in one syntax for Python and the command line.

| reference | meaning |
|---|---|
| `14` | the version with this number |
| `-1` | the version before the latest version; `-2` is the version before `-1` |
| `2026-11-24`, `2026-11-24T08:00+02:00`, a datetime or a date | the latest version at that time; UTC without a zone |
| `2 hours ago` | the latest version at that time |
| `tag:q3` | the version with the tag `q3` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from trinitylake.base.arguments import moment, version_number
from trinitylake.base.durations import milliseconds
from trinitylake.base.timestamps import millis_of
from trinitylake.errors import InvalidArgument, TrinityLakeError, VersionExpired, VersionNotFound

if TYPE_CHECKING:
    from trinitylake import _core

VersionReference: TypeAlias = "int | str | date | datetime"

TAG_PREFIX = "tag:"
#: Number of versions in the first batch that is read, and maximum number in a batch. The versions of a batch are read
#: in parallel, with one LIST for the oldest version that has not expired.
_FIRST_VERSIONS, _MAX_VERSIONS = 32, 256
_AGO = re.compile(r"(?P<duration>\S.*?)\s+ago\s*")
_NUMBER = re.compile(r"-?\d+")
_EXAMPLES = "14, -1, 2026-11-24T08:00+02:00, '2 hours ago' or tag:NAME"


def find_version(core: _core.Lakehouse, reference: VersionReference | None) -> _core.Version:
    """The version that a reference names; the latest version for None.

    Raises:
        InvalidArgument: the string is not a reference.
        VersionNotFound: the version does not exist, or no version is that old.
        VersionExpired: the version has expired.
        ObjectNotFound: there is no such tag.
    """
    if reference is None:
        return core.latest()
    if isinstance(reference, str):
        return _find_text(core, reference.strip())
    if isinstance(reference, date):
        return core.version_at(millis_of(moment(reference, "the time of a version")))
    return _find_number(core, reference)


def check_order(since: int, until: int) -> None:
    """Raise `InvalidArgument` if the version `until` is older than the version `since`."""
    if until < since:
        raise InvalidArgument(f"version {until} is older than version {since}: exchange them")


def is_number_or_tag(text: str) -> bool:
    """Whether a string names a version by number or tag, not by time."""
    return text.startswith(TAG_PREFIX) or _NUMBER.fullmatch(text) is not None


def version_before(core: _core.Lakehouse, since: VersionReference) -> int:
    """The number of the version that a reference names; -1 if the version is older than all kept versions.

    Raises the errors of `find_version` for a string that is not a reference, and for a number or tag that does not
    exist.
    """
    try:
        return find_version(core, since).number
    except VersionExpired:
        return -1
    except VersionNotFound:
        if isinstance(since, int) or is_number_or_tag(str(since).strip()):
            raise
        return -1


def _find_text(core: _core.Lakehouse, text: str) -> _core.Version:
    if text.startswith(TAG_PREFIX):
        return core.tag(text.removeprefix(TAG_PREFIX))
    if _NUMBER.fullmatch(text):
        return _find_number(core, int(text))
    try:
        if ago := _AGO.fullmatch(text):
            time = datetime.now(UTC) - timedelta(milliseconds=milliseconds(ago["duration"], "the age of a version"))
        else:
            time = moment(text, "the time of a version")
    except (TrinityLakeError, OverflowError):
        raise InvalidArgument(f"{text!r} is not a version; use {_EXAMPLES}") from None
    return core.version_at(millis_of(time))


def _find_number(core: _core.Lakehouse, number: int) -> _core.Version:
    if isinstance(number, int) and not isinstance(number, bool) and number < 0:
        latest = core.latest().number
        if latest + number < 0:
            raise VersionNotFound(f"there is no version {number}: the latest version is {latest}")
        number += latest
    return core.version(version_number(number, "a version"))


def versions_after(core: _core.Lakehouse, since: _core.Version, until: _core.Version) -> Iterator[_core.Version]:
    """The versions after `since` up to `until`, read in batches.

    Raises `VersionExpired` when the iteration reaches a version that has expired.
    """
    first, count = since.number + 1, _FIRST_VERSIONS
    while first <= until.number:
        yield from core.versions(first, min(first + count - 1, until.number))
        first, count = first + count, min(2 * count, _MAX_VERSIONS)
