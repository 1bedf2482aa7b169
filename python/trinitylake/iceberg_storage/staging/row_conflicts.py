"""Conflict check of rows: whether a staged change is still valid after other commits to its branch.

The rules are those of Iceberg's own validations. A statement is valid if no rows that match its predicate were added or
removed. Under the isolation level `snapshot` of the table (`write.delete.isolation-level`,
`write.update.isolation-level`), new matching rows are allowed. The files that the statement removed must still be in
the table, and no rows may have been deleted from them. A snapshot that replaces files without changing rows, such as a
compaction, conflicts only through the files that it removed.

A file may hold matching rows unless its partition, its column bounds or its rows exclude this (`changed_rows.py`).
Engines do not send the condition of a statement, so `OverlappingFiles` derives it from the files that they changed.
Unknown changes count as a conflict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Operation, Snapshot
from pyiceberg.types import PrimitiveType

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.column_summary import ColumnSummary, of_metrics
from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled
from trinitylake.iceberg_storage.data_files.position_deletes import positions_in
from trinitylake.iceberg_storage.delete_files import referenced_data_file
from trinitylake.iceberg_storage.errors import RowConflict, TableConflict
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter
from trinitylake.iceberg_storage.file_io import canonical_uri
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.name_mapping import columns_with_moved_names
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.staging.changed_rows import ChangedFiles, ChangedRows, changed_files


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


class PastSnapshots:
    """Former snapshots of a table whose metadata files still exist. Files are read as needed."""

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._files = [metadata]  # the newest first
        self._unread = list(metadata.metadata_log)

    def parent(self, child: Snapshot) -> Snapshot | None:
        """The parent of the snapshot `child`; None if it has no parent, or if no metadata file lists the parent."""
        id = child.parent_snapshot_id
        if id is None:
            return None
        for metadata in self._files:
            if (found := metadata.snapshot_by_id(id)) is not None:
                return found
        for metadata in self._older(child.timestamp_ms):
            if (found := metadata.snapshot_by_id(id)) is not None:
                return found
        return None

    def _older(self, timestamp_ms: int) -> Iterator[TableMetadata]:
        """Unread metadata files, newest first; files that were written after `timestamp_ms` come last."""
        skipped: list[MetadataLogEntry] = []
        while self._unread:
            entry = self._unread.pop()
            if entry.timestamp_ms > timestamp_ms and self._unread:
                skipped.append(entry)
                continue
            metadata = self._read(entry.metadata_file)
            if metadata is None:
                return
            self._files.append(metadata)
            if not self._unread:
                self._unread = list(metadata.metadata_log)
            yield metadata
        # Clocks may be wrong, so later files are read too, after all others.
        for entry in skipped:
            if (metadata := self._read(entry.metadata_file)) is not None:
                self._files.append(metadata)
                yield metadata

    def _read(self, uri: str) -> TableMetadata | None:
        try:
            return read_metadata(self._io, uri)
        except (FileNotFoundError, TrinityLakeError):
            return None


_DELETE_LEVEL = TableProperties.WRITE_DELETE_ISOLATION_LEVEL
_UPDATE_LEVEL = TableProperties.WRITE_UPDATE_ISOLATION_LEVEL
_MERGE_LEVEL = "write.merge.isolation-level"


class Intervening:
    """The snapshots between two heads of a branch.

    If the newer head does not descend from the older one, or a snapshot between them has expired, every check that
    needs these snapshots fails. Each check raises `RowConflict`.
    """

    def __init__(self, io: FileIO, snapshots: Sequence[Snapshot], moved: str, is_known: bool = True) -> None:
        self._io = io
        self._snapshots = snapshots
        self._moved = moved
        self._is_known = is_known

    @classmethod
    def between(
        cls, io: FileIO, metadata: TableMetadata, branch: str | None, older: int | None, newer: int | None
    ) -> Intervening:
        """The snapshots after `older` up to `newer`. Both are snapshot ids; None stands for an empty branch."""
        moved = f"branch {branch} moved from snapshot {older} to {newer}"
        past = PastSnapshots(io, metadata)
        snapshots: list[Snapshot] = []
        snapshot = metadata.snapshot_by_id(newer) if newer is not None and newer != older else None
        while snapshot is not None:
            snapshots.append(snapshot)
            snapshot = past.parent(snapshot) if snapshot.parent_snapshot_id != older else None
        reached = snapshots[-1].parent_snapshot_id if snapshots else newer
        return cls(io, snapshots[::-1], moved, reached == older)

    @classmethod
    def nothing(cls, io: FileIO) -> Intervening:
        return cls(io, (), "")

    def check_rows(
        self, read: RowsRead, staged: Schema, metadata: TableMetadata, is_serializable: bool = False
    ) -> None:
        """Check that a statement would find the same rows again. `staged` is the schema at the time of the statement.

        With `is_serializable`, isolation levels in the properties of the table are ignored.
        """
        if self._is_nothing():
            return
        depends = f"{read.statement} depends on the rows it found"
        if not _means_the_same(read, staged, metadata.schema()):
            raise RowConflict(
                f"assert-current-schema-id: {self._moved} under another schema; {depends}, by columns that changed"
            )
        rows = ChangedRows(self._io, metadata, FilesOfFilter(metadata, read.filter, read.case_sensitive))
        level = _DELETE_LEVEL if read.operation == Operation.DELETE else _UPDATE_LEVEL
        for snapshot, changed in self._row_changes:
            where = f"assert-ref-snapshot-id: {self._moved}; {depends}, and snapshot {snapshot.snapshot_id}"
            allows_new_rows = not is_serializable and _is_snapshot_isolated(metadata, level)
            if not allows_new_rows and any(map(rows.may_be_in, changed.added)):
                raise RowConflict(f"{where} added files that may hold such rows")
            if any(rows.may_be_in(file, changed.removed_deletes) for file in changed.removed):
                raise RowConflict(f"{where} removed files that may have held such rows")
            if rows.may_be_deleted(snapshot, changed):
                raise RowConflict(f"{where} may have deleted such rows")

    def check_unknown_rows(
        self, snapshot: Snapshot, changed: ChangedFiles, referenced: Sequence[DataFile], metadata: TableMetadata
    ) -> None:
        """Check that no rows were added on which a snapshot of an engine may depend, whose condition is unknown.

        An append and a compaction depend on no rows. With `replace-partitions` in the summary, a snapshot depends on
        the rows of the replaced partitions. Any other snapshot depends on the rows in the partitions and column bounds
        of the files that it added and removed, and of the files in which it deleted rows (`referenced`). Under the
        table's isolation level `snapshot`, new rows are allowed for such a snapshot.
        """
        if is_blind(snapshot, changed) or self._is_nothing():
            return
        summary = snapshot.summary
        operation = summary.operation if summary is not None else None
        word = operation.value if operation is not None else "an unknown operation"
        where = f"assert-ref-snapshot-id: {self._moved}, and {word} removes "
        if summary is not None and summary.additional_properties.get("replace-partitions") == "true":
            partitions = {partition_of(file) for file in (*changed.added, *changed.removed)}
            specs = {file.spec_id for file in (*changed.added, *changed.removed)}
            for theirs, their_changes in self._row_changes:
                for file in (*their_changes.added, *their_changes.removed, *their_changes.added_deletes):
                    # Partitions of different specs may overlap.
                    if partition_of(file) in partitions or specs != {file.spec_id}:
                        raise RowConflict(f"{where}files of a partition that snapshot {theirs.snapshot_id} changed")
            return
        # An overwrite may stem from an UPDATE, a MERGE, or a DELETE that rewrote files.
        is_delete = operation == Operation.DELETE
        levels = (_DELETE_LEVEL,) if is_delete else (_DELETE_LEVEL, _UPDATE_LEVEL, _MERGE_LEVEL)
        if _is_snapshot_isolated(metadata, *levels):
            return
        overlapping = OverlappingFiles((*changed.added, *changed.removed, *referenced), metadata)
        for theirs, their_changes in self._row_changes:
            if any(map(overlapping.may_overlap, their_changes.added)):
                raise RowConflict(
                    f"{where}rows; snapshot {theirs.snapshot_id} added files in the same partitions, whose column "
                    "bounds do not exclude rows that the statement would have read"
                )

    def check_no_row_changes(self) -> None:
        """Check that no rows of the table changed, for a snapshot that depends on unknown rows."""
        if not self._is_nothing() and self._row_changes:
            raise RowConflict(
                f"assert-ref-snapshot-id: {self._moved}, and the rows that a statement of an engine depends on are "
                "not known"
            )

    def check_removed(self, removed: Sequence[DataFile], metadata: TableMetadata) -> None:
        """Check that no rows were deleted from removed files. `SnapshotProducer` checks that the files are present."""
        partitions: dict[tuple[int, object], list[DataFile]] = defaultdict(list)
        for file in removed:
            partitions[partition_of(file)].append(file)
        if not partitions or self._is_nothing():
            return
        specs = metadata.specs()
        for snapshot, changed in self._row_changes:
            for deletes in changed.added_deletes:
                spec = specs.get(deletes.spec_id)
                is_global = spec is None or spec.is_unpartitioned()
                concerned = removed if is_global else partitions.get(partition_of(deletes), ())
                if concerned and may_delete_from(deletes, concerned):
                    raise RowConflict(
                        f"assert-ref-snapshot-id: {self._moved}, and snapshot {snapshot.snapshot_id} may have deleted "
                        "rows from files that are replaced here"
                    )

    def removed_by_deletes(self) -> list[DataFile]:
        """The data files that were removed because all of their rows were deleted."""
        return [
            file
            for snapshot, changed in self._row_changes
            if snapshot.summary is not None and snapshot.summary.operation == Operation.DELETE
            for file in changed.removed
        ]

    def _is_nothing(self) -> bool:
        if not self._is_known:
            raise RowConflict(
                f"assert-ref-snapshot-id: {self._moved}, which does not descend from it or has expired since"
            )
        return not self._snapshots

    @cached_property
    def _row_changes(self) -> list[tuple[Snapshot, ChangedFiles]]:
        return [
            (snapshot, changed_files(self._io, snapshot))
            for snapshot in self._snapshots
            if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE
        ]


def is_blind(snapshot: Snapshot, changed: ChangedFiles) -> bool:
    """Whether a snapshot of an engine depends on no rows: an append or a compaction."""
    operation = snapshot.summary.operation if snapshot.summary is not None else None
    return operation == Operation.REPLACE or (
        operation == Operation.APPEND and not (changed.removed or changed.added_deletes)
    )


def _means_the_same(read: RowsRead, staged: Schema, current: Schema) -> bool:
    """Whether a filter refers to the same columns in both schemas."""
    if read.filter == AlwaysTrue():
        return True
    try:
        before, after = (
            RowFilter.of(read.filter, schema, read.case_sensitive).field_ids for schema in (staged, current)
        )
    except (ValueError, TypeError):
        return False
    return before == after


def _is_snapshot_isolated(metadata: TableMetadata, *levels: str) -> bool:
    """Whether the table's isolation level allows new matching rows."""
    return all(metadata.properties.get(name, "serializable").lower() == "snapshot" for name in levels)
