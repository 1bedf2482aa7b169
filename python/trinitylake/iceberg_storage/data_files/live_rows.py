"""The live rows of data files, in the order of the file: all rows except those that delete files remove."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType, StructType, TimestamptzType

from trinitylake.errors import CorruptFile, InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema_with_ids, with_leaves
from trinitylake.iceberg_storage.data_files.equality_deletes import DeletedKeys
from trinitylake.iceberg_storage.data_files.file_sizes import grouped
from trinitylake.iceberg_storage.data_files.parquet_batches import batches_of, open_parquet, reading
from trinitylake.iceberg_storage.data_files.parquet_statistics import RowGroupSummaries
from trinitylake.iceberg_storage.data_files.position_deletes import read_position_deletes
from trinitylake.iceberg_storage.data_files.row_lineage import (
    POSITION,
    Placed,
    PlannedFile,
    has_computed,
    row_groups_at,
    rows_at,
    selected,
    with_lineage,
    with_position_column,
    with_positions,
)
from trinitylake.iceberg_storage.data_files.schema_projection import project
from trinitylake.iceberg_storage.identity_cache import IdentityCache
from trinitylake.iceberg_storage.name_mapping import columns_with_ids
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in
from trinitylake.iceberg_storage.row_filter import RowFilter

_POSITION_ALONE = Schema(POSITION)
_JOINED_SIZE_BYTES = 2 << 20
#: Computed schemas. Most files of a plan have the same columns, and without this cache a small file takes twice as
#: long.
_schemas: IdentityCache[Schema] = IdentityCache()


class LiveRows:
    """Reads the data files of one plan, each any number of times.

    Args:
        metadata: of the table, as the plan has it.
        tasks: the plan, with delete files.

    Attributes:
        deletes: the deleted positions, ascending, by the path of the data file as its task spells it.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask]) -> None:
        self._metadata = metadata
        self._schema = metadata.schema()
        self._io = io
        self._columns: tuple[pq.FileMetaData, Schema] | None = None
        self._selections: dict[tuple[str, ...], Schema] = {}
        self._variants = {
            schema.find_field(name).field_id: name for schema in metadata.schemas for name in variants_in(schema)
        }
        self._deleted_keys: DeletedKeys | None = None
        tasks = list(tasks)
        self.deletes = read_position_deletes(io, tasks)
        self._deleted_keys = DeletedKeys(metadata, tasks, self._read)

    def batches(
        self, task: FileScanTask, columns: Sequence[str] | None = None, chosen: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file under the current schema, with the given columns in their order; by default all columns.

        `columns` may also name the lineage and position columns (`row_lineage.py`), which the default does not include.
        Each batch of a Parquet file takes bounded memory, however wide the rows are (`parquet_batches.py`).
        `chosen` are ascending positions in a Parquet file: only the rows at these positions are read, also deleted
        rows.
        """
        if columns is None:
            yield from self._read(task, self._schema, chosen=chosen)
            return
        if (wanted := self._selections.get(tuple(columns))) is None:
            wanted = self._selections[tuple(columns)] = selected(self._schema, columns)
        # The columns of `wanted` are in the order of the table.
        for batch in self._read(task, wanted, chosen=chosen):
            yield batch if batch.schema.names == list(columns) else batch.select(list(columns))

    def matching(
        self, task: FileScanTask, projected: Schema, filter: RowFilter | None = None, chosen: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file that match a filter over the current schema, with the columns and fields of `projected`.

        `chosen` is as for `batches`. Values are promoted to the types of the current schema before they are compared.
        Row groups that cannot match are skipped.
        """
        wanted = projected if filter is None else self._with_columns_of(filter, projected)
        for batch in self._read(task, wanted, filter, chosen):
            if filter is not None:
                batch = filter.matching(batch)
            if batch.num_rows:
                yield batch if wanted is projected else project(batch, wanted, projected)

    def positions(self, task: FileScanTask, filter: RowFilter | None = None) -> np.ndarray:
        """The positions of the rows of one file that match a filter, ascending."""
        found = [batch.column(0).to_numpy() for batch in self.matching(task, _POSITION_ALONE, filter)]
        return np.concatenate([np.empty(0, np.int64), *found])

    def deleted(self, task: FileScanTask) -> np.ndarray:
        if isinstance(task, PlannedFile) and task.equality_deletes:
            return np.setdiff1d(np.arange(task.file.record_count), self.positions(task))
        return self.deletes.get(task.file.file_path, np.empty(0, np.int64))

    def count(self, task: FileScanTask) -> int:
        if isinstance(task, PlannedFile) and task.equality_deletes:
            return len(self.positions(task))
        gone = self.deletes.get(task.file.file_path)
        rows: int = task.file.record_count
        return rows if gone is None else rows - int(np.searchsorted(gone, rows))

    def has_columns(self, task: FileScanTask, ids: Iterable[int]) -> bool:
        """Whether a Parquet file has a column or a partition value for each of these ids; True for other formats.

        A column that a file lacks is read as its default value, mostly NULL.
        """
        if task.file.file_format != FileFormat.PARQUET:
            return True
        present = self.columns_of(task)
        return {*present.field_ids, *self._constants(task, present)}.issuperset(ids)

    def columns_of(self, task: FileScanTask) -> Schema:
        """The columns that a Parquet file has, except variants."""
        with reading(task.file.file_path), self._io.new_input(task.file.file_path).open() as stream:
            return self.columns_in(open_parquet(stream))

    def _with_columns_of(self, filter: RowFilter, projected: Schema) -> Schema:
        """The projected columns, and the complete columns of the fields that only the filter needs."""

        def made() -> Schema:
            missing = filter.field_ids - set(projected.field_ids)
            if not missing:
                return projected
            fields = {field.field_id: field for field in projected.fields}
            for field in self._schema.fields:
                if field.field_id in missing or not missing.isdisjoint(Schema(field).field_ids):
                    fields[field.field_id] = field
            own = [fields.pop(field.field_id) for field in self._schema.fields if field.field_id in fields]
            return Schema(*own, *fields.values())

        return _schemas.of(self._schema, filter, projected, make=made)

    def _read(
        self, task: FileScanTask, wanted: Schema, filter: RowFilter | None = None, chosen: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        if chosen is not None and not len(chosen):
            return
        if variants := [field.name for field in wanted.fields if field.field_id in self._variants]:
            raise InvalidArgument(
                f"column {variants[0]} is a variant, which is not read here: name other columns, or let an engine that "
                "knows the type read the table, for instance Spark"
            )
        keys = None if self._deleted_keys is None or chosen is not None else self._deleted_keys.of(task)
        if task.file.file_format != FileFormat.PARQUET:
            if keys is not None:
                raise InvalidArgument(f"{task.file.file_path} is not a Parquet file, and has equality deletes")
            yield from self._read_orc(task, wanted)
            return
        location = task.file.file_path
        gone = self.deletes.get(location) if chosen is None else None
        is_computed = has_computed(wanted)
        with reading(location), self._io.new_input(location).open() as stream:
            file = open_parquet(stream)
            for what, found, recorded in (
                ("bytes", stream.seek(0, os.SEEK_END), task.file.file_size_in_bytes),
                ("rows", file.metadata.num_rows, task.file.record_count),
            ):
                if found != recorded:  # such as a file of another table
                    raise CorruptFile(f"{location} has {found} {what}, and its manifest {recorded}", path=location)
            present = self.columns_in(file)
            groups = None
            if chosen is not None:
                groups = row_groups_at(file.metadata, chosen)
            elif filter is not None and filter.field_ids:
                groups = self._row_groups(file, present, filter)
            if groups == []:
                return
            needed = _pruned(present, wanted, *(() if keys is None else keys.columns))
            constants = self._constants(task, present)
            batches = batches_of(stream, file, [field.name for field in needed.fields], groups)
            if is_computed or gone is not None or chosen is not None:
                placed = with_positions(batches, file.metadata, groups, as_column=is_computed)
                batches = _selected(placed, gone, chosen)
            if is_computed:
                needed = Schema(*needed.fields, POSITION)
            for batch in batches:
                if keys is not None:
                    batch = keys.others(batch, needed, constants)
                try:
                    rows = project(batch, needed, wanted, constants)
                except pa.ArrowInvalid as error:
                    raise InvalidArgument(
                        f"{location} has a value that does not fit its column: {error}; replace the rows of the file"
                    ) from error
                yield with_lineage(rows, batch, task) if is_computed else rows

    def _read_orc(self, task: FileScanTask, wanted: Schema) -> Iterator[pa.RecordBatch]:
        location = task.file.file_path
        if task.file.file_format != FileFormat.ORC:
            raise InvalidArgument(f"{location} is a file of {task.file.file_format.value}: Parquet and ORC are read")
        if has_computed(Schema(*(field for field in wanted.fields if field != POSITION))):
            raise InvalidArgument(f"{location} is not a Parquet file: row ids are read from Parquet files only")
        with self._io.new_input(location).open() as stream:
            file = orc.ORCFile(stream)
            # Arrow reads all timestamps of ORC as nanoseconds.
            present = self._iceberg_schema(file.schema, format_version=2)
            needed = _pruned(present, wanted)
            names = [field.name for field in needed.fields]
            placed = _numbered(file.read_stripe(stripe, names) for stripe in range(file.nstripes))
            needed = Schema(*needed.fields, POSITION)
            for batch in _selected(placed, self.deletes.get(location)):
                yield project(batch, needed, wanted, self._constants(task, present))

    def _constants(self, task: FileScanTask, present: Schema) -> dict[int, Any]:
        """Partition values of columns that a file lacks, by field id. Files imported from Hive lack columns."""
        spec = self._metadata.specs().get(task.file.spec_id)
        return {
            field.source_id: task.file.partition[position]
            for position, field in enumerate(() if spec is None else spec.fields)
            if isinstance(field.transform, IdentityTransform) and field.source_id not in present.field_ids
        }

    def _row_groups(self, file: pq.ParquetFile, present: Schema, filter: RowFilter) -> list[int]:
        """The row groups that may hold matching rows, by the statistics in the footer."""
        types = {id: self._schema.find_type(id) for id in filter.field_ids}
        summaries = RowGroupSummaries(file.metadata, present, types)
        return [
            group
            for group in range(file.metadata.num_row_groups)
            if filter.may_match(lambda id, group=group: summaries.of(group, id))  # type: ignore[misc]
        ]

    def batches_of(
        self, tasks: Sequence[FileScanTask], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of several files, one file after the other, as `batches`. Small batches are joined by copying."""
        batches = (batch for task in tasks for batch in self.batches(task, columns))
        return map(_joined, grouped(batches, lambda batch: batch.nbytes, _JOINED_SIZE_BYTES))

    def columns_in(self, file: pq.ParquetFile) -> Schema:
        """The columns of an open file, except variants.

        The columns of the last file are cached, because most files have the same columns. Schemas with nested columns
        are not cached, because `equals` compares only leaf columns.
        """
        metadata = file.metadata
        if self._columns is not None:
            other, its_columns = self._columns
            if metadata.schema.equals(other.schema) and metadata.metadata == other.metadata:
                return its_columns
        known = pa.schema([one for one in file.schema_arrow if not self._is_variant(one)])
        schemas = [] if self._variants else [self._schema, *reversed(self._metadata.schemas)]
        columns = next((one for one in schemas if known.equals(arrow_schema_with_ids(one), check_metadata=True)), None)
        if columns is None:  # a file of another writer
            columns = self._with_zones(self._iceberg_schema(known, self._metadata.format_version), metadata)
        is_nested = any(isinstance(field.field_type, StructType | ListType | MapType) for field in columns.fields)
        self._columns = None if is_nested else (metadata, columns)
        return columns

    def _iceberg_schema(self, columns: pa.Schema, format_version: Literal[1, 2, 3]) -> Schema:
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # imported here, because it imports pandas

        mapping = self._metadata.name_mapping()
        known = columns if mapping is None else columns_with_ids(columns, mapping.root)
        return pyarrow_to_schema(
            pa.schema([one.with_type(with_leaves(one.type, _iceberg_unit)) for one in known]),
            mapping,
            downcast_ns_timestamp_to_us=format_version <= 2,  # these versions have no nanoseconds
            format_version=format_version,
        )

    def _with_zones(self, columns: Schema, metadata: pq.FileMetaData) -> Schema:
        """Give 96-bit timestamps (INT96) of a file a time zone if their column in the table has one."""
        # INT96 has no time zone. Spark and Hive write instants with it, in UTC.
        leaves = (metadata.schema.column(number) for number in range(metadata.num_columns))
        instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
        if not instants:
            return columns
        own = {field.field_id: field.field_type for field in self._schema.fields}
        return Schema(
            *(
                field.model_copy(update={"field_type": TimestamptzType()})
                if field.name in instants and isinstance(own.get(field.field_id), TimestamptzType)
                else field
                for field in columns.fields
            )
        )

    def _is_variant(self, column: pa.Field) -> bool:
        """Whether a column of a file is or contains a variant, for which PyIceberg has no type."""
        id = (column.metadata or {}).get(b"PARQUET:field_id")
        return id is not None and int(id) in self._variants


def _pruned(present: Schema, *wanted: Schema) -> Schema:
    """The columns and fields of a file that any schema in `wanted` has; without such columns, the first column."""

    # The first column is needed for the number of rows.
    def made() -> Schema:
        ids = {id for one in wanted for id in one.field_ids if not isinstance(one.find_type(id), ListType | MapType)}
        needed = prune_columns(present, ids, select_full_types=False)
        return needed if needed.fields else Schema(present.fields[0])

    return _schemas.of(present, *wanted, make=made)


def _selected(
    batches: Iterable[Placed], gone: np.ndarray | None, chosen: np.ndarray | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows at the positions `chosen`, or by default all rows except those at the positions `gone`."""
    if chosen is not None:
        return rows_at(batches, chosen, are_kept=True)
    return (batch for batch, _ in batches) if gone is None else rows_at(batches, gone, are_kept=False)


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[Placed]:
    """Add the positions of the rows in the file to each batch, as a last column and as a range."""
    begin = 0
    for batch in batches:
        positions = range(begin, begin + batch.num_rows)
        yield with_position_column(batch, positions), positions
        begin += batch.num_rows


def _iceberg_unit(kind: pa.DataType) -> pa.DataType:
    """The primitive type of a column with the unit of times and the time zone that PyIceberg accepts."""
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
