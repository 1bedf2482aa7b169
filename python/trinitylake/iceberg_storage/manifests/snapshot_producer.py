"""Makes snapshots from added and removed files: append, overwrite, delete, compaction, rewritten manifests.

A snapshot can be produced again on another parent, with the same data files and new manifests. New manifests list the
added files, one manifest per partition spec and content, and are not merged in this snapshot. Delete files are added
and removed like data files. A removed data file must be present. A removed delete file may be absent, because another
delete file may have replaced it.

Manifests are merged like the runs of a log-structured merge tree: `FAN_IN` manifests of about the same size become one.
So a scan of a table after n appends reads about FAN_IN/2 · log(n) manifests, and each entry is rewritten about log(n)
times. PyIceberg either never merges manifests, or rewrites all entries at each append. The properties
`commit.manifest-merge.enabled`, `commit.manifest.min-count-to-merge` and `commit.manifest.target-size-bytes` of the
table override the defaults.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate, UpdatesAndRequirements
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.utils.properties import property_as_bool, property_as_int

from trinitylake.iceberg_storage.column_summary import of_bounds, plain_value
from trinitylake.iceberg_storage.data_files.partitioned_rows import partition_path, values_of
from trinitylake.iceberg_storage.delete_files import blob_of, file_key
from trinitylake.iceberg_storage.errors import RowConflict
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.locations import check_data_file
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries, write_manifest
from trinitylake.iceberg_storage.manifests.manifest_list import read_list, write_list
from trinitylake.iceberg_storage.pyiceberg_patches import schema_with_sources
from trinitylake.iceberg_storage.row_ids import as_new, next_row_id_of
from trinitylake.iceberg_storage.table_file_io import own_file_check

#: Number of manifests of about the same size that are merged into one.
FAN_IN = 10


def mergeable(manifests: Sequence[ManifestFile], fan_in: int, target_size_bytes: int) -> list[list[ManifestFile]]:
    """Groups of manifests to merge. The manifests of a group have the same content and partition spec.

    A manifest of level k lists at least `fan_in ** k` live files. A level with `fan_in` manifests is merged. If the
    result completes the next level, the manifests of that level belong to the same group. Manifests of at least half of
    the target size are not merged.
    """
    if len(manifests) < fan_in:
        return []
    by_kind: dict[tuple[int, ManifestContent], dict[int, list[ManifestFile]]] = defaultdict(lambda: defaultdict(list))
    for manifest in manifests:
        if manifest.manifest_length < target_size_bytes // 2:
            kind = manifest.partition_spec_id, manifest.content
            by_kind[kind][_level(_live_files(manifest), fan_in)].append(manifest)
    groups = []
    for levels in by_kind.values():
        group: list[ManifestFile] = []
        level = 0
        while level <= max(levels):
            members = levels.get(level, [])
            if len(members) + bool(group) >= fan_in:
                fitting = _fitting(group + members, target_size_bytes)
                if len(fitting) <= len(group):
                    break
                group = fitting
                level = max(level + 1, _level(sum(map(_live_files, group)), fan_in))
            elif group:
                break
            else:
                level += 1
        if len(group) > 1:
            groups.append(group)
    return groups


def _fitting(manifests: list[ManifestFile], target_size_bytes: int) -> list[ManifestFile]:
    """The longest prefix of `manifests` that fits into the target size."""
    size_bytes = 0
    for position, manifest in enumerate(manifests):
        size_bytes += manifest.manifest_length
        if size_bytes > target_size_bytes:
            return manifests[:position]
    return manifests


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _level(files: int, fan_in: int) -> int:
    level = 0
    while files >= fan_in:
        files //= fan_in
        level += 1
    return level


_ADDED, _EXISTING, _DELETED = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED


class SnapshotProducer:
    """Makes one snapshot of a table.

    Args:
        metadata: of the table that the snapshot is added to.
        operation: of the snapshot. `REPLACE` without files rewrites the manifests of the parent.
        properties: for the summary of the snapshot.
        branch: the branch whose head the snapshot becomes; None for a snapshot without a branch.
        snapshot_id: id of a snapshot that is produced again.
        sequence_numbers: by path, for added files that must count as older than the snapshot.

    Attributes:
        written_uris: the manifests and manifest lists that were written.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        operation: Operation,
        properties: Mapping[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
        snapshot_id: int | None = None,
        sequence_numbers: Mapping[str, int] = EMPTY_DICT,
    ) -> None:
        ref = metadata.refs.get(branch) if branch is not None else None
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise ValueError(f"{branch} is a tag, not a branch. Tags cannot be targets for producing snapshots")
        self._metadata = metadata
        self._io = io
        self._operation = operation
        self._properties = properties
        self._branch = branch
        self._id = metadata.new_snapshot_id() if snapshot_id is None else snapshot_id
        self._sequence_numbers = sequence_numbers
        self._added: list[DataFile] = []
        self._removed: dict[tuple[str, int | None], DataFile] = {}
        self._specs = metadata.specs()
        self._names, self._numbers = uuid.uuid4(), count()
        self.written_uris: list[str] = []

    def add(self, files: Iterable[DataFile]) -> SnapshotProducer:
        """Add data files and delete files. A file without a partition spec gets the current partition spec.

        Raises `InvalidLocation` for a file that a commit may not name (`locations.py`).
        """
        for file in files:
            check_data_file(self._io, file)
            if not hasattr(file, "spec_id"):
                file.spec_id = self._metadata.default_spec_id
            self._added.append(file)
        return self

    def remove(self, files: Iterable[DataFile]) -> SnapshotProducer:
        self._removed.update((file_key(file), file) for file in files)
        return self

    def updates(self) -> UpdatesAndRequirements:
        """Write the snapshot on the head of its branch. Returns the updates and requirements of its commit.

        Raises as `produce`.
        """
        head = self._metadata.snapshot_by_name(self._branch)
        added = AddSnapshotUpdate(snapshot=self.produce(None if head is None else head.snapshot_id))
        if self._branch is None:
            return (added,), ()
        ref = self._metadata.refs.get(self._branch)
        moved = {"ref-name": self._branch, "type": SnapshotRefType.BRANCH, "snapshot-id": self._id}
        required = {"ref": self._branch, "snapshot-id": None if ref is None else ref.snapshot_id}
        return (added, SetSnapshotRefUpdate.model_validate(moved)), (AssertRefSnapshotId.model_validate(required),)

    def produce(self, parent_id: int | None) -> Snapshot:
        """Write the snapshot on a parent.

        Raises `RowConflict` if a removed data file is absent, and `ValueError` if the parent is absent.
        """
        metadata = self._metadata
        parent = None if parent_id is None else metadata.snapshot_by_id(parent_id)
        if parent is None and parent_id is not None:
            raise ValueError(f"Snapshot could not be found: {parent_id}")
        manifests = [*self._new_manifests(), *self._carried_over(parent)]
        location = self._new_location(f"snap-{self._id}-0-{self._names}.avro")
        row_ids = write_list(self._io, location, metadata, manifests, self._id, parent_id)
        return Snapshot.model_validate(
            {
                "snapshot-id": self._id,
                "parent-snapshot-id": parent_id,
                "manifest-list": location,
                "sequence-number": metadata.next_sequence_number(),
                "summary": self._summary(parent),
                "schema-id": metadata.current_schema_id,
                "first-row-id": next_row_id_of(metadata),
                "added-rows": row_ids,
            }
        )

    def _new_manifests(self) -> list[ManifestFile]:
        by_kind: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for file in self._added:
            number = self._sequence_numbers.get(file.file_path)
            by_kind[file.spec_id, manifest_content(file)].append(
                ManifestEntry(_ADDED, self._id, number, None, as_new(file))
            )
        return [self._written(*kind, entries) for kind, entries in by_kind.items()]

    def _carried_over(self, parent: Snapshot | None) -> list[ManifestFile]:
        """The manifests of the parent without removed files, and manifests that list the removed files."""
        if parent is None:
            present = []
        else:
            manifests = read_list(self._io, parent)
            present = [one for one in manifests if one.has_added_files() or one.has_existing_files()]
        if self._operation == Operation.REPLACE and not self._removed and not self._added:
            return self._rewritten(present)
        new, kept = self._without_removed(present) if self._removed else ([], present)
        return new + self._merged(kept)

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """The same entries in fewer manifests, if enough manifests of one size are present."""
        # Manifests outside of the folder of the table are not merged, because their content is not trusted.
        properties = self._metadata.properties
        if not property_as_bool(properties, TableProperties.MANIFEST_MERGE_ENABLED, True):
            return manifests
        fan_in = max(2, property_as_int(properties, TableProperties.MANIFEST_MIN_MERGE_COUNT, FAN_IN) or FAN_IN)
        target_size_bytes = self._target_size_bytes()
        groups = mergeable(manifests, fan_in, target_size_bytes)
        if groups:
            is_own = own_file_check(self._io, self._metadata)
            groups = mergeable([one for one in manifests if is_own(one.manifest_path)], fan_in, target_size_bytes)
        gone = {manifest.manifest_path for group in groups for manifest in group}
        merged = [
            self._existing(group[0].partition_spec_id, group[0].content, self._entries(group)) for group in groups
        ]
        return merged + [manifest for manifest in manifests if manifest.manifest_path not in gone]

    def _rewritten(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """The same entries in manifests of the target size. Entries of one partition are in the same manifest."""
        target_size_bytes = self._target_size_bytes()
        by_kind: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
        for manifest in manifests:
            by_kind[manifest.partition_spec_id, manifest.content].append(manifest)
        rewritten: list[ManifestFile] = []
        for kind, some in by_kind.items():
            entries = sorted(self._entries(some), key=lambda entry: repr(entry.data_file.partition))
            pieces = max(1, -(-sum(manifest.manifest_length for manifest in some) // target_size_bytes))
            length = -(-len(entries) // pieces)
            for start in range(0, len(entries), length):
                rewritten.append(self._existing(*kind, entries[start : start + length]))
        return rewritten

    def _without_removed(self, manifests: list[ManifestFile]) -> tuple[list[ManifestFile], list[ManifestFile]]:
        """New manifests for removed files and for the other files of their manifests, and the unchanged manifests."""
        wanted = self._removed.keys()
        may_list = self._may_list_removed()
        new: list[ManifestFile] = []
        kept: list[ManifestFile] = []
        removed: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for manifest in manifests:
            entries = self._entries([manifest]) if may_list(manifest) else []
            gone = [entry for entry in entries if file_key(entry.data_file) in wanted]
            if not gone:
                kept.append(manifest)
                continue
            kind = manifest.partition_spec_id, manifest.content
            removed[kind] += gone
            if staying := [entry for entry in entries if file_key(entry.data_file) not in wanted]:
                new.append(self._existing(*kind, staying))
        found = {file_key(entry.data_file): entry.data_file for entries in removed.values() for entry in entries}
        missing = [file for key, file in self._removed.items() if key not in found]
        if data := [file.file_path for file in missing if manifest_content(file) == ManifestContent.DATA]:
            raise RowConflict(
                f"assert-ref-snapshot-id: data file {min(data)}, which {self._operation.value} removes, was removed by "
                "another commit"
            )
        self._removed = found
        listed = [
            self._written(
                *kind,
                [
                    ManifestEntry(_DELETED, self._id, one.sequence_number, one.file_sequence_number, one.data_file)
                    for one in entries
                ],
            )
            for kind, entries in removed.items()
        ]
        return listed + new, kept

    def _may_list_removed(self) -> Callable[[ManifestFile], bool]:
        """Whether a manifest may list a removed file, by its content, partition spec and partition bounds."""
        contents = {manifest_content(file) for file in self._removed.values()}
        partitions: dict[int, list[Record]] = defaultdict(list)
        for file in self._removed.values():
            partitions[file.spec_id].append(file.partition)
        schema = schema_with_sources(self._metadata)
        types = {id: [field.field_type for field in self._specs[id].partition_type(schema).fields] for id in partitions}

        def may_list(manifest: ManifestFile) -> bool:
            id, bounds = manifest.partition_spec_id, manifest.partitions or []
            return (
                manifest.content in contents
                and id in partitions
                and any(
                    all(
                        of_bounds(type, known).may_hold(plain_value(value))
                        for type, known, value in zip(types[id], bounds, values_of(partition), strict=False)
                    )
                    for partition in partitions[id]
                )
            )

        return may_list

    def _entries(self, manifests: Sequence[ManifestFile]) -> list[ManifestEntry]:
        if isinstance(self._io, LakehouseFileIO):
            self._io.read_ahead([(one.manifest_path, one.manifest_length) for one in manifests])
        return [entry for manifest in manifests for entry in read_entries(self._io, manifest)]

    def _existing(self, spec_id: int, content: ManifestContent, entries: Iterable[ManifestEntry]) -> ManifestFile:
        kept = [
            ManifestEntry(_EXISTING, one.snapshot_id, one.sequence_number, one.file_sequence_number, one.data_file)
            for one in entries
        ]
        return self._written(spec_id, content, kept)

    def _written(self, spec_id: int, content: ManifestContent, entries: list[ManifestEntry]) -> ManifestFile:
        location = self._new_location(f"{self._names}-m{next(self._numbers)}.avro")
        return write_manifest(self._io, location, self._metadata, self._specs[spec_id], content, entries, self._id)

    def _new_location(self, name: str) -> str:
        provider = load_location_provider(self._metadata.location, self._metadata.properties)
        location = provider.new_metadata_location(name)
        self.written_uris.append(location)
        return location

    def _target_size_bytes(self) -> int:
        default = TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        name = TableProperties.MANIFEST_TARGET_SIZE_BYTES
        return property_as_int(self._metadata.properties, name, default) or default

    def _summary(self, parent: Snapshot | None) -> Summary:
        schema = schema_with_sources(self._metadata)
        limit = property_as_int(
            self._metadata.properties,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT,
        )
        collector = SnapshotSummaryCollector(partition_summary_limit=limit or 0)
        collector.metrics, collector.partition_metrics = _Metrics(), defaultdict(_Metrics)
        paths: dict[int, Any] = {id: _PartitionPaths(spec) for id, spec in self._specs.items()}
        for file in self._added:
            collector.add_file(file, schema, paths[file.spec_id])
        for file in self._removed.values():
            collector.remove_file(file, schema, paths[file.spec_id])
        # PyIceberg has no totals for `replace`.
        counted = Summary(operation=Operation.OVERWRITE, **collector.build(), **self._properties)
        totals = update_snapshot_summaries(counted, None if parent is None else parent.summary)
        return Summary(operation=self._operation, **totals.additional_properties)


class _Metrics(UpdateMetrics):
    """Metrics for the summary of a snapshot. As in Iceberg for Java, a deletion vector counts with its own size, not
    with the size of its Puffin file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._vectors: dict[str, int] = defaultdict(int)

    def add_file(self, data_file: DataFile) -> None:
        super().add_file(data_file)
        if (blob := blob_of(data_file)) is not None:
            self._vectors["added-dvs"] += 1
            self.added_pos_delete_files -= 1
            self.added_file_size += blob[1] - data_file.file_size_in_bytes

    def remove_file(self, data_file: DataFile) -> None:
        super().remove_file(data_file)
        if (blob := blob_of(data_file)) is not None:
            self._vectors["removed-dvs"] += 1
            self.removed_pos_delete_files -= 1
            self.removed_file_size += blob[1] - data_file.file_size_in_bytes

    def to_dict(self) -> dict[str, str]:
        return super().to_dict() | {name: str(count) for name, count in self._vectors.items()}


@dataclass(frozen=True)
class _PartitionPaths:
    """The part of a partition spec that PyIceberg's summaries use. It supports values that PyIceberg cannot format."""

    spec: PartitionSpec

    def partition_to_path(self, data: Record, schema: Schema) -> str:
        return partition_path(self.spec, schema, data)


def manifest_content(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES
