"""The files and rows that snapshots changed, and the union of the deletion vectors of two commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import (
    can_lose_rows,
    positions_by_location,
    write_position_deletes,
)
from trinitylake.iceberg_storage.delete_files import file_key, is_vector, referenced_data_file
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter
from trinitylake.iceberg_storage.file_io import canonical_uri
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list


@dataclass
class ChangedFiles:
    """The files that one snapshot added and removed.

    Attributes:
        added, removed: data files.
        sequence_numbers: by path, for added files that count as older than the snapshot.
        added_deletes, removed_deletes: delete files.
    """

    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    sequence_numbers: dict[str, int] = field(default_factory=dict)
    added_deletes: list[DataFile] = field(default_factory=list)
    removed_deletes: list[DataFile] = field(default_factory=list)


def own_manifests(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests that a snapshot wrote itself."""
    manifests = read_list(io, snapshot)
    return [manifest for manifest in manifests if manifest.added_snapshot_id == snapshot.snapshot_id]


def changed_files(io: FileIO, snapshot: Snapshot) -> ChangedFiles:
    """The files that a snapshot added and removed."""
    changed = ChangedFiles()
    for manifest in own_manifests(io, snapshot):
        is_data = manifest.content == ManifestContent.DATA
        for entry in read_entries(io, manifest, discard_deleted=False):
            if entry.snapshot_id != snapshot.snapshot_id or entry.status == ManifestEntryStatus.EXISTING:
                continue
            file = entry.data_file
            if entry.status == ManifestEntryStatus.DELETED:
                (changed.removed if is_data else changed.removed_deletes).append(file)
                continue
            (changed.added if is_data else changed.added_deletes).append(file)
            number = entry.sequence_number
            if number is not None and snapshot.sequence_number is not None and number < snapshot.sequence_number:
                changed.sequence_numbers[file.file_path] = number
    return changed


#: The rows of a larger data file are not read for a conflict check.
READ_SIZE_BYTES = 1 << 20
#: Maximum number of files that are read for a conflict check. Each file costs a request, and an unnecessary conflict
#: only costs a repetition of the statement.
MAX_READ_FILES = 64


class ChangedRows:
    """Tests whether rows that match a filter were added, removed or deleted.

    At most `MAX_READ_FILES` small files, or files with deleted rows, are read. A file that is not read, or cannot be
    read, counts as a file with matching rows.
    """

    def __init__(self, io: FileIO, metadata: TableMetadata, filter: FilesOfFilter) -> None:
        self._io = io
        self._filter = filter
        self._live = LiveRows(metadata, io, [])
        self._reads_left = MAX_READ_FILES

    def may_be_in(self, file: DataFile, deletes: Iterable[DataFile] = ()) -> bool:
        """Whether a data file may contain matching rows that no delete file in `deletes` deletes."""
        if not self._filter.may_be_in_file(file):
            return False
        if file.file_size_in_bytes > READ_SIZE_BYTES:
            return True
        location = canonical_uri(file.file_path)
        own = [one for one in deletes if canonical_uri(referenced_data_file(one) or "") == location]
        if not own:
            return self._has_matching(file)
        deleted = self._positions(own)
        return deleted is None or self._has_matching(
            file, np.setdiff1d(np.arange(file.record_count), deleted[location])
        )

    def may_be_deleted(self, snapshot: Snapshot, changed: ChangedFiles) -> bool:
        """Whether the delete files of a snapshot may delete matching rows, or make deleted rows visible again.

        An equality delete counts as a change of all rows in its partition.
        """
        every = changed.added_deletes, changed.removed_deletes
        added, removed = ([file for file in files if self._filter.may_be_in_partition(file)] for files in every)
        if any(file.content != DataFileContent.POSITION_DELETES for file in (*added, *removed)):
            return True
        deleted, before = self._positions(added), self._positions(removed)
        if deleted is None or before is None:
            return True
        gone = {canonical_uri(file.file_path) for file in changed.removed}
        if before.keys() - deleted.keys() - gone:  # a removed delete file was not replaced
            return True
        for manifest in read_list(self._io, snapshot) if deleted else ():
            if manifest.content != ManifestContent.DATA or not self._filter.may_be_in(manifest):
                continue
            for entry in read_entries(self._io, manifest):
                path = canonical_uri(entry.data_file.file_path)
                if path in deleted and self._filter.may_be_in_file(entry.data_file):
                    new = np.setdiff1d(deleted[path], before.get(path, np.empty(0, np.int64)))
                    if self._has_matching(entry.data_file, new):
                        return True
        return False

    def _positions(self, deletes: Iterable[DataFile]) -> dict[str, np.ndarray] | None:
        try:
            return positions_by_location(self._io, deletes)
        except Exception:  # whatever is wrong with a file of another writer
            return None

    def _has_matching(self, file: DataFile, positions: np.ndarray | None = None) -> bool:
        self._reads_left -= 1
        if self._reads_left < 0 or not can_lose_rows(file):
            return True
        found = self._live.matching(FileScanTask(file), Schema(), self._filter.filter, positions)
        try:
            return any(batch.num_rows for batch in found)
        except Exception:  # whatever is wrong with a file of another writer
            return True


def merged_vectors(
    io: FileIO, metadata: TableMetadata, head: Snapshot, changed: ChangedFiles, referenced: Iterable[DataFile]
) -> ChangedFiles:
    """Merge the deletion vectors of a staged snapshot with those of the snapshot `head`. Returns the new changes.

    If `head` has only vectors that the staged snapshot already replaces, `changed` is returned unchanged. Otherwise all
    vectors are written again.

    Args:
        head: the new parent.
        changed: the files of the staged snapshot.
        referenced: the data files in `head` that the staged vectors apply to.
    """
    data = {canonical_uri(file.file_path): file for file in referenced}
    known = {file_key(file) for file in changed.removed_deletes}
    present = [
        entry.data_file
        for manifest in read_list(io, head)
        if manifest.content == ManifestContent.DELETES
        for entry in read_entries(io, manifest)
        if is_vector(entry.data_file) and canonical_uri(referenced_data_file(entry.data_file) or "") in data
    ]
    if len(data) == len(changed.added_deletes) and all(file_key(file) in known for file in present):
        return changed
    theirs, ours = (positions_by_location(io, files) for files in (present, changed.added_deletes))
    merged = [(file, np.union1d(ours[path], theirs.get(path, ours[path][:0]))) for path, file in data.items()]
    vectors = write_position_deletes(metadata, io, merged)
    return replace(changed, added_deletes=vectors, removed_deletes=[*changed.removed_deletes, *present])
