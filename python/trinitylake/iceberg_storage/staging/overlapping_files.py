"""Finds files that may hold rows on which the snapshot of an engine depends.

An engine sends the files that a statement added and removed, but not the condition of the statement. So the statement
is assumed to depend on all rows in the partitions and column bounds of these files, and of the data files to which its
position deletes apply.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from trinitylake.iceberg_storage.column_summary import ColumnSummary, of_metrics
from trinitylake.iceberg_storage.commit_errors import TableConflict
from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled
from trinitylake.iceberg_storage.data_files.position_deletes import positions_in
from trinitylake.iceberg_storage.delete_files import referenced_data_file
from trinitylake.iceberg_storage.file_io import canonical_uri
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.name_mapping import columns_with_moved_names
from trinitylake.iceberg_storage.staging.changed_files import ChangedFiles


class OverlappingFiles:
    """Tests whether another file may contain rows in the partitions and column bounds of some files."""

    def __init__(self, files: Iterable[DataFile], metadata: TableMetadata) -> None:
        moved = columns_with_moved_names(metadata)
        self._types = {
            field.field_id: field.field_type
            for field in metadata.schema().fields
            if isinstance(field.field_type, PrimitiveType) and field.field_id not in moved
        }
        self._by_partition: dict[tuple[int, object], list[dict[int, ColumnSummary]]] = defaultdict(list)
        for file in files:
            self._by_partition[partition_of(file)].append(self._summaries(file))

    def may_overlap(self, file: DataFile) -> bool:
        """Whether the partition and the column bounds of `file` overlap those of one of the files."""
        theirs = self._summaries(file)
        spec_id, partition = partition_of(file)
        return any(
            all(summary.may_share(theirs[id]) for id, summary in own.items())
            for (own_spec, own_partition), files in self._by_partition.items()
            # Partitions of different specs may overlap.
            if own_spec != spec_id or own_partition == partition
            for own in files
        )

    def _summaries(self, file: DataFile) -> dict[int, ColumnSummary]:
        return {id: of_metrics(file, id, type) for id, type in self._types.items()}


def partition_of(file: DataFile) -> tuple[int, object]:
    """Key for comparing the partitions of files. NaN equals NaN."""
    return file.spec_id, spelled(file.partition)


def may_delete_from(deletes: DataFile, files: Sequence[DataFile]) -> bool:
    """Whether a delete file in the partition of `files` may apply to one of these files."""
    if deletes.content != DataFileContent.POSITION_DELETES:
        return True
    path = _only_path(deletes)
    return path is None or path in {canonical_uri(file.file_path) for file in files}


def referenced_files(
    io: FileIO, metadata: TableMetadata, head: int | None, changed: ChangedFiles, vanished: Iterable[DataFile] = ()
) -> list[DataFile]:
    """The data files of the snapshot `head` that position deletes apply to.

    Args:
        io: the file access of the table.
        metadata: metadata with the snapshot.
        head: id of the snapshot.
        changed: the staged changes, which include the position deletes.
        vanished: data files that `head` may lack.

    Raises:
        TableConflict: a data file is absent, or the delete files cannot be rebased.
    """
    if any(file.content != DataFileContent.POSITION_DELETES for file in changed.added_deletes):
        raise TableConflict(
            "assert-ref-snapshot-id: the branch moved, and the snapshot deletes rows by their values: it applies only "
            "to the rows that the statement read"
        )
    wanted = {path for file in changed.added_deletes for path in _paths(io, file)}
    own = {canonical_uri(file.file_path): file for file in changed.added}
    found = {path: own[path] for path in wanted & own.keys()}
    specs = {file.spec_id for file in changed.added_deletes}
    snapshot = metadata.snapshot_by_id(head) if head is not None else None
    for manifest in read_list(io, snapshot) if snapshot is not None else ():
        if found.keys() >= wanted:
            break
        if manifest.content == ManifestContent.DATA and manifest.partition_spec_id in specs:
            for entry in read_entries(io, manifest):
                if (path := canonical_uri(entry.data_file.file_path)) in wanted:
                    found[path] = entry.data_file
    missing = wanted - found.keys() - {canonical_uri(file.file_path) for file in vanished}
    if missing:
        raise TableConflict(
            f"assert-ref-snapshot-id: rows were deleted from data file {min(missing)}, which another commit removed"
        )
    return list(found.values())


def _paths(io: FileIO, deletes: DataFile) -> Iterable[str]:
    path = _only_path(deletes)
    return (path,) if path is not None else map(canonical_uri, positions_in(io, deletes))


def _only_path(deletes: DataFile) -> str | None:
    path = referenced_data_file(deletes)
    return None if path is None else canonical_uri(path)
