"""Upkeep: what a lakehouse's own policy says about tidying up and letting go, done at once.

The policy stands in the lakehouse's definition: how long versions are kept are settings (format §6), the rest are
properties, so that it travels with the lakehouse and one line in cron is enough. A table can have a policy of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from trinitylake.base.durations import Duration, milliseconds
from trinitylake.base.log_note import LogNote
from trinitylake.errors import InvalidArgument, ObjectNotFound, TrinityLakeError
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.settings import DEFAULTS as DEFAULT_SETTINGS
from trinitylake.lakehouse.tree_compaction import TreeCompaction
from trinitylake.lakehouse.vacuum import Progress, Vacuumed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.definitions import LakehouseDef
    from trinitylake.tables.compaction import CompactResult
    from trinitylake.tables.table import Table

#: Properties of the lakehouse, and what holds without them. Those of compaction can be a table's own, too.
COMPACT, MIN_FILES, COMPACT_TREE = "upkeep.compact", "upkeep.compact.min-files", "upkeep.compact-tree"
EXPIRE_SNAPSHOTS = "upkeep.expire-snapshots"
EXPIRE, VACUUM, GRACE = "upkeep.expire", "upkeep.vacuum", "upkeep.grace"
FLAGS = (COMPACT, COMPACT_TREE, EXPIRE_SNAPSHOTS, EXPIRE, VACUUM)
DEFAULTS = {**dict.fromkeys(FLAGS, "true"), MIN_FILES: "5", GRACE: ""}
#: Which of them tables can have.
OF_TABLES = (COMPACT, MIN_FILES)


class Skipped(str):
    """Why a table was skipped, as people are told; `reason` is its kind, as programs count it."""

    reason: str

    def __new__(cls, reason: str, text: str) -> Self:
        made = super().__new__(cls, text)
        made.reason = reason
        return made

    def __reduce__(self) -> tuple[type[Skipped], tuple[str, str]]:
        """For pickles, which come from the process that tidies up."""
        return Skipped, (self.reason, str(self))


def reason_of(why: str) -> str:
    """The kind of a reason: that of an error (docs/reference/errors.md), `too_large`, `ended_process`, or `other`."""
    return why.reason if isinstance(why, Skipped) else "other"


#: Why a table was skipped.
TOO_LARGE = Skipped("too_large", "its rows take more memory than there is for upkeep: an engine has to compact it")


@dataclass(frozen=True, slots=True)
class Policy:
    """What upkeep does.

    Attributes:
        compact: put small files of managed tables together, as `table.maintenance.compact()` does.
        min_files: with fewer small files than this a partition is left alone.
        expire_snapshots: take snapshots out of the metadata of tables that would not be kept as versions, and that no
            property of the table keeps.
        compact_tree: build the tree anew if that is worth it, as `lake.compact()` does.
        expire: let versions go that `maximum_version_age_millis` and `minimum_versions_to_keep` do not keep.
        vacuum: delete what nothing reaches.
        grace: how old a file must be for that; None for `txn_ttl_millis`.
    """

    compact: bool
    min_files: int
    expire_snapshots: bool
    compact_tree: bool
    expire: bool
    vacuum: bool
    grace: str | None


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done, or with `dry_run` would be; None for what the policy leaves out.

    With `dry_run` nothing is compacted and nothing expires, so `vacuumed` does not count what would be garbage then.

    Attributes:
        policy: what the lakehouse asks for.
        compacted: tables that have fewer files now, and how many files went and came.
        snapshots_taken_out: how many snapshots the metadata of tables lists no more; none in a dry run.
        skipped: tables that could not be tidied up, and why.
        tree: the tree before and after.
        expired: versions.
        vacuumed: files.
    """

    policy: Policy
    compacted: dict[str, CompactResult]
    snapshots_taken_out: dict[str, int]
    skipped: dict[str, str]
    tree: TreeCompaction | None
    expired: Expired | None
    vacuumed: Vacuumed | None


class Kept(Protocol):
    """A lakehouse, as far as upkeep needs it."""

    @property
    def properties(self) -> dict[str, str]:
        """Its properties."""

    @property
    def definition(self) -> LakehouseDef:
        """Its settings."""

    def tables(self) -> list[str]:
        """Full names of its tables."""

    def table(self, identifier: str) -> Table:
        """One of them."""

    def compact(self, *, dry_run: bool = False, message: str = "", author: str = "") -> TreeCompaction:
        """Builds the tree anew."""

    def expire(self, *, dry_run: bool = False, message: str = "", author: str = "") -> Expired:
        """Lets versions go."""

    def vacuum(
        self,
        *,
        grace: Duration | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        message: str = "",
        author: str = "",
        engine: SparkSession | None = None,
    ) -> Vacuumed:
        """Deletes files."""


def policy_of(properties: Mapping[str, str]) -> Policy:
    """The policy in the properties of a lakehouse. Raises `InvalidArgument` for one that is misspelt."""
    _check_names(properties, DEFAULTS)
    given = {name: properties.get(name, default) for name, default in DEFAULTS.items()}
    if given[GRACE]:
        milliseconds(given[GRACE], GRACE)
    flags = {name: _flag(name, given[name]) for name in FLAGS}
    return Policy(
        compact=flags[COMPACT],
        min_files=_count(MIN_FILES, given[MIN_FILES]),
        expire_snapshots=flags[EXPIRE_SNAPSHOTS],
        compact_tree=flags[COMPACT_TREE],
        expire=flags[EXPIRE],
        vacuum=flags[VACUUM],
        grace=given[GRACE] or None,
    )


@dataclass(frozen=True, slots=True)
class Tidied:
    """What became of tables: fields as those of `Upkeep`."""

    compacted: dict[str, CompactResult]
    snapshots_taken_out: dict[str, int]
    skipped: dict[str, str]


def tidied(
    lake: Kept,
    note: LogNote,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    left_out: Mapping[str, str] | None = None,
    began: Callable[[str], None] = lambda name: None,
) -> Tidied:
    """Tidy up each table by itself, which is the part of upkeep that reads what others wrote.

    Args:
        left_out: tables that are skipped, and why.
        began: is called with the name of each table before anything of it is read, and for each file that is done.
    """
    tables = _Tables(lake, policy_of(lake.properties), note, dry_run, progress)
    tables.skipped.update(left_out or {})
    tables.tidy_up(began)
    return Tidied(tables.compacted, tables.snapshots_taken_out, tables.skipped)


def upkeep(
    lake: Kept,
    note: LogNote,
    *,
    dry_run: bool,
    progress: Progress | None,
    tables: Tidied | None = None,
    engine: SparkSession | None = None,
) -> Upkeep:
    """See `Lakehouse.upkeep`. `tables` are those that were tidied up already."""
    policy = policy_of(lake.properties)
    said = note._asdict()
    tables = tables or tidied(lake, note, dry_run=dry_run, progress=progress)
    tree = lake.compact(dry_run=dry_run, **said) if policy.compact_tree else None
    expired = lake.expire(dry_run=dry_run, **said) if policy.expire else None
    vacuumed = None
    if policy.vacuum:
        vacuumed = lake.vacuum(grace=policy.grace, dry_run=dry_run, progress=progress, engine=engine, **said)
    return Upkeep(policy, tables.compacted, tables.snapshots_taken_out, tables.skipped, tree, expired, vacuumed)


class _Tables:
    """Each table by itself: what one has in the way is told, and keeps none of the others from being tidied up."""

    def __init__(self, lake: Kept, policy: Policy, note: LogNote, dry_run: bool, progress: Progress | None) -> None:
        self.compacted: dict[str, CompactResult] = {}
        self.snapshots_taken_out: dict[str, int] = {}
        self.skipped: dict[str, str] = {}
        self._lake = lake
        self._policy = policy
        self._note = note._asdict()
        self._dry_run = dry_run
        self._progress = progress
        settings = lake.definition
        self._retention = (
            settings.minimum_versions_to_keep or DEFAULT_SETTINGS["minimum_versions_to_keep"],
            settings.maximum_version_age_millis or DEFAULT_SETTINGS["maximum_version_age_millis"],
        )

    def tidy_up(self, began: Callable[[str], None]) -> None:
        for name in self._lake.tables():
            if name in self.skipped:
                continue
            began(name)
            try:
                table = self._lake.table(name)
                if table.type == "managed":
                    self._compact(name, table, began)
                    self._expire_snapshots(name, table)
            except ObjectNotFound:  # it was dropped meanwhile
                continue
            except TrinityLakeError as error:
                self.skipped[name] = Skipped(error.kind, str(error))
            except MemoryError:
                self.skipped[name] = TOO_LARGE

    def _compact(self, name: str, table: Table, began: Callable[[str], None]) -> None:
        own = table.properties
        _check_names(own, OF_TABLES)
        if not (_flag(COMPACT, own[COMPACT]) if COMPACT in own else self._policy.compact):
            return
        min_files = _count(MIN_FILES, own[MIN_FILES]) if MIN_FILES in own else self._policy.min_files
        done = table.maintenance.compact(
            min_files=min_files, dry_run=self._dry_run, progress=lambda done, total: began(name), **self._note
        )
        if done.files_removed:
            self.compacted[name] = done
            if self._progress is not None:
                self._progress("compacted", sum(one.files_removed for one in self.compacted.values()))

    def _expire_snapshots(self, name: str, table: Table) -> None:
        if not self._policy.expire_snapshots or self._dry_run:
            return
        if gone := table.maintenance.expire_as_versions(*self._retention, **self._note):
            self.snapshots_taken_out[name] = len(gone)


def _check_names(properties: Mapping[str, str], known: Mapping[str, str] | tuple[str, ...]) -> None:
    if unknown := [name for name in properties if name.startswith("upkeep.") and name not in known]:
        raise InvalidArgument(f"unknown property {unknown[0]!r}: here upkeep knows {', '.join(known)}")


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the property {name} is true or false, not {text!r}")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidArgument(f"the property {name} is a whole number of at least 1, not {text!r}")
    return int(text)
