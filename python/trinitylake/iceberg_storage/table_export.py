"""Copies one managed table to another root, where any Iceberg engine can read it.

Each file keeps its path. Metadata, manifest lists, manifests and position deletes are rewritten with URIs of the new
root. Data files, equality deletes and statistics are copied. The definition of the table does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from trinitylake import _core
from trinitylake.errors import CommitConflict, InvalidLocation, ObjectAlreadyExists
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.metadata import encoded, read_metadata
from trinitylake.iceberg_storage.metadata_compression import file_bytes
from trinitylake.iceberg_storage.relocation import (
    DATA_FILE,
    FILE_PATH,
    FILE_SIZE_BYTES,
    MANIFEST_LENGTH,
    MANIFEST_PATH,
    TableRelocation,
    positions,
)
from trinitylake.iceberg_storage.snapshot_retention import without

_STATUS = 0


class TableExport(TableRelocation):
    """Copies the metadata of one table, and collects the files that the caller copies.

    Args:
        io: the file access of the lakehouse.
        keeps_history: whether to copy all snapshots in the metadata, instead of only those of branches and tags.
        present: lengths of the manifests that the target already has, by path.

    Attributes:
        new_files: data files, deletes and statistics that the target does not have: path and size in bytes.
        old_files: path and size in bytes of files that the target may already have.
        bytes: total size of the written files.
    """

    def __init__(
        self,
        io: LakehouseFileIO,
        target: _core.Storage,
        *,
        keeps_history: bool,
        present: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(io)
        self._target = target
        self._present_root = canonical_uri(target.root)
        self._keeps_history = keeps_history
        self._present = present or {}
        self._stored: set[str] = set()
        self.new_files: dict[str, int] = {}
        self.old_files: dict[str, int] = {}
        self.bytes = 0

    def run(self, metadata_path: str, table_id: str) -> str:
        """Write the metadata to the same path at the target. Raises as `TableRelocation.run` does."""
        uri = self._io.uri_of(metadata_path)
        metadata = read_metadata(self._io, uri, table_id=table_id, is_cached=False)
        wanted = metadata if self._keeps_history else current(metadata)
        copied = self._relocated(wanted) or wanted
        for statistics in [*wanted.statistics, *wanted.partition_statistics]:
            self._take(statistics.statistics_path, statistics.file_size_in_bytes, is_new=False)
        self._store(metadata_path, file_bytes(encoded(copied), metadata_path))
        return metadata_path

    def _relocated_uri(self, uri: str) -> str:
        try:
            return self._target.root + self._io.path_of(uri.rstrip("/"))
        except InvalidLocation:
            return uri

    def _uri_of(self, path: str) -> str:
        return self._target.root + path

    def _sibling_path(self, uri: str, name: str) -> str:
        return self._io.path_of(uri)

    def _manifest(self, uri: str) -> tuple[str, int | None]:
        path = self._io.path_of(uri)
        if path in self._present:
            return self._relocated_uri(uri), self._present[path]
        return super()._manifest(uri)

    def _avro(
        self, uri: str, relocate: Callable[[Record, dict[int, int]], None], new_name: str
    ) -> tuple[str, int | None]:
        data = self._rewritten(uri, relocate)
        path = self._io.path_of(uri)
        if data is None:
            data = self._io.read(path)
        self._store(path, data)
        return self._uri_of(path), len(data)

    def _entry(self, entry: Record, at: dict[int, int]) -> None:
        file = entry[at[DATA_FILE]]
        uri, size_bytes = file[at[FILE_PATH]], file[at[FILE_SIZE_BYTES]]
        if entry[at[_STATUS]] == ManifestEntryStatus.DELETED.value:
            file[at[FILE_PATH]] = self._relocated_uri(uri)
            return
        super()._entry(entry, at)
        self._take(uri, size_bytes, is_new=entry[at[_STATUS]] == ManifestEntryStatus.ADDED.value)

    def _take(self, uri: str, size_bytes: int, *, is_new: bool) -> None:
        try:
            path = self._io.path_of(uri)
        except InvalidLocation:
            return
        if path not in self._stored:
            (self.new_files if is_new else self.old_files)[path] = size_bytes

    def _store(self, path: str, data: bytes) -> None:
        self._stored.add(path)
        if put_same(self._target, path, data):
            self.files += 1
            self.bytes += len(data)


def put_same(storage: _core.Storage, path: str, data: bytes) -> bool:
    """Create a file unless it exists with the same bytes. Returns whether the file was created.

    Raises `CommitConflict` if the file exists with other bytes.
    """
    try:
        storage.put(path, data)
    except ObjectAlreadyExists:
        if storage.get(path) != data:
            raise CommitConflict(f"{storage.root}{path}: another file has this name at the target") from None
        return False
    return True


def current(metadata: TableMetadata) -> TableMetadata:
    """The metadata without metadata log, with only the current snapshot and the snapshots of branches and tags."""
    named = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    others = {one.snapshot_id for one in metadata.snapshots if one.snapshot_id not in named}
    return without(metadata, others).model_copy(update={"metadata_log": []})


def present_manifests(io: LakehouseFileIO, metadata_path: str) -> dict[str, int]:
    """The lengths of the manifests in the snapshots of a table that was copied before, by path."""
    metadata = read_metadata(io, io.uri_of(metadata_path), is_cached=False)
    found: dict[str, int] = {}
    for snapshot in metadata.snapshots:
        with AvroFile[Record](io.new_input(snapshot.manifest_list)) as file:
            at = positions(file.schema)
            for row in file:
                found[io.path_of(row[at[MANIFEST_PATH]])] = row[at[MANIFEST_LENGTH]]
    return found
