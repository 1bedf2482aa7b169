"""The data files and delete files that a snapshot added and removed."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Snapshot

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
