"""The change feed of a table in Spark: `option("changes", "true")`, in batches and as a stream.

A stream first delivers all rows as inserted, or what was committed after the option `since`, then the changes of each
new version. Its offset is a version and the id of the table. Spark stores the end of each batch before it runs it, so a
batch that is repeated after a restart has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trinitylake.base.qualified_names import split
from trinitylake.errors import InvalidArgument
from trinitylake.spark.options import Options
from trinitylake.spark.task_errors import one_line_errors
from trinitylake.spark.types import arrow_schema_of, spark_schema, to_spark_batch
from trinitylake.tables.change_feed.consumers import IDLE_MILLIS
from trinitylake.tables.change_feed.table_versions import TableName, first_step, state_of, steps_of_table

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.tables.table import Table

#: Versions of a batch are divided among so many tasks at most.
_MAX_TASKS = 16
#: The offset of a stream before its first row.
_BEFORE_ALL = -1
_READ_LIMITS: Any = None
with suppress(ImportError):
    _READ_LIMITS = import_module("pyspark.sql.streaming.datasource")


def schema_of_changes(schema: Schema) -> StructType:
    """The columns of the feed of a table, given those of the table."""
    optional = Schema(*(field.model_copy(update={"required": False}) for field in schema.fields))
    return StructType(
        [
            *spark_schema(optional).fields,
            StructField("_change_type", StringType(), False),
            StructField("_version", LongType(), False),
            StructField("_committed_at", TimestampType(), False),
            StructField("_transaction_id", StringType()),
        ]
    )


@dataclass(frozen=True)
class _Versions:
    """The changes after one version, up to another, with the columns that the table has in a third one.

    `since` is `_BEFORE_ALL` for all rows of version `until`, as inserted.
    """

    since: int
    until: int
    last: int


class _ChangePartition(InputPartition):
    def __init__(self, versions: _Versions) -> None:
        super().__init__((versions.since, versions.until))
        self.versions = versions


class _Feed:
    """What batches and streams share. Sent to executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.txn is not None or options.metadata is not None or options.filter is not None:
            raise InvalidArgument("the options txn, metadata and filter are not for changes: filter the frame instead")
        self.options = options
        self._schema = schema

    def partitions(self, since: int, until: int) -> list[InputPartition]:
        """Tasks for the changes between two versions."""
        if since == _BEFORE_ALL:
            return [_ChangePartition(_Versions(since, until, until))]
        size = max(1, -(-(until - since) // _MAX_TASKS))
        begins = range(since, until, size) or [since]
        return [_ChangePartition(_Versions(begin, min(begin + size, until), until)) for begin in begins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task. Runs on an executor."""
        assert isinstance(partition, _ChangePartition)
        versions = partition.versions
        lake = self.options.open()
        core, table = lake._core, lake.at(versions.last).table(self.options.table_name)
        key = TableName(*split(self.options.table_name))
        until, now = core.version(versions.until), state_of(core.version(versions.last), key, table.id)
        target = arrow_schema_of(self._schema)
        columns = [name for name in target.names if name in {field.name for field in table.iceberg.schema().fields}]
        if versions.since == _BEFORE_ALL:
            assert now is not None
            rows = table._change_feed(core, versions.until, now, columns).reader([first_step(until, now)])
        else:
            since = core.version(versions.since)
            feed = table._change_feed(core, versions.since, now, columns)
            rows = feed.reader(steps_of_table(core, table.id, key, since, until))
        for batch in rows:
            yield to_spark_batch(batch, target)


@one_line_errors
class ChangeReader(DataSourceReader):
    """The changes after the version `since`, up to the version that is read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._feed = _Feed(options, schema)
        if options.since is None:
            raise InvalidArgument('changes need a version after which they begin: set option("since", "<version>")')

    def partitions(self) -> Sequence[InputPartition]:
        options = self._feed.options
        until = options.reading(options.open()).version
        since = options.since or 0
        if since > until:
            raise InvalidArgument(f"version {until} is older than version {since}: exchange them")
        return self._feed.partitions(since, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._feed.read(partition)


@one_line_errors
class ChangeStreamReader(DataSourceStreamReader):
    """Source of one streaming query over the changes of a table."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._feed = _Feed(options, schema)
        if options.version is not None or options.timestamp is not None or options.max_files_per_trigger is not None:
            raise InvalidArgument("a stream of changes begins after the option since, and is limited by versions alone")
        self._position: dict[str, Any] | None = None
        self._end: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Before all rows, or the version `since`."""
        since = self._feed.options.since
        return {"version": _BEFORE_ALL if since is None else since, "table": ""}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """How far the next micro-batch goes. Spark 4.1 gives no arguments."""
        begin = start or self._position or self.initialOffset()
        lake, is_limited = self._feed.options.open(), type(limit).__name__ != "ReadAllAvailable"
        view = lake.at() if self._end is None else lake.at(self._end)
        table = view.table(self._feed.options.table_name)
        since, until = int(begin["version"]), view.version
        self._check(begin, table)
        most = self._feed.options.max_versions_per_trigger if is_limited else None
        if since != _BEFORE_ALL:
            core, key = lake._core, TableName(*split(self._feed.options.table_name))
            then, now = core.version(since), view._state()
            age_millis = now.info.created_at_millis - then.info.created_at_millis
            if then.locate("table", *key) == now.locate("table", *key) and age_millis < IDLE_MILLIS:
                return self._at({**begin, "table": table.id})  # no batch for the versions of other tables
            if most is not None:
                steps = list(islice(steps_of_table(core, table.id, key, then, now), most))
                until = steps[-1].version if len(steps) == most else until
        return self._at({"version": until, "table": table.id})

    def getDefaultReadLimit(self) -> Any:
        """The limits of the options as Spark 4.2 and later know them, which have none for versions."""
        if self._feed.options.max_versions_per_trigger is None:
            return _READ_LIMITS.ReadAllAvailable()
        return _READ_LIMITS.ReadMaxFiles(2**31 - 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Deliver nothing that is committed from now on: the trigger `availableNow` of Spark 4.2 and later."""
        self._end = self._feed.options.open().version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the changes between two offsets."""
        try:
            since, until = int(start["version"]), int(end["version"])
            table = self._feed.options.open().at(until).table(self._feed.options.table_name)
            self._check(end, table)
        except (KeyError, TypeError, ValueError):
            raise InvalidArgument(f"the checkpoint holds an offset of another source: {start}, {end}") from None
        self._at(end)
        return self._feed.partitions(since, until) if since != until else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task. Runs on an executor."""
        return self._feed.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: what was read is not kept here."""

    def stop(self) -> None:
        """Nothing to do: no connection is open."""

    def _at(self, offset: dict[str, Any]) -> dict[str, Any]:
        self._position = offset
        return offset

    def _check(self, offset: dict[str, Any], table: Table) -> None:
        if offset["table"] not in ("", table.id):
            raise InvalidArgument(
                f"table {table.name} was dropped, and another table has its name now: give the query a new checkpoint"
            )


if _READ_LIMITS is not None:
    _READ_LIMITS.SupportsTriggerAvailableNow.register(ChangeStreamReader)
