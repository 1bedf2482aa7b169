"""The rows that a ready snapshot of an engine is about, as far as its files tell.

An engine sends the files that a statement added and removed, and not the condition that it looked for. So what it
looked for is taken to lie where these files lie: in their partitions, within the bounds of their columns. Files of
deleted rows tell which data files they are about; those count as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, StringType

from trinitylake.iceberg_storage.conflict_errors import TableConflict
from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled
from trinitylake.iceberg_storage.data_files.position_deletes import positions_in
from trinitylake.iceberg_storage.file_io import canonical_uri
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import manifest_lists
from trinitylake.iceberg_storage.staging.changed_files import ChangedFiles

#: The column of a position delete file with the path of the data file (Iceberg's reserved field ids).
_FILE_PATH = 2147483546


class TouchedFiles:
    """Whether another file may hold rows that the files of a snapshot are about."""

    def __init__(self, files: Iterable[DataFile], schema: Schema) -> None:
        self._types = {
            field.field_id: field.field_type for field in schema.fields if isinstance(field.field_type, PrimitiveType)
        }
        self._by_partition: dict[tuple[int, object], list[_Bounds]] = defaultdict(list)
        for file in files:
            self._by_partition[partition_of(file)].append(self._bounds(file))

    def may_meet(self, file: DataFile) -> bool:
        """Whether a file lies in one of the partitions, and its columns leave room for rows that lie in both."""
        theirs = self._bounds(file)
        spec_id, partition = partition_of(file)
        return any(
            own.meets(theirs)
            for (own_spec, own_partition), files in self._by_partition.items()
            # Partitions of different specs may overlap.
            if own_spec != spec_id or own_partition == partition
            for own in files
        )

    def _bounds(self, file: DataFile) -> _Bounds:
        ranges: dict[int, tuple[Any, Any]] = {}
        lower, upper, nulls = file.lower_bounds or {}, file.upper_bounds or {}, file.null_value_counts or {}
        for id, kind in self._types.items():
            if isinstance(kind, FloatType | DoubleType) or id not in lower or id not in upper:
                continue  # NaN lies outside of the bounds
            try:
                ranges[id] = from_bytes(kind, lower[id]), from_bytes(kind, upper[id])
            except Exception:  # of a type that the column had before: whatever the reason, it excludes nothing
                continue
        return _Bounds(ranges, {id for id in ranges if nulls.get(id) != 0})


class _Bounds:
    """Between which values the columns of a file lie, and which of them may hold null."""

    def __init__(self, ranges: dict[int, tuple[Any, Any]], nullable: set[int]) -> None:
        self._ranges = ranges
        self._nullable = nullable

    def meets(self, other: _Bounds) -> bool:
        """Whether a row may lie in both: not if the values of a column are apart."""
        for id, (lower, upper) in self._ranges.items():
            theirs = other._ranges.get(id)
            if theirs is None or (id in self._nullable and id in other._nullable):
                continue
            if upper < theirs[0] or theirs[1] < lower:
                return False
        return True


def partition_of(file: DataFile) -> tuple[int, object]:
    """The spec and the values of its fields, of which NaN equals NaN."""
    return file.spec_id, spelled(file.partition)


def may_delete_from(deletes: DataFile, files: Sequence[DataFile]) -> bool:
    """Whether a file of deleted rows, of the partition of `files`, may be about one of them."""
    if deletes.content != DataFileContent.POSITION_DELETES:
        return True
    path = _only_path(deletes)
    return path is None or path in {canonical_uri(file.file_path) for file in files}


def referenced_files(
    io: FileIO, metadata: TableMetadata, head: int | None, changed: ChangedFiles, vanished: Iterable[DataFile] = ()
) -> list[DataFile]:
    """The data files that position deletes are about, as the snapshot `head` has them.

    Args:
        io: the file access of the table.
        metadata: with the snapshot.
        head: its id.
        changed: with the position deletes.
        vanished: files that may be missing.

    Raises:
        TableConflict: a file is not there any more, or the deletes are not of a kind that can be redone.
    """
    deletes = (*changed.added_deletes, *changed.removed_deletes)
    if metadata.format_version != 2 or any(not _is_redoable(file) for file in deletes):
        raise TableConflict(
            "assert-ref-snapshot-id: the branch moved, and the snapshot adds or removes files of deleted rows that are "
            "not Parquet files of positions: such deletes hold for the rows that were there"
        )
    wanted = {path for file in changed.added_deletes for path in _paths(io, file)}
    own = {canonical_uri(file.file_path): file for file in changed.added}
    found = {path: own[path] for path in wanted & own.keys()}
    specs = {file.spec_id for file in deletes}
    snapshot = metadata.snapshot_by_id(head) if head is not None else None
    for manifest in manifest_lists.read(io, snapshot.manifest_list) if snapshot is not None else ():
        if found.keys() >= wanted:
            break
        if manifest.content == ManifestContent.DATA and manifest.partition_spec_id in specs:
            for entry in read_entries(io, manifest):
                if (path := canonical_uri(entry.data_file.file_path)) in wanted:
                    found[path] = entry.data_file
    missing = wanted - found.keys() - {canonical_uri(file.file_path) for file in vanished}
    if missing:
        raise TableConflict(
            f"assert-ref-snapshot-id: rows were deleted from data file {min(missing)}, which somebody else removed"
        )
    return list(found.values())


def _is_redoable(file: DataFile) -> bool:
    return file.content == DataFileContent.POSITION_DELETES and file.file_format == FileFormat.PARQUET


def _paths(io: FileIO, deletes: DataFile) -> Iterable[str]:
    path = _only_path(deletes)
    return (path,) if path is not None else map(canonical_uri, positions_in(io, deletes))


def _only_path(deletes: DataFile) -> str | None:
    """The data file that all positions of a file are about; None if there are more, or that is not known."""
    lower, upper = (bounds.get(_FILE_PATH) for bounds in (deletes.lower_bounds or {}, deletes.upper_bounds or {}))
    if lower is None or lower != upper:
        return None
    return canonical_uri(from_bytes(StringType(), lower))
