"""Rewrites the metadata of a managed table after its lakehouse was moved, so that all URIs have the present root.

Iceberg's files reference each other by absolute URIs. The lakehouse resolves URIs of former roots (format §2), but an
engine that opens a metadata file does not. Relocation rewrites the files that contain URIs: the metadata file, manifest
lists, manifests and position deletes. Data files, equality deletes and statistics contain no URIs. The old files remain
for older versions of the lakehouse.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from trinitylake.errors import CorruptFile, InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet, reading
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.manifests.avro_file import SCHEMA_KEY, avro_bytes
from trinitylake.iceberg_storage.metadata import encoded, metadata_uri, new_file_stem, read_metadata, with_log_entry
from trinitylake.iceberg_storage.metadata_compression import file_bytes
from trinitylake.iceberg_storage.puffin import with_data_files
from trinitylake.iceberg_storage.table_properties import LOCATION_PROPERTIES

#: Ids of fields with a URI, or with the size of a rewritten file (Iceberg's specification).
MANIFEST_PATH, MANIFEST_LENGTH = 500, 501
DATA_FILE, FILE_PATH, _FILE_FORMAT, FILE_SIZE_BYTES = 2, 100, 101, 104
_LOWER_BOUNDS, _UPPER_BOUNDS, _CONTENT, _REFERENCED_DATA_FILE = 125, 128, 134, 143
#: The column of a position delete file with the path of the data file.
_DELETED_FILE_PATH, _DELETED_FILE_PATH_ID = "file_path", 2147483546


class TableRelocation:
    """Rewrites one table.

    Args:
        io: the file access of the lakehouse, which records the written files.
        dry_run: build the files only in memory.

    Attributes:
        files: number of files that were written, or would be with `dry_run` unset.
    """

    def __init__(self, io: LakehouseFileIO, *, dry_run: bool = False) -> None:
        self._io = io
        self._dry_run = dry_run
        self._present_root = canonical_uri(io.root)
        self._moved: dict[str, tuple[str, int]] = {}  # new URI and size of a manifest or delete file, by its old URI
        self._bounds: dict[str, tuple[bytes, bytes]] = {}  # of the paths in a new delete file
        self.files = 0

    def run(self, metadata_path: str, table_id: str) -> str | None:
        """Rewrite the table. Returns the path of the new metadata file; None if the table only names the present root.

        Raises:
            CorruptFile, FileNotFoundError: for a file that is damaged or missing.
            InvalidArgument: for position deletes in a format other than Parquet and Puffin.
        """
        uri = self._io.uri_of(metadata_path)
        metadata = read_metadata(self._io, uri, table_id=table_id)
        relocated = self._relocated(metadata)
        if relocated is None:
            return None
        relocated = with_log_entry(relocated, uri, metadata)
        path = self._io.path_of(metadata_uri(relocated, new_file_stem(metadata_path)))
        self._store(path, file_bytes(encoded(relocated), path))
        return path

    def _relocated(self, metadata: TableMetadata) -> TableMetadata | None:
        properties = {
            name: self._relocated_uri(value) if name in LOCATION_PROPERTIES else value
            for name, value in metadata.properties.items()
        }
        changes: dict[str, Any] = {
            "location": self._relocated_uri(metadata.location),
            "properties": properties,
            "snapshots": [
                one.model_copy(update={"manifest_list": self._manifest_list(one.manifest_list, one.snapshot_id)})
                for one in metadata.snapshots
            ],
        }
        for name, uri in (
            ("metadata_log", "metadata_file"),
            ("statistics", "statistics_path"),
            ("partition_statistics", "statistics_path"),
        ):
            changes[name] = [
                one.model_copy(update={uri: self._relocated_uri(getattr(one, uri))}) for one in getattr(metadata, name)
            ]
        if all(getattr(metadata, name) == value for name, value in changes.items()):
            return None
        return metadata.model_copy(update=changes)

    def _relocated_uri(self, uri: str) -> str:
        """The URI with the present root instead of a former root. A URI outside of the lakehouse is unchanged."""
        if canonical_uri(uri).startswith(self._present_root):
            return uri
        try:
            return self._io.uri_of(self._io.path_of(uri.rstrip("/")))
        except InvalidLocation:
            return uri

    def _manifest_list(self, uri: str, snapshot_id: int) -> str:
        def relocate(row: Record, at: dict[int, int]) -> None:
            row[at[MANIFEST_PATH]], size_bytes = self._manifest(row[at[MANIFEST_PATH]])
            if size_bytes is not None:
                row[at[MANIFEST_LENGTH]] = size_bytes

        return self._avro(uri, relocate, f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro")[0]

    def _manifest(self, uri: str) -> tuple[str, int | None]:
        """The new URI of a manifest, and its size if it was rewritten."""
        if uri not in self._moved:
            new_uri, size_bytes = self._avro(uri, self._entry, f"{uuid.uuid4()}-m0.avro")
            if size_bytes is None:
                return new_uri, None
            self._moved[uri] = new_uri, size_bytes
        return self._moved[uri]

    def _entry(self, entry: Record, at: dict[int, int]) -> None:
        self._data_file(entry[at[DATA_FILE]], at)

    def _data_file(self, file: Record, at: dict[int, int]) -> None:
        uri = file[at[FILE_PATH]]
        file[at[FILE_PATH]] = self._relocated_uri(uri)
        if _REFERENCED_DATA_FILE in at and file[at[_REFERENCED_DATA_FILE]] is not None:
            file[at[_REFERENCED_DATA_FILE]] = self._relocated_uri(file[at[_REFERENCED_DATA_FILE]])
        if _CONTENT not in at or file[at[_CONTENT]] != DataFileContent.POSITION_DELETES.value:
            return
        format = str(file[at[_FILE_FORMAT]]).lower()
        rewrites = {"puffin": self._deletion_vectors, "parquet": self._position_deletes}
        if format not in rewrites:
            raise InvalidArgument(f"{uri}: position deletes as {file[at[_FILE_FORMAT]]} files cannot be relocated")
        if uri not in self._moved:
            if (data := rewrites[format](uri)) is None:
                self._moved[uri] = self._relocated_uri(uri), file[at[FILE_SIZE_BYTES]]
            else:
                path = self._sibling_path(uri, f"{uuid.uuid4()}-deletes.{format}")
                self._store(path, data)
                self._moved[uri] = self._uri_of(path), len(data)
        file[at[FILE_PATH]], file[at[FILE_SIZE_BYTES]] = self._moved[uri]
        if uri in self._bounds:
            for field, bound in zip((_LOWER_BOUNDS, _UPPER_BOUNDS), self._bounds[uri], strict=True):
                if file[at[field]]:
                    file[at[field]] = {**file[at[field]], _DELETED_FILE_PATH_ID: bound}

    def _deletion_vectors(self, uri: str) -> bytes | None:
        """The new content of a Puffin file; None if it does not change."""
        with self._io.new_input(uri).open() as stream:
            data = stream.read()
        try:
            here = with_data_files(data, self._relocated_uri)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(f"{uri}: deletion vectors cannot be read: {error}", path=uri) from error
        return None if here == data else here

    def _position_deletes(self, uri: str) -> bytes | None:
        """The new content of a position delete file; None if it does not change."""
        with self._io.new_input(uri).open() as stream, reading(uri, has_known_types=True):
            file = open_parquet(pa.BufferReader(stream.read()))
            rows = file.read()
        paths = rows.column(_DELETED_FILE_PATH)
        here = {one: self._relocated_uri(one) for one in pc.unique(paths).to_pylist()}
        if all(old == new for old, new in here.items()):
            return None
        position = rows.schema.get_field_index(_DELETED_FILE_PATH)
        renamed = pa.array([here[one] for one in paths.to_pylist()], rows.schema.field(position).type)
        rows = rows.set_column(position, rows.schema.field(position), renamed)
        buffer = io.BytesIO()
        compression = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
        with pq.ParquetWriter(buffer, rows.schema, compression=compression, write_page_checksum=True) as writer:
            writer.write_table(rows)
        self._bounds[uri] = min(here.values()).encode(), max(here.values()).encode()
        return buffer.getvalue()

    def _avro(
        self, uri: str, relocate: Callable[[Record, dict[int, int]], None], new_name: str
    ) -> tuple[str, int | None]:
        """Apply `relocate` to the rows of an Avro file. Returns the URI, and the size if the file was rewritten."""
        data = self._rewritten(uri, relocate)
        if data is None:
            return self._relocated_uri(uri), None
        path = self._sibling_path(uri, new_name)
        self._store(path, data)
        return self._uri_of(path), len(data)

    def _rewritten(self, uri: str, relocate: Callable[[Record, dict[int, int]], None]) -> bytes | None:
        """The bytes of an Avro file after `relocate` on each row, with the same schema; None without changes."""
        with AvroFile[Record](self._io.new_input(uri)) as file:
            rows = list(file)
            header, schema, sync = dict(file.header.meta), file.schema, file.header.sync
        at = positions(schema)
        before = [_copy_of(row) for row in rows]
        for row in rows:
            relocate(row, at)
        if rows == before:
            return None
        # Keep the sync marker, so that each export writes the same bytes.
        return avro_bytes(header.pop(SCHEMA_KEY), construct_writer(schema), rows, header, sync)

    def _uri_of(self, path: str) -> str:
        return self._io.uri_of(path)

    def _sibling_path(self, uri: str, name: str) -> str:
        folder, _, _ = self._io.path_of(uri).rpartition("/")
        return f"{folder}/{name}"

    def _store(self, path: str, data: bytes) -> None:
        self.files += 1
        if not self._dry_run:
            self._io.put(path, data, overwrite=False)


def positions(schema: Schema) -> dict[int, int]:
    """Positions of fields by id, for the fields of the schema and of its struct `data_file`."""
    at = {field.field_id: position for position, field in enumerate(schema.fields)}
    if DATA_FILE in at:
        data_file: Any = schema.find_type(DATA_FILE)
        at |= {field.field_id: position for position, field in enumerate(data_file.fields)}
    return at


def _copy_of(record: Record) -> Record:
    """A copy of the record and of nested records."""
    values = (record[position] for position in range(len(record)))
    return Record(*(_copy_of(value) if isinstance(value, Record) else value for value in values))
