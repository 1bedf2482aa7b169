"""The rows that are alive in a data file, always in the same order: without those that position deletes took out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.arrow_rows import arrow_schema_with_ids
from trinitylake.iceberg_storage.extended_pyiceberg.functions import (
    columns_of_file,
    fitting_columns,
    position_deletes_of,
    reduced,
)
from trinitylake.iceberg_storage.file_io import canonical_uri
from trinitylake.iceberg_storage.parquet_batches import BATCH_SIZE_BYTES, Layout, batches_of, open_parquet
from trinitylake.iceberg_storage.parquet_statistics import RowGroupSummaries
from trinitylake.iceberg_storage.row_filter import RowFilter

#: Arrow has two widths of offsets for the same values, and PyIceberg names the wide one.
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class LiveRows:
    """Reads the data files of one plan, each as often as it is asked for.

    Args:
        metadata: of the table, as the plan has it.
        io: the file access of the table.
        tasks: the plan, with the files of deleted rows.

    Attributes:
        deletes: the positions that are gone, by the path of the data file as its task spells it.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask]) -> None:
        self._metadata = metadata
        self._schema = metadata.schema()
        self._fields = {field.field_id: field for field in self._schema.fields}
        self._io = io
        self.deletes = read_position_deletes(io, tasks)
        self._alike: pa.Schema | None = None
        self._layout: Layout | None = None

    def batches(self, task: FileScanTask, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one file under the current schema, with some columns in their order, or all; it may be none.

        Each batch takes little memory, however wide rows are (`parquet_batches.py`), but for files other than Parquet.
        """
        if columns is None:
            yield from self._read(task, self._schema)
            return
        # A selection has the order of the table.
        for batch in self._read(task, self._schema.select(*columns) if columns else Schema()):
            yield batch if batch.schema.names == list(columns) else batch.select(list(columns))

    def matching(
        self, task: FileScanTask, projected: Schema, filter: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file that match a filter over the current schema, with some columns or parts of them.

        Rows have the types of the schema before they are compared. Row groups that cannot match are not read.
        """
        wanted = projected if filter is None else self._with_columns_of(filter, projected)
        for batch in self._read(task, wanted, filter):
            if filter is not None:
                batch = filter.matching(batch)
            if batch.num_rows:
                yield batch if wanted is projected else reduced(batch, wanted, projected)

    def _with_columns_of(self, filter: RowFilter, projected: Schema) -> Schema:
        """The projected columns, and whole columns for the filter where they do not have all that it compares."""
        missing = filter.field_ids - set(projected.field_ids)
        if not missing:
            return projected
        fields = {field.field_id: field for field in projected.fields}
        for field in self._schema.fields:
            if field.field_id in missing or not missing.isdisjoint(Schema(field).field_ids):
                fields[field.field_id] = field
        return Schema(*(fields[field.field_id] for field in self._schema.fields if field.field_id in fields))

    def _read(self, task: FileScanTask, wanted: Schema, filter: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        if task.file.file_format != FileFormat.PARQUET:
            from pyiceberg.io.pyarrow import ArrowScan

            yield from ArrowScan(self._metadata, self._io, wanted, AlwaysTrue()).to_record_batches([task])
            return
        deletes = self.deletes.get(task.file.file_path)
        with self._io.new_input(task.file.file_path).open() as stream:
            file = open_parquet(stream)
            layout = self._layout_of(file)
            groups = None
            if filter is not None and not deletes and filter.field_ids:
                groups = self._row_groups(file, layout.columns, filter)
                if not groups:
                    return
            if self._has_whole(wanted) and self.reads_as_it_is(task, layout.columns):
                yield from batches_of(stream, file, [field.name for field in wanted.fields], layout, groups)
                return
            names, fitted = fitting_columns(self._metadata, wanted, task, layout.columns)
            batches = batches_of(stream, file, names, layout, groups)
            yield from map(fitted, self._alive(task, batches) if deletes else batches)

    def _has_whole(self, wanted: Schema) -> bool:
        """Whether columns are those of the table, with all of their parts."""
        return wanted is self._schema or all(field == self._fields.get(field.field_id) for field in wanted.fields)

    def _row_groups(self, file: pq.ParquetFile, columns: pa.Schema, filter: RowFilter) -> list[int]:
        """Those that may hold rows that match, by the statistics in the footer."""
        types = {id: self._schema.find_type(id) for id in filter.field_ids}
        summaries = RowGroupSummaries(file.metadata, columns_of_file(self._metadata, columns), types)
        return [
            group
            for group in range(file.metadata.num_row_groups)
            if filter.may_match(lambda id, group=group: summaries.of(group, id))  # type: ignore[misc]
        ]

    def batches_of(
        self, tasks: Sequence[FileScanTask], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some files, one file after the other, as `batches` gives them for each.

        Small batches become larger ones: each step afterwards takes as long for one of them as for a hundred.
        """
        small: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in (batch for task in tasks for batch in self.batches(task, columns)):
            if small and (size_bytes + batch.nbytes > BATCH_SIZE_BYTES or batch.schema != small[0].schema):
                yield _joined(small)
                small, size_bytes = [], 0
            small.append(batch)
            size_bytes += batch.nbytes
        if small:
            yield _joined(small)

    def _layout_of(self, file: pq.ParquetFile) -> Layout:
        """That of the file before, mostly: what one writer wrote is alike."""
        layout = self._layout
        if layout is None or not layout.is_of(file):
            layout = self._layout = Layout(file)
        return layout

    def _alive(self, task: FileScanTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a file without those that were deleted."""
        deletes = self.deletes.get(task.file.file_path, [])
        gone = np.unique(np.concatenate([np.empty(0, np.int64), *(part.to_numpy() for part in deletes)]))
        begin = 0
        for batch in batches:
            end = begin + batch.num_rows
            here = gone[slice(*np.searchsorted(gone, [begin, end]))]
            if len(here):
                stays = np.ones(batch.num_rows, dtype=bool)
                stays[here - begin] = False
                batch = batch.filter(pa.array(stays))
            if batch.num_rows:
                yield batch
            begin = end

    def reads_as_it_is(self, task: FileScanTask, columns: pa.Schema) -> bool:
        """Whether a Parquet file has the columns of the table as they are now, and no deleted rows.

        Then it is read as it is, one row group after the other, which for small files takes a fraction of the time that
        PyIceberg needs to bring it to the current schema.
        """
        if self.deletes.get(task.file.file_path):
            return False
        if self._alike is not None and (columns is self._alike or columns.equals(self._alike, check_metadata=True)):
            return True
        written = arrow_schema_with_ids(self._schema)
        if len(columns) != len(written) or not all(
            there.with_type(_WIDE.get(there.type, there.type)).equals(here, check_metadata=True)
            for there, here in zip(columns, written, strict=True)
        ):
            return False
        self._alike = columns
        return True


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def read_position_deletes(io: FileIO, tasks: Iterable[FileScanTask]) -> dict[str, list[pa.ChunkedArray]]:
    """The positions that are gone, by the path of the data file as its task spells it.

    Engines spell one place differently, `file:/x` and `file:///x`, so paths are compared in one spelling.
    """
    tasks = list(tasks)
    files = {delete_file.file_path: delete_file for task in tasks for delete_file in task.delete_files}
    by_location: dict[str, list[pa.ChunkedArray]] = {}
    for delete_file in files.values():
        for path, positions in position_deletes_of(io, delete_file).items():
            by_location.setdefault(canonical_uri(path), []).append(positions)
    return {
        task.file.file_path: by_location[location]
        for task in tasks
        if (location := canonical_uri(task.file.file_path)) in by_location
    }
