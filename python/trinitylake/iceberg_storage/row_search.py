"""Searches the files and snapshots of a table for rows that match a filter.

A data file holds matching rows if any row in it matches, even if a delete file deletes this row. A column name of the
filter means every column that has this name in any schema of the table, so renamed and dropped columns are searched
too. If a file lacks a column of the filter, the column is NULL only if the current schema of the metadata has it.
Otherwise IS NULL would match all rows that were written before or after the column existed. A snapshot holds matching
rows if one of its manifests lists such a file, even as deleted, because the entry has bounds and partition of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, Not, Or, UnboundPredicate
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import POSITION
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import FilesOfFilter
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.row_filter import RowFilter

#: An id that no partition spec has, for a file without partition values.
_NO_SPEC = -1


#: A location, and the ids of the filter's columns in the current schema.
_Context = tuple[str, frozenset[int]]


class Binding(NamedTuple):
    """A filter over the columns of one schema of a table."""

    schema: Schema
    filter: RowFilter


class RowSearch:
    """Searches the files of a table. Each file is read once, because files never change.

    Args:
        io: the file access of the lakehouse.
        schemas: all schemas of the table, the newest first.
        known: an earlier search with the same filter, whose results are reused.

    Attributes:
        rows: number of matching rows, by the path of each searched data file or delete file.
        listed: whether a manifest or manifest list leads to a file with matching rows, by its location and the ids of
            the filter's columns in the current schema.
        counted: number of matching rows, by the path of the file and the ids of the filter's columns in the current
            schema.

    Raises `InvalidArgument` if no schema has the columns of the filter.
    """

    def __init__(
        self, io: LakehouseFileIO, filter: BooleanExpression, schemas: Iterable[Schema], known: RowSearch | None = None
    ) -> None:
        self._io = io
        self._filter = filter
        self._schemas = schemas = list(schemas)
        self.bindings = list(_bindings(filter, schemas).values())
        # An equality delete file has only some columns of a row, so it matches if any condition of the filter matches.
        alone = [found for part in predicates(filter) for found in _bindings(part, schemas).values()]
        self._conditions = list({(id(one.filter), one.filter.field_ids): one for one in alone}.values())
        is_same = known is not None and _columns(known.bindings) == _columns(self.bindings)
        self.rows: dict[str, int] = known.rows if known is not None and is_same else {}
        self.listed: dict[_Context, bool] = known.listed if known is not None and is_same else {}
        self.counted: dict[_Context, int] = known.counted if known is not None and is_same else {}

    def columns(self) -> list[str]:
        """The searched columns with all of their former names, such as "email, mail (dropped)"."""
        names: dict[int, dict[str, None]] = {}
        for schema in self._schemas:
            for id in {id for one in self.bindings for id in one.filter.field_ids} & set(schema.field_ids):
                names.setdefault(id, {})[schema.find_column_name(id) or ""] = None
        present = self._schemas[0].field_ids
        return [", ".join(names[id]) + ("" if id in present else " (dropped)") for id in sorted(names)]

    def snapshots(self, metadata: TableMetadata) -> set[int]:
        """The ids of the snapshots that list a file with matching rows."""
        own = self.own_columns(metadata)
        return {one.snapshot_id for one in metadata.snapshots if self._is_listed_by_snapshot(metadata, one, own)}

    def _is_listed_by_snapshot(self, metadata: TableMetadata, snapshot: Snapshot, own: frozenset[int]) -> bool:
        key = snapshot.manifest_list, own
        if key not in self.listed:
            manifests = read_list(self._io, snapshot)
            # A list, because `any` over a generator would stop early, and `rows` would lack files.
            found = [self.is_listed_by(metadata, manifest) for manifest in manifests]
            self.listed[key] = any(found)
        return self.listed[key]

    def is_listed_by(self, metadata: TableMetadata, manifest: ManifestFile) -> bool:
        """Whether a manifest lists a file with matching rows, even as deleted."""
        key = manifest.manifest_path, self.own_columns(metadata)
        if key not in self.listed:
            found = [
                self.matches(metadata, entry.data_file, entry.status == ManifestEntryStatus.DELETED)
                for entry in read_entries(self._io, manifest, discard_deleted=False)
            ]
            self.listed[key] = any(found)
        return self.listed[key]

    def own_columns(self, metadata: TableMetadata) -> frozenset[int]:
        """The ids of the filter's columns in the current schema; empty if the schema lacks one of them."""
        try:
            return RowFilter.of(self._filter, metadata.schema()).field_ids
        except (ValueError, TypeError):
            return frozenset()

    def matches(self, metadata: TableMetadata, file: DataFile, is_deleted: bool) -> bool:
        """Whether a file in a manifest contains matching rows, or contained some before it was deleted."""
        if is_deleted and not self._io.new_input(file.file_path).exists():
            # The file does not exist any more, but the entry still has its bounds and partition.
            return any(
                FilesOfFilter(metadata, self._filter, schema=one.schema).may_be_in_file(file) for one in self.bindings
            )
        return self.count(metadata, file) > 0

    def count(self, metadata: TableMetadata, file: DataFile) -> int:
        """The number of matching rows in a data file or delete file."""
        path = self._io.path_of(file.file_path)
        key = path, self.own_columns(metadata)
        if key not in self.counted:
            self.counted[key] = self._rows_of(metadata, file)
            self.rows[path] = max(self.rows.get(path, 0), self.counted[key])
        return self.counted[key]

    def _rows_of(self, metadata: TableMetadata, file: DataFile) -> int:
        if file.content == DataFileContent.POSITION_DELETES:
            if file.file_format != FileFormat.PARQUET:
                return 0
            with self._io.new_input(file.file_path).open() as stream:
                # Position deletes may contain the deleted rows. These are not compared, so each row counts as a match.
                return file.record_count if len(pq.read_schema(stream)) > 2 else 0
        bindings = self.bindings if file.content == DataFileContent.DATA else self._conditions
        return len(self._positions(metadata, file, bindings, self.own_columns(metadata)))

    def positions(self, metadata: TableMetadata, file: DataFile) -> np.ndarray:
        """The positions of the matching rows of a data file, ascending."""
        return self._positions(metadata, file, self.bindings, self.own_columns(metadata))

    def count_in_file(self, metadata: TableMetadata, path: str, size_bytes: int) -> int:
        """The number of matching rows in a Parquet file in the table's folder, also if no manifest lists the file.

        The file may be a delete file, so missing columns do not count as NULL.
        """
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
        return len(self._positions(metadata, file, self.bindings, frozenset()))

    def _positions(
        self, metadata: TableMetadata, file: DataFile, bindings: Iterable[Binding], own: frozenset[int]
    ) -> np.ndarray:
        """Positions of the matching rows. Every row is compared, without skipping row groups by statistics."""
        # `own` are the ids of columns that count as NULL in a file that lacks them.
        found = np.empty(0, np.int64)
        for schema, filter in bindings:
            rows = LiveRows(with_schema(metadata, schema), self._io, [])
            if filter.field_ids != own and not rows.has_columns(FileScanTask(file), filter.field_ids):
                continue
            for batch in rows.matching(FileScanTask(file), Schema(*columns_of(filter, schema), POSITION)):
                positions = batch.filter(filter.matches(batch)).column(POSITION.name).to_numpy()
                found = np.union1d(found, positions)
        return found


def columns_of(filter: RowFilter, schema: Schema) -> list[NestedField]:
    """The top-level columns of a schema that contain the fields of a filter."""
    return [field for field in schema.fields if not filter.field_ids.isdisjoint(Schema(field).field_ids)]


def _bindings(filter: BooleanExpression, schemas: list[Schema]) -> dict[frozenset[int], Binding]:
    """The filter bound to each schema that has its columns, by the ids of these columns. The first schema wins."""
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


def with_schema(metadata: TableMetadata, schema: Schema) -> TableMetadata:
    others = [one for one in metadata.schemas if one.schema_id != schema.schema_id]
    return metadata.model_copy(update={"schemas": [*others, schema], "current_schema_id": schema.schema_id})
