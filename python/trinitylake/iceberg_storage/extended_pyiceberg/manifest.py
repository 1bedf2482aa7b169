"""Reading and writing manifests and manifest lists: PyIceberg's own code, with what never changes prepared once.

PyIceberg derives the Avro schema, and a tree of readers or writers from it, anew for every file; for the small files
of a commit that is most of the work. Here a schema is prepared once. Entries are written in blocks of many instead
of one block each, which makes merged manifests smaller.

What is read has the fields of format version 3, whatever the version of its file; PyIceberg reads those of version 2
alone, and writes none of version 3.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from io import BytesIO
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import _SCHEMA_KEY, MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader, resolve_writer
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.typedef import StructProtocol, TableVersion
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trinitylake._core import is_named_once
from trinitylake.errors import CorruptFile, TrinityLakeError
from trinitylake.iceberg_storage.derived import Derived
from trinitylake.iceberg_storage.extended_pyiceberg import avro_doubles  # noqa: F401
from trinitylake.iceberg_storage.extended_pyiceberg.avro_encoding import Encode, encoder_of, number
from trinitylake.iceberg_storage.extended_pyiceberg.avro_weight import MAX_MANIFEST_SIZE_BYTES, Allowance
from trinitylake.iceberg_storage.extended_pyiceberg.partitioned_rows import share_nan
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import assigned, inherit

#: Where the header of an Avro file has the schema.
SCHEMA_KEY = _SCHEMA_KEY
MANIFEST_LIST_CACHE_MAX_MANIFESTS = 50_000
BLOCK_MAX_ENTRIES = 1000
#: Where a manifest keeps its bytes in a list.
_ENCODED = "_encoded_in_list"
#: The format version whose fields records have that were read.
READ_VERSION = 3

#: Fields by which a file is named, or a manifest: some look for the name, and some for the id.
_IDS = {"status": 0, "data_file": 2, "file_path": 100, "manifest_path": 500}
_PARTITION_ID = 102
_NAMES = {id: name for name, id in _IDS.items()}

Row = TypeVar("Row", bound=StructProtocol)


class AvroLayout(NamedTuple):
    """An Avro schema, and what encodes rows by it."""

    schema: Schema
    avro_schema: str
    encode: Encode


class PreparedOutput(AvroOutputFile[Row]):
    """An Avro file by a prepared layout. Rows are gathered into blocks."""

    def __init__(self, output_file: OutputFile, layout: AvroLayout, metadata: dict[str, str]) -> None:
        self.output_file = output_file
        self.file_schema = layout.schema
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.metadata = metadata
        self._avro_schema = layout.avro_schema
        self._encode = layout.encode
        self._block: list[bytes] = []
        self._block_rows = 0

    def __enter__(self) -> PreparedOutput[Row]:
        super().__enter__()
        return self

    def write_block(self, objects: list[Row]) -> None:
        for row in objects:
            self._encode(self._block.append, row)
        self._grown_by(len(objects))

    def write_encoded(self, rows: list[bytes]) -> None:
        """Rows that are encoded already."""
        self._block += rows
        self._grown_by(len(rows))

    def _grown_by(self, rows: int) -> None:
        self._block_rows += rows
        if self._block_rows >= BLOCK_MAX_ENTRIES:
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
        if not self._block_rows:
            return
        content = b"".join(self._block)
        if (codec := self.compression_codec()) is not None:
            content, _ = codec.compress(content)
        self.output_stream.write(b"".join((number(self._block_rows), number(len(content)), content, self.sync_bytes)))
        self._block, self._block_rows = [], 0

    def _write_header(self) -> None:
        codec = self.metadata.get(AVRO_CODEC_KEY, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)
        metadata = {**self.metadata, SCHEMA_KEY: self._avro_schema, AVRO_CODEC_KEY: codec}
        parts = [MAGIC, number(len(metadata))]
        for name, text in metadata.items():
            key, value = name.encode(), text.encode()
            parts += (number(len(key)), key, number(len(value)), value)
        self.output_stream.write(b"".join((*parts, number(0), self.sync_bytes)))


class EntryWriter(ManifestWriterV2):
    """Writes one manifest of a version 2 table."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        version = self.version
        layout, texts = _described[version].of(self._schema, self._spec, make=partial(self._description, version))
        return PreparedOutput(self._output_file, layout, {**texts, AVRO_CODEC_KEY: self._compression})

    def to_manifest_file(self) -> ManifestFile:
        """As PyIceberg's, which works out the types of the partitions each time, where there are none, too."""
        if self._spec.fields:
            return super().to_manifest_file()
        self.closed = True
        return ManifestFile.from_args(
            manifest_path=self._output_file.location,
            manifest_length=len(self._output_file),
            partition_spec_id=self._spec.spec_id,
            content=self.content(),
            sequence_number=UNASSIGNED_SEQ,
            min_sequence_number=UNASSIGNED_SEQ if self._min_sequence_number is None else self._min_sequence_number,
            added_snapshot_id=self._snapshot_id,
            added_files_count=self._added_files,
            existing_files_count=self._existing_files,
            deleted_files_count=self._deleted_files,
            added_rows_count=self._added_rows,
            existing_rows_count=self._existing_rows,
            deleted_rows_count=self._deleted_rows,
            partitions=[],
            key_metadata=None,
        )

    def _description(self, version: TableVersion) -> tuple[AvroLayout, dict[str, str]]:
        return _entry_layout(self._spec.partition_type(self._schema), version), self._meta


class EntryWriterV3(EntryWriter):
    """Writes one manifest of a version 3 table. The files of its entries need all fields (`row_ids.as_new`)."""

    @property
    def version(self) -> TableVersion:
        return 3


class DeleteEntryWriter(EntryWriter):
    """Writes one manifest of delete files, of a version 2 table."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        writer = super().new_writer()
        writer.metadata["content"] = "deletes"
        return writer


class WrittenList(NamedTuple):
    """A manifest list as it was written.

    Attributes:
        manifests: as it has them, with sequence numbers and row ids.
        row_ids: how many row ids it took; None in a table whose rows have none.
    """

    manifests: tuple[ManifestFile, ...]
    row_ids: int | None


def write_list(
    format_version: int,
    output_file: OutputFile,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    manifests: list[ManifestFile],
    compression: Any,
    first_row_id: int | None = None,
) -> WrittenList:
    """Write a manifest list, with sequence numbers and, in a table that has them, row ids from `first_row_id` on.

    What stands in it of manifests that were in a list before is not encoded again.
    """
    numbered = tuple(_with_sequence_number(manifest, sequence_number) for manifest in manifests)
    row_ids = None
    if format_version == 3:
        assert first_row_id is not None, "metadata of version 3 has the next one"
        numbered, next_row_id = assigned(numbered, first_row_id)
        row_ids = next_row_id - first_row_id
    elif format_version == 1:
        writer = write_manifest_list(1, output_file, snapshot_id, parent_snapshot_id, sequence_number, compression)
        with writer:
            writer.add_manifests(list(numbered))
        return WrittenList(numbered, row_ids)
    else:
        assert format_version == 2, "checked before anything was written"
    meta = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": str(parent_snapshot_id) if parent_snapshot_id is not None else "null",
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
        AVRO_CODEC_KEY: compression,
    }
    if format_version == 3:
        meta["first-row-id"] = str(first_row_id)
    layout = _list_layout(3 if format_version == 3 else 2)
    output: PreparedOutput[ManifestFile] = PreparedOutput(output_file, layout, meta)
    with output:
        output.write_encoded([_encoded(manifest, layout) for manifest in numbered])
    return WrittenList(numbered, row_ids)


def _encoded(manifest: ManifestFile, layout: AvroLayout) -> bytes:
    """A manifest as it stands in a list, which every later list of its table has as well."""
    known: tuple[AvroLayout, list[Any], bytes] | None = getattr(manifest, _ENCODED, None)
    if known is not None and known[0] is layout and known[1] == manifest._data:
        return known[2]
    parts: list[bytes] = []
    layout.encode(parts.append, manifest)
    encoded = b"".join(parts)
    setattr(manifest, _ENCODED, (layout, list(manifest._data), encoded))
    return encoded


def read_entries(io: FileIO, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:
    """The entries of a manifest, with what they inherit from it.

    Raises:
        TooHeavy: for one of more than 256 MiB.
        CorruptFile: for one that is damaged, or no manifest.
    """
    with _opened(io, manifest) as file:
        entries = [_inherit_from_manifest(entry, manifest) for entry in file]
    inherit(entries, manifest)
    if any(field.contains_nan is not False for field in manifest.partitions or ()):
        for entry in entries:
            share_nan(entry.data_file.partition)
    if discard_deleted:
        return [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    return entries


@contextmanager
def entries_in_turn(io: FileIO, manifest: ManifestFile) -> Iterator[tuple[list[int], Iterator[ManifestEntry]]]:
    """The ids of the partition fields of a manifest, and its entries one after the other, as they stand there.

    All entries at once take much more memory. Raises as `read_entries` does, perhaps when some were given.
    """
    with _opened(io, manifest) as file:
        partition = file.schema.find_type(_PARTITION_ID)
        yield [field.field_id for field in partition.fields] if isinstance(partition, StructType) else [], iter(file)


@contextmanager
def _opened(io: FileIO, manifest: ManifestFile) -> Iterator[_PreparedInput]:
    """A manifest to be read. Raises as `read_entries` does."""
    uri = manifest.manifest_path
    file = _PreparedInput(io.new_input(uri), MANIFEST_ENTRY_SCHEMAS[READ_VERSION])
    with _decoding("manifest", uri), file:
        yield file


@contextmanager
def _decoding(what: str, uri: str) -> Iterator[None]:
    """Say of whatever a decoder stumbles over which file it is: it takes what is damaged for numbers and texts, and
    knows no name. What storage says, and what is refused, is no damage. Raises `CorruptFile`.
    """
    try:
        yield
    except (TrinityLakeError, ValidationError, OSError, MemoryError):
        raise
    except Exception as error:
        told = "the schema in its header is missing" if isinstance(error, KeyError) else error or type(error).__name__
        raise CorruptFile(f"the {what} {uri} is damaged, or is none: {told}", path=uri) from error


def read_list(io: FileIO, uri: str) -> list[ManifestFile]:
    """The manifests of a manifest list. Raises `CorruptFile` for one that is damaged or names a manifest twice."""
    with io.new_input(uri).open() as stream:
        data = stream.read()
    with _decoding("manifest list", uri):
        Allowance(MAX_MANIFEST_SIZE_BYTES).spend(data, uri)
        with (
            _shallow_schema(),
            AvroFile[ManifestFile](
                _ReadFile(uri, data),
                MANIFEST_LIST_FILE_SCHEMAS[READ_VERSION],
                read_types={-1: ManifestFile, 508: PartitionFieldSummary},
                read_enums={517: ManifestContent},
            ) as file,
        ):
            _check_ids(file.schema)
            manifests = list(file)
    if len({manifest.manifest_path for manifest in manifests}) < len(manifests):  # all of its rows would count twice
        raise CorruptFile(f"the manifest list {uri} names a manifest twice", path=uri)
    return manifests


class _ReadFile(InputFile):
    """A file whose bytes are in memory: it is fetched, and weighed, once."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return cast(InputStream, BytesIO(self._data))


class _PreparedInput(AvroFile[ManifestEntry]):
    """A manifest to be read; the reader for its schema is made once."""

    def __enter__(self) -> _PreparedInput:
        with self.input_file.open() as stream:
            data = stream.read()
        Allowance(MAX_MANIFEST_SIZE_BYTES).spend(data, self.input_file.location)
        self.decoder = new_decoder(data)
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
        """The manifests of a list, from memory or from its file. Raises `InvalidLocation` for what `io` refuses."""
        io.new_input(uri)
        with self._lock:
            if (manifests := self._lists.get(uri)) is not None:
                self._lists.move_to_end(uri)
                return manifests
        manifests = tuple(read_list(io, uri))
        self.put(uri, manifests)
        return manifests

    def put(self, uri: str, manifests: tuple[ManifestFile, ...]) -> None:
        """Remember a list, with all sequence numbers assigned, if no other file can get its name."""
        with self._lock:
            if uri in self._lists or not is_named_once(uri):
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
    """The manifest with the sequence numbers that the commit gives to one it wrote (-1 until then)."""
    if UNASSIGNED_SEQ not in (manifest.sequence_number, manifest.min_sequence_number):
        return manifest
    copy = ManifestFile(*manifest._data)
    if copy.sequence_number == UNASSIGNED_SEQ:
        copy.sequence_number = sequence_number
    if copy.min_sequence_number == UNASSIGNED_SEQ:
        copy.min_sequence_number = sequence_number
    return copy


#: Of a schema and a partition spec, by format version.
_described: dict[int, Derived[tuple[AvroLayout, dict[str, str]]]] = {2: Derived(), 3: Derived()}


@lru_cache(maxsize=256)
def _entry_layout(partition_type: StructType, version: TableVersion) -> AvroLayout:
    # The fields of a version are the first ones of those of the next, so records that have more of them serve as well.
    data_file = data_file_with_partition(format_version=version, partition_type=partition_type)
    schema = manifest_entry_schema_with_data_file(format_version=version, data_file=data_file)
    return _layout(schema, "manifest_entry")


@lru_cache(maxsize=2)
def _list_layout(version: TableVersion) -> AvroLayout:
    return _layout(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")


def _layout(schema: Schema, name: str) -> AvroLayout:
    avro_schema = AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name)
    return AvroLayout(schema, json.dumps(avro_schema), encoder_of(resolve_writer(schema, schema)))


@contextmanager
def _shallow_schema() -> Iterator[None]:
    """Raises `ValueError` instead of `RecursionError`: a file whose schema nests without end is no use to anybody."""
    try:
        yield
    except RecursionError as error:
        raise ValueError("the schema of an Avro file nests too deeply") from error


def _check_ids(schema: Schema | StructType) -> None:
    """Raises `ValueError` for fields that one reader would take for a file's name, and another one would not."""
    ids = {field.field_id: field for field in schema.fields}
    if len(ids) < len(schema.fields):
        raise ValueError("the schema of an Avro file has two fields of one id")
    for field in schema.fields:
        if _IDS.get(field.name, field.field_id) != field.field_id or field.name != _NAMES.get(
            field.field_id, field.name
        ):
            raise ValueError(f"the schema of an Avro file has the field {field.name!r} with the id {field.field_id}")
    if (file := ids.get(_IDS["data_file"])) is not None and isinstance(file.field_type, StructType):
        _check_ids(file.field_type)


# Each takes up to `MAX_SCHEMA_SIZE_BYTES`.
@lru_cache(maxsize=32)
@_shallow_schema()
def _entry_reader(avro_schema: str) -> tuple[Schema, Reader]:
    schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    _check_ids(schema)
    reader = resolve_reader(
        schema,
        MANIFEST_ENTRY_SCHEMAS[READ_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    return schema, reader


_HEADER_READER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
