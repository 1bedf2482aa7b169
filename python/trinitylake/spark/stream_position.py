"""Where a stream stands in the history of a table: Spark's offsets, and what lies between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Snapshot

from trinitylake.errors import CorruptFile, InvalidArgument, ObjectNotFound, VersionExpired
from trinitylake.names import split
from trinitylake.spark.options import Options

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.view_at import ViewAt
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

    def to_offset(self) -> dict[str, Any]:
        """What Spark keeps in the checkpoint. Snapshot ids need 64 bits, which JSON numbers do not promise."""
        return {
            "version": self.version,
            "snapshot": "" if self.snapshot is None else str(self.snapshot),
            "files": self.files,
            "whole": self.whole,
        }

    @classmethod
    def from_offset(cls, offset: dict[str, Any]) -> Position:
        """The inverse of `to_offset`. Raises `InvalidArgument` for the offset of another source."""
        try:
            snapshot = offset["snapshot"]
            return cls(
                int(offset["version"]), int(snapshot) if snapshot else None, int(offset["files"]), offset["whole"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"the checkpoint holds an offset of another source: {offset}") from error


@dataclass(frozen=True)
class Step:
    """What one version brought: its files in the order of their paths, and the snapshot that is current after it."""

    version: int
    tasks: list[FileScanTask]
    snapshot: int | None

    @property
    def end(self) -> Position:
        """The position behind this version."""
        return Position(self.version + 1, self.snapshot)


class TableHistory:
    """The history of one table, version by version. Remembers what it has looked at."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lake: Lakehouse = options.open()
        self._namespace, self._name = split(options.table_name)
        self._table_id = ""
        self._steps: dict[Position, tuple[int, list[Step]]] = {}

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

    def steps(self, start: Position) -> list[Step]:
        """What every version from `start` to the latest brought; versions that brought nothing are left out.

        Raises:
            InvalidArgument: rows were removed or replaced, and the options do not say to go on then.
            ObjectNotFound: the table is gone, or there is another one of its name.
        """
        origin = Position(start.version, start.snapshot, 0, start.whole)
        known_until, steps = self._steps.get(origin, (start.version - 1, []))
        latest = self._lake.version
        if known_until < latest:
            resumed = steps[-1].end if steps else origin
            resumed = Position(max(known_until + 1, origin.version), resumed.snapshot, 0, origin.whole and not steps)
            steps = [*steps, *self._walk(resumed, latest)]
            self._steps = {origin: (latest, steps)}
        return steps

    def _walk(self, start: Position, latest: int) -> Iterator[Step]:
        snapshot = start.snapshot
        location: str | None = None
        for number in range(start.version, latest + 1):
            try:
                view = self._lake.at(version=number)
            except VersionExpired:
                if start.whole and number == start.version:
                    raise
                continue  # what it brought is found with the next version that is kept
            at = self._location(view)
            if at == location and at is not None:
                continue
            if at is None:
                if location is None and snapshot is None and not start.whole:
                    continue  # not created yet
                raise ObjectNotFound(f"table {self._options.table_name} does not exist in version {number} any more")
            location = at
            table = view.table(self._options.table_name)
            self._check_same_table(table)
            current = _current(table)
            if start.whole and number == start.version:
                tasks = list(table.scan().iceberg.plan_files())
            else:
                tasks = self._added(table, snapshot, current, number)
            snapshot = current
            if tasks or (start.whole and number == start.version):
                yield Step(number, sorted(tasks, key=lambda task: task.file.file_path), current)

    def _location(self, view: ViewAt) -> str | None:
        return view.state().locate("table", self._namespace, self._name)

    def _check_same_table(self, table: Table) -> None:
        if self._table_id and table.id != self._table_id:
            raise ObjectNotFound(f"table {table.name} was dropped and created again: start the stream anew")
        self._table_id = table.id

    def _added(self, table: Table, before: int | None, after: int | None, version: int) -> list[FileScanTask]:
        """The files that the snapshots between two states appended."""
        added: list[FileScanTask] = []
        for snapshot in self._between(table, before, after, version):
            operation = snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND
            if operation == Operation.APPEND:
                added += _files_of(table, snapshot)
            elif operation != Operation.REPLACE and not self._options.ignore_changes:
                raise InvalidArgument(
                    f"version {version} removed or replaced rows of table {table.name} ({operation.value}), which a "
                    'stream of new rows cannot tell: set option("ignore_changes", "true") to go on without that'
                )
        return added

    def _between(self, table: Table, before: int | None, after: int | None, version: int) -> list[Snapshot]:
        """The snapshots after `before` up to `after`, oldest first."""
        chain: list[Snapshot] = []
        current = after
        while current is not None and current != before:
            snapshot = table.iceberg.snapshot_by_id(current)
            if snapshot is None:
                if self._options.ignore_changes:
                    return []
                raise CorruptFile(f"snapshot {current} of table {table.name} was expired before the stream had read it")
            chain.append(snapshot)
            current = snapshot.parent_snapshot_id
        if current != before and not self._options.ignore_changes:
            raise InvalidArgument(
                f"version {version} took table {table.name} back to an older state, which a stream of new rows cannot "
                'tell: set option("ignore_changes", "true") to go on from there'
            )
        return chain[::-1] if current == before else []


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
