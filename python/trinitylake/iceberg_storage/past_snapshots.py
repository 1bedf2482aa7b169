"""Finds snapshots that the present metadata of a table no longer lists (`snapshot_retention.py`).

The metadata file that added a snapshot lists it, and the metadata log names earlier metadata files. An earlier metadata
file exists as long as a version of the lakehouse needs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.metadata import read_metadata


class PastSnapshots:
    """Former snapshots of a table whose metadata files still exist. Files are read as needed."""

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._files = [metadata]  # the newest first
        self._unread = list(metadata.metadata_log)

    def parent(self, child: Snapshot) -> Snapshot | None:
        """The parent of the snapshot `child`; None if it has no parent, or if no metadata file lists the parent."""
        id = child.parent_snapshot_id
        if id is None:
            return None
        for metadata in self._files:
            if (found := metadata.snapshot_by_id(id)) is not None:
                return found
        for metadata in self._older(child.timestamp_ms):
            if (found := metadata.snapshot_by_id(id)) is not None:
                return found
        return None

    def _older(self, timestamp_ms: int) -> Iterator[TableMetadata]:
        """Unread metadata files, newest first; files that were written after `timestamp_ms` come last."""
        skipped: list[MetadataLogEntry] = []
        while self._unread:
            entry = self._unread.pop()
            if entry.timestamp_ms > timestamp_ms and self._unread:
                skipped.append(entry)
                continue
            metadata = self._read(entry.metadata_file)
            if metadata is None:
                return
            self._files.append(metadata)
            if not self._unread:
                self._unread = list(metadata.metadata_log)
            yield metadata
        # Clocks may be wrong, so later files are read too, after all others.
        for entry in skipped:
            if (metadata := self._read(entry.metadata_file)) is not None:
                self._files.append(metadata)
                yield metadata

    def _read(self, uri: str) -> TableMetadata | None:
        try:
            return read_metadata(self._io, uri)
        except (FileNotFoundError, TrinityLakeError):
            return None
