"""Iceberg table metadata as immutable values: read once, changed without copying, written in time that does not
grow with the part that did not change.

PyIceberg deep-copies the whole metadata each time that a transaction reads it, about 18 times per append, and history
makes each copy dearer. Its models are frozen and its updates replace lists instead of changing them, so the copies
protect against nobody. Here every version shares what it has in common with the one before.

A metadata file lists the snapshots that the table keeps (`snapshot_retention.py`), about 0.7 KB each.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from operator import is_

from pydantic import BaseModel
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.typedef import IcebergBaseModel

from trinitylake._core import is_named_once
from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import (
    IndexedMetadataV3,
    indexed,
    json_size_bytes,
    sized,
)
from trinitylake.iceberg_storage.table_properties import logged_files
from trinitylake.iceberg_storage.write_rules import collected_by_lakehouse

#: How much parsed metadata is kept in memory: files, and bytes of their JSON, of which each becomes fourteen where
#: there are many snapshots, and up to thirty where there are many columns. What one file shares with the one before it
#: counts in both.
CACHE_MAX_TABLES = 256
CACHE_MAX_SIZE_BYTES = 16 << 20

#: Of a file, decompressed.
MAX_SIZE_BYTES = 512 << 20
#: Larger ones are parsed one at a time.
LARGE_SIZE_BYTES = 256 << 10

_FILE_NAME = re.compile(r"(\d+)-[0-9a-fA-F-]{36}(?:\.gz)?\.metadata\.json")


class MetadataCache:
    """Parsed metadata files by URI, the least recently used dropped first. A metadata file never changes.

    Those with a name that may be given again, such as `v3.metadata.json`, are not kept: who imports a table does not
    own the names of its files.

    Safe to share between threads.
    """

    def __init__(self, max_tables: int = CACHE_MAX_TABLES, max_size_bytes: int = CACHE_MAX_SIZE_BYTES) -> None:
        self._entries: OrderedDict[str, TableMetadata] = OrderedDict()
        self._size_bytes = 0
        self._max_tables = max_tables
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def get(self, uri: str) -> TableMetadata | None:
        """The metadata of a file, None if it is not cached."""
        with self._lock:
            if (metadata := self._entries.get(uri)) is not None:
                self._entries.move_to_end(uri)
            return metadata

    def put(self, uri: str, metadata: TableMetadata) -> None:
        """Remember the metadata of a file, if no other file can get its name."""
        with self._lock:
            if uri in self._entries or not is_named_once(uri):
                return
            self._entries[uri] = metadata
            self._size_bytes += json_size_bytes(metadata)
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_tables or self._size_bytes > self._max_size_bytes
            ):
                _, dropped = self._entries.popitem(last=False)
                self._size_bytes -= json_size_bytes(dropped)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._size_bytes = 0


cache = MetadataCache()


class _Turn:
    """Who parses a large text. A forked child begins with nobody."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_turn = _Turn()


def parsed(data: bytes) -> TableMetadata:
    """Metadata out of JSON. Raises what PyIceberg raises, of many kinds, for what is none.

    Python runs one thread at a time, so large ones are done no later if they wait for each other. Many at once would
    take turns with all that is short, and what they are made of is looked through, all of it, whenever garbage is
    collected.
    """
    with _turn.lock if len(data) > LARGE_SIZE_BYTES else nullcontext():
        return TableMetadataUtil.parse_raw(data.decode())


def read_metadata(
    io: FileIO, uri: str, path: str = "", *, table_id: str | None = None, is_cached: bool = True
) -> TableMetadata:
    """The metadata in a file, parsed once, which lets engines delete no files. Treat it as immutable.

    With `is_cached` False the file itself is read, and nothing is kept of it. Metadata of format version 1 without
    `table-uuid`, which is optional there, gets `table_id`.

    Raises:
        CorruptFile: if it is not Iceberg table metadata, or not that of the table `table_id`; `path` names it.
        FileNotFoundError: if there is no such file.
    """
    file = io.new_input(uri)  # refuses a file outside of the lakehouse, cached or not
    metadata = cache.get(uri) if is_cached else None
    if metadata is None:
        metadata = _read(file, uri, path)
        if is_cached:
            cache.put(uri, metadata)
    if table_id is not None and str(metadata.table_uuid) != table_id:
        if "table_uuid" not in metadata.model_fields_set:
            return metadata.model_copy(update={"table_uuid": uuid.UUID(table_id)})
        raise CorruptFile(
            f"{path or uri}: it is the metadata of table {metadata.table_uuid}, not {table_id}", path=path or uri
        )
    return metadata


def _read(file: InputFile, uri: str, path: str) -> TableMetadata:
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
            raise ValueError(f"branch {MAIN_BRANCH} is at another snapshot than the current one")
    except FileNotFoundError:
        raise
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise CorruptFile(f"{path or uri}: not Iceberg table metadata: {reason}", path=path or uri) from error
    metadata = sized(indexed(encoder.intern(collected_by_lakehouse(metadata))), data)
    if isinstance(metadata, IndexedMetadataV3) and metadata.next_row_id is None:
        raise CorruptFile(f"{path or uri}: not Iceberg table metadata: next-row-id is missing", path=path or uri)
    return metadata


def with_log_entry(metadata: TableMetadata, previous_uri: str, previous: TableMetadata) -> TableMetadata:
    """`metadata` that remembers the file it replaces, and at most `write.metadata.previous-versions-max` of them.

    Raises `InvalidArgument` where that is no number.
    """
    entry = MetadataLogEntry.model_validate({"metadata-file": previous_uri, "timestamp-ms": previous.last_updated_ms})
    log = [*metadata.metadata_log, entry][-logged_files(metadata.properties) :]
    return metadata.model_copy(update={"metadata_log": log})


def new_file_stem(previous_uri: str | None) -> str:
    """`00042-<uuid4>`, numbered one above the previous file, `00000` for the first.

    `file_suffix` (`metadata_compression.py`) completes the name.
    """
    sequence = 0
    if previous_uri is not None and (match := _FILE_NAME.fullmatch(previous_uri.rsplit("/", 1)[-1])):
        sequence = int(match[1]) + 1
    return f"{sequence:05d}-{uuid.uuid4()}"


class _KnownTexts:
    """The JSON text of a list of that name: items that were in it before are not written again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.items: Sequence[IcebergBaseModel] | None = None
        self._texts: list[str] = []
        self.text = ""

    def render(self, items: Sequence[IcebergBaseModel]) -> str:
        """The name, the items as JSON, and what separates them from what follows."""
        if items is self.items:
            return self.text
        texts = self._of_grown(items)
        if texts is None:
            known = dict(zip(map(id, self.items or ()), self._texts, strict=True))
            texts = [known.get(id(item)) or item.model_dump_json() for item in items]
        self.items, self._texts = items, texts
        self.text = f'"{self._name}":[{",".join(texts)}],'
        return self.text

    def _of_grown(self, items: Sequence[IcebergBaseModel]) -> list[str] | None:
        """The texts of a list that has lost one item in front, at most, and gained some behind: a log."""
        before = self.items or ()
        gone = 0 if items and before and items[0] is before[0] else 1
        n_kept = len(before) - gone
        if not 0 < n_kept <= len(items) or not all(map(is_, items, before[gone:])):
            return None
        return [*self._texts[gone:], *(item.model_dump_json() for item in items[n_kept:])]


#: Lists of metadata whose items never change, and their names in a file.
_LISTS = {
    "snapshots": "snapshots",
    "snapshot_log": "snapshot-log",
    "metadata_log": "metadata-log",
    "schemas": "schemas",
    "partition_specs": "partition-specs",
    "sort_orders": "sort-orders",
}


class _TableText:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lists = {name: _KnownTexts(own) for name, own in _LISTS.items()}
        self.size_bytes = 0


class MetadataEncoder:
    """Metadata to JSON. Snapshots, schemas and the like never change, so each is written as text once.

    Of the tables that were written last the texts are kept, up to a number of bytes. Safe to share between threads.
    """

    def __init__(self, max_tables: int = CACHE_MAX_TABLES, max_size_bytes: int = CACHE_MAX_SIZE_BYTES) -> None:
        self._tables: OrderedDict[uuid.UUID, _TableText] = OrderedDict()
        self._size_bytes = 0
        self._max_tables = max_tables
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def encode(self, metadata: TableMetadata) -> bytes:
        """The bytes of a metadata file."""
        metadata = indexed(metadata)
        if metadata.format_version == 1:
            return metadata.model_dump_json().encode()
        # Name the fields to write, not those to leave out: PyIceberg would look for private attributes each time.
        rest = BaseModel.model_dump_json(metadata, include=_rest_of(type(metadata)), exclude_none=True, by_alias=True)
        text = self._table(metadata.table_uuid)
        with text.lock:
            lists = "".join([known.render(getattr(metadata, name)) for name, known in text.lists.items()])
        self._count(metadata.table_uuid, text, len(lists))
        return f"{{{lists}{rest[1:]}".encode()

    def intern(self, metadata: TableMetadata) -> TableMetadata:
        """The same metadata, made of the snapshots that were encoded before as far as they are equal."""
        text = self._table(metadata.table_uuid)
        snapshots, logs = text.lists["snapshots"], text.lists["snapshot_log"]
        known = {_snapshot_key(one): one for one in snapshots.items or () if isinstance(one, Snapshot)}
        logged = {_log_key(one): one for one in logs.items or () if isinstance(one, SnapshotLogEntry)}
        if not known:
            return metadata
        update = {
            "snapshots": [known.get(_snapshot_key(one), one) for one in metadata.snapshots],
            "snapshot_log": [logged.get(_log_key(one), one) for one in metadata.snapshot_log],
        }
        return metadata.model_copy(update=update)

    def _table(self, table_uuid: uuid.UUID) -> _TableText:
        with self._lock:
            if (text := self._tables.get(table_uuid)) is None:
                text = self._tables[table_uuid] = _TableText()
                self._drop()
            else:
                self._tables.move_to_end(table_uuid)
            return text

    def _count(self, table_uuid: uuid.UUID, text: _TableText, size_bytes: int) -> None:
        with self._lock:
            if self._tables.get(table_uuid) is text:  # else it was dropped meanwhile
                self._size_bytes += size_bytes - text.size_bytes
                text.size_bytes = size_bytes
                self._drop()

    def _drop(self) -> None:
        while len(self._tables) > 1 and (
            len(self._tables) > self._max_tables or self._size_bytes > self._max_size_bytes
        ):
            _, dropped = self._tables.popitem(last=False)
            self._size_bytes -= dropped.size_bytes


encoder = MetadataEncoder()


@functools.cache
def _rest_of(kind: type[TableMetadata]) -> set[str]:
    return {name for name in kind.model_fields if name not in _LISTS}


def _snapshot_key(snapshot: Snapshot) -> tuple[object, ...]:
    """What tells one snapshot, and one edition of it, from all others."""
    return (
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        snapshot.timestamp_ms,
        snapshot.schema_id,
        snapshot.manifest_list,
    )


def _log_key(entry: SnapshotLogEntry) -> tuple[int, int]:
    return entry.snapshot_id, entry.timestamp_ms
