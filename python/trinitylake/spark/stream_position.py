"""The position of a stream in the history of a table: Spark's offsets, and the changes between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
    """Everything that the versions before `version` brought has been read, and `files` files of what it brought.

    Attributes:
        version: the version to go on with; it need not exist yet.
        snapshot: the Iceberg snapshot that was current before it, None if there was none.
        files: how many of its files, in the order of their paths, have been read.
        whole: whether the version stands for all the rows that were in the table then, not for those that it added.
    """

    version: int
    snapshot: int | None = None
    files: int = 0
    whole: bool = False

    @property
    def at_version(self) -> Position:
        """The same, before any file of the version has been read."""
        return replace(self, files=0)

    def is_after(self, other: Position) -> bool:
        """Whether it lies further on, in the same stream."""
        return (self.version, self.files) > (other.version, other.files)

    def to_json(self) -> dict[str, Any]:
        """As plain values. Snapshot ids need 64 bits, which JSON numbers do not promise."""
        return {
            "version": self.version,
            "snapshot": "" if self.snapshot is None else str(self.snapshot),
            "files": self.files,
            "whole": self.whole,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Position:
        """The inverse of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        snapshot = values["snapshot"]
        return cls(int(values["version"]), int(snapshot) if snapshot else None, int(values["files"]), values["whole"])


@dataclass(frozen=True)
class Offset:
    """What Spark keeps in the checkpoint: where a stream stands, and where it began.

    Spark writes down where a batch ends, and asks the source again where the first one begins. By then the table may
    have grown, so the end of a batch carries the beginning of its stream.

    Attributes:
        position: everything before it has been read.
        origin: where the stream began; None in checkpoints that do not say so.
    """

    position: Position
    origin: Position | None

    def to_json(self) -> dict[str, Any]:
        """As Spark wants it."""
        origin = {} if self.origin is None else {"origin": self.origin.to_json()}
        return {**self.position.to_json(), **origin}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Offset:
        """The inverse of `to_json`. Raises `InvalidArgument` for the offset of another source."""
        try:
            origin = values.get("origin")
            return cls(Position.from_json(values), None if origin is None else Position.from_json(origin))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the checkpoint holds an offset of another source: {values}") from error

    def start_of_batch_until(self, end: Offset) -> Position:
        """Where the batch that ends at `end` begins, if Spark says that it begins here.

        The first batch of a stream begins where the stream did, whatever Spark was told when it asked anew.

        Raises:
            InvalidArgument: the two are not of one stream, or this one lies behind the other.
        """
        start = self.position
        if end.origin is not None and self.origin != end.origin:
            if self.position != self.origin:
                raise InvalidArgument(
                    f"a batch that begins at {self.to_json()} and ends at {end.to_json()} is of two streams, which "
                    "began at different versions: give the query a checkpoint of its own"
                )
            start = end.origin
        if start.is_after(end.position):
            raise InvalidArgument(
                f"a batch cannot begin at {start.to_json()} and end before, at {end.position.to_json()}: the "
                "checkpoint is not of this stream. Give the query a new one; it reads the table from its beginning then"
            )
        return start


@dataclass(frozen=True)
class Step:
    """What one version brought: its files in the order of their paths, and the snapshot that is current after it.

    Attributes:
        begin: the position before it.
    """

    begin: Position
    tasks: list[FileScanTask]
    snapshot: int | None

    @property
    def version(self) -> int:
        """The version."""
        return self.begin.version

    @property
    def end(self) -> Position:
        """The position behind this version."""
        return Position(self.version + 1, self.snapshot)


@dataclass
class _Trail:
    """The way from one position through the versions after it, as far as it has been walked.

    Attributes:
        begin: where it starts.
        next: where it goes on.
        steps: what lies between.
        location: of the table's definition in the last version that was looked at, if it was there.
        table: the table in that version.
    """

    begin: Position
    next: Position
    steps: list[Step] = field(default_factory=list)
    location: str | None = None
    table: Table | None = None

    def starts_at(self, position: Position) -> bool:
        """Go on from a position on the trail, and forget what lies before it; False if it is not on the trail."""
        if position != self.begin:
            known = [number for number, step in enumerate(self.steps) if position in (step.begin, step.end)]
            if not known:
                return False
            passed = known[-1] + (self.steps[known[-1]].end == position)
            self.begin, self.steps = position, self.steps[passed:]
        return True


class TableHistory:
    """The history of one table, version by version. A stream that goes forward looks at each version once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lake: Lakehouse = options.open()
        self._namespace, self._name = split(options.table_name)
        self._table_id = ""
        self._trail: _Trail | None = None

    def now(self) -> Position:
        """A stream that starts with all rows of the latest version, or of the one that the options name."""
        view = self._options.reading(self._lake)
        view.table(self._options.table_name)
        return Position(view.version, whole=True)

    def after(self, version: int) -> Position:
        """A stream that starts with what came after `version`."""
        view = self._lake.at(version=version)
        if self._location(view) is None:
            return Position(version + 1)
        return Position(version + 1, _current(view.table(self._options.table_name)))

    def table(self) -> Table:
        """The table as the latest version has it. Raises `ObjectNotFound`."""
        return self._lake.at().table(self._options.table_name)

    def steps(self, start: Position, end: Position | None = None) -> Iterator[Step]:
        """What every version from `start` to `end`, or to the latest, brought; those that brought nothing are left out.

        Versions are looked at as they are asked for.

        Raises:
            InvalidArgument: rows were removed or replaced, and the options do not say to go on then; or `start` is a
                version that this lakehouse has not come to.
            ObjectNotFound: the table is gone, or there is another one of its name.
            VersionExpired: snapshots that were not read yet have expired.
        """
        last = self._lake.version if end is None else end.version - (end.files == 0)
        if end is None and start.version > last + 1:
            raise InvalidArgument(
                f"the stream has read all before version {start.version}, and the newest one of {self._lake.uri} is "
                f"{last}: the checkpoint is of another lakehouse, or this one was restored from an older copy. Give "
                "the query a new checkpoint; it reads the table from its beginning then"
            )
        trail = self._trail
        if trail is None or not trail.starts_at(start.at_version):
            trail = self._trail = _Trail(start.at_version, start.at_version)
        known = 0
        while True:
            if known == len(trail.steps) and not self._walk(trail, last):
                return
            step = trail.steps[known]
            if step.version > last:
                return
            yield step
            known += 1

    def _walk(self, trail: _Trail, last: int) -> bool:
        """Go on until the next version that brought something; False if there is none up to `last`."""
        while trail.next.version <= last:
            begin = trail.next
            step = self._step(trail, begin)
            trail.next = Position(begin.version + 1, begin.snapshot) if step is None else step.end
            if step is not None and (step.tasks or begin.whole):
                trail.steps.append(step)
                return True
        return False

    def _step(self, trail: _Trail, begin: Position) -> Step | None:
        """What one version brought; None if it left the table as it was, or has expired."""
        try:
            view = self._lake.at(version=begin.version)
        except VersionExpired:
            if begin.whole:
                raise
            return None  # what it brought is found with the next version that is kept
        location = self._location(view)
        if location is None:
            if trail.location is None and begin.snapshot is None and not begin.whole:
                return None  # not created yet
            raise ObjectNotFound(f"table {self._options.table_name} does not exist in version {begin.version} any more")
        if location == trail.location:
            return None
        table = view.table(self._options.table_name)
        self._check_same_table(table)
        tasks = list(table.scan().iceberg.plan_files()) if begin.whole else self._added(trail, table, begin)
        trail.location, trail.table = location, table
        return Step(begin, sorted(tasks, key=lambda task: task.file.file_path), _current(table))

    def _location(self, view: LakehouseVersion) -> str | None:
        return view._state().locate("table", self._namespace, self._name)

    def _check_same_table(self, table: Table) -> None:
        if self._table_id and table.id != self._table_id:
            raise ObjectNotFound(f"table {table.name} was dropped and created again: start the stream anew")
        self._table_id = table.id

    def _added(self, trail: _Trail, table: Table, begin: Position) -> list[FileScanTask]:
        """The files that the snapshots appended which a version brought."""
        added: list[FileScanTask] = []
        for snapshot in self._new_snapshots(trail, table, begin):
            operation = snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND
            if operation == Operation.APPEND:
                added += _files_of(table, snapshot)
            elif operation != Operation.REPLACE and not self._options.ignore_changes:
                raise InvalidArgument(
                    f"version {begin.version} removed or replaced rows of table {table.name} ({operation.value}), "
                    'which a stream of new rows cannot tell: set option("ignore_changes", "true") to go on without that'
                )
        return added

    def _new_snapshots(self, trail: _Trail, table: Table, begin: Position) -> list[Snapshot]:
        """The snapshots that a version brought, oldest first."""
        before = begin.snapshot
        chain: list[Snapshot] = []
        current = _current(table)
        while current is not None and current != before and (snapshot := table.iceberg.snapshot_by_id(current)):
            chain.append(snapshot)
            current = snapshot.parent_snapshot_id
        chain.reverse()
        is_cut_off = current is None and bool(chain) and _is_cut_off(table, chain[0])
        has_expired = current not in (None, before) or is_cut_off
        if current == before and not has_expired:
            return chain
        if not self._options.ignore_changes and has_expired:
            raise VersionExpired(
                f"table {table.name}, version {begin.version}: snapshots were expired before the stream had read them, "
                "so the rows that they appended cannot be told from others. Start the query with a new checkpoint, "
                'which reads the table from its beginning, or set option("ignore_changes", "true") to go on without'
            )
        if not self._options.ignore_changes:
            raise InvalidArgument(
                f"version {begin.version} took table {table.name} back to an older state, which a stream of new rows "
                'cannot tell: set option("ignore_changes", "true") to go on from there'
            )
        read = self._ancestors(trail, table, begin)
        return [snapshot for snapshot in chain if snapshot.snapshot_id not in read]

    def _ancestors(self, trail: _Trail, table: Table, begin: Position) -> set[int]:
        """The snapshots that the table consisted of where the stream stands, as far as they are known."""
        if begin.snapshot is None:
            return set()
        known = trail.table
        if known is None:
            view = self._lake.at(version=begin.version - 1)
            known = table if self._location(view) is None else view.table(table.name)
        ids: set[int] = set()
        id: int | None = begin.snapshot
        while id is not None:
            ids.add(id)
            snapshot = known.iceberg.snapshot_by_id(id)
            id = snapshot.parent_snapshot_id if snapshot is not None else None
        return ids


def _is_cut_off(table: Table, first: Snapshot) -> bool:
    """Whether a snapshot without a parent had one, or others before it, which have expired since.

    The number of a snapshot counts those of the table, on all branches. Where there are no numbers (format version 1),
    a snapshot has inherited files if it lists manifests or entries that it did not write.
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


def _files_of(table: Table, snapshot: Snapshot) -> list[FileScanTask]:
    """The data files that a snapshot added."""
    from trinitylake.iceberg_storage.extended_pyiceberg.manifest import read_entries

    io = table.iceberg.io
    return [
        FileScanTask(entry.data_file)
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in read_entries(io, manifest)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
