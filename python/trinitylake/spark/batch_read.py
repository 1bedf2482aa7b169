"""Reads a table in a batch query: the driver plans the scan from Iceberg metadata, tasks read Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import And, BooleanExpression
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.spark.filters import ALL_ROWS, option_filter, push
from trinitylake.spark.options import Options
from trinitylake.spark.scan_tasks import ScanPartition, ScanPlan
from trinitylake.spark.task_errors import one_line_errors

if TYPE_CHECKING:
    import pyarrow as pa


@one_line_errors
class BatchReader(DataSourceReader):
    """Scan of one version of a table. Spark creates and plans it in a separate process on the driver's machine."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.id is not None:
            raise InvalidArgument("the option id is for writing; to read in a saved transaction, name it by txn")
        self._options = options
        self._schema = schema
        self._pushed: BooleanExpression = ALL_ROWS

    def partitions(self) -> list[InputPartition]:
        """Plan the scan: group the files that may contain matching rows into tasks."""
        table = self._options.open_table()
        with translated(table.name):
            filter = And(option_filter(self._options.filter, table.iceberg.schema()), self._pushed)
            scan = table.scan(filter=filter).iceberg
            plan = ScanPlan.of(self._options, scan, self._schema, table.type == "managed")
            self._options.record_scan(scan.row_filter)
            # For an empty list Spark would run one task without a partition.
            return list(plan.partitions(scan.plan_files())) or [ScanPartition([], plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The matching rows of one task's files. Runs on an executor."""
        assert isinstance(partition, ScanPartition)
        return partition.read()


@one_line_errors
class FilteringReader(BatchReader):
    """Reader that uses the conditions of the query, for a data frame with the option `pushdown`.

    It is not the default, because Spark 4.1 stores the plan of a reader with the data frame: another query on the same
    frame, or another branch of the query, gets only rows that match the conditions that were pushed down last.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that Iceberg evaluates exactly as Spark; returns the other filters."""
        self._pushed, kept = push(filters, self._options.open_table().iceberg.schema())
        return kept
