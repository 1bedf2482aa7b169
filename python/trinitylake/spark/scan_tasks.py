"""Tasks that read data files on executors and return Arrow batches.

The driver plans a scan once. A task gets its files and only the parts of the table's metadata that are needed for
reading, so the size of a task does not grow with the history of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from trinitylake.spark.filters import column_named, readable_schema
from trinitylake.spark.options import Options
from trinitylake.spark.types import arrow_schema_of, to_spark_batch

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO

#: Cost of opening a file, expressed as a size: a smaller file counts as much when files are divided among tasks.
OPEN_FILE_COST_BYTES = 4 << 20


@dataclass
class ScanPlan:
    """Plan for reading the files of one table state, the same for every task.

    Attributes:
        options: the options, with which tasks open the storage.
        metadata: the table's metadata without its history.
        columns: the table's names of the columns, in the order of `schema`.
        filter: a filter; only matching rows are returned.
        schema: Spark's schema of the result.
        is_managed: whether the table is managed, so that its files are read through the storage of the lakehouse.
        io_properties: properties of the file access, for an external table.
    """

    options: Options
    metadata: TableMetadata
    columns: list[str]
    filter: BooleanExpression
    schema: StructType
    is_managed: bool
    io_properties: dict[str, str]

    @classmethod
    def of(cls, options: Options, scan: DataScan, schema: StructType, is_managed: bool) -> ScanPlan:
        """The plan of a scan. Raises `InvalidArgument` for a column that the table does not have."""
        readable = readable_schema(scan.table_metadata)
        columns = [column_named(field.name, readable).name for field in schema.fields]
        return cls(
            options=options,
            metadata=without_history(scan.table_metadata),
            columns=columns,
            filter=scan.row_filter,
            schema=schema,
            is_managed=is_managed,
            io_properties={} if is_managed else dict(scan.io.properties),
        )

    def partitions(self, tasks: Iterable[FileScanTask]) -> list[ScanPartition]:
        """Group files into tasks of about `split_size_bytes`; the largest files come first."""
        bins: list[list[FileScanTask]] = []
        size_bytes = 0
        for task in sorted(tasks, key=lambda task: (-task.file.file_size_in_bytes, task.file.file_path)):
            cost_bytes = max(task.file.file_size_in_bytes, OPEN_FILE_COST_BYTES)
            if not bins or size_bytes + cost_bytes > self.options.split_size_bytes:
                bins.append([])
                size_bytes = 0
            bins[-1].append(task)
            size_bytes += cost_bytes
        return [ScanPartition(members, self) for members in bins]

    def read(self, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """The rows of these files in Spark's types, one batch at a time."""
        from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
        from trinitylake.iceberg_storage.row_filter import RowFilter

        target = arrow_schema_of(self.schema)
        io = self._io()
        projected = readable_schema(self.metadata).select(*self.columns) if self.columns else Schema()
        live, filter = LiveRows(self.metadata, io, tasks), RowFilter.of(self.filter, self.metadata.schema())
        spark_name = dict(zip(self.columns, self.schema.fieldNames(), strict=True))
        for batch in (batch for task in tasks for batch in live.matching(task, projected, filter)):
            yield to_spark_batch(batch.rename_columns([spark_name[name] for name in batch.schema.names]), target)

    def _io(self) -> Any:
        if not self.is_managed:
            from pyiceberg.io import load_file_io

            return load_file_io(self.io_properties, self.metadata.location)
        return storage_io(self.options)


class ScanPartition(InputPartition):
    """The files of one task, with the plan: Spark pickles the reader for executors before the reader makes a plan."""

    def __init__(self, tasks: Sequence[FileScanTask], plan: ScanPlan) -> None:
        super().__init__(len(tasks))
        self.tasks = list(tasks)
        self.plan = plan

    def read(self) -> Iterator[pa.RecordBatch]:
        """The matching rows of the files. Runs on an executor."""
        return self.plan.read(self.tasks)


def storage_io(options: Options) -> LakehouseFileIO:
    """File access to the lakehouse, without opening the lakehouse."""
    from trinitylake import _core
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO

    return LakehouseFileIO(_core.Storage(options.root, options.storage or None, options.durability))


def without_history(metadata: TableMetadata) -> TableMetadata:
    """A copy of metadata without snapshots and logs; the other parts are shared with the original."""
    return metadata.model_copy(
        update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}
    )
