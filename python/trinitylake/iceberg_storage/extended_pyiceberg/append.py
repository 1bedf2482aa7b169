"""Appending data files to a table: one new manifest per commit, older ones merged as they add up.

The manifest of the new files is never part of a merge, so an append can be redone on newer metadata (`rebase.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties, Transaction, snapshots
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _FastAppendFiles, _new_manifest_list_file_name
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.utils.properties import property_as_bool, property_as_int

from trinitylake.iceberg_storage.extended_pyiceberg.manifest import (
    DeleteEntryWriter,
    EntryWriter,
    EntryWriterV3,
    manifest_lists,
    read_entries,
    write_list,
)
from trinitylake.iceberg_storage.extended_pyiceberg.manifest_merging import FAN_IN, mergeable
from trinitylake.iceberg_storage.extended_pyiceberg.partition_types import schema_with_sources
from trinitylake.iceberg_storage.extended_pyiceberg.partitioned_rows import partition_path
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import ROW_IDS_SINCE, as_new, next_row_id_of
from trinitylake.iceberg_storage.own_files import own_file_check
from trinitylake.iceberg_storage.qualified_location import check_data_file


class AppendFiles(_FastAppendFiles):
    """Produces an append snapshot. Data files may be of any partition spec that the table still has.

    Args:
        added_files: takes the data files of the snapshot, by its id.
        snapshot_id: of the snapshot, if it is an earlier one made anew.
    """

    def __init__(
        self,
        transaction: Transaction,
        io: FileIO,
        added_files: dict[int, list[DataFile]],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = None,
        snapshot_id: int | None = None,
    ) -> None:
        super().__init__(
            operation=Operation.APPEND,
            transaction=transaction,
            io=io,
            snapshot_properties=snapshot_properties,
            branch=branch,
        )
        if snapshot_id is not None:
            self._snapshot_id = snapshot_id
        self._added_files = added_files

    def append_data_file(self, data_file: DataFile) -> AppendFiles:
        """Add a file. One that does not tell its partition spec was just written with the current one.

        Raises `InvalidLocation` for one that may not be named (`qualified_location.py`).
        """
        check_data_file(self._io, data_file)
        if not hasattr(data_file, "_spec_id"):
            data_file.spec_id = self._transaction.table_metadata.default_spec_id
        self._added_data_files.append(data_file)
        return self

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
        """The entries of a manifest."""
        return read_entries(self._io, manifest, discard_deleted)

    def schema(self) -> Schema:
        """The columns of the table, with the sources of all of its partition specs."""
        return schema_with_sources(self._transaction.table_metadata)

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        """A writer for one more manifest of this commit."""
        version = self._transaction.table_metadata.format_version
        if version < 2:
            return super().new_manifest_writer(spec)
        writer = EntryWriterV3 if version >= ROW_IDS_SINCE else EntryWriter
        return writer(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _commit(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        first_row_id = next_row_id_of(metadata)
        sequence_number = metadata.next_sequence_number()
        manifests = [*self._added_manifests(), *self._merged(self._existing_manifests())]
        location = self._transaction._table.location_provider().new_metadata_location(
            _new_manifest_list_file_name(self._snapshot_id, 0, self.commit_uuid)
        )
        self._written_manifest_lists.append(location)
        written = write_list(
            metadata.format_version,
            self._io.new_output(location),
            self._snapshot_id,
            self._parent_snapshot_id,
            sequence_number,
            manifests,
            self._compression,
            first_row_id,
        )
        manifest_lists.put(location, written.manifests)
        self._added_files[self._snapshot_id] = list(self._added_data_files)
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._snapshot_id,
                "parent-snapshot-id": self._parent_snapshot_id,
                "manifest-list": location,
                "sequence-number": sequence_number,
                "summary": self._summary(self.snapshot_properties),
                "schema-id": metadata.current_schema_id,
                "first-row-id": first_row_id,
                "added-rows": written.row_ids,
            }
        )
        added = AddSnapshotUpdate(snapshot=snapshot)
        branch = self._target_branch
        if branch is None:
            return (added,), ()
        head = metadata.refs.get(branch)
        update = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": self._snapshot_id}
        requirement = {"ref": branch, "snapshot-id": head.snapshot_id if head is not None else None}
        return (
            (added, SetSnapshotRefUpdate.model_validate(update)),
            (AssertRefSnapshotId.model_validate(requirement),),
        )

    def produce(self, parent_id: int | None) -> AddSnapshotUpdate:
        """Write the snapshot on another parent than the head of the branch. Raises `ValueError` if it cannot be."""
        self._parent_snapshot_id = parent_id
        (added, *_), _ = self._commit()
        assert isinstance(added, AddSnapshotUpdate)
        return added

    @property
    def written_uris(self) -> list[str]:
        """The manifests and manifest lists that were written so far."""
        return [*self._written_manifests, *self._written_manifest_lists]

    def _added_manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self._added_data_files:
            by_spec[file.spec_id].append(file)
        manifests = []
        for spec_id, files in by_spec.items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for file in files:
                    writer.add_entry(self._added_entry(file))
            manifests.append(writer.to_manifest_file())
        return manifests

    def _added_entry(self, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self._snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=as_new(file),
        )

    def _existing_manifests(self) -> list[ManifestFile]:
        if self._parent_snapshot_id is None:
            return []
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        if parent is None:
            raise ValueError(f"Snapshot could not be found: {self._parent_snapshot_id}")
        manifests = manifest_lists.read(self._io, parent.manifest_list)
        return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """The same entries in fewer manifests, if enough of one size have gathered.

        Those outside of the folder of the table stay as they are: what they tell of files is not copied into others.
        """
        properties = self._transaction.table_metadata.properties
        if not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, True):
            return manifests
        fan_in = max(2, property_as_int(properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, FAN_IN) or FAN_IN)
        target_size_bytes = property_as_int(
            properties, TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        )
        target_size_bytes = target_size_bytes or TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        groups = mergeable(manifests, fan_in, target_size_bytes)
        if groups:
            is_own = own_file_check(self._io, self._transaction.table_metadata)
            if not all(is_own(manifest.manifest_path) for group in groups for manifest in group):
                own = [manifest for manifest in manifests if is_own(manifest.manifest_path)]
                groups = mergeable(own, fan_in, target_size_bytes)
        if not groups:
            return manifests
        gone = {manifest.manifest_path for group in groups for manifest in group}
        merged = []
        for group in groups:
            entries = [entry for manifest in group for entry in read_entries(self._io, manifest)]
            kind = (group[0].partition_spec_id, ManifestContent.DATA)
            merged.append(self._manifest_of(*kind, entries, ManifestEntryStatus.EXISTING))
        return merged + [manifest for manifest in manifests if manifest.manifest_path not in gone]

    def _writer(self, spec_id: int, content: ManifestContent) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(self.spec(spec_id))
        output = self.new_manifest_output()
        return DeleteEntryWriter(self.spec(spec_id), self.schema(), output, self._snapshot_id, self._compression)

    def _manifest_of(
        self, spec_id: int, content: ManifestContent, entries: list[ManifestEntry], status: ManifestEntryStatus
    ) -> ManifestFile:
        with self._writer(spec_id, content) as writer:
            for entry in entries:
                is_gone = status == ManifestEntryStatus.DELETED
                snapshot_id = self._snapshot_id if is_gone else entry.snapshot_id
                numbers = entry.sequence_number, entry.file_sequence_number
                writer.add_entry(ManifestEntry(status, snapshot_id, *numbers, entry.data_file))
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata = self._transaction.table_metadata
        specs, schema = metadata.specs(), self.schema()
        limit = property_as_int(
            metadata.properties,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT,
        )
        paths: Any = _PartitionPaths
        collector = SnapshotSummaryCollector(partition_summary_limit=limit or 0)
        for file in self._added_data_files:
            collector.add_file(data_file=file, partition_spec=paths(specs[file.spec_id]), schema=schema)
        for file in self._deleted_data_files:  # of a subclass: an append has none
            collector.remove_file(data_file=file, partition_spec=paths(specs[file.spec_id]), schema=schema)
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        before = parent.summary if parent is not None else None
        return Summary(
            operation=self._operation,
            **with_totals(
                {**collector.build(), **snapshot_properties},
                before.additional_properties if before is not None else None,
            ),
        )


@dataclass(frozen=True)
class _PartitionPaths:
    """What PyIceberg's summaries need of a partition spec, with paths for all values."""

    spec: PartitionSpec

    def partition_to_path(self, data: Record, schema: Schema) -> str:
        return partition_path(self.spec, schema, data)


#: Totals of a snapshot, each with what was added to it and what was taken from it.
_TOTALS = [
    (snapshots.TOTAL_DATA_FILES, snapshots.ADDED_DATA_FILES, snapshots.DELETED_DATA_FILES),
    (snapshots.TOTAL_DELETE_FILES, snapshots.ADDED_DELETE_FILES, snapshots.REMOVED_DELETE_FILES),
    (snapshots.TOTAL_RECORDS, snapshots.ADDED_RECORDS, snapshots.DELETED_RECORDS),
    (snapshots.TOTAL_FILE_SIZE, snapshots.ADDED_FILE_SIZE, snapshots.REMOVED_FILE_SIZE),
    (snapshots.TOTAL_POSITION_DELETES, snapshots.ADDED_POSITION_DELETES, snapshots.REMOVED_POSITION_DELETES),
    (snapshots.TOTAL_EQUALITY_DELETES, snapshots.ADDED_EQUALITY_DELETES, snapshots.REMOVED_EQUALITY_DELETES),
]


def with_totals(changes: dict[str, str], before: Mapping[str, str] | None) -> dict[str, str]:
    """What a snapshot tells of its changes, with the totals that follow from those of its parent.

    As PyIceberg's `update_snapshot_summaries`, which counts none for `replace`. A total that the parent does not tell
    is not told. Raises `ValueError` for what is no number.
    """
    told = dict(changes)
    for total, added, removed in _TOTALS:
        known = before.get(total) if before is not None else "0"
        if not known:
            continue
        try:
            count = int(known)
            if count >= 0:
                count += int(told.get(added) or 0)
            if count >= 0:
                count -= int(told.get(removed) or 0)
        except ValueError as error:
            raise ValueError(f"Could not parse summary property {total} to an int: {known}") from error
        if count >= 0:
            told[total] = str(count)
    return told
