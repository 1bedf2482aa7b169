"""Iceberg table metadata as immutable values: read once, changed without copying, written in time that does not
grow with the part that did not change.

PyIceberg deep-copies the whole metadata for every look at a transaction, about 18 times per append, and history
makes each copy dearer. Its models are frozen and its updates replace lists instead of changing them, so the copies
protect against nobody. Here every version shares what it has in common with the one before.

The metadata file itself still lists every snapshot the table keeps: about 0.7 KB each. Iceberg's own
`expire_snapshots` shortens it; the versions of the lakehouse keep the older states readable until they expire.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime

from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot
from pyiceberg.table.update import TableUpdate, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.utils.datetime import datetime_to_millis
from pyiceberg.utils.properties import property_as_int

from trinitylake.errors import CorruptFile, InvalidArgument

#: How much parsed metadata is kept in memory.
CACHE_MAX_TABLES = 256
CACHE_MAX_SNAPSHOTS = 100_000

_FILE_NAME = re.compile(r"(\d+)-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")


class MetadataCache:
    """Parsed metadata files by URI, the least recently used dropped first. A metadata file never changes.

    Safe to share between threads.
    """

    def __init__(self, max_tables: int = CACHE_MAX_TABLES, max_snapshots: int = CACHE_MAX_SNAPSHOTS) -> None:
        self._entries: OrderedDict[str, TableMetadata] = OrderedDict()
        self._snapshots = 0
        self._max_tables = max_tables
        self._max_snapshots = max_snapshots
        self._lock = threading.Lock()

    def get(self, uri: str) -> TableMetadata | None:
        """The metadata of a file, None if it is not cached."""
        with self._lock:
            if (metadata := self._entries.get(uri)) is not None:
                self._entries.move_to_end(uri)
            return metadata

    def put(self, uri: str, metadata: TableMetadata) -> None:
        """Remember the metadata of a file."""
        with self._lock:
            if uri in self._entries:
                return
            self._entries[uri] = metadata
            self._snapshots += len(metadata.snapshots)
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_tables or self._snapshots > self._max_snapshots
            ):
                _, dropped = self._entries.popitem(last=False)
                self._snapshots -= len(dropped.snapshots)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._snapshots = 0


cache = MetadataCache()


def read_metadata(io: FileIO, uri: str, path: str = "") -> TableMetadata:
    """The metadata in a file, parsed once. Treat it as immutable.

    Raises:
        CorruptFile: if it is not Iceberg table metadata; `path` names it.
        FileNotFoundError: if there is no such file.
    """
    if (metadata := cache.get(uri)) is not None:
        return metadata
    file = io.new_input(uri)
    try:
        metadata = FromInputFile.table_metadata(file)
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise CorruptFile(f"{path or uri}: not Iceberg table metadata: {error}", path=path or uri) from error
    cache.put(uri, metadata)
    return metadata


class MetadataBuilder:
    """Applies updates one by one. `metadata` is the result so far; nothing that was handed out changes."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.metadata = base
        self._context = _TableMetadataUpdateContext()

    def apply(self, update: TableUpdate) -> None:
        """Apply one update. Raises `ValueError` if it does not fit."""
        self.metadata = _apply_table_update(update, self.metadata, self._context)

    def build(self) -> TableMetadata:
        """The result, checked, with a time of its own. Raises PyIceberg's `ValidationError`."""
        result = self.metadata
        if result is self.base:
            return result
        if result.last_updated_ms <= self.base.last_updated_ms:
            result = result.model_copy(update={"last_updated_ms": later_than(self.base)})
        result.spec().check_compatible(result.schema())
        result.sort_order().check_compatible(result.schema())
        return result


def apply_updates(base: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """`base` with all updates applied; shares with it what they leave alone."""
    builder = MetadataBuilder(base)
    for update in updates:
        builder.apply(update)
    return builder.build()


def later_than(metadata: TableMetadata) -> int:
    """The present in milliseconds since the epoch, but never before the last update of `metadata`."""
    return max(datetime_to_millis(datetime.now().astimezone()), metadata.last_updated_ms)


def with_log_entry(metadata: TableMetadata, previous_uri: str, previous: TableMetadata) -> TableMetadata:
    """`metadata` that remembers the file it replaces, and at most `write.metadata.previous-versions-max` of them."""
    limit = property_as_int(
        metadata.properties,
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT,
    )
    entry = MetadataLogEntry(metadata_file=previous_uri, timestamp_ms=previous.last_updated_ms)
    log = [*metadata.metadata_log, entry][-max(1, limit or 1) :]
    return metadata.model_copy(update={"metadata_log": log})


def new_file_name(previous_uri: str | None) -> str:
    """`00042-<uuid4>.metadata.json`, numbered one above the previous file, `00000` for the first."""
    sequence = 0
    if previous_uri is not None and (match := _FILE_NAME.fullmatch(previous_uri.rsplit("/", 1)[-1])):
        sequence = int(match[1]) + 1
    return f"{sequence:05d}-{uuid.uuid4()}.metadata.json"


class MetadataEncoder:
    """Metadata to JSON. A snapshot never changes, so each is written as text once and then reused.

    Safe to share between threads.
    """

    def __init__(self, max_tables: int = CACHE_MAX_TABLES) -> None:
        self._tables: OrderedDict[uuid.UUID, dict[tuple[object, ...], str]] = OrderedDict()
        self._max_tables = max_tables
        self._lock = threading.Lock()

    def encode(self, metadata: TableMetadata) -> bytes:
        """The bytes of a metadata file. Raises `InvalidArgument` for a format version that cannot be written."""
        try:
            if metadata.format_version != 2:
                return metadata.model_dump_json().encode()
            rest = metadata.model_dump_json(exclude={"snapshots"})
        except NotImplementedError as error:
            raise InvalidArgument(
                f"Iceberg format version {metadata.format_version} cannot be written yet: {error}"
            ) from error
        return f'{{"snapshots":[{",".join(self._snapshots(metadata))}],{rest[1:]}'.encode()

    def _snapshots(self, metadata: TableMetadata) -> list[str]:
        with self._lock:
            known = self._tables.get(metadata.table_uuid, {})
        texts: dict[tuple[object, ...], str] = {}
        for snapshot in metadata.snapshots:
            key = _snapshot_key(snapshot)
            texts[key] = known.get(key) or snapshot.model_dump_json()
        with self._lock:
            self._tables[metadata.table_uuid] = texts
            self._tables.move_to_end(metadata.table_uuid)
            while len(self._tables) > self._max_tables:
                self._tables.popitem(last=False)
        return list(texts.values())


encoder = MetadataEncoder()


def _snapshot_key(snapshot: Snapshot) -> tuple[object, ...]:
    """What tells one snapshot, and one edition of it, from all others."""
    return (
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        snapshot.timestamp_ms,
        snapshot.manifest_list,
    )
