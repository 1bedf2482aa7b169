"""Replacing files by others: the snapshot of an overwrite, delete or compaction, made anew on another parent.

Files of deleted rows are added and removed like data files, in manifests of their own. One that is to be removed and is
not there any more was replaced by another that says the same; a data file must be there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType
from pyiceberg.utils.properties import property_as_int

from trinitylake.iceberg_storage.column_summary import plain_value, value_of_bytes
from trinitylake.iceberg_storage.conflict_errors import TableConflict
from trinitylake.iceberg_storage.extended_pyiceberg.append import AppendFiles
from trinitylake.iceberg_storage.extended_pyiceberg.manifest import read_entries


class RewriteFiles(AppendFiles):
    """Produces a snapshot that removes some files of its parent and adds others.

    Args:
        sequence_numbers: of added files that are to count as older than the snapshot, by path.
    """

    def __init__(
        self,
        transaction: Transaction,
        io: FileIO,
        added_files: dict[int, list[DataFile]],
        operation: Operation,
        snapshot_properties: dict[str, str],
        branch: str | None,
        snapshot_id: int,
        sequence_numbers: Mapping[str, int],
    ) -> None:
        super().__init__(transaction, io, added_files, snapshot_properties, branch, snapshot_id)
        self._operation = operation
        self._sequence_numbers = sequence_numbers

    def commit_with(self, added: Iterable[DataFile], as_of: int | None = None) -> None:
        """Add files, and make the snapshot. With `as_of`, a sequence number, the files count as so old for files of
        deleted rows. Raises `TableConflict` if a data file that goes is not there."""
        files = list(added)
        for file in files:
            self.append_data_file(file)
        if as_of is not None:
            self._sequence_numbers = {file.file_path: as_of for file in files}
        self.commit()

    def count_as(self, operation: Operation) -> None:
        """Have PyIceberg validate the snapshot, when it tries again, by the isolation level for an operation."""
        self._isolation_operation = operation

    def _validate_concurrency(self) -> None:
        """As any delete: an append, which this class is made of, conflicts with nothing."""
        _SnapshotProducer._validate_concurrency(self)

    def _added_entry(self, file: DataFile) -> ManifestEntry:
        entry = super()._added_entry(file)
        if (number := self._sequence_numbers.get(file.file_path)) is not None:
            entry.sequence_number = number
        return entry

    def _existing_manifests(self) -> list[ManifestFile]:
        """The manifests of the parent without the removed files, and one for each partition spec that tells of them.

        Raises `TableConflict` if one of the files is not there.
        """
        wanted = {file.file_path for file in self._deleted_data_files}
        may_hold = self._may_hold(self._deleted_data_files)
        contents = {manifest_content(file) for file in self._deleted_data_files}
        kept: list[ManifestFile] = []
        removed: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for manifest in AppendFiles._existing_manifests(self):
            if manifest.content not in contents or not may_hold(manifest):
                kept.append(manifest)
                continue
            entries = read_entries(self._io, manifest)
            staying = [entry for entry in entries if entry.data_file.file_path not in wanted]
            if len(staying) == len(entries):
                kept.append(manifest)
                continue
            key = (manifest.partition_spec_id, manifest.content)
            removed[key] += [entry for entry in entries if entry.data_file.file_path in wanted]
            if staying:
                kept.append(self._manifest_of(*key, staying, ManifestEntryStatus.EXISTING))
        found = {entry.data_file.file_path for entries in removed.values() for entry in entries}
        data = {file.file_path for file in self._deleted_data_files if manifest_content(file) == ManifestContent.DATA}
        if missing := data - found:
            raise TableConflict(
                f"assert-ref-snapshot-id: data file {min(missing)}, which {self._operation.value} removes, was removed "
                "by somebody else"
            )
        gone = [self._manifest_of(*key, entries, ManifestEntryStatus.DELETED) for key, entries in removed.items()]
        self._deleted_data_files = {file for file in self._deleted_data_files if file.file_path in found}
        return gone + kept

    def _added_manifests(self) -> list[ManifestFile]:
        """Data files in one manifest for each partition spec, files of deleted rows in others."""
        by_kind: dict[tuple[int, ManifestContent], list[DataFile]] = defaultdict(list)
        for file in self._added_data_files:
            by_kind[file.spec_id, manifest_content(file)].append(file)
        manifests = []
        for key, files in by_kind.items():
            with self._writer(*key) as writer:
                for file in files:
                    writer.add_entry(self._added_entry(file))
            manifests.append(writer.to_manifest_file())
        return manifests

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return manifests

    def _may_hold(self, files: Iterable[DataFile]) -> Callable[[ManifestFile], bool]:
        """Whether a manifest may list one of the files, by its partition spec and the partitions it spans."""
        partitions: dict[int, list[Record]] = defaultdict(list)
        for file in files:
            partitions[file.spec_id].append(file.partition)
        types = {
            id: [field.field_type for field in self.spec(id).partition_type(self.schema()).fields] for id in partitions
        }

        def may_hold(manifest: ManifestFile) -> bool:
            id, bounds = manifest.partition_spec_id, manifest.partitions or []
            return id in partitions and any(
                all(map(_spans, bounds, types[id], partition._data)) for partition in partitions[id]
            )

        return may_hold


def _spans(bounds: PartitionFieldSummary, type: IcebergType, value: Any) -> bool:
    """Whether a partition value lies within the bounds of a manifest."""
    if value is None:
        return bounds.contains_null
    value = plain_value(value)
    if isinstance(value, float) and math.isnan(value):
        return bounds.contains_nan is not False
    lower, upper = value_of_bytes(type, bounds.lower_bound), value_of_bytes(type, bounds.upper_bound)
    try:
        return (lower is None or lower <= value) and (upper is None or value <= upper)
    except TypeError:
        return True


class RewriteManifests(RewriteFiles):
    """Produces a snapshot of the same files, listed in manifests of the target size, those of a partition together."""

    def __init__(
        self,
        transaction: Transaction,
        io: FileIO,
        added_files: dict[int, list[DataFile]],
        snapshot_properties: dict[str, str],
        branch: str | None,
        snapshot_id: int,
    ) -> None:
        operation = Operation.REPLACE
        super().__init__(transaction, io, added_files, operation, snapshot_properties, branch, snapshot_id, {})

    def _existing_manifests(self) -> list[ManifestFile]:
        present = AppendFiles._existing_manifests(self)
        target_size_bytes = (
            property_as_int(
                self._transaction.table_metadata.properties,
                TableProperties.MANIFEST_TARGET_SIZE_BYTES,
                TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
            )
            or TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        )
        by_kind: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
        for manifest in present:
            by_kind[manifest.partition_spec_id, manifest.content].append(manifest)
        result: list[ManifestFile] = []
        for key, manifests in by_kind.items():
            size_bytes = sum(manifest.manifest_length for manifest in manifests)
            entries = [entry for manifest in manifests for entry in read_entries(self._io, manifest)]
            entries.sort(key=lambda entry: repr(entry.data_file.partition))
            pieces = max(1, -(-size_bytes // target_size_bytes))
            length = -(-len(entries) // pieces)
            for start in range(0, len(entries), length):
                result.append(self._manifest_of(*key, entries[start : start + length], ManifestEntryStatus.EXISTING))
        return result


def manifest_content(file: DataFile) -> ManifestContent:
    """The kind of manifest that lists a file."""
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES
