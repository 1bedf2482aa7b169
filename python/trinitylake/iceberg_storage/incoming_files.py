"""Incoming files: files that a client names in a commit to a managed table (decision 0057).

The client wrote the manifests of its snapshot and may name any file in them. So before each commit, creation or
registration of a table, over REST or through PyIceberg, the manifests are read, and each location is checked by the
rules in `locations.py`. Locations that the table already has are not checked again.

The file access decides which folders are allowed: the whole lakehouse for a process with access to its storage, one
table (`table_file_io.py`) for a client of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetPartitionStatisticsUpdate, SetStatisticsUpdate, TableUpdate

from trinitylake.errors import InvalidArgument, InvalidLocation, TrinityLakeError
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.locations import qualified_path
from trinitylake.iceberg_storage.manifests.manifest_consistency import ManifestCheck, SpecsAndSchemas
from trinitylake.iceberg_storage.manifests.manifest_file import entries_in_turn
from trinitylake.iceberg_storage.manifests.manifest_list import read_list

#: Errors for a damaged or missing manifest.
UNREADABLE = (TrinityLakeError, OSError, ValueError, KeyError, EOFError, TypeError, IndexError)


def statistics_of(io: LakehouseFileIO, metadata: TableMetadata) -> list[str]:
    """The paths of the statistics of a table. Raises `InvalidLocation` for a file that a commit may not name."""
    named = (*metadata.statistics, *metadata.partition_statistics)
    return [qualified_path(io, statistics.statistics_path) for statistics in named]


def statistics_in(io: LakehouseFileIO, updates: Iterable[TableUpdate]) -> list[str]:
    """The paths of the statistics that updates add. Raises `InvalidLocation` for a file that a commit may not name."""
    added: list[str] = []
    for update in updates:
        if isinstance(update, SetStatisticsUpdate):
            added.append(update.statistics.statistics_path)
        elif isinstance(update, SetPartitionStatisticsUpdate):
            added.append(update.partition_statistics.statistics_path)
    return [qualified_path(io, location) for location in added]


def snapshots_of(updates: Iterable[TableUpdate]) -> list[Snapshot]:
    return [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]


def incoming_paths(
    io: LakehouseFileIO,
    metadata: TableMetadata | None,
    snapshots: Iterable[Snapshot],
    layout: SpecsAndSchemas,
    may_have_expired: bool = False,
) -> list[str]:
    """The paths of the incoming files of snapshots: new manifest lists and manifests, and the files that they add.

    For a new table, and for a snapshot without a parent in the table, all files of the snapshot are incoming.

    Args:
        io: the file access that decides which files may be named.
        metadata: of the table before the commit; None for a new table.
        snapshots: parents before children.
        layout: of the table after the commit, for the check of manifests.
        may_have_expired: skip manifests that cannot be read. For snapshots from another catalog, which may have
            expired.

    Raises `InvalidLocation` for a file that may not be named, and `InvalidArgument` for a manifest that cannot be read
    or that contradicts itself (`manifest_consistency.py`).
    """
    new = _NewFiles(io, metadata, layout, may_have_expired)
    return [path for snapshot in snapshots for path in new.of(snapshot)]


class _NewFiles:
    """Finds the files that a snapshot names and its parent does not name."""

    def __init__(
        self, io: LakehouseFileIO, metadata: TableMetadata | None, layout: SpecsAndSchemas, may_have_expired: bool
    ) -> None:
        self._io = io
        self._metadata = metadata
        self._layout = layout
        self._may_have_expired = may_have_expired
        self._checked: dict[int, Snapshot] = {}
        self._manifests: set[str] = set()
        self._present: dict[int, set[str]] = {}

    def of(self, snapshot: Snapshot) -> list[str]:
        parent = self._parent(snapshot)
        paths = [qualified_path(self._io, snapshot.manifest_list)]
        with self._reading(snapshot.manifest_list):
            paths += self._manifest_paths(snapshot, parent)
        self._checked[snapshot.snapshot_id] = snapshot
        return paths

    def _manifest_paths(self, snapshot: Snapshot, parent: Snapshot | None) -> Iterator[str]:
        manifests = read_list(self._io, snapshot)
        others = [one for one in manifests if one.manifest_path not in self._manifests]
        if any(one.added_snapshot_id != snapshot.snapshot_id for one in others):
            present = {one.manifest_path for one in self._lists_of(parent)}
            others = [one for one in others if one.manifest_path not in present]
        live: set[str] = set()
        for manifest in others:
            yield qualified_path(self._io, manifest.manifest_path)
            with self._reading(manifest.manifest_path):
                yield from self._files(manifest, snapshot, parent, live)
            self._manifests.add(manifest.manifest_path)

    def _files(
        self, manifest: ManifestFile, snapshot: Snapshot, parent: Snapshot | None, live: set[str]
    ) -> Iterator[str]:
        with entries_in_turn(self._io, manifest) as (partition_ids, entries):
            check = ManifestCheck(manifest, snapshot.sequence_number or 0, self._layout, partition_ids, live)
            for entry in entries:
                check.check(entry)
                if entry.status != ManifestEntryStatus.DELETED:
                    yield from self._file(entry.status, entry.data_file.file_path, parent)
            check.check_counts()

    def _file(self, status: ManifestEntryStatus, location: str, parent: Snapshot | None) -> Iterator[str]:
        try:
            path = qualified_path(self._io, location)
        except InvalidLocation:
            # A rewritten manifest repeats the locations of existing files, which may be in an older spelling.
            if status != ManifestEntryStatus.EXISTING or not self._has(parent, location):
                raise
        else:
            # An existing file belongs to the parent snapshot, and so to the version that the commit is based on.
            # Without a parent in the table, this is not known, so the file counts as incoming.
            if status == ManifestEntryStatus.ADDED or self._metadata is None or parent is None:
                yield path

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        id = snapshot.parent_snapshot_id
        if id is None:
            return None
        if id in self._checked:
            return self._checked[id]
        return None if self._metadata is None else self._metadata.snapshot_by_id(id)

    def _lists_of(self, snapshot: Snapshot | None) -> Iterable[ManifestFile]:
        """The manifests of a snapshot of the table; empty if they cannot be read."""
        if snapshot is None:
            return ()
        try:
            return read_list(self._io.of_lakehouse(), snapshot)
        except UNREADABLE:
            return ()

    def _has(self, snapshot: Snapshot | None, location: str) -> bool:
        """Whether a snapshot of the table has a file at that location. Reads all manifests of the snapshot."""
        if snapshot is None:
            return False
        if snapshot.snapshot_id not in self._present:
            self._present[snapshot.snapshot_id] = {
                location for manifest in self._lists_of(snapshot) for location in self._present_files(manifest)
            }
        return location in self._present[snapshot.snapshot_id]

    def _present_files(self, manifest: ManifestFile) -> list[str]:
        try:
            with entries_in_turn(self._io.of_lakehouse(), manifest) as (_, entries):
                return [one.data_file.file_path for one in entries if one.status != ManifestEntryStatus.DELETED]
        except UNREADABLE:
            return []

    @contextmanager
    def _reading(self, location: str) -> Iterator[None]:
        try:
            yield
        except (InvalidLocation, InvalidArgument):
            raise
        except UNREADABLE as error:
            if not self._may_have_expired:
                raise InvalidArgument(f"{location!r} cannot be read, so its files are unknown: {error}") from error
