"""Position of a stream in the history of a table: Spark's offsets, and the files between two of them.

A position is a table, a snapshot and the number of this snapshot's files that have been delivered. The version in a
position only helps to find the snapshot, so a position remains valid when versions expire. If the snapshot, or a later
snapshot, is not listed in any kept version, the stream stops with `VersionExpired`, because it must neither repeat nor
skip rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Snapshot

from trinitylake.base.qualified_names import split
from trinitylake.errors import InvalidArgument, ObjectNotFound, VersionExpired
from trinitylake.spark.options import Options

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.tables.table import Table


@dataclass(frozen=True)
class Position:
    """A position: all snapshots before `snapshot`, and the first `files` files of `snapshot`, have been delivered.

    Attributes:
        version: the version of the lakehouse in which the snapshot was found; the search for newer snapshots begins
            there.
        table: the id of the table; "" if the table did not exist yet.
        snapshot: the id of the Iceberg snapshot; None if the table had no snapshot.
        files: number of delivered files of the snapshot, in the order of their paths; None for all files.
        whole: whether the files of the snapshot are all files that the table had then, instead of the files that the
            snapshot added.
    """

    version: int
    table: str = ""
    snapshot: int | None = None
    files: int | None = None
    whole: bool = False

    def is_after(self, other: Position) -> bool:
        """Whether this position is known to be later in the same stream."""
        if self.version != other.version or self.snapshot != other.snapshot:
            return self.version > other.version
        return other.files is not None and (self.files is None or self.files > other.files)

    def to_json(self) -> dict[str, Any]:
        """The position as JSON values. A snapshot id is a string, because JSON numbers need not have 64 bits."""
        return {**vars(self), "snapshot": "" if self.snapshot is None else str(self.snapshot)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Position:
        """The inverse of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        snapshot, files = values["snapshot"], values["files"]
        return cls(
            int(values["version"]),
            str(values["table"]),
            int(snapshot) if snapshot else None,
            None if files is None else int(files),
            bool(values["whole"]),
        )


@dataclass(frozen=True)
class Offset:
    """Offset in Spark's checkpoint: a position of a stream, and the position at which the stream began.

    Spark stores only the end offset of each batch. If it repeats the first batch, it requests the initial offset again.
    The table may have changed since then, so each offset contains the position at which its stream began.
    """

    position: Position
    origin: Position

    def to_json(self) -> dict[str, Any]:
        """The offset as JSON values for Spark."""
        return {**self.position.to_json(), "origin": self.origin.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Offset:
        """The inverse of `to_json`. Raises `InvalidArgument` for the offset of another source."""
        try:
            return cls(Position.from_json(values), Position.from_json(values["origin"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the checkpoint holds an offset of another source: {values}") from error

    def start_of_batch_until(self, end: Offset) -> Position:
        """The position at which a batch begins for which Spark gives this offset as the start, and `end` as the end.

        For the first batch of a stream this is the origin in `end`. Raises `InvalidArgument` if the offsets belong to
        different streams, or if this offset is after `end`.
        """
        start = self.position
        if self.origin != end.origin:
            if self.position != self.origin:
                raise InvalidArgument(
                    f"the start {self.to_json()} and the end {end.to_json()} of a batch belong to two streams, which "
                    "began at different versions: give the query its own checkpoint"
                )
            start = end.origin
        if start.is_after(end.position):
            raise InvalidArgument(
                f"a batch cannot begin at {start.to_json()} and end at the earlier {end.position.to_json()}: the "
                "checkpoint belongs to another stream. Give the query a new checkpoint, which begins with all rows"
            )
        return start


@dataclass(frozen=True)
class Step:
    """The files of one snapshot, in the order of their paths.

    Attributes:
        version: the version in which the snapshot was found.
        table: the table in that version.
        snapshot: the snapshot; None if the stream begins with a table without snapshots.
        whole: as in `Position`.
        ends_version: whether no later snapshot of this version adds files.
    """

    version: int
    table: Table
    snapshot: Snapshot | None
    whole: bool
    ends_version: bool

    @cached_property
    def tasks(self) -> list[FileScanTask]:
        """The files to read, in the order of their paths; every call returns the same files."""
        if self.snapshot is None:
            return []
        if self.whole:
            tasks = list(self.table.scan(snapshot_id=self.snapshot.snapshot_id).iceberg.plan_files())
        else:
            tasks = _added_files(self.table, self.snapshot)
        return sorted(tasks, key=lambda task: task.file.file_path)

    def position(self, files: int | None) -> Position:
        """The position after this number of files; None stands for all files."""
        id = None if self.snapshot is None else self.snapshot.snapshot_id
        return Position(self.version, self.table.id, id, files, self.whole and files is not None)

    def is_at(self, position: Position) -> bool:
        """Whether a position is at the snapshot of this step."""
        id = None if self.snapshot is None else self.snapshot.snapshot_id
        return id == position.snapshot and self.version >= position.version


@dataclass
class _Trail:
    """The steps after a position, as far as versions have been read.

    Attributes:
        begin: the position.
        next: the first version that has not been read.
        last: the position after the last snapshot that was found.
        pending: snapshots, each with `whole`, that were found in version `next - 1` and are not steps yet.
        location: location of the table's definition in the last version that was read; None if there was no table.
        table: the table in that version.
    """

    begin: Position
    next: int
    last: Position
    steps: list[Step] = field(default_factory=list)
    pending: deque[tuple[Snapshot | None, bool]] = field(default_factory=deque)
    location: str | None = None
    table: Table | None = None

    def starts_at(self, position: Position) -> bool:
        """Drop the steps before a position. False, without a change, if the position is not among the steps."""
        if position == self.begin:
            return True
        for number, step in enumerate(self.steps):
            if step.position(position.files) == position:
                self.begin, self.steps = position, self.steps[number + (position.files is None) :]
                return True
        return False


class TableHistory:
    """The history of one table, snapshot by snapshot. A stream that only moves forward reads each version once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lake: Lakehouse = options.open()
        self._namespace, self._name = split(options.table_name)
        self._trail: _Trail | None = None
        self._end: int | None = None

    def end_at_latest_version(self) -> None:
        """End the history at the present version."""
        self._end = self._lake.version

    def now(self) -> Position:
        """The position of a stream that begins with all rows of the version in the options, or of the latest one."""
        view = self._options.reading(self._lake)
        if self._end is not None and view.version > self._end:
            view = self._lake.at(version=self._end)
        table = view.table(self._options.table_name)
        return Position(view.version, table.id, _current(table), files=0, whole=True)

    def after(self, version: int) -> Position:
        """The position of a stream that begins with the commits after `version`."""
        view = self._lake.at(version=version)
        if self._location(view) is None:
            return Position(version)
        table = view.table(self._options.table_name)
        return Position(version, table.id, _current(table))

    def table(self) -> Table:
        """The table in the latest version. Raises `ObjectNotFound`."""
        return self._lake.at().table(self._options.table_name)

    def steps(self, start: Position) -> Iterator[Step]:
        """The snapshots from position `start` on that have files to deliver.

        Versions are read as the iterator advances, up to the latest version or the end of the history.

        Raises:
            InvalidArgument: rows were removed or replaced, and the options do not allow this; or this lakehouse does
                not have the version of `start`.
            ObjectNotFound: the table was dropped.
            VersionExpired: the snapshot of `start`, or a later snapshot, has expired.
        """
        last = self._lake.version if self._end is None else self._end
        if start.version > last:
            raise InvalidArgument(
                f"the stream has read version {start.version}, and the newest version of {self._lake.uri} is "
                f"{last}: the checkpoint belongs to another lakehouse, or the lakehouse was restored from an older "
                "copy. Give the query a new checkpoint, which reads the table from its beginning"
            )
        trail = self._trail
        if trail is None or not trail.starts_at(start):
            trail = self._trail = _Trail(start, start.version, start)
        known = 0
        while known < len(trail.steps) or self._extend(trail, last):
            yield trail.steps[known]
            known += 1

    def tasks(self, start: Position, end: Position) -> list[FileScanTask]:
        """The files from `start` to `end`; repeated calls return the same files.

        Raises the errors of `steps`, and `VersionExpired` if the snapshot of `end` has expired.
        """
        tasks: list[FileScanTask] = []
        for step in self.steps(start):
            begin = start.files if start.files is not None and step.is_at(start) else 0
            if step.is_at(end):
                return tasks + step.tasks[begin : end.files]
            tasks += step.tasks[begin:]
        raise VersionExpired(
            f"table {self._options.table_name}: snapshot {end.snapshot}, at which a batch ends, is not in any kept "
            "version any more. Start the query with a new checkpoint, which reads the table from its beginning"
        )

    def _extend(self, trail: _Trail, last: int) -> bool:
        """Add the next snapshot with files to the trail; False if there is none up to version `last`."""
        while True:
            while trail.pending:
                snapshot, whole = trail.pending.popleft()
                version, table = trail.next - 1, trail.table
                assert table is not None
                adds = (_operation(one) == Operation.APPEND for one, _ in trail.pending if one is not None)
                step = Step(version, table, snapshot, whole, ends_version=not any(adds))
                adds_files = whole or snapshot is None or self._adds_files(version, table, snapshot)
                trail.last = step.position(None)
                if whole or (adds_files and step.tasks):
                    trail.steps.append(step)
                    return True
            if trail.next > last:
                return False
            self._read_version(trail)
            trail.next += 1

    def _read_version(self, trail: _Trail) -> None:
        """Find the snapshots of version `next` that the stream has not delivered."""
        try:
            view = self._lake.at(version=trail.next)
        except VersionExpired:
            return  # the next kept version also lists the snapshots of this version
        location = self._location(view)
        if location is None:
            if not trail.last.table:
                return  # the table was not created yet
            raise ObjectNotFound(f"table {self._options.table_name} does not exist in version {trail.next} any more")
        if location == trail.location:
            return
        table = view.table(self._options.table_name)
        if trail.last.table not in ("", table.id):
            raise ObjectNotFound(
                f"table {table.name} was dropped and created again: give the query a new checkpoint to read the new one"
            )
        trail.pending.extend(self._new_snapshots(trail, table))
        trail.location, trail.table = location, table
        if not trail.pending:
            trail.last = Position(trail.next, table.id, _current(table))

    def _adds_files(self, version: int, table: Table, snapshot: Snapshot) -> bool:
        """Whether a snapshot appended files. Raises `InvalidArgument` for removed rows, unless these are ignored."""
        operation = _operation(snapshot)
        if operation not in (Operation.APPEND, Operation.REPLACE) and not self._options.ignore_changes:
            raise InvalidArgument(
                f"version {version} removed or replaced rows of table {table.name} ({operation.value}), which a stream "
                'of new rows cannot show: set option("ignore_changes", "true") to skip such changes'
            )
        return operation == Operation.APPEND

    def _location(self, view: LakehouseVersion) -> str | None:
        return view._state().locate("table", self._namespace, self._name)

    def _new_snapshots(self, trail: _Trail, table: Table) -> list[tuple[Snapshot | None, bool]]:
        """The snapshots of a version that have not been delivered, oldest first, each with `whole` for its step."""
        before = trail.last.snapshot
        unfinished = trail.last.files is not None
        chain: list[Snapshot] = []
        current = _current(table)
        while current is not None and current != before and (snapshot := table.iceberg.snapshot_by_id(current)):
            chain.append(snapshot)
            current = snapshot.parent_snapshot_id
        chain.reverse()
        new: list[tuple[Snapshot | None, bool]] = [(snapshot, False) for snapshot in chain]
        has_expired = current not in (None, before) or (
            current is None and bool(chain) and _is_cut_off(table, chain[0])
        )
        if current == before and not has_expired:
            if not unfinished:
                return new
            started = None if before is None else table.iceberg.snapshot_by_id(before)
            if started is not None or before is None:
                return [(started, trail.last.whole), *new]
            has_expired = True
        if has_expired and (unfinished or not self._options.ignore_changes):
            raise VersionExpired(
                f"table {table.name}, version {trail.next}: snapshots were expired before the stream had read them, "
                "so the rows that they appended cannot be distinguished from others. Start the query with a new "
                "checkpoint, which reads the table from its beginning"
                + ("" if unfinished else ', or set option("ignore_changes", "true") to go on without')
            )
        if not self._options.ignore_changes:
            raise InvalidArgument(
                f"version {trail.next} took table {table.name} back to an older state, which a stream of new rows "
                'cannot show: set option("ignore_changes", "true") to continue from that state'
            )
        read = self._ancestors(trail, table)
        return [(snapshot, False) for snapshot in chain if snapshot.snapshot_id not in read]

    def _ancestors(self, trail: _Trail, table: Table) -> set[int]:
        """The ids of the known snapshots of the table up to the position of the stream."""
        if trail.last.snapshot is None:
            return set()
        known = trail.table
        if known is None:
            view = self._lake.at(version=trail.last.version)
            known = table if self._location(view) is None else view.table(table.name)
        ids: set[int] = set()
        id: int | None = trail.last.snapshot
        while id is not None:
            ids.add(id)
            snapshot = known.iceberg.snapshot_by_id(id)
            id = snapshot.parent_snapshot_id if snapshot is not None else None
        return ids


def _operation(snapshot: Snapshot) -> Operation:
    return snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND


def _is_cut_off(table: Table, first: Snapshot) -> bool:
    """Whether a snapshot that has no parent in the metadata once had ancestors, which have expired.

    The sequence numbers of a table count its snapshots on all branches, so missing numbers show expired snapshots. In
    format version 1, which has no sequence numbers, the snapshot had ancestors if it lists manifests or entries that it
    did not write.
    """
    if first.sequence_number:
        earlier = {one.sequence_number for one in table.iceberg.snapshots() if one.sequence_number is not None}
        return len([number for number in earlier if number < first.sequence_number]) < first.sequence_number - 1
    return any(
        manifest.added_snapshot_id != first.snapshot_id or bool(manifest.existing_files_count)
        for manifest in first.manifests(table.iceberg.io)
    )


def _current(table: Table) -> int | None:
    return table.iceberg.metadata.current_snapshot_id


def _added_files(table: Table, snapshot: Snapshot) -> list[FileScanTask]:
    from trinitylake.iceberg_storage.data_files.row_lineage import PlannedFile
    from trinitylake.iceberg_storage.manifests.manifest_file import read_entries

    io = table.iceberg.io
    return [
        PlannedFile(entry.data_file, sequence_number=entry.sequence_number)
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in read_entries(io, manifest)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
