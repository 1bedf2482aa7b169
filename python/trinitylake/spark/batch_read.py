"""Reading a table in a batch query: planned from Iceberg metadata, read in Arrow batches."""

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
    """Scan of one version of a table. Created and planned in a separate process next to the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.id is not None:
            raise InvalidArgument("the option id is for writing; to read in a saved transaction, name it by txn")
        self._options = options
        self._schema = schema
        self._pushed: BooleanExpression = ALL_ROWS

    def partitions(self) -> list[InputPartition]:
        """Plan the scan: the files that may hold matching rows, grouped into tasks."""
        table = self._options.open_table()
        with translated(table.name):
            filter = And(option_filter(self._options.filter, table.iceberg.schema()), self._pushed)
            scan = table.scan(filter=filter).iceberg
            plan = ScanPlan.of(self._options, scan, self._schema, table.type == "managed", scan.row_filter)
            self._options.record_scan(scan.row_filter)
            # Spark takes an empty list for one task without a partition.
            return list(plan.partitions(scan.plan_files())) or [ScanPartition([], plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The matching rows of one task's files. Runs on an executor."""
        assert isinstance(partition, ScanPartition)
        return partition.read()


@one_line_errors
class FilteringReader(BatchReader):
    """Reader that uses the conditions of the query, for a data frame with the option `pushdown`.

    Not the default, because Spark 4.1 stores the plan of a reader with the data frame. Another query on the same frame,
    or another branch of one query, would get only rows that match the last condition that was pushed down.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that Iceberg answers exactly; returns the others."""
        self._pushed, kept = push(filters, self._options.open_table().iceberg.schema())
        return kept
