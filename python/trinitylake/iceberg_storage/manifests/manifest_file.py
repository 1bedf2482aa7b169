"""Manifests: reading and writing their entries, for every format version.

PyIceberg cannot write manifests of format version 3, and writes one Avro block for each entry. In this module, records
in memory have the fields of format version 3, also if the file has an earlier version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic_core import to_json
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFile, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import StructProtocol, TableVersion
from pyiceberg.types import BinaryType, FixedType, IntegerType, ListType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trinitylake.errors import CorruptFile, TrinityLakeError
from trinitylake.iceberg_storage.data_files.partitioned_rows import share_nan
from trinitylake.iceberg_storage.manifests.avro_file import MAX_MANIFEST_SIZE_BYTES, SCHEMA_KEY, SizeBudget, avro_bytes
from trinitylake.iceberg_storage.pyiceberg_patches import schema_with_sources
from trinitylake.iceberg_storage.row_ids import inherit_row_ids

Record = TypeVar("Record", bound=StructProtocol)

#: The format version whose fields all records have in memory.
RECORD_VERSION: TableVersion = 3

_PARTITION_ID = 102
#: Fields that some readers look up by name and others by id.
_IDS = {"status": 0, "data_file": 2, "file_path": 100, "manifest_path": 500}
_NAMES = {id: name for name, id in _IDS.items()}
_HEADER_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def write_manifest(
    io: FileIO,
    location: str,
    metadata: TableMetadata,
    spec: PartitionSpec,
    content: ManifestContent,
    entries: Sequence[ManifestEntry],
    snapshot_id: int,
) -> ManifestFile:
    """Write a manifest of a table.

    Args:
        spec: the partition spec of all entries.
        content: of the files that the entries list.
        entries: at least one.
        snapshot_id: the snapshot that adds the manifest.
    """
    version, schema = metadata.format_version, schema_with_sources(metadata)
    header = {
        "schema": schema.model_dump_json(),
        "partition-spec": to_json(spec.fields).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(version),
        AVRO_CODEC_KEY: avro_compression(metadata),
    }
    if version > 1:
        header["content"] = "data" if content == ManifestContent.DATA else "deletes"
    avro_schema, writer = _entry_writer(spec.partition_type(schema), version)
    data = avro_bytes(avro_schema, writer, entries, header)
    files, rows = dict.fromkeys(ManifestEntryStatus, 0), dict.fromkeys(ManifestEntryStatus, 0)
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
    live = [entry.sequence_number for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    added, existing, deleted = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
    manifest = ManifestFile.from_args(
        _table_format_version=RECORD_VERSION,
        manifest_path=location,
        manifest_length=len(data),
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=min((number for number in live if number is not None), default=UNASSIGNED_SEQ),
        added_snapshot_id=snapshot_id,
        added_files_count=files[added],
        existing_files_count=files[existing],
        deleted_files_count=files[deleted],
        added_rows_count=rows[added],
        existing_rows_count=rows[existing],
        deleted_rows_count=rows[deleted],
        partitions=construct_partition_summaries(spec, schema, [entry.data_file.partition for entry in entries]),
        key_metadata=None,
    )
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(data)
    return manifest


def avro_compression(metadata: TableMetadata) -> str:
    """The codec of manifests and manifest lists of a table."""
    properties, name = metadata.properties, TableProperties.WRITE_AVRO_COMPRESSION
    return properties.get(name, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)


def read_entries(io: FileIO, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
    """The entries of a manifest, with the fields that they inherit from the manifest.

    Raises:
        SizeLimitExceeded: for a manifest of more than 256 MiB.
        CorruptFile: for a file that is damaged, not a manifest, or not the manifest that the manifest list describes.
    """
    with _opened(io, manifest) as file:
        entries = list(file)
    _check_identity(entries, manifest)
    for entry in entries:
        _inherit(entry, manifest)
    inherit_row_ids(entries, manifest)
    if any(field.contains_nan is not False for field in manifest.partitions or ()):
        for entry in entries:
            share_nan(entry.data_file.partition)
    if discard_deleted:
        return [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    return entries


@contextmanager
def entries_in_turn(io: FileIO, manifest: ManifestFile) -> Iterator[tuple[list[int], Iterator[ManifestEntry]]]:
    """Context manager: the ids of the partition fields of a manifest, and an iterator of its stored entries.

    A list of all entries would take much more memory. The iterator also raises as `read_entries`.
    """
    with _opened(io, manifest) as file:
        partition = file.schema.find_type(_PARTITION_ID)
        yield [field.field_id for field in partition.fields] if isinstance(partition, StructType) else [], iter(file)


def _check_identity(entries: Sequence[ManifestEntry], manifest: ManifestFile) -> None:
    """Check that the added entries of a manifest belong to the snapshot that added the manifest."""
    added = {one.snapshot_id for one in entries if one.status == ManifestEntryStatus.ADDED}
    if added and manifest.added_snapshot_id is not None and added.isdisjoint({None, manifest.added_snapshot_id}):
        raise _another_manifest(manifest, f"it adds files in snapshot {added.pop()}, not {manifest.added_snapshot_id}")


def _another_manifest(manifest: ManifestFile, reason: str) -> CorruptFile:
    uri = manifest.manifest_path
    return CorruptFile(f"{uri} is another manifest than its list names: {reason}", path=uri)


def _inherit(entry: ManifestEntry, manifest: ManifestFile) -> None:
    """Set the fields that an entry inherits (Iceberg's specification, "Sequence Number Inheritance")."""
    if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
        entry.snapshot_id = manifest.added_snapshot_id
    if manifest.sequence_number == 0 or entry.status == ManifestEntryStatus.ADDED:
        if entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = manifest.sequence_number
    entry.data_file.spec_id = manifest.partition_spec_id


@contextmanager
def _opened(io: FileIO, manifest: ManifestFile) -> Iterator[RecordFile[ManifestEntry]]:
    uri = manifest.manifest_path
    file = RecordFile[ManifestEntry](io.new_input(uri), _entry_reader)
    with decoding("manifest", uri), file:
        if file.size_bytes != manifest.manifest_length:
            raise _another_manifest(manifest, f"it has {file.size_bytes} bytes, not {manifest.manifest_length}")
        yield file


@contextmanager
def decoding(what: str, uri: str) -> Iterator[None]:
    """Context manager that converts errors of a decoder to `CorruptFile`. Errors of the storage are not converted."""
    try:
        yield
    except (TrinityLakeError, ValidationError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = "the schema in its header is missing" if isinstance(error, KeyError) else error or type(error).__name__
        raise CorruptFile(f"{uri} is damaged, or is not a {what}: {reason}", path=uri) from error


class RecordFile(AvroFile[Record]):
    """Reader of a manifest or a manifest list.

    Args:
        reader_of: returns the schema and the reader of records for the Avro schema in the header. It should cache
            readers, because PyIceberg needs a millisecond to make one.
    """

    def __init__(self, file: InputFile, reader_of: Callable[[str], tuple[Schema, Reader]]) -> None:
        super().__init__(file)
        self._reader_of = reader_of

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            data = stream.read()
        SizeBudget(MAX_MANIFEST_SIZE_BYTES).spend(data, self.input_file.location)
        self.size_bytes = len(data)
        self.decoder = new_decoder(data)
        self.header = _HEADER_READER.read(self.decoder)
        self.schema, self.reader = self._reader_of(self.header.meta[SCHEMA_KEY])
        return self


def _check_field_ids(schema: Schema | StructType) -> None:
    """Raise `ValueError` for fields that readers by name and readers by id would interpret differently."""
    ids = {field.field_id: field for field in schema.fields}
    if len(ids) < len(schema.fields):
        raise ValueError("the schema of an Avro file has two fields with the same id")
    for field in schema.fields:
        if _IDS.get(field.name, field.field_id) != field.field_id or field.name != _NAMES.get(
            field.field_id, field.name
        ):
            raise ValueError(f"the schema of an Avro file has the field {field.name!r} with the id {field.field_id}")
    if (file := ids.get(_IDS["data_file"])) is not None and isinstance(file.field_type, StructType):
        _check_field_ids(file.field_type)


def record_reader(
    avro_schema: str, record_schema: Schema, types: dict[int, Any], enums: dict[int, Any]
) -> tuple[Schema, Reader]:
    """The schema of an Avro file, and a reader that converts its records to `record_schema`.

    Raises `ValueError` for a schema that nests too deeply or that other readers interpret differently.
    """
    try:
        schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
        _check_field_ids(schema)
        return schema, resolve_reader(schema, record_schema, types, enums)
    except RecursionError as error:
        raise ValueError("the schema of an Avro file nests too deeply") from error


@lru_cache(maxsize=32)  # a reader takes up to `MAX_SCHEMA_SIZE_BYTES`
def _entry_reader(avro_schema: str) -> tuple[Schema, Reader]:
    types, enums = {-1: ManifestEntry, 2: DataFile}, {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    return record_reader(avro_schema, MANIFEST_ENTRY_SCHEMAS[RECORD_VERSION], types, enums)


@lru_cache(maxsize=256)
def _entry_writer(partition_type: StructType, version: TableVersion) -> tuple[str, Writer]:
    """The Avro schema of the entries of a format version, and a writer for entries of `RECORD_VERSION`."""
    # Partition values of type `fixed` are stored as Avro's `bytes`, because Iceberg 1.11 for Java expects a length
    # before the value even if the schema says `fixed`. `equality_ids` are stored as `int`, as in the specification;
    # Java cannot read PyIceberg's `long`.
    # Names of partition fields are in ASCII, as Avro requires: DuckDB ends its process for other letters.
    partition_type = StructType(
        *(
            field.model_copy(
                update={
                    "name": re.sub("[^\\x00-\\x7f]", lambda found: f"_x{ord(found[0]):X}", field.name),
                    "field_type": BinaryType() if isinstance(field.field_type, FixedType) else field.field_type,
                }
            )
            for field in partition_type.fields
        )
    )
    file_schema, record_schema = (
        manifest_entry_schema_with_data_file(
            one, StructType(*map(_with_int, data_file_with_partition(partition_type, one).fields))
        )
        for one in (version, RECORD_VERSION)
    )
    avro_schema = AvroSchemaConversion().iceberg_to_avro(file_schema, schema_name="manifest_entry")
    return json.dumps(avro_schema), resolve_writer(record_schema, file_schema)


def _with_int(field: NestedField) -> NestedField:
    if field.name != "equality_ids":
        return field
    return field.model_copy(update={"field_type": ListType(136, IntegerType(), element_required=True)})
