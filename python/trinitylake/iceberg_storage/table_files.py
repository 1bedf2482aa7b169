"""Checks that the files of managed tables exist with the recorded sizes: manifests, data files, statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trinitylake.errors import InvalidLocation, TrinityLakeError
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet
from trinitylake.iceberg_storage.data_files.position_deletes import positions_in
from trinitylake.iceberg_storage.delete_files import blob_of
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.metadata import read_metadata


class Found(NamedTuple):
    """A file that the metadata names.

    The first field is its path below the root, or its location if it is outside of the root. The second is a
    description of its damage, or "".
    """

    path: str
    problem: str
    is_missing: bool = False


#: Hashes of the locations of manifests and manifest lists that are already read, with any value.
KnownManifests: TypeAlias = dict[int, object]


class TableFiles:
    """The files that the snapshots and statistics of one table name.

    Args:
        io: the file access of the lakehouse.
        known: manifests that need not be read again. Read manifests are added.
        reads_data: whether to read the data files too, and verify their checksums.
    """

    def __init__(
        self,
        io: LakehouseFileIO,
        metadata: TableMetadata,
        known: KnownManifests | None = None,
        reads_data: bool = False,
    ) -> None:
        self._io = io
        self._reads_data = reads_data
        self._metadata = metadata
        self._known = {} if known is None else known
        self._folder = io.path_of(metadata.location.rstrip("/")) + "/"
        self._present = {path: size_bytes for path, size_bytes, _ in io.storage.list(self._folder)}
        self._seen: set[tuple[str, tuple[int, int] | None]] = set()

    def found(self, current_only: bool = False) -> Iterator[Found]:
        """Yield each file once, or each deletion vector with `reads_data`, with its damage, such as a wrong size.

        Manifest lists and manifests are read. Names and sizes of data files are looked up by one listing of the table's
        folder, and by one request for each file outside of it. With `current_only`, only the files that a scan of the
        current snapshot reads are checked.
        """
        current = self._metadata.current_snapshot()
        for snapshot in self._metadata.snapshots if not current_only else [current] if current else []:
            yield from self._with_content(snapshot.manifest_list, None, partial(self._manifests, snapshot))
        if current_only:
            return
        for statistics in [*self._metadata.statistics, *self._metadata.partition_statistics]:
            yield from self._looked_up(statistics.statistics_path, statistics.file_size_in_bytes)

    def _manifests(self, snapshot: Snapshot) -> Iterator[Found]:
        # Reads the manifests from the store, without a cache, because the stored files are checked.
        for manifest in read_list(self._io, snapshot):
            entries = partial(self._entries, manifest)
            yield from self._with_content(manifest.manifest_path, manifest.manifest_length, entries)

    def _entries(self, manifest: ManifestFile) -> Iterator[Found]:
        for entry in read_entries(self._io, manifest):
            file = entry.data_file
            vector = blob_of(file) if self._reads_data else None
            for found in self._looked_up(file.file_path, file.file_size_in_bytes, vector):
                is_read = self._reads_data and not found.problem
                yield found._replace(problem=_damage(self._io, file)) if is_read else found

    def _with_content(
        self, location: str, size_bytes: int | None, content: Callable[[], Iterator[Found]]
    ) -> Iterator[Found]:
        mark = object()
        if self._known.setdefault(hash(location), mark) is not mark:  # one step, also if several threads look up
            return
        for found in self._looked_up(location, size_bytes):
            yield found
            if not found.problem:
                try:
                    yield from content()
                except (TrinityLakeError, OSError, ValueError, KeyError, EOFError, TypeError, IndexError) as error:
                    yield Found(found.path, f"it cannot be read: {error}")

    def _looked_up(
        self, location: str, size_bytes: int | None, vector: tuple[int, int] | None = None
    ) -> Iterator[Found]:
        if (location, vector) in self._seen:
            return
        self._seen.add((location, vector))
        try:
            path = self._io.path_of(location)
        except InvalidLocation as error:
            yield Found(location, str(error))
            return
        there = self._present.get(path) if path.startswith(self._folder) else self._size(path)
        if there is None:
            yield Found(path, "it is missing", is_missing=True)
        elif size_bytes is not None and there != size_bytes:
            yield Found(path, f"it has {there} bytes, and {size_bytes} are recorded")
        else:
            yield Found(path, "")

    def _size(self, path: str) -> int | None:
        storage = self._io.storage
        return storage.size(path) if storage.exists(path) else None


def _damage(io: LakehouseFileIO, file: DataFile) -> str:
    """Damage of the content of a data file or delete file; "" for formats other than Parquet and Puffin."""
    if file.file_format not in (FileFormat.PARQUET, FileFormat.PUFFIN):
        return ""
    try:
        if file.content == DataFileContent.POSITION_DELETES:
            positions_in(io, file)
            return ""
        with io.new_input(file.file_path).open() as stream:
            n_rows = sum(batch.num_rows for batch in open_parquet(stream).iter_batches())
    except (TrinityLakeError, pa.ArrowException, OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    return "" if n_rows == file.record_count else f"it has {n_rows} rows, and {file.record_count} are recorded"


class NamedFiles:
    """Checks the files of many tables, and of many metadata files of one table. Thread-safe.

    Args:
        io: the file access of the lakehouse.
        reads_data: whether to read the data files too, and verify their checksums.

    Attributes:
        looked_for: number of checked files.
    """

    def __init__(self, io: LakehouseFileIO, reads_data: bool = False) -> None:
        self._io = io
        self._reads_data = reads_data
        self._known: KnownManifests = {}
        self._lock = threading.Lock()
        self.looked_for = 0

    def problems(self, metadata_path: str, table_id: str, current_only: bool = False) -> Iterator[tuple[str, str, str]]:
        """Yield kind, path and message of each fault of a metadata file and of the files that it names.

        With `current_only`, only the files that a scan of the current snapshot reads are checked.
        """
        self._count()
        try:
            uri = self._io.uri_of(metadata_path)
            metadata = read_metadata(self._io, uri, table_id=table_id, is_cached=False)
        except TrinityLakeError as error:
            yield "damaged", metadata_path, str(error)
            return
        except FileNotFoundError:
            yield "missing", metadata_path, "it is missing"
            return
        for found in TableFiles(self._io, metadata, self._known, self._reads_data).found(current_only):
            self._count()
            if found.problem:
                yield "missing" if found.is_missing else "damaged", found.path, found.problem

    def _count(self) -> None:
        with self._lock:
            self.looked_for += 1
