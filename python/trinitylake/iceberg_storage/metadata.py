"""Reads, caches and writes Iceberg table metadata as immutable values.

PyIceberg deep-copies the metadata each time that a transaction reads it, about 18 times per append. Its models are
frozen and its updates replace lists, so the copies are unnecessary. In this library, changed metadata shares all
unchanged parts with the metadata before the change.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import uuid
import zlib
from collections import OrderedDict
from contextlib import nullcontext

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile
from pyiceberg.serializers import Compressor
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import MetadataLogEntry

from trinitylake._core import is_named_once
from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import (
    IndexedMetadataV3,
    indexed,
    json_size_bytes,
    sized,
)
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile
from trinitylake.iceberg_storage.metadata_compression import file_suffix
from trinitylake.iceberg_storage.table_properties import logged_files
from trinitylake.iceberg_storage.update_checks import collected_by_lakehouse

#: Limits of the cache: number of files, and size of their JSON. Parsed metadata takes 14 times (with many snapshots) to
#: 30 times (with many columns) the memory of its JSON. Parts that files share count for each file.
CACHE_MAX_TABLES = 256
CACHE_MAX_SIZE_BYTES = 16 << 20

#: Maximum size of a decompressed file.
MAX_SIZE_BYTES = 512 << 20
#: Larger files are parsed one at a time.
LARGE_SIZE_BYTES = 256 << 10

_FILE_NAME = re.compile(r"(\d+)-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")


#: The URI of a metadata file, and the time of the newest known garbage collection.
CacheKey = tuple[str, int]


def cache_key(io: FileIO, uri: str) -> CacheKey:
    """The cache key of a metadata file. It does not depend on the content of the file."""
    return uri, io.storage.collected_before_millis if isinstance(io, LakehouseFileIO) else 0


class MetadataCache:
    """LRU cache of parsed metadata files by URI. Thread-safe.

    Files whose names may be used again, such as `v3.metadata.json` of an imported table, are not cached. An erasure of
    rows replaces files of older versions, and ends with a garbage collection. So the key includes the newest known
    garbage collection.
    """

    def __init__(self, max_tables: int = CACHE_MAX_TABLES, max_size_bytes: int = CACHE_MAX_SIZE_BYTES) -> None:
        self._entries: OrderedDict[CacheKey, TableMetadata] = OrderedDict()
        self._size_bytes = 0
        self._max_tables = max_tables
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> TableMetadata | None:
        """The metadata of a file; None if it is not cached."""
        with self._lock:
            if (metadata := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
            return metadata

    def put(self, key: CacheKey, metadata: TableMetadata) -> None:
        """Cache the metadata of a file, if its name is unique. `key` must be computed before the file is read."""
        with self._lock:
            if key in self._entries or not is_named_once(key[0]):
                return
            self._entries[key] = metadata
            self._size_bytes += json_size_bytes(metadata)
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_tables or self._size_bytes > self._max_size_bytes
            ):
                _, dropped = self._entries.popitem(last=False)
                self._size_bytes -= json_size_bytes(dropped)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size_bytes = 0


cache = MetadataCache()


_VERSION_1 = re.compile(rb'"format-version"\s*:\s*1\b')


class _ParseLock:
    """A lock that is free in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_parsing = _ParseLock()


def parsed(data: bytes) -> TableMetadata:
    """Parse metadata from JSON. Raises errors of many types, as PyIceberg does.

    Large files are parsed one at a time. Because of Python's global lock, this takes no longer, and short requests wait
    less.
    """
    with _parsing.lock if len(data) > LARGE_SIZE_BYTES else nullcontext():
        if b'"field-id"' not in data and _VERSION_1.search(data):
            data = _with_partition_field_ids(data)
        return TableMetadataUtil.parse_raw(data.decode())


def _with_partition_field_ids(data: bytes) -> bytes:
    """Add ids from 1000 to the partition fields, because the ids are optional in format version 1."""
    metadata = json.loads(data)
    specs = [spec["fields"] for spec in metadata.get("partition-specs", ())]
    for fields in [metadata.get("partition-spec", []), *specs]:
        for number, field in enumerate(fields, 1000):
            field["field-id"] = number
    return json.dumps(metadata).encode()


def read_metadata(io: FileIO, uri: str, *, table_id: str | None = None, is_cached: bool = True) -> TableMetadata:
    """Read the metadata in a file, with `gc.enabled=false`. Treat it as immutable.

    Without `is_cached` the cache is not used. Metadata of format version 1 without `table-uuid` gets `table_id`.

    Raises:
        CorruptFile: the file is not Iceberg table metadata, or not of the table `table_id`.
        FileNotFoundError: the file does not exist.
    """
    file = io.new_input(uri)  # raises for a file outside of the lakehouse, even if its metadata is cached
    shown = file.path if isinstance(file, LakehouseInputFile) else uri
    key = cache_key(io, uri)
    metadata = cache.get(key) if is_cached else None
    if metadata is None:
        metadata = _read(file, uri, shown)
        if is_cached:
            cache.put(key, metadata)
    if table_id is not None and str(metadata.table_uuid) != table_id:
        if "table_uuid" not in metadata.model_fields_set:
            return metadata.model_copy(update={"table_uuid": uuid.UUID(table_id)})
        raise CorruptFile(f"{shown}: it is the metadata of table {metadata.table_uuid}, not {table_id}", path=shown)
    return metadata


def _read(file: InputFile, uri: str, shown: str) -> TableMetadata:
    try:
        with file.open() as stream:
            data = Compressor.get_compressor(uri).stream_decompressor(stream).read(MAX_SIZE_BYTES + 1)
        if len(data) > MAX_SIZE_BYTES:
            raise ValueError(f"it has more than {MAX_SIZE_BYTES >> 20} MiB")
        metadata = parsed(data)
        if metadata.format_version > 1 and "table_uuid" not in metadata.model_fields_set:
            raise ValueError("table-uuid is missing")
        main = metadata.refs.get(MAIN_BRANCH)
        if main is not None and main.snapshot_id != metadata.current_snapshot_id:
            raise ValueError(f"branch {MAIN_BRANCH} is at another snapshot than current-snapshot-id")
    except FileNotFoundError:
        raise
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise CorruptFile(f"{shown}: not Iceberg table metadata: {reason}", path=shown) from error
    metadata = sized(indexed(collected_by_lakehouse(metadata)), data)
    if isinstance(metadata, IndexedMetadataV3) and metadata.next_row_id is None:
        raise CorruptFile(f"{shown}: not Iceberg table metadata: next-row-id is missing", path=shown)
    return metadata


def with_log_entry(metadata: TableMetadata, previous_uri: str, previous: TableMetadata) -> TableMetadata:
    """Append the replaced file to the metadata log, which has at most `write.metadata.previous-versions-max` entries.

    Raises `InvalidArgument` if that property is not a number.
    """
    entry = MetadataLogEntry.model_validate({"metadata-file": previous_uri, "timestamp-ms": previous.last_updated_ms})
    log = [*metadata.metadata_log, entry][-logged_files(metadata.properties) :]
    return metadata.model_copy(update={"metadata_log": log})


def metadata_folder(metadata: TableMetadata) -> str:
    """The URI of the folder of new metadata files of a table, without a slash at its end."""
    return (metadata.properties.get(TableProperties.WRITE_METADATA_PATH) or f"{metadata.location}/metadata").rstrip("/")


def metadata_uri(metadata: TableMetadata, stem: str) -> str:
    """The URI of a new metadata file, whose name begins with `stem`."""
    return f"{metadata_folder(metadata)}/{stem}{file_suffix(metadata.properties)}"


def new_file_stem(previous_uri: str | None = None) -> str:
    """A new file name such as `00042-<uuid4>`: the number of the previous file plus one, or 0 for the first file."""
    sequence = 0
    if previous_uri is not None and (match := _FILE_NAME.fullmatch(previous_uri.rsplit("/", 1)[-1])):
        sequence = int(match[1]) + 1
    return f"{sequence:05d}-{uuid.uuid4()}"


def encoded(metadata: TableMetadata) -> bytes:
    """The JSON of a metadata file."""
    return indexed(metadata).model_dump_json().encode()
