"""Writes table metadata that names no file with rows that match a filter."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import (
    DataFile,
    FileFormat,
    ManifestContent,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_rows import arrow_schema
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import POSITION, carried_schema
from trinitylake.iceberg_storage.delete_files import file_key
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.row_search import RowSearch
from trinitylake.iceberg_storage.snapshot_retention import without


def _without_comments(schema: Schema) -> Schema:
    def stripped(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: stripped(value) for name, value in part.items() if name != "doc"}
        return [stripped(one) for one in part] if isinstance(part, list) else part

    return Schema.model_validate(stripped(schema.model_dump(mode="json", by_alias=True)))


class TableEraser:
    """Rewrites the metadata of a table so that no file that it names holds matching rows.

    Data files with matching rows are replaced, in a new snapshot of `main`, by files without the matching and without
    the deleted rows. All other snapshots with matching rows are removed, with their tags and branches. All statistics
    are removed, too.

    Args:
        io: the file access of the lakehouse, which records the written files.

    Attributes:
        written: the files that replace each data file, by its path, schema, partition spec and delete files. They are
            reused if the metadata is rewritten again after a lost race.
    """

    def __init__(self, io: LakehouseFileIO) -> None:
        self._io = io
        self.written: dict[tuple[Hashable, ...], list[DataFile]] = {}

    def erased(self, metadata: TableMetadata, search: RowSearch) -> TableMetadata:
        """The new metadata, not stored."""
        affected = search.snapshots(metadata)
        main = metadata.refs.get(MAIN_BRANCH)
        if main is not None and main.snapshot_id in affected:
            old = metadata.snapshot_by_id(main.snapshot_id)
            assert old is not None, "a branch has a snapshot"
            snapshot = self._snapshot(metadata, search, old)
            moved = main.model_dump(by_alias=True) | {"ref-name": MAIN_BRANCH, "snapshot-id": snapshot.snapshot_id}
            updates = AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(moved)
            metadata = apply_updates(metadata, updates)
        metadata = without(metadata, affected)
        staying = {name: ref for name, ref in metadata.refs.items() if ref.snapshot_id not in affected}
        return metadata.model_copy(
            update={
                "refs": staying,
                "metadata_log": [],
                "statistics": [],
                "partition_statistics": [],
                # Comments of former schemas may repeat a value. The schemas stay, because files have their columns.
                "schemas": [
                    one if one.schema_id == metadata.current_schema_id else _without_comments(one)
                    for one in metadata.schemas
                ],
            }
        )

    def _snapshot(self, metadata: TableMetadata, search: RowSearch, old: Snapshot) -> Snapshot:
        """A snapshot with the live rows of `old` that do not match."""
        tasks = list(ReadAheadScan(metadata, self._io, snapshot_id=old.snapshot_id).plan_files())
        gone = [task for task in tasks if any(search.count(metadata, file) for file in (task.file, *task.delete_files))]
        removed = {task.file.file_path for task in gone}
        used = {file_key(file) for task in tasks if task.file.file_path not in removed for file in task.delete_files}
        deletes = [
            entry.data_file
            for manifest in read_list(self._io, old)
            if manifest.content == ManifestContent.DELETES
            for entry in read_entries(self._io, manifest)
            if file_key(entry.data_file) not in used
        ]
        live = LiveRows(metadata, self._io, gone)
        added = [file for task in gone for file in self._written(metadata, search, live, task)]
        producer = SnapshotProducer(
            metadata,
            self._io,
            Operation.OVERWRITE if added else Operation.DELETE,
            branch=None,
            sequence_numbers={file.file_path: old.sequence_number or 0 for file in added},
            lists_removed=False,
        )
        return producer.add(added).remove([*(task.file for task in gone), *deletes]).produce(old.snapshot_id)

    def _written(
        self, metadata: TableMetadata, search: RowSearch, live: LiveRows, task: FileScanTask
    ) -> list[DataFile]:
        """The files that replace one data file."""
        deletes = sorted(map(file_key, task.delete_files), key=str)
        key = task.file.file_path, metadata.current_schema_id, metadata.default_spec_id, *deletes
        if key not in self.written:
            if task.file.file_format != FileFormat.PARQUET:
                raise InvalidArgument(
                    f"cannot erase rows in {task.file.file_path}: only Parquet files can be rewritten; compact the "
                    "table with the engine that wrote the file, and erase again"
                )
            writer = DataFileWriter(metadata, self._io, carries_rows=True)
            self.written[key] = writer.written(self._rows(metadata, search, live, task))
        return self.written[key]

    def _rows(
        self, metadata: TableMetadata, search: RowSearch, live: LiveRows, task: FileScanTask
    ) -> Iterator[pa.Table]:
        target = arrow_schema(carried_schema(metadata))
        matching = search.positions(metadata, task.file)
        for batch in live.batches(task, [*target.names, POSITION.name]):
            stays = pa.array(~np.isin(batch.column(POSITION.name).to_numpy(), matching))
            yield pa.Table.from_batches([batch.filter(stays).select(target.names)]).cast(target)
