"""Rewrites snapshots of a table so that none of their files contains rows that match a filter.

Each affected file is replaced by at most one new file, which all snapshots share:

- A data file is replaced by a file with the same columns and without the matching rows. Row ids and sequence numbers do
  not change.
- A position delete file or deletion vector of a replaced data file is replaced by one with the positions in the new
  data file.
- An equality delete file with values of the filter is removed. The rows that it deletes are removed from the new data
  files of the snapshots that have it.
- A manifest or manifest list with an entry of a replaced file is replaced by one with the entry of the new file.

A snapshot keeps its id, its parent and its place in the log, so that tags and branches of the table remain valid. Each
branch of the latest version gets a new head with the same files, so that a client that read the former head conflicts.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.data_file_writer import write_data_file
from trinitylake.iceberg_storage.data_files.equality_deletes import EqualityDeleteIndex
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import (
    positions_in,
    write_position_deletes,
    write_position_file,
)
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE, POSITION, PlannedFile, carried_schema
from trinitylake.iceberg_storage.delete_files import blob_of, file_key, is_vector, referenced_data_file
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries, write_manifest
from trinitylake.iceberg_storage.manifests.manifest_list import read_list, write_list_of
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.puffin import with_data_files
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in
from trinitylake.iceberg_storage.row_ids import (
    ROW_IDS_SINCE,
    first_row_id_of_file,
    first_row_id_of_manifest,
    with_first_row_id,
    with_values,
)
from trinitylake.iceberg_storage.row_search import RowSearch, with_schema
from trinitylake.iceberg_storage.table_file_io import own_file_check

#: Fields of a data file's manifest entry that depend on its content.
_OF_CONTENT = [
    "file_path",
    "file_size_in_bytes",
    "record_count",
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
]
#: Prefixes of summary fields that name partitions or count them.
_PARTITIONS = "partitions.", "partition-summaries-included", "changed-partition-count"


class _Replaced(NamedTuple):
    """The file that replaces a data file (None if no row remains), and the ascending positions of the removed rows."""

    file: DataFile | None
    removed: np.ndarray


class _Manifest(NamedTuple):
    """Replacement of a manifest.

    Attributes:
        snapshot_id: the snapshot that added the manifest.
        file: the new manifest; None if it would have no entries.
        replaced: the replaced data files, by their paths.
        live: changes of the counts of live files, keyed by the end of their names in a snapshot summary.
        added: changes of the counts of files that the snapshot of the manifest adds.
        removed: changes of the counts of files that the snapshot of the manifest removes.
    """

    snapshot_id: int | None
    file: ManifestFile | None
    replaced: dict[str, _Replaced]
    live: Counter[str]
    added: Counter[str]
    removed: Counter[str]


def with_new_heads(io: LakehouseFileIO, metadata: TableMetadata) -> TableMetadata:
    """The metadata with a new snapshot of the same files at the head of each branch.

    Rewritten snapshots keep their ids. A client that loaded a snapshot before it was rewritten would commit its former
    manifests. With the new head, this commit conflicts.
    """
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            updates, _ = SnapshotProducer(metadata, io, Operation.REPLACE, branch=name).updates()
            metadata = apply_updates(metadata, updates)
    return metadata


class TableEraser:
    """Rewrites metadata files of one table. All of them share the new files.

    Args:
        io: the file access of the lakehouse, which records the written files.
        is_text: returns whether a string contains a value of the filter. Comments of columns and values in summaries of
            snapshots that contain a value are removed.
        on_file: called after each rewritten data file.
    """

    def __init__(
        self, io: LakehouseFileIO, is_text: Callable[[str], bool], on_file: Callable[[], object] = lambda: None
    ) -> None:
        self._io = io
        self._is_text = is_text
        self._on_file = on_file
        self._data_files: dict[tuple[Hashable, ...], DataFile | None] = {}
        self._newest: dict[str, DataFile | None] = {}
        self._matching: dict[tuple[Hashable, ...], np.ndarray] = {}
        self._delete_files: dict[tuple[Hashable, ...], DataFile | None] = {}
        self._referenced: dict[str, frozenset[str]] = {}
        self._manifests: dict[tuple[Hashable, ...], _Manifest] = {}
        self._snapshots: dict[tuple[Hashable, ...], Snapshot] = {}

    def is_affected(self, metadata: TableMetadata, search: RowSearch) -> bool:
        """Whether `erased` changes the metadata."""
        return (
            bool(search.snapshots(metadata))
            or any(map(self._has_text, metadata.snapshots))
            or any(self._without_texts(one) is not one for one in metadata.schemas)
        )

    def erased(self, metadata: TableMetadata, search: RowSearch) -> TableMetadata:
        """The metadata without matching rows, which the caller stores. Returns `metadata` if there is nothing to erase.

        Raises `InvalidArgument` for files that cannot be rewritten.
        """
        affected, own = search.snapshots(metadata), search.own_columns(metadata)
        snapshots = {one.snapshot_id: one for one in metadata.snapshots}
        # In this order, because the entry that removes a rewritten file in a later snapshot must name the new file.
        for one in sorted(metadata.snapshots, key=lambda one: (one.sequence_number or 0, one.timestamp_ms)):
            if one.snapshot_id in affected:
                snapshots[one.snapshot_id] = self._snapshot(metadata, search, one, own)
            elif self._has_text(one):
                snapshots[one.snapshot_id] = one.model_copy(update={"summary": self._summary(one, None)})
        schemas = [self._without_texts(one) for one in metadata.schemas]
        changed = [one for one in metadata.snapshots if snapshots[one.snapshot_id] is not one]
        if not changed and schemas == metadata.schemas:
            return metadata
        return metadata.model_copy(
            update={
                "snapshots": [snapshots[one.snapshot_id] for one in metadata.snapshots],
                "schemas": schemas,
                "statistics": [one for one in metadata.statistics if one.snapshot_id not in affected],
                "partition_statistics": [
                    one for one in metadata.partition_statistics if one.snapshot_id not in affected
                ],
            }
        )

    def _has_text(self, snapshot: Snapshot) -> bool:
        return snapshot.summary is not None and any(map(self._is_text, snapshot.summary.additional_properties.values()))

    def _without_texts(self, schema: Schema) -> Schema:
        """The schema without comments that contain a value of the filter."""

        def stripped(part: Any) -> Any:
            if isinstance(part, dict):
                return {
                    name: stripped(value)
                    for name, value in part.items()
                    if not (name == "doc" and isinstance(value, str) and self._is_text(value))
                }
            return [stripped(one) for one in part] if isinstance(part, list) else part

        before = schema.model_dump(mode="json", by_alias=True)
        after = stripped(before)
        return schema if after == before else Schema.model_validate(after)

    def _snapshot(
        self, metadata: TableMetadata, search: RowSearch, snapshot: Snapshot, own: frozenset[int]
    ) -> Snapshot:
        key = snapshot.snapshot_id, snapshot.manifest_list, own
        if key not in self._snapshots:
            location, counts = self._new_list(metadata, search, snapshot)
            update = {"manifest_list": location, "summary": self._summary(snapshot, counts)}
            self._snapshots[key] = snapshot.model_copy(update=update)
        return self._snapshots[key]

    def _summary(self, snapshot: Snapshot, changes: Counter[str] | None) -> Summary | None:
        """The summary of a snapshot without values of the filter. With changed counts, partitions are left out too."""
        if snapshot.summary is None:
            return None
        kept = {}
        for name, value in snapshot.summary.additional_properties.items():
            if self._is_text(name) or self._is_text(value) or (changes is not None and name.startswith(_PARTITIONS)):
                continue
            if changes is not None and changes[name] and value.isdecimal():
                value = str(int(value) + changes[name])
                if value == "0" and not name.startswith("total-"):
                    continue
            kept[name] = value
        return Summary(snapshot.summary.operation, **kept)

    def _new_list(self, metadata: TableMetadata, search: RowSearch, snapshot: Snapshot) -> tuple[str, Counter[str]]:
        """Write the manifest list of a snapshot. Returns its location and the changes of the counts in the summary."""
        if snapshot.first_row_id is None and metadata.format_version >= ROW_IDS_SINCE:
            # The snapshot is older than the upgrade to version 3.
            metadata = metadata.model_copy(update={"format_version": 2})
        manifests = read_list(self._io, snapshot)
        deletes = [
            (one, read_entries(self._io, one, discard_deleted=False))
            for one in manifests
            if one.content == ManifestContent.DELETES
        ]
        folded = EqualityDeleteIndex(metadata)
        names = []
        for entry in (entry for _, entries in deletes for entry in entries):
            if _is_live(entry) and _is_by_values(entry.data_file) and search.count(metadata, entry.data_file):
                folded.add(entry.data_file, entry.sequence_number or 0)
                names.append(entry.data_file.file_path)
        context: tuple[Hashable, ...] = search.own_columns(metadata), *sorted(names)
        replaced: dict[str, _Replaced] = {}
        found: list[_Manifest] = []
        for one in manifests:
            if one.content == ManifestContent.DATA:
                found.append(self._data_manifest(metadata, search, one, folded if names else None, context))
                replaced |= found[-1].replaced
        for one, entries in deletes:
            found.append(self._delete_manifest(metadata, search, one, entries, replaced))
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_metadata_location(f"snap-{snapshot.snapshot_id}-0-{uuid.uuid4()}.avro")
        write_list_of(self._io, location, metadata, [one.file for one in found if one.file is not None], snapshot)
        more: Counter[str] = Counter()
        for new in found:
            more.update({f"total-{name}": count for name, count in new.live.items()})
            if new.snapshot_id == snapshot.snapshot_id:
                more.update({f"added-{name}": count for name, count in new.added.items()})
                more.update({_removed_name(name): count for name, count in new.removed.items()})
        return location, more

    def _data_manifest(
        self,
        metadata: TableMetadata,
        search: RowSearch,
        manifest: ManifestFile,
        folded: EqualityDeleteIndex | None,
        context: tuple[Hashable, ...],
    ) -> _Manifest:
        if not search.is_listed_by(metadata, manifest) and folded is None:
            return _unchanged(manifest)
        key = manifest.manifest_path, first_row_id_of_manifest(manifest), *context
        if key not in self._manifests:
            entries = read_entries(self._io, manifest, discard_deleted=False)
            replaced: dict[str, _Replaced] = {}
            new: list[DataFile | None] = []
            for entry in entries:
                file = entry.data_file
                if not _is_live(entry):
                    is_gone = search.matches(metadata, file, is_deleted=True)
                    new.append(self._newest.get(canonical_uri(file.file_path), None if is_gone else file))
                    continue
                removed = self._removed(metadata, search, entry, folded)
                if len(removed):
                    path = canonical_uri(file.file_path)
                    replaced[path] = _Replaced(self._data_file(metadata, entry, removed), removed)
                    self._newest[path] = replaced[path].file
                new.append(replaced[path].file if len(removed) else file)
            self._manifests[key] = self._written(metadata, manifest, entries, new)._replace(replaced=replaced)
        return self._manifests[key]

    def _removed(
        self, metadata: TableMetadata, search: RowSearch, entry: ManifestEntry, folded: EqualityDeleteIndex | None
    ) -> np.ndarray:
        """Ascending positions of the rows of a data file that match the filter, or that a removed equality delete
        deleted.
        """
        file, number = entry.data_file, entry.sequence_number or 0
        removed = np.empty(0, np.int64)
        if search.count(metadata, file):
            key = file.file_path, search.own_columns(metadata)
            if key not in self._matching:
                self._matching[key] = search.positions(metadata, file)
            removed = self._matching[key]
        if folded is not None and (by_values := folded.of(file, number)):
            task = PlannedFile(
                file, {one.file for one in by_values}, sequence_number=number, equality_deletes=by_values
            )
            removed = np.union1d(removed, LiveRows(metadata, self._io, [task]).deleted(task))
        return removed

    def _data_file(self, metadata: TableMetadata, entry: ManifestEntry, removed: np.ndarray) -> DataFile | None:
        """Replacement of a data file, with all columns but without the removed rows; None if no row remains."""
        old = entry.data_file
        if len(removed) == old.record_count:
            return None
        key = old.file_path, first_row_id_of_file(old), removed.tobytes()
        if key not in self._data_files:
            if old.file_format != FileFormat.PARQUET:
                raise InvalidArgument(
                    f"cannot erase rows in {old.file_path}: only Parquet files can be rewritten; compact the table "
                    "with the engine that wrote the file, and erase again"
                )
            if variants := [name for schema in metadata.schemas for name in variants_in(schema)]:
                raise InvalidArgument(
                    f"cannot erase rows in {old.file_path}: column {variants[0]} is a variant, which cannot be written"
                )
            written = self._rewritten(metadata, entry, removed)
            self._data_files[key] = with_values(old, {name: getattr(written, name) for name in _OF_CONTENT})
            self._on_file()
        return self._data_files[key]

    def _rewritten(self, metadata: TableMetadata, entry: ManifestEntry, removed: np.ndarray) -> DataFile:
        old = entry.data_file
        task = PlannedFile(old, sequence_number=entry.sequence_number)
        stored = LiveRows(metadata, self._io, []).columns_of(task)
        lineage = {field.field_id for field in LINEAGE}
        own = Schema(*(field for field in stored.fields if field.field_id not in lineage), schema_id=_NO_SCHEMA)
        of_file = with_schema(metadata, own)
        columns = own if first_row_id_of_file(old) is None else carried_schema(of_file)
        names = [field.name for field in columns.fields]

        def kept() -> Iterator[pa.Table]:
            for batch in LiveRows(of_file, self._io, []).batches(task, [*names, POSITION.name]):
                stays = pa.array(~np.isin(batch.column(POSITION.name).to_numpy(), removed))
                yield pa.Table.from_batches([batch.filter(stays).select(names)])

        return write_data_file(metadata, columns, self._io, self._new_location(metadata, old, "parquet"), kept())

    def _new_location(self, metadata: TableMetadata, old: DataFile, ending: str) -> str:
        """A new location in the folder of the old file, or in the table's folder if the old file is outside of it."""
        name = f"{uuid.uuid4()}.{ending}"
        if own_file_check(self._io, metadata)(old.file_path):
            return f"{old.file_path.rpartition('/')[0]}/{name}"
        return str(load_location_provider(metadata.location, metadata.properties).new_data_location(name))

    def _delete_manifest(
        self,
        metadata: TableMetadata,
        search: RowSearch,
        manifest: ManifestFile,
        entries: list[ManifestEntry],
        replaced: dict[str, _Replaced],
    ) -> _Manifest:
        new = [self._delete_file(metadata, search, entry, replaced) for entry in entries]
        if all(one is entry.data_file for one, entry in zip(new, entries, strict=True)):
            return _unchanged(manifest)
        key = manifest.manifest_path, *(None if one is None else file_key(one) for one in new)
        if key not in self._manifests:
            self._manifests[key] = self._written(metadata, manifest, entries, new)
        return self._manifests[key]

    def _delete_file(
        self, metadata: TableMetadata, search: RowSearch, entry: ManifestEntry, replaced: dict[str, _Replaced]
    ) -> DataFile | None:
        """Replacement of a delete file, which may be the same file; None if the delete file is dropped."""
        old = entry.data_file
        if _is_by_values(old):
            return None if search.matches(metadata, old, is_deleted=not _is_live(entry)) else old
        if not _is_live(entry) and not self._io.new_input(old.file_path).exists():
            return None if canonical_uri(referenced_data_file(old) or "") in self._newest else old
        names_changed = not self._data_files_of(old).isdisjoint(replaced if _is_live(entry) else self._newest)
        if not names_changed and not search.count(metadata, old):
            return old
        if not _is_live(entry):
            return None  # only earlier snapshots use this delete file, and they list its replacement
        names = (replaced[path].file for path in sorted(self._data_files_of(old)) if path in replaced)
        key = *file_key(old), *(None if file is None else file.file_path for file in names)
        if key not in self._delete_files:
            self._delete_files[key] = self._new_delete_file(metadata, old, replaced)
        return self._delete_files[key]

    def _new_delete_file(
        self, metadata: TableMetadata, old: DataFile, replaced: dict[str, _Replaced]
    ) -> DataFile | None:
        try:
            listed = positions_in(self._io, old)
        except ValueError as error:
            raise InvalidArgument(f"cannot erase rows of files that {old.file_path} names: {error}") from error
        positions: dict[str, np.ndarray] = {}
        for path, before in listed.items():
            path = canonical_uri(path)
            if path not in replaced:
                positions[path] = before
            elif (file := replaced[path].file) is not None:
                removed = replaced[path].removed
                stay = before[~np.isin(before, removed)]
                positions[file.file_path] = stay - np.searchsorted(removed, stay)
        positions = {path: found for path, found in sorted(positions.items()) if len(found)}
        if not positions:
            return None
        if not is_vector(old):
            return write_position_file(metadata, self._io, old, positions)
        ((path, found),) = positions.items()
        of = with_values(old, {"file_path": path})
        (file,) = write_position_deletes(metadata, self._io, [(of, found)])
        return file

    def _data_files_of(self, file: DataFile) -> frozenset[str]:
        """The data files that are named in a position delete file or Puffin file, also by other vectors in it."""
        path = file.file_path
        if path not in self._referenced:
            found: set[str] = set()

            def seen(name: str) -> str:
                found.add(name)
                return name

            if is_vector(file):
                with self._io.new_input(path).open() as stream:
                    with_data_files(stream.read(), seen)
            else:
                found = set(positions_in(self._io, file))
            self._referenced[path] = frozenset(map(canonical_uri, found))
        return self._referenced[path]

    def _written(
        self,
        metadata: TableMetadata,
        manifest: ManifestFile,
        entries: Iterable[ManifestEntry],
        new: Iterable[DataFile | None],
    ) -> _Manifest:
        """Write a manifest whose entries have the files `new`."""
        snapshot_id = manifest.added_snapshot_id or 0
        kept: list[ManifestEntry] = []
        live: Counter[str] = Counter()
        added: Counter[str] = Counter()
        removed: Counter[str] = Counter()
        for entry, file in zip(entries, new, strict=True):
            change = Counter(_counts(file))
            change.subtract(_counts(entry.data_file))
            if _is_live(entry):
                live.update(change)
            if entry.snapshot_id == snapshot_id:
                by_status = {ManifestEntryStatus.ADDED: added, ManifestEntryStatus.DELETED: removed}
                by_status.get(entry.status, Counter()).update(change)
            if file is not None:
                numbers = entry.sequence_number, entry.file_sequence_number
                kept.append(ManifestEntry(entry.status, entry.snapshot_id, *numbers, file))
        if not kept:
            return _Manifest(snapshot_id, None, {}, live, added, removed)
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_metadata_location(f"{uuid.uuid4()}-m0.avro")
        spec = metadata.specs()[manifest.partition_spec_id]
        written = write_manifest(self._io, location, metadata, spec, manifest.content, kept, snapshot_id)
        written.sequence_number = manifest.sequence_number
        if written.min_sequence_number == UNASSIGNED_SEQ:
            written.min_sequence_number = manifest.min_sequence_number
        return _Manifest(snapshot_id, with_first_row_id(written, manifest), {}, live, added, removed)


#: An id that no schema of a table has.
_NO_SCHEMA = 1 << 30


def _unchanged(manifest: ManifestFile) -> _Manifest:
    return _Manifest(manifest.added_snapshot_id, manifest, {}, Counter(), Counter(), Counter())


def _is_live(entry: ManifestEntry) -> bool:
    return bool(entry.status != ManifestEntryStatus.DELETED)


def _is_by_values(file: DataFile) -> bool:
    return bool(file.content == DataFileContent.EQUALITY_DELETES)


def _counts(file: DataFile | None) -> dict[str, int]:
    """Counts of a file for the summary of a snapshot, keyed by the ends of their names in it."""
    if file is None:
        return {}
    blob = blob_of(file)
    size_bytes = file.file_size_in_bytes if blob is None else blob[1]
    if file.content == DataFileContent.DATA:
        return {"data-files": 1, "records": file.record_count, "files-size": size_bytes}
    kind = "equality" if _is_by_values(file) else "position"
    files = "dvs" if is_vector(file) else f"{kind}-delete-files"
    return {"delete-files": 1, files: 1, f"{kind}-deletes": file.record_count, "files-size": size_bytes}


def _removed_name(name: str) -> str:
    return f"deleted-{name}" if name in ("data-files", "records") else f"removed-{name}"
