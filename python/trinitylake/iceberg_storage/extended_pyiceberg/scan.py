"""PyIceberg's scan, which fetches manifests and data files of a remote store before its threads get to them.

It is planned by manifests as `manifest.py` reads them, lists of them from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.table import ALWAYS_TRUE, DataScan, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from trinitylake.iceberg_storage.arrow_rows import arrow_schema, no_rows, typed
from trinitylake.iceberg_storage.extended_pyiceberg.manifest import manifest_lists, prepared_manifests
from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here
from trinitylake.iceberg_storage.extended_pyiceberg.row_filters import compare_as_sql_here
from trinitylake.iceberg_storage.extended_pyiceberg.sql_comparisons import as_sql_compares
from trinitylake.iceberg_storage.file_io import WHOLE_FILE_MAX_SIZE_BYTES, LakehouseFileIO

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import ArrowScan


class ReadAheadScan(DataScan):
    """A scan that asks for all files at once, as far as memory for them goes."""

    _reads_rows = False

    def __init__(
        self,
        table_metadata: TableMetadata,
        io: FileIO,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
        catalog: Catalog | None = None,
        table_identifier: Identifier | None = None,
    ) -> None:
        super().__init__(
            table_metadata=table_metadata,
            io=io,
            row_filter=row_filter,
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            snapshot_id=snapshot_id,
            options=options,
            limit=limit,
            catalog=catalog,
            table_identifier=table_identifier,
        )
        if self.row_filter != ALWAYS_TRUE:
            self.row_filter = as_sql_compares(self.row_filter, self.table_metadata.schema(), self.case_sensitive)

    def plan_files(self) -> Iterable[FileScanTask]:
        """The files that the scan has to read."""
        self.read_manifests_ahead()
        tasks = list(super().plan_files())
        if self._reads_rows:
            read_data_ahead(self.io, tasks, self._columns())
        return tasks

    def _plan_files_local(self) -> Iterable[FileScanTask]:
        if (snapshot := self.snapshot()) is None:
            return []
        return self._manifest_planner.plan_files(prepared_manifests(self.io, snapshot.manifest_list))

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        """All matching rows."""
        compare_as_sql_here()
        return all_rows(self.for_reading(), dictionary_columns)

    def to_arrow_batch_reader(self, dictionary_columns: tuple[str, ...] = ()) -> pa.RecordBatchReader:
        """The matching rows as a stream."""
        compare_as_sql_here()
        return DataScan.to_arrow_batch_reader(self.for_reading(), dictionary_columns)

    def count(self) -> int:
        """The number of matching rows. PyIceberg's own fails where Arrow makes no table without rows."""
        compare_as_sql_here()
        tasks = list(self.plan_files())
        read = [task for task in tasks if task.residual != ALWAYS_TRUE or task.delete_files]
        counted: int = sum(task.file.record_count for task in tasks) - sum(task.file.record_count for task in read)
        for batch in _reading(self, limit=None).to_record_batches(read):
            counted += batch.num_rows
        return counted

    def for_reading(self) -> ReadAheadScan:
        """The same scan for somebody who reads all the files that it plans."""
        scan = copy(self)
        scan._reads_rows = self.limit is None  # with a limit most of them may not be read
        return scan

    def _columns(self) -> frozenset[int]:
        """The columns of which every row is wanted: with a filter, bounds may rule out parts of a file."""
        if self.row_filter != ALWAYS_TRUE:
            return frozenset()
        wanted = self.projection()
        return frozenset(id for id in wanted.field_ids if wanted.find_type(id).is_primitive)

    def update(self, **overrides: Any) -> Self:
        """A copy with some fields changed."""
        scan = super().update(**overrides)
        scan._reads_rows = self._reads_rows
        return scan

    def read_manifests_ahead(self) -> None:
        """Begin to fetch the manifests that may name files with matching rows."""
        snapshot = self.snapshot()
        if snapshot is None or not isinstance(self.io, LakehouseFileIO) or not self.io.is_remote:
            return
        metadata = self.table_metadata
        schema, specs = metadata.schema(), metadata.specs()
        wanted = []
        for manifest in manifest_lists.read(self.io, snapshot.manifest_list):
            filter = self.partition_filters[manifest.partition_spec_id]
            if manifest_evaluator(specs[manifest.partition_spec_id], schema, filter, self.case_sensitive)(manifest):
                wanted.append((manifest.manifest_path, manifest.manifest_length))
        self.io.read_ahead(wanted)


class ReadAheadTable(Table):
    """A table whose scans read ahead."""

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
    ) -> ReadAheadScan:
        return ReadAheadScan(
            table_metadata=self.metadata,
            io=self.io,
            row_filter=row_filter,
            selected_fields=selected_fields,
            case_sensitive=case_sensitive,
            snapshot_id=snapshot_id,
            options=options,
            limit=limit,
            catalog=self.catalog,
            table_identifier=self.name(),
        )


def all_rows(scan: DataScan, dictionary_columns: Sequence[str] = ()) -> pa.Table:
    """All rows of a scan, with the types of its table but for columns that are asked for as dictionaries.

    PyIceberg puts rows together before they have those types, and Arrow knows no type for all that files may have.
    """
    import pyarrow as pa

    target = arrow_schema(scan.projection())
    reading = _reading(scan, scan.limit, dictionary_columns)
    parts = [
        typed(pa.Table.from_batches([batch]), target, but=dictionary_columns)
        for batch in reading.to_record_batches(scan.plan_files())
    ]
    return pa.concat_tables(parts, promote_options="permissive") if parts else no_rows(target)


def _reading(scan: DataScan, limit: int | None, dictionary_columns: Sequence[str] = ()) -> ArrowScan:
    from pyiceberg.io.pyarrow import ArrowScan

    keep_nulls_here()
    return ArrowScan(
        scan.table_metadata,
        scan.io,
        scan.projection(),
        scan.row_filter,
        scan.case_sensitive,
        limit,
        dictionary_columns=tuple(dictionary_columns),
    )


def read_data_ahead(io: object, tasks: Iterable[FileScanTask], columns: frozenset[int] = frozenset()) -> None:
    """Begin to fetch the files of some tasks, with those that tell of deleted rows, which are read first.

    Of large files `columns` are fetched at once when one is opened.
    """
    if isinstance(io, LakehouseFileIO) and io.is_remote:
        tasks = list(tasks)
        deletes = {file.file_path: file for task in tasks for file in task.delete_files}
        files = [*deletes.values(), *(task.file for task in tasks)]
        io.read_ahead([(file.file_path, file.file_size_in_bytes) for file in files])
        if columns:
            large = (task.file for task in tasks if task.file.file_size_in_bytes > WHOLE_FILE_MAX_SIZE_BYTES)
            io.expect_columns((file.file_path for file in large), columns)
