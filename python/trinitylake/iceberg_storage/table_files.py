"""Checks that every file of a managed table exists: manifest lists, manifests, data files and statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trinitylake.errors import InvalidLocation, TrinityLakeError
from trinitylake.iceberg_storage.file_io import LakehouseFileIO


class Found(NamedTuple):
    """A file that the metadata names: its path below the root, or its location; what is wrong, "" if nothing is."""

    path: str
    problem: str


class TableFiles:
    """The files that the snapshots and statistics of one table name.

    Args:
        io: the file access of the lakehouse.
        metadata: of the table.
    """

    def __init__(self, io: LakehouseFileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._metadata = metadata
        self._folder = io.path_of(metadata.location.rstrip("/")) + "/"
        self._present = {path for path, _, _ in io.storage.list(self._folder)}
        self._seen: set[str] = set()

    def found(self) -> Iterator[Found]:
        """Each file once, and whether it is there.

        Manifest lists and manifests are read; of data files only the names are looked up, by one listing of the folder
        of the table and one request for each file outside of it.
        """
        for snapshot in self._metadata.snapshots:
            yield from self._with_content(snapshot.manifest_list, partial(self._manifests, snapshot))
        for statistics in self._metadata.statistics:
            yield from self._looked_up(statistics.statistics_path)

    def _manifests(self, snapshot: Snapshot) -> Iterator[Found]:
        for manifest in snapshot.manifests(self._io):
            yield from self._with_content(manifest.manifest_path, partial(self._entries, manifest))

    def _entries(self, manifest: ManifestFile) -> Iterator[Found]:
        for entry in manifest.fetch_manifest_entry(self._io):
            yield from self._looked_up(entry.data_file.file_path)

    def _with_content(self, location: str, content: Callable[[], Iterator[Found]]) -> Iterator[Found]:
        for found in self._looked_up(location):
            yield found
            if not found.problem:
                try:
                    yield from content()
                except (TrinityLakeError, OSError, ValueError, KeyError, EOFError) as error:
                    yield Found(found.path, f"it cannot be read: {error}")

    def _looked_up(self, location: str) -> Iterator[Found]:
        if location in self._seen:
            return
        self._seen.add(location)
        try:
            path = self._io.path_of(location)
        except InvalidLocation as error:
            yield Found(location, str(error))
            return
        is_there = path in self._present if path.startswith(self._folder) else self._io.storage.exists(path)
        yield Found(path, "" if is_there else "it is missing")
