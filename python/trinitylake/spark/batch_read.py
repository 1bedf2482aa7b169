"""Reading a table in a batch query: planned from Iceberg metadata, read in Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import And, BooleanExpression
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from trinitylake.iceberg_errors import translated
from trinitylake.scan import parse_filter
from trinitylake.spark.filters import push
from trinitylake.spark.options import Options
from trinitylake.spark.scan_tasks import ALL_ROWS, ScanPartition, ScanPlan

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """One scan of one table in one state. Made and planned in a process of its own beside the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter: BooleanExpression = ALL_ROWS if options.filter is None else parse_filter(options.filter)

    @property
    def pushFilters(self) -> OfferedFilters:
        """Takes the filters that Iceberg answers exactly; see `OfferedFilters` for why it is not a method."""
        return OfferedFilters(self)

    def partitions(self) -> list[InputPartition]:
        """Plan the scan: the files that may hold matching rows, put together for tasks."""
        table = self._options.open_table()
        with translated(table.name):
            scan = table.scan(filter=self._filter).iceberg
            plan = ScanPlan.of(self._options, scan, self._schema, table.type == "managed", self._filter)
            # Spark takes an empty list for one task without a partition.
            return list(plan.partitions(scan.plan_files())) or [ScanPartition([], plan)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The matching rows of one task's files. Runs on an executor."""
        assert isinstance(partition, ScanPartition)
        return partition.read()

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take over what can be taken over; returns the rest."""
        schema = self._options.open_table().iceberg.schema()
        pushed, kept = push(filters, schema)
        if pushed is not None:
            self._filter = And(self._filter, pushed)
        return kept


class OfferedFilters:
    """The filters that Spark offers a reader, if its session pushes filters down at all.

    Spark refuses a reader that overrides `pushFilters` in a session without
    `spark.sql.python.filterPushdown.enabled`, which is the default, and tells by the function behind the method. A
    reader cannot ask for that setting. So this stands in for the method, with Spark's own function behind it: called
    where filters are pushed down, overlooked where they are not.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.take(filters)
