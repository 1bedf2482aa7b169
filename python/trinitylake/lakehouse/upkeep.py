"""Upkeep: what a lakehouse's own policy says about letting go, done at once.

The policy stands in the lakehouse's definition: how long versions are kept are settings (format §6), the rest are
properties, so that it travels with the lakehouse and one line in cron is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trinitylake.durations import Duration, milliseconds
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.vacuum import Progress, Vacuumed

#: Properties of the lakehouse, and what holds without them.
EXPIRE, VACUUM, GRACE = "upkeep.expire", "upkeep.vacuum", "upkeep.grace"
DEFAULTS = {EXPIRE: "true", VACUUM: "true", GRACE: ""}


@dataclass(frozen=True, slots=True)
class Policy:
    """What upkeep does.

    Attributes:
        expire: let versions go that `maximum_version_age_millis` and `minimum_versions_to_keep` do not keep.
        vacuum: delete what nothing reaches.
        grace: how old a file must be for that; None for `txn_ttl_millis`.
    """

    expire: bool
    vacuum: bool
    grace: str | None


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done, or with `dry_run` would be; None for what the policy leaves out.

    With `dry_run` nothing expires, so `vacuumed` does not count what only expired versions reach.
    """

    policy: Policy
    expired: Expired | None
    vacuumed: Vacuumed | None


class Kept(Protocol):
    """A lakehouse, as far as upkeep needs it."""

    @property
    def properties(self) -> dict[str, str]:
        """Its properties."""

    def expire(self, *, dry_run: bool = False) -> Expired:
        """Lets versions go."""

    def vacuum(
        self, *, grace: Duration | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> Vacuumed:
        """Deletes files."""


def policy_of(properties: Mapping[str, str]) -> Policy:
    """The policy in the properties of a lakehouse. Raises `InvalidArgument` for one that is misspelt."""
    if unknown := [name for name in properties if name.startswith("upkeep.") and name not in DEFAULTS]:
        raise InvalidArgument(f"unknown property {unknown[0]!r}: upkeep knows {', '.join(DEFAULTS)}")
    given = {name: properties.get(name, default) for name, default in DEFAULTS.items()}
    if given[GRACE]:
        milliseconds(given[GRACE], GRACE)
    return Policy(_flag(EXPIRE, given[EXPIRE]), _flag(VACUUM, given[VACUUM]), given[GRACE] or None)


def upkeep(lake: Kept, *, dry_run: bool, progress: Progress | None) -> Upkeep:
    """See `Lakehouse.upkeep`."""
    policy = policy_of(lake.properties)
    expired = lake.expire(dry_run=dry_run) if policy.expire else None
    vacuumed = lake.vacuum(grace=policy.grace, dry_run=dry_run, progress=progress) if policy.vacuum else None
    return Upkeep(policy, expired, vacuumed)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the property {name} is true or false, not {text!r}")
    return text.lower() == "true"
