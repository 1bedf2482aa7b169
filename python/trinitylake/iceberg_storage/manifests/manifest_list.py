"""Manifest lists: reading and writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import TableVersion
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.manifests.avro_file import avro_bytes
from trinitylake.iceberg_storage.manifests.manifest_file import (
    RECORD_VERSION,
    RecordFile,
    avro_compression,
    decoding,
    read_entries,
    record_reader,
)
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE, assigned, next_row_id_of, with_fields

#: Position of the field in a record.
_ADDED_SNAPSHOT_ID = 6


def write_list(
    io: FileIO,
    location: str,
    metadata: TableMetadata,
    manifests: Iterable[ManifestFile],
    snapshot_id: int,
    parent_snapshot_id: int | None,
) -> int | None:
    """Write the manifest list of a new snapshot of a table. Returns the number of assigned row ids, if any.

    New manifests get the next sequence number of `metadata` and, in format version 3, row ids. Raises `ValidationError`
    for delete files in a table of format version 1.
    """
    version, sequence_number = metadata.format_version, metadata.next_sequence_number()
    numbered = tuple(_with_sequence_number(manifest, sequence_number) for manifest in manifests)
    if version == 1 and any(one.content != ManifestContent.DATA for one in numbered):
        raise ValidationError("Cannot store delete manifests in a v1 table")
    row_ids = first_row_id = None
    if version >= ROW_IDS_SINCE:
        first_row_id = next_row_id_of(metadata)
        assert first_row_id is not None
        numbered, next_row_id = assigned(numbered, first_row_id)
        row_ids = next_row_id - first_row_id
    _store(io, location, metadata, numbered, (snapshot_id, parent_snapshot_id, sequence_number, first_row_id))
    return row_ids


def write_list_of(
    io: FileIO, location: str, metadata: TableMetadata, manifests: Sequence[ManifestFile], snapshot: Snapshot
) -> None:
    """Write another manifest list for an existing snapshot. The manifests already have sequence numbers and row ids."""
    ids = snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number or 0, snapshot.first_row_id
    _store(io, location, metadata, tuple(manifests), ids)


def _store(
    io: FileIO,
    location: str,
    metadata: TableMetadata,
    manifests: tuple[ManifestFile, ...],
    ids: tuple[int, int | None, int, int | None],
) -> None:
    snapshot_id, parent_snapshot_id, sequence_number, first_row_id = ids
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "format-version": str(metadata.format_version),
        AVRO_CODEC_KEY: avro_compression(metadata),
    }
    if metadata.format_version > 1:
        header["sequence-number"] = str(sequence_number)
    if first_row_id is not None:
        header["first-row-id"] = str(first_row_id)
    avro_schema, writer = _list_writer(metadata.format_version)
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(avro_bytes(avro_schema, writer, manifests, header))


@lru_cache(maxsize=3)
def _list_writer(version: TableVersion) -> tuple[str, Writer]:
    schema = MANIFEST_LIST_FILE_SCHEMAS[version]
    avro_schema = AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file")
    return json.dumps(avro_schema), resolve_writer(MANIFEST_LIST_FILE_SCHEMAS[RECORD_VERSION], schema)


def _with_sequence_number(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """A manifest with the sequence number of the commit instead of `UNASSIGNED_SEQ`."""
    if UNASSIGNED_SEQ not in (manifest.sequence_number, manifest.min_sequence_number):
        return manifest
    copy = with_fields(manifest, len(manifest))
    if copy.sequence_number == UNASSIGNED_SEQ:
        copy.sequence_number = sequence_number
    if copy.min_sequence_number == UNASSIGNED_SEQ:
        copy.min_sequence_number = sequence_number
    return copy


def read_list(io: FileIO, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    """The manifests of a snapshot, from its manifest list, with sequence numbers.

    Raises `CorruptFile` for a list that is damaged, belongs to another snapshot, or names a manifest twice. The list
    may be that of the parent snapshot, which a snapshot without changes may share.
    """
    uri = snapshot.manifest_list
    with decoding("manifest list", uri), RecordFile[ManifestFile](io.new_input(uri), _list_reader) as file:
        manifests = tuple(_with_snapshot(io, manifest) for manifest in file)
        id = file.header.meta.get("snapshot-id")
        is_of_another = id is not None and int(id) not in (snapshot.snapshot_id, snapshot.parent_snapshot_id)
    if is_of_another:
        raise CorruptFile(f"the manifest list {uri} belongs to snapshot {id}, not {snapshot.snapshot_id}", path=uri)
    if len({manifest.manifest_path for manifest in manifests}) < len(manifests):  # its rows would count twice
        raise CorruptFile(f"the manifest list {uri} names a manifest twice", path=uri)
    return manifests


@lru_cache(maxsize=32)  # a reader takes up to `MAX_SCHEMA_SIZE_BYTES`
def _list_reader(avro_schema: str) -> tuple[Schema, Reader]:
    types, enums = {-1: ManifestFile, 508: PartitionFieldSummary}, {517: ManifestContent}
    return record_reader(avro_schema, MANIFEST_LIST_FILE_SCHEMAS[RECORD_VERSION], types, enums)


def _with_snapshot(io: FileIO, manifest: ManifestFile) -> ManifestFile:
    """Set the snapshot that added a manifest, from its entries, if the list omits it as format version 1 permits."""
    if manifest.added_snapshot_id is None:
        entries = read_entries(io, manifest, discard_deleted=False)
        added = [entry.snapshot_id for entry in entries if entry.status != ManifestEntryStatus.EXISTING]
        manifest[_ADDED_SNAPSHOT_ID] = added[0] if added else 0
    return manifest
