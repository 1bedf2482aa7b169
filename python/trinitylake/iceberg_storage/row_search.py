"""Finds the snapshots of a table that hold rows that match a filter, and writes table metadata without these rows.

A data file counts if one row in it matches, also a row that delete files hide. A column name of the filter means every
column that has that name in some schema of the table, so renamed and dropped columns are searched, too. A file that
lacks such a column has NULL in it only for a version whose schema has the column: otherwise IS NULL would match all
rows that were written before or after the column existed. A snapshot counts if a manifest of it lists such a file, also
as deleted: the entry repeats the bounds and partition of the file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, Not, Or, UnboundPredicate
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_rows import arrow_schema
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import POSITION, carried_schema
from trinitylake.iceberg_storage.delete_files import file_key
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.snapshot_retention import without

#: Id of no partition spec, so that a file has no partition values.
_NO_SPEC = -1


#: A location, and the columns of the filter in the schema by which its rows are read.
_Context = tuple[str, frozenset[int]]


class Binding(NamedTuple):
    """A filter over the columns of one schema of a table."""

    schema: Schema
    filter: RowFilter


class RowSearch:
    """Searches the files of a table. Each file is read once, because files never change.

    Args:
        io: the file access of the lakehouse.
        filter: of the rows.
        schemas: all schemas of the table, the newest first.
        known: an earlier search for the same rows, whose results are used.

    Attributes:
        rows: the number of matching rows, by the path of each data file or delete file that was searched.
        listed: whether a manifest or manifest list leads to such a file, by its location and the columns of the filter
            in the current schema.
        counted: the number of matching rows, by the path of each file and these columns.

    Raises `InvalidArgument` if no schema has the columns of the filter.
    """

    def __init__(
        self,
        io: LakehouseFileIO,
        filter: BooleanExpression,
        schemas: Iterable[Schema],
        known: RowSearch | None = None,
    ) -> None:
        self._io = io
        self._filter = filter
        schemas = list(schemas)
        self.bindings = list(_bindings(filter, schemas).values())
        # A delete by values holds some columns of a row, so each condition of the filter counts alone.
        alone = [found for part in predicates(filter) for found in _bindings(part, schemas).values()]
        self._conditions = list({(id(one.filter), one.filter.field_ids): one for one in alone}.values())
        is_same = known is not None and _columns(known.bindings) == _columns(self.bindings)
        self.rows: dict[str, int] = known.rows if known is not None and is_same else {}
        self.listed: dict[_Context, bool] = known.listed if known is not None and is_same else {}
        self.counted: dict[_Context, int] = known.counted if known is not None and is_same else {}

    def snapshots(self, metadata: TableMetadata) -> set[int]:
        """The ids of the snapshots that list a file with matching rows."""
        return {one.snapshot_id for one in metadata.snapshots if self._is_listed_by_snapshot(metadata, one)}

    def _is_listed_by_snapshot(self, metadata: TableMetadata, snapshot: Snapshot) -> bool:
        key = snapshot.manifest_list, self._own_columns(metadata)
        if key not in self.listed:
            manifests = read_list(self._io, snapshot)
            # No manifest is left out, so that `rows` has every file.
            found = [self._is_listed_by(metadata, manifest) for manifest in manifests]
            self.listed[key] = any(found)
        return self.listed[key]

    def _is_listed_by(self, metadata: TableMetadata, manifest: ManifestFile) -> bool:
        key = manifest.manifest_path, self._own_columns(metadata)
        if key not in self.listed:
            found = [
                self._matches(metadata, entry.data_file, entry.status == ManifestEntryStatus.DELETED)
                for entry in read_entries(self._io, manifest, discard_deleted=False)
            ]
            self.listed[key] = any(found)
        return self.listed[key]

    def _own_columns(self, metadata: TableMetadata) -> frozenset[int]:
        """The columns of the filter in the current schema of the table; empty if it does not have all of them."""
        try:
            return RowFilter.of(self._filter, metadata.schema()).field_ids
        except (ValueError, TypeError):
            return frozenset()

    def _matches(self, metadata: TableMetadata, file: DataFile, is_deleted: bool) -> bool:
        if is_deleted and not self._io.new_input(file.file_path).exists():
            # Only what the entry says of the file is left.
            return any(
                FilesOfFilter(metadata, self._filter, schema=one.schema).may_be_in_file(file) for one in self.bindings
            )
        return self.count(metadata, file) > 0

    def count(self, metadata: TableMetadata, file: DataFile) -> int:
        """The number of matching rows in a data file or delete file."""
        path = self._io.path_of(file.file_path)
        key = path, self._own_columns(metadata)
        if key not in self.counted:
            self.counted[key] = self._rows_of(metadata, file)
            self.rows[path] = max(self.rows.get(path, 0), self.counted[key])
        return self.counted[key]

    def _rows_of(self, metadata: TableMetadata, file: DataFile) -> int:
        if file.content == DataFileContent.POSITION_DELETES:
            if file.file_format != FileFormat.PARQUET:
                return 0
            with self._io.new_input(file.file_path).open() as stream:
                # Iceberg allows a copy of the deleted row, which is not compared.
                return file.record_count if len(pq.read_schema(stream)) > 2 else 0
        bindings = self.bindings if file.content == DataFileContent.DATA else self._conditions
        return len(self._positions(metadata, file, bindings))

    def positions(self, metadata: TableMetadata, file: DataFile) -> np.ndarray:
        """The positions of the matching rows of a data file, ascending."""
        return self._positions(metadata, file, self.bindings)

    def count_in_file(self, metadata: TableMetadata, path: str, size_bytes: int) -> int:
        """The number of matching rows in a Parquet file in the folder of the table, which no manifest need list."""
        uri = self._io.uri_of(path)
        with self._io.new_input(uri).open() as stream:
            record_count = pq.read_metadata(stream).num_rows
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=uri,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=record_count,
            file_size_in_bytes=size_bytes,
        )
        file.spec_id = _NO_SPEC
        return len(self._positions(metadata, file, self.bindings))

    def _positions(self, metadata: TableMetadata, file: DataFile, bindings: Iterable[Binding]) -> np.ndarray:
        """Every row is compared: row groups are not skipped by their statistics."""
        found = np.empty(0, np.int64)
        own = self._own_columns(metadata)
        for schema, filter in bindings:
            rows = LiveRows(_with_schema(metadata, schema), self._io, [])
            if filter.field_ids != own and not rows.has_columns(FileScanTask(file), filter.field_ids):
                continue
            for batch in rows.matching(FileScanTask(file), Schema(*columns_of(filter, schema), POSITION)):
                positions = batch.filter(filter.matches(batch)).column(POSITION.name).to_numpy()
                found = np.union1d(found, positions)
        return found


def columns_of(filter: RowFilter, schema: Schema) -> list[NestedField]:
    """The columns of a schema that a filter compares, whole."""
    return [field for field in schema.fields if not filter.field_ids.isdisjoint(Schema(field).field_ids)]


def _bindings(filter: BooleanExpression, schemas: list[Schema]) -> dict[frozenset[int], Binding]:
    """The filter over each schema that has its columns; of several with the same columns, over the first."""
    found: dict[frozenset[int], Binding] = {}
    problem: Exception | None = None
    for schema in schemas:
        try:
            bound = RowFilter.of(filter, schema)
        except (ValueError, TypeError) as error:
            problem = problem or error
        else:
            found.setdefault(bound.field_ids, Binding(schema, bound))
    if not found:
        raise InvalidArgument(str(problem)) from problem
    return found


def _columns(bindings: Iterable[Binding]) -> set[frozenset[int]]:
    return {one.filter.field_ids for one in bindings}


def predicates(filter: BooleanExpression) -> Iterator[UnboundPredicate]:
    """The conditions of a filter, each on one column."""
    if isinstance(filter, And | Or):
        yield from predicates(filter.left)
        yield from predicates(filter.right)
    elif isinstance(filter, Not):
        yield from predicates(filter.child)
    elif isinstance(filter, UnboundPredicate):
        yield filter


def _with_schema(metadata: TableMetadata, schema: Schema) -> TableMetadata:
    others = [one for one in metadata.schemas if one.schema_id != schema.schema_id]
    return metadata.model_copy(update={"schemas": [*others, schema], "current_schema_id": schema.schema_id})


def _without_comments(schema: Schema) -> Schema:
    def stripped(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: stripped(value) for name, value in part.items() if name != "doc"}
        return [stripped(one) for one in part] if isinstance(part, list) else part

    return Schema.model_validate(stripped(schema.model_dump(mode="json", by_alias=True)))


class TableEraser:
    """Rewrites the metadata of a table, so that no file that it names holds matching rows.

    Data files with matching rows are written again without these and without deleted rows, in a new snapshot of `main`.
    All other snapshots with matching rows are removed, with their tags and branches, and so are all statistics.

    Args:
        io: the file access of the lakehouse, which records the written files.

    Attributes:
        written: the new data files of each data file, by its path and its delete files. They are used again if the
            metadata is rewritten again, after a lost race.
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
                # A comment may have a value. Former schemas stay, because files have their columns.
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
                    f"{task.file.file_path} is not a Parquet file, and only these are rewritten: compact the table "
                    "with the engine that wrote it"
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
