"""The data files that differ between two states of a table.

A file that both states have with the same delete files is not a difference. If all snapshots between the states only
append, the states need not be compared, because the manifests of the last snapshot list all added files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from trinitylake.iceberg_storage.data_files.row_lineage import PlannedFile
from trinitylake.iceberg_storage.delete_files import blob_of
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter, plan_files
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE

if TYPE_CHECKING:
    #: Identifies a delete file: path, and offset and length in a Puffin file.
    DeleteKey: TypeAlias = tuple[str, tuple[int, int] | None]


@dataclass(frozen=True, eq=False)
class TableFiles:
    """The Iceberg state of a table in one version.

    Attributes:
        metadata: metadata that lists the snapshot; it may be from a later version.
        snapshot: the current snapshot of the version; None for a table that was never written.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None
    io: FileIO

    @property
    def snapshot_id(self) -> int | None:
        """The id of the snapshot."""
        return None if self.snapshot is None else self.snapshot.snapshot_id


@dataclass
class FileChanges:
    """Data files that differ between two states, with the delete files that apply to them.

    Attributes:
        added: files that only the later state has.
        removed: files that only the earlier state has.
        redeleted: files that both states have with different delete files, as pairs (earlier state, later state).
    """

    added: list[FileScanTask] = field(default_factory=list)
    removed: list[FileScanTask] = field(default_factory=list)
    redeleted: list[tuple[FileScanTask, FileScanTask]] = field(default_factory=list)


def snapshots_between(before: TableFiles | None, after: TableFiles) -> list[Snapshot] | None:
    """The snapshots that lead from one state to the next, newest first; None if they are unknown, as after a rollback.

    They are also unknown if the earlier state has no snapshot: a snapshot without a parent need not be the first
    snapshot, because PyIceberg removes the id of a parent that expires.
    """
    end = None if before is None else before.snapshot_id
    if end is None:
        return None
    chain: list[Snapshot] = []
    snapshot = after.snapshot
    while snapshot is not None and snapshot.snapshot_id != end:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else after.metadata.snapshot_by_id(parent)
    return None if snapshot is None else chain


def share_row_ids(before: TableFiles, after: TableFiles) -> bool:
    """Whether a row id identifies the same row in both states.

    This holds if one state descends from the other. After a rollback, ids are assigned again to other rows.
    """
    if min(before.metadata.format_version, after.metadata.format_version) < ROW_IDS_SINCE:
        return False
    return snapshots_between(before, after) is not None or snapshots_between(after, before) is not None


def all_are(snapshots: list[Snapshot] | None, operation: Operation) -> bool:
    """Whether there are snapshots, and all of them have this operation."""
    operations = [None if one.summary is None else one.summary.operation for one in snapshots or ()]
    return bool(operations) and all(one == operation for one in operations)


def appended_files(last: TableFiles, snapshot_ids: Collection[int]) -> dict[int, list[FileScanTask]] | None:
    """The files that snapshots appended, by the id of the snapshot. None if a snapshot also has delete files.

    Args:
        last: the state after the last of the snapshots, which are consecutive.
        snapshot_ids: of snapshots that only append.
    """
    assert last.snapshot is not None
    # The snapshots wrote the manifests with their files. A later one of them may have merged earlier manifests.
    own = [one for one in read_list(last.io, last.snapshot) if one.added_snapshot_id in snapshot_ids]
    files: dict[int, list[FileScanTask]] = {id: [] for id in snapshot_ids}
    for manifest in own:
        for entry in read_entries(last.io, manifest):
            if entry.snapshot_id in files:
                if manifest.content == ManifestContent.DELETES:
                    return None
                files[entry.snapshot_id].append(PlannedFile(entry.data_file, sequence_number=entry.sequence_number))
    return files


def file_changes(before: TableFiles | None, after: TableFiles | None) -> FileChanges:
    """The files that differ between two states; None is a table that does not exist."""
    lists = [_manifests(one) for one in (before, after)]
    paths = [{manifest.manifest_path for manifest in one} for one in lists]
    deletes = [{one.manifest_path for one in some if one.content == ManifestContent.DELETES} for some in lists]
    # A new delete file may apply to any data file.
    shared = paths[0] & paths[1] if deletes[0] == deletes[1] else set()
    then, now = (
        {} if state is None else {task.file.file_path: task for task in _planned(state, manifests, shared)}
        for state, manifests in zip((before, after), lists, strict=True)
    )
    return FileChanges(
        added=[task for path, task in now.items() if path not in then],
        removed=[task for path, task in then.items() if path not in now],
        redeleted=[
            (task, now[path]) for path, task in then.items() if path in now and _deletes(task) != _deletes(now[path])
        ],
    )


def _manifests(state: TableFiles | None) -> tuple[ManifestFile, ...]:
    return () if state is None or state.snapshot is None else read_list(state.io, state.snapshot)


def _planned(state: TableFiles, manifests: tuple[ManifestFile, ...], shared: set[str]) -> Iterator[FileScanTask]:
    wanted = [one for one in manifests if one.content == ManifestContent.DELETES or one.manifest_path not in shared]
    yield from plan_files(state.io, wanted, FilesOfFilter(state.metadata, AlwaysTrue()))


def _deletes(task: FileScanTask) -> set[DeleteKey]:
    return {_key(file) for file in task.delete_files}


def _key(file: DataFile) -> DeleteKey:
    return file.file_path, blob_of(file)
