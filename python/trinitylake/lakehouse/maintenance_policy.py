"""The maintenance policy of a lakehouse, and the maintenance of its tables.

The policy is stored in the definition of the lakehouse: settings determine how long versions are kept (format §6),
properties determine everything else. A table can override parts of the policy in its own properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.durations import milliseconds
from trinitylake.errors import InvalidArgument, ObjectNotFound, TrinityLakeError
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.settings import DEFAULTS as DEFAULT_SETTINGS
from trinitylake.lakehouse.vacuum_report import Progress, Vacuumed

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.tables.compaction import CompactResult
    from trinitylake.tables.table import Table

#: Names of the properties of the lakehouse (and `DEFAULTS`, their default values).
COMPACT, MIN_FILES, COMPACT_TREE = "maintenance.compact", "maintenance.compact.min-files", "maintenance.compact-tree"
MIN_DELETED_PERCENT = "maintenance.compact.min-deleted-percent"
EXPIRE_SNAPSHOTS = "maintenance.expire-snapshots"
EXPIRE, VACUUM, GRACE = "maintenance.expire", "maintenance.vacuum", "maintenance.grace"
LOG_TABLE = "maintenance.log-table"
FLAGS = (COMPACT, COMPACT_TREE, EXPIRE_SNAPSHOTS, EXPIRE, VACUUM)
DEFAULTS = {**dict.fromkeys(FLAGS, "true"), MIN_FILES: "5", MIN_DELETED_PERCENT: "10", GRACE: "", LOG_TABLE: ""}
#: Properties that tables can override.
OF_TABLES = (COMPACT, MIN_FILES, MIN_DELETED_PERCENT)


class Skipped(NamedTuple):
    """Why a table was skipped.

    Attributes:
        kind: the kind of the error for metrics (docs/reference/errors.md), or "too_large" or "ended_process".
        message: the reason in words.
    """

    kind: str
    message: str


TOO_LARGE = Skipped("too_large", "compacting it exceeds the memory limit of maintenance; compact it with an engine")


@dataclass(frozen=True, slots=True)
class Policy:
    """Steps of maintenance and their limits.

    Attributes:
        compact: compact managed tables, as `table.maintenance.compact()` does.
        min_files: partitions with fewer small files are not compacted.
        min_deleted_percent: percentage of deleted rows from which a data file is rewritten without them.
        expire_snapshots: expire Iceberg snapshots of tables by the retention of versions, unless the table's
            properties keep them.
        compact_tree: rebuild the tree if that is worth it, as `lake.maintenance.compact()` does.
        expire: delete versions that `maximum_version_age_millis` and `minimum_versions_to_keep` do not keep.
        vacuum: delete unreachable files.
        grace: the age from which `vacuum` deletes unreachable files; None for `txn_ttl_millis`.
    """

    compact: bool
    min_files: int
    min_deleted_percent: int
    expire_snapshots: bool
    compact_tree: bool
    expire: bool
    vacuum: bool
    grace: str | None

    def of_table(self, properties: Mapping[str, str]) -> Policy:
        """The policy for a table with these properties. Raises `InvalidArgument` for an invalid property."""
        _check_names(properties, OF_TABLES)
        policy = self
        if COMPACT in properties:
            policy = replace(policy, compact=_flag(COMPACT, properties[COMPACT]))
        if MIN_FILES in properties:
            policy = replace(policy, min_files=_count(MIN_FILES, properties[MIN_FILES]))
        if MIN_DELETED_PERCENT in properties:
            percent = _count(MIN_DELETED_PERCENT, properties[MIN_DELETED_PERCENT], minimum=0)
            policy = replace(policy, min_deleted_percent=percent)
        return policy


@dataclass(frozen=True, slots=True)
class TreeCompaction:
    """The tree before and after a compaction.

    Attributes:
        version: the new version; None in a dry run, or if the compaction would have saved too little.
        nodes_before, nodes_after: numbers of node files of the tree; after a dry run `nodes_after` is an estimate.
        messages_before, messages_after: numbers of buffered changes that have not reached a leaf.
        size_bytes_before, size_bytes_after: uncompressed sizes of all nodes; `size_bytes_after` is 0 without a new
            version.
    """

    version: int | None
    nodes_before: int
    nodes_after: int
    messages_before: int
    messages_after: int
    size_bytes_before: int
    size_bytes_after: int


@dataclass(frozen=True, slots=True)
class MaintainedTables:
    """Result of the maintenance of tables, also of a dry run, in which nothing is compacted and nothing expires.

    Attributes:
        compacted: the result for each table that was compacted.
        snapshots_expired: for each table, the number of Iceberg snapshots that expired; empty in a dry run.
        skipped: tables that could not be maintained, and why.
    """

    compacted: dict[str, CompactResult]
    snapshots_expired: dict[str, int]
    skipped: dict[str, Skipped]


@dataclass(frozen=True, slots=True)
class MaintenanceReport(MaintainedTables):
    """Result of maintenance: that of the tables, and of the other steps.

    `tree`, `expired` and `vacuumed` are None if the policy turns the step off. In a dry run `vacuumed` does not count
    files that become unreachable by the other steps.

    Attributes:
        policy: the policy of the lakehouse.
        tree: the compaction of the tree.
        expired: the deleted versions.
        vacuumed: the deleted files.
    """

    policy: Policy
    tree: TreeCompaction | None
    expired: Expired | None
    vacuumed: Vacuumed | None


def policy_of(properties: Mapping[str, str]) -> Policy:
    """The policy in the properties of a lakehouse. Raises `InvalidArgument` for an unknown or malformed property."""
    _check_names(properties, DEFAULTS)
    given = {name: properties.get(name, default) for name, default in DEFAULTS.items()}
    if given[GRACE]:
        milliseconds(given[GRACE], GRACE)
    flags = {name: _flag(name, given[name]) for name in FLAGS}
    return Policy(
        compact=flags[COMPACT],
        min_files=_count(MIN_FILES, given[MIN_FILES]),
        min_deleted_percent=_count(MIN_DELETED_PERCENT, given[MIN_DELETED_PERCENT], minimum=0),
        expire_snapshots=flags[EXPIRE_SNAPSHOTS],
        compact_tree=flags[COMPACT_TREE],
        expire=flags[EXPIRE],
        vacuum=flags[VACUUM],
        grace=given[GRACE] or None,
    )


def maintain_tables(
    definition: LakehouseDef,
    tables: Reader,
    note: CommitInfo,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    skip: Mapping[str, Skipped] | None = None,
    on_table: Callable[[str], None] = lambda name: None,
    only: str | None = None,
) -> MaintainedTables:
    """Compact each table and expire its snapshots. This part of maintenance reads files that clients have written.

    Args:
        definition: definition of the lakehouse, whose properties contain the policy.
        skip: tables to skip, with the reasons.
        on_table: called with the name of each table before any of its files is read, and for each file that is done.
        only: full name of the only table to maintain; None for all tables.
    """
    run = _TableRun(definition, tables, note, dry_run, progress)
    run.done.skipped.update(skip or {})
    run.run(tables.tables() if only is None else [only], on_table)
    return run.done


class _TableRun:
    """Maintains one table after the other. A table whose maintenance fails is reported as skipped, with the reason."""

    def __init__(
        self, definition: LakehouseDef, tables: Reader, note: CommitInfo, dry_run: bool, progress: Progress | None
    ) -> None:
        self.done = MaintainedTables({}, {}, {})
        self._tables = tables
        self._policy = policy_of(definition.properties)
        self._note = note._asdict()
        self._dry_run = dry_run
        self._progress = progress
        self._retention = (
            definition.minimum_versions_to_keep or DEFAULT_SETTINGS["minimum_versions_to_keep"],
            definition.maximum_version_age_millis or DEFAULT_SETTINGS["maximum_version_age_millis"],
        )

    def run(self, names: Iterable[str], on_table: Callable[[str], None]) -> None:
        for name in names:
            if name in self.done.skipped:
                continue
            on_table(name)
            try:
                table = self._tables.table(name)
                if table.type == "managed":
                    self._compact(name, table, on_table)
                    self._expire_snapshots(name, table)
            except ObjectNotFound:  # the table was dropped in the meantime
                continue
            except TrinityLakeError as error:
                self.done.skipped[name] = Skipped(error.kind, str(error))
            except MemoryError:
                self.done.skipped[name] = TOO_LARGE

    def _compact(self, name: str, table: Table, on_table: Callable[[str], None]) -> None:
        policy = self._policy.of_table(table.properties)
        if not policy.compact:
            return
        done = table.maintenance.compact(
            min_files=policy.min_files,
            min_deleted_percent=policy.min_deleted_percent,
            dry_run=self._dry_run,
            progress=lambda done, total: on_table(name),
            **self._note,
        )
        if done.files_removed:
            self.done.compacted[name] = done
            if self._progress is not None:
                self._progress("compacted", sum(one.files_removed for one in self.done.compacted.values()))

    def _expire_snapshots(self, name: str, table: Table) -> None:
        if not self._policy.expire_snapshots or self._dry_run:
            return
        if gone := table.maintenance.expire_as_versions(*self._retention, **self._note):
            self.done.snapshots_expired[name] = len(gone)


def _check_names(properties: Mapping[str, str], known: Mapping[str, str] | tuple[str, ...]) -> None:
    if unknown := [name for name in properties if name.startswith("maintenance.") and name not in known]:
        raise InvalidArgument(f"unknown property {unknown[0]!r}: the known ones are {', '.join(known)}")


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the property {name} is true or false, not {text!r}")
    return text.lower() == "true"


def _count(name: str, text: str, minimum: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= minimum):
        raise InvalidArgument(f"the property {name} is a whole number of at least {minimum}, not {text!r}")
    return int(text)
