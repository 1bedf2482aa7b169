"""The change feed of a table in Spark: `option("changes", "true")`, in batches and as a stream, and `consume`.

A feed begins with all rows of the table as inserted rows, or with the option `since` with the changes after that
version. Then follow the changes of each new version. The offset of a stream is a version and the id of the table. Spark
stores the end offset of a batch before it runs the batch, so a batch that is repeated after a restart has the same
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trinitylake.base.qualified_names import split
from trinitylake.base.timestamps import time_of
from trinitylake.base.version_reference import check_order
from trinitylake.errors import InvalidArgument
from trinitylake.spark.options import Options, source_options
from trinitylake.spark.scan_tasks import ScanPartition, ScanPlan
from trinitylake.spark.stream_read import TableStream
from trinitylake.spark.task_errors import one_line_errors
from trinitylake.spark.types import arrow_schema_of, spark_schema, to_spark_batch
from trinitylake.tables.change_feed.consumers import IDLE_MILLIS
from trinitylake.tables.change_feed.table_versions import TableName, state_of, steps_of_table
from trinitylake.tables.transaction_table import TransactionTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trinitylake.lakehouse.opening import Durability
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.tables.table import Table

#: Maximum number of tasks among which the versions of a batch are divided.
_MAX_TASKS = 16
#: The offset of a stream before its first row.
_BEFORE_ALL = -1

#: The columns that follow the columns of the table.
_OF_FEED = StructType(
    [
        StructField("_change_type", StringType(), False),
        StructField("_version", LongType(), False),
        StructField("_committed_at", TimestampType(), False),
        StructField("_transaction_id", StringType()),
    ]
)


def schema_of_changes(schema: Schema) -> StructType:
    """The columns of a table's feed. Raises `InvalidArgument` if the table has a column with a name in `_OF_FEED`."""
    if taken := [field.name for field in schema.fields if field.name in _OF_FEED.names]:
        raise InvalidArgument(f"the table has a column {taken[0]}, which the feed has, too: set the option columns")
    optional = Schema(*(field.model_copy(update={"required": False}) for field in schema.fields))
    return StructType([*spark_schema(optional).fields, *_OF_FEED.fields])


class _ChangePartition(InputPartition):
    """A task: the changes after version `since`, up to `until`, with the columns of the table in version `last`.

    If `inserted` is given, the changes are the rows of these files of version `until`, all as inserted rows.
    """

    def __init__(self, since: int, until: int, last: int, inserted: ScanPartition | None = None) -> None:
        super().__init__((since, until))
        self.since, self.until, self.last, self.inserted = since, until, last, inserted


class _Feed:
    """The common part of batches and streams, which is pickled for executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.txn is not None or options.metadata is not None or options.filter is not None:
            raise InvalidArgument("changes cannot have the options txn, metadata and filter: filter the DataFrame")
        self.options = options
        self._schema = schema

    def partitions(self, since: int, until: int) -> list[InputPartition]:
        """Tasks for the changes between two versions."""
        if since != _BEFORE_ALL:
            size = max(1, -(-(until - since) // _MAX_TASKS))
            begins = range(since, until, size) or [since]
            return [_ChangePartition(begin, min(begin + size, until), until) for begin in begins]
        lake = self.options.open()
        table = lake.at(until).table(self.options.table_name)
        rows = StructType([field for field in self._schema.fields if field.name not in _OF_FEED.names])
        table._change_feed(lake._core, until, None, rows.names)  # raises an error for a federated table
        scan = table.scan().iceberg
        plan = ScanPlan.of(self.options, scan, rows, table.type == "managed")
        parts = plan.partitions(scan.plan_files()) or [ScanPartition([], plan)]
        return [_ChangePartition(since, until, until, part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task. Runs on an executor."""
        assert isinstance(partition, _ChangePartition)
        lake = self.options.open()
        core, until, target = lake._core, lake._core.version(partition.until), arrow_schema_of(self._schema)
        if partition.inserted is not None:
            values = "insert", until.number, time_of(until.info.created_at_millis), None
            types = arrow_schema_of(_OF_FEED).types
            added = [pa.scalar(value, type) for value, type in zip(values, types, strict=True)]
            for batch in partition.inserted.read():
                for name, value in zip(_OF_FEED.names, added, strict=True):
                    batch = batch.append_column(name, pa.repeat(value, len(batch)))
                yield to_spark_batch(batch, target)
            return
        table = lake.at(partition.last).table(self.options.table_name)
        key = TableName(*split(self.options.table_name))
        now, since = state_of(core.version(partition.last), key, table.id), core.version(partition.since)
        columns = [name for name in target.names if name not in _OF_FEED.names]
        feed = table._change_feed(core, since.number, now, columns)
        for batch in feed.reader(steps_of_table(core, table.id, key, since, until)):
            yield to_spark_batch(batch, target)


@one_line_errors
class ChangeReader(DataSourceReader):
    """The changes after the version `since`, or after the empty table, up to the version that is read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._feed = _Feed(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._feed.options
        until = options.reading(options.open()).version
        since = _BEFORE_ALL if options.since is None else options.since
        check_order(since, until)
        return self._feed.partitions(since, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._feed.read(partition)


def consume(
    spark: SparkSession,
    root: str | PathLike[str],
    table: str,
    consumer: str,
    *,
    txn: Transaction,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> DataFrame:
    """The rows that changed since a consumer's last call, read by executors; `txn` advances the consumer's position.

        with lake.transaction() as txn:
            changed = tl.spark.consume(spark, uri, "nyc.flights", "totals", txn=txn)
            tl.spark.merge(totals_of(changed), uri, "nyc.totals", on="carrier", txn=txn).when_matched_update().execute()

    This has the same position, rules and columns as `txn.table(table).consume(consumer)`, but executors read the rows,
    so the changes need not fit into the driver's memory. Each evaluation of the frame returns the same rows.

    Args:
        spark: the session.
        root: the URI of the lakehouse.
        table: the full name of the table.
        consumer: the name of the consumer.
        txn: an open transaction of this process, whose commit advances the position.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    Raises:
        VersionExpired: the version at the consumer's position has expired.
        InvalidArgument: the position belongs to another lakehouse.
    """
    found = txn.table(table)
    assert isinstance(found, TransactionTable)
    _, since, base, _ = found._advance(consumer)
    after = None if since is None else since.number
    options = source_options(
        root, table, storage_options, changes="true", version=base.number, since=after, durability=durability
    )
    return spark.read.format("trinitylake").options(**options).load()


@one_line_errors
class ChangeStreamReader(TableStream):
    """Source of one streaming query over the changes of a table."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options)
        self._feed = _Feed(options, schema)
        if options.version is not None or options.timestamp is not None or options.max_files_per_trigger is not None:
            raise InvalidArgument("a stream of changes begins after the option since, and is limited by versions alone")
        self._position: dict[str, Any] | None = None
        self._end: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset before all rows, or at the version `since`."""
        since = self._options.since
        return {"version": _BEFORE_ALL if since is None else since, "table": ""}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next micro-batch. Spark 4.1 passes no arguments."""
        begin = start or self._position or self.initialOffset()
        lake, is_limited = self._options.open(), type(limit).__name__ != "ReadAllAvailable"
        view = lake.at() if self._end is None else lake.at(self._end)
        table = view.table(self._options.table_name)
        since, until = int(begin["version"]), view.version
        self._check(begin, table)
        most = self._options.max_versions_per_trigger if is_limited else None
        if since != _BEFORE_ALL:
            core, key = lake._core, TableName(*split(self._options.table_name))
            then, now = core.version(since), view._state()
            age_millis = now.info.created_at_millis - then.info.created_at_millis
            if then.locate("table", *key) == now.locate("table", *key) and age_millis < IDLE_MILLIS:
                return self._at({**begin, "table": table.id})  # no batch for the versions of other tables
            if most is not None:
                steps = list(islice(steps_of_table(core, table.id, key, then, now), most))
                until = steps[-1].version if len(steps) == most else until
        return self._at({"version": until, "table": table.id})

    def prepareForTriggerAvailableNow(self) -> None:
        """End the stream at the present version, for the trigger `availableNow` of Spark 4.2 and later."""
        self._end = self._options.open().version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the changes between two offsets."""
        try:
            since, until = int(start["version"]), int(end["version"])
            table = self._options.open().at(until).table(self._options.table_name)
            self._check(end, table)
        except (KeyError, TypeError, ValueError):
            raise InvalidArgument(f"the checkpoint holds an offset of another source: {start}, {end}") from None
        self._at(end)
        return self._feed.partitions(since, until) if since != until else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task. Runs on an executor."""
        return self._feed.read(partition)

    def _at(self, offset: dict[str, Any]) -> dict[str, Any]:
        self._position = offset
        return offset

    def _check(self, offset: dict[str, Any], table: Table) -> None:
        if offset["table"] not in ("", table.id):
            raise InvalidArgument(
                f"table {table.name} was dropped, and another table has its name now: give the query a new checkpoint"
            )
