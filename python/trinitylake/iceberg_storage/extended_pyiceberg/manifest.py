"""Reading and writing manifests and manifest lists: PyIceberg's own code, with what never changes prepared once.

PyIceberg derives the Avro schema, and a tree of readers or writers from it, anew for every file; for the small files
of a commit that is most of the work. Here a schema is prepared once. Entries are written in blocks of many instead
of one block each, which makes merged manifests smaller.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import _SCHEMA_KEY, MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, construct_writer, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriter,
    ManifestListWriterV2,
    ManifestWriterV2,
    _inherit_from_manifest,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

#: Where the header of an Avro file has the schema.
SCHEMA_KEY = _SCHEMA_KEY
MANIFEST_LIST_CACHE_MAX_MANIFESTS = 50_000
BLOCK_MAX_ENTRIES = 1000

Row = TypeVar("Row", bound=StructProtocol)


class AvroLayout(NamedTuple):
    """An Avro schema, and what writes rows by it."""

    schema: Schema
    avro_schema: str
    writer: Writer


class PreparedOutput(AvroOutputFile[Row]):
    """An Avro file by a prepared layout. Rows are gathered into blocks."""

    def __init__(self, output_file: OutputFile, layout: AvroLayout, metadata: dict[str, str]) -> None:
        self.output_file = output_file
        self.file_schema = layout.schema
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer = layout.writer
        self.metadata = metadata
        self._avro_schema = layout.avro_schema
        self._block: list[Row] = []

    def write_block(self, objects: list[Row]) -> None:
        self._block.extend(objects)
        if len(self._block) >= BLOCK_MAX_ENTRIES:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self.output_stream.close()
        else:
            self.output_stream.__exit__(kind, error, traceback)  # which discards the file

    def _flush(self) -> None:
        if self._block:
            super().write_block(self._block)
            self._block = []

    def _write_header(self) -> None:
        codec = self.metadata.get(AVRO_CODEC_KEY, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)
        metadata = {**self.metadata, SCHEMA_KEY: self._avro_schema, AVRO_CODEC_KEY: codec}
        _HEADER_WRITER.write(self.encoder, AvroFileHeader(MAGIC, metadata, self.sync_bytes))


class EntryWriter(ManifestWriterV2):
    """Writes one manifest of a version 2 table."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return PreparedOutput(self._output_file, _entry_layout(self._spec.partition_type(self._schema)), self._meta)


class ListWriter(ManifestListWriterV2):
    """Writes one manifest list of a version 2 table."""

    def __enter__(self) -> ManifestListWriter:
        self._writer = PreparedOutput(self._output_file, _list_layout(), self._meta)
        self._writer.__enter__()
        return self


def write_list(
    format_version: int,
    output_file: OutputFile,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    manifests: list[ManifestFile],
    compression: Any,
) -> tuple[ManifestFile, ...]:
    """Write a manifest list; the manifests as it has them, with their sequence numbers assigned."""
    assigned = tuple(_with_sequence_number(manifest, sequence_number) for manifest in manifests)
    if format_version == 2:
        writer: ManifestListWriter = ListWriter(
            output_file, snapshot_id, parent_snapshot_id, sequence_number, compression
        )
    else:
        assert format_version == 1, "checked before anything was written"
        writer = write_manifest_list(1, output_file, snapshot_id, parent_snapshot_id, sequence_number, compression)
    with writer:
        writer.add_manifests(list(assigned))
    return assigned


def read_entries(io: FileIO, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
    """The entries of a manifest, with what they inherit from it."""
    with _PreparedInput(io.new_input(manifest.manifest_path), MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]) as file:
        return [
            _inherit_from_manifest(entry, manifest)
            for entry in file
            if not discard_deleted or entry.status != ManifestEntryStatus.DELETED
        ]


class _PreparedInput(AvroFile[ManifestEntry]):
    """A manifest to be read; the reader for its schema is made once."""

    def __enter__(self) -> _PreparedInput:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = _HEADER_READER.read(self.decoder)
        self.schema, self.reader = _entry_reader(self.header.meta[SCHEMA_KEY])
        return self


class ManifestListCache:
    """The manifests of manifest lists by URI, the least recently used dropped first. Such a file never changes.

    Safe to share between threads.
    """

    def __init__(self, max_manifests: int = MANIFEST_LIST_CACHE_MAX_MANIFESTS) -> None:
        self._lists: OrderedDict[str, tuple[ManifestFile, ...]] = OrderedDict()
        self._manifests = 0
        self._max_manifests = max_manifests
        self._lock = threading.Lock()

    def read(self, io: FileIO, uri: str) -> tuple[ManifestFile, ...]:
        """The manifests of a list, from memory or from its file."""
        with self._lock:
            if (manifests := self._lists.get(uri)) is not None:
                self._lists.move_to_end(uri)
                return manifests
        manifests = tuple(read_manifest_list(io.new_input(uri)))
        self.put(uri, manifests)
        return manifests

    def put(self, uri: str, manifests: tuple[ManifestFile, ...]) -> None:
        """Remember a list, with all sequence numbers assigned."""
        with self._lock:
            if uri in self._lists:
                return
            self._lists[uri] = manifests
            self._manifests += len(manifests)
            while len(self._lists) > 1 and self._manifests > self._max_manifests:
                _, dropped = self._lists.popitem(last=False)
                self._manifests -= len(dropped)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._lists.clear()
            self._manifests = 0


manifest_lists = ManifestListCache()


def _with_sequence_number(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """A copy with the sequence numbers that the commit gives to a manifest it wrote (-1 until then)."""
    copy = ManifestFile(*manifest._data)
    if copy.sequence_number == UNASSIGNED_SEQ:
        copy.sequence_number = sequence_number
    if copy.min_sequence_number == UNASSIGNED_SEQ:
        copy.min_sequence_number = sequence_number
    return copy


@lru_cache(maxsize=256)
def _entry_layout(partition_type: StructType) -> AvroLayout:
    schemas = [
        manifest_entry_schema_with_data_file(
            format_version=version,
            data_file=data_file_with_partition(format_version=version, partition_type=partition_type),
        )
        for version in (2, DEFAULT_READ_VERSION)
    ]
    return _layout(schemas[0], schemas[1], "manifest_entry")


@lru_cache(maxsize=1)
def _list_layout() -> AvroLayout:
    return _layout(MANIFEST_LIST_FILE_SCHEMAS[2], MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION], "manifest_file")


def _layout(file_schema: Schema, record_schema: Schema, name: str) -> AvroLayout:
    avro_schema = AvroSchemaConversion().iceberg_to_avro(file_schema, schema_name=name)
    return AvroLayout(file_schema, json.dumps(avro_schema), resolve_writer(record_schema, file_schema))


@lru_cache(maxsize=256)
def _entry_reader(avro_schema: str) -> tuple[Schema, Reader]:
    schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    reader = resolve_reader(
        schema,
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    return schema, reader


_HEADER_WRITER = construct_writer(META_SCHEMA)
_HEADER_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
