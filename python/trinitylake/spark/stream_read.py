"""A table as a stream: first all rows, or the rows committed after a version, then the rows of each new version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument
from trinitylake.spark.filters import option_filter
from trinitylake.spark.options import Options
from trinitylake.spark.scan_tasks import ScanPartition, ScanPlan
from trinitylake.spark.stream_position import Offset, Position, TableHistory
from trinitylake.spark.task_errors import one_line_errors

if TYPE_CHECKING:
    import pyarrow as pa

#: Spark 4.2's module with the limits of streams; None in Spark 4.1.
_READ_LIMITS: Any = None
with suppress(ImportError):
    _READ_LIMITS = import_module("pyspark.sql.streaming.datasource")


class TableStream(DataSourceStreamReader):
    """The common part of the sources of streams, which store nothing and keep no connection open."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def getDefaultReadLimit(self) -> Any:
        """The limits in the options, in the form of Spark 4.2 and later, which has no limit on versions."""
        files, versions = self._options.max_files_per_trigger, self._options.max_versions_per_trigger
        if files is None and versions is None:
            return _READ_LIMITS.ReadAllAvailable()
        return _READ_LIMITS.ReadMaxFiles(files or 2**31 - 1)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark stores the position."""

    def stop(self) -> None:
        """Nothing to do: no connection is open."""


if _READ_LIMITS is not None:
    _READ_LIMITS.SupportsTriggerAvailableNow.register(TableStream)


@one_line_errors
class StreamReader(TableStream):
    """Source of one streaming query. It exists in a process on the driver's machine as long as the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.metadata is not None or options.txn is not None:
            raise InvalidArgument("a stream reads the rows of a table: the options metadata and txn are for batches")
        if options.since is not None and (options.version is not None or options.timestamp is not None):
            raise InvalidArgument(
                "the option since reads only the rows after a version; version and timestamp first read all rows of a "
                "version: give only one of them"
            )
        super().__init__(options)
        self._schema = schema
        self._origin: Position | None = None
        self._position: Position | None = None

    @cached_property
    def _history(self) -> TableHistory:
        return TableHistory(self._options)

    def initialOffset(self) -> dict[str, Any]:
        """The offset at which the query began, or at which it begins now; repeated calls return the same offset."""
        if self._origin is None:
            since = self._options.since
            self._origin = self._history.now() if since is None else self._history.after(since)
        if self._position is None:
            self._position = self._origin
        return Offset(self._origin, self._origin).to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next micro-batch: the latest version, or an earlier position by the limits in the options.

        Spark 4.1 passes no arguments. Spark 4.2 and later pass the end of the last batch, and `ReadAllAvailable` if the
        limits do not apply.
        """
        if start is not None:
            begin = Offset.from_json(start)
            self._origin, self._position = begin.origin, begin.position
        elif self._position is None:
            self.initialOffset()
        assert self._position is not None
        assert self._origin is not None
        is_limited = type(limit).__name__ != "ReadAllAvailable"
        return Offset(self._admitted(self._position, is_limited), self._origin).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """End the stream at the present version, for the trigger `availableNow` of Spark 4.2 and later."""
        self._history.end_at_latest_version()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks with the files between two offsets. Spark also calls this to restore the position of a restarted query.

        Raises `InvalidArgument` if the offsets belong to different streams, or if the start is after the end.
        """
        until = Offset.from_json(end)
        first, last = Offset.from_json(start).start_of_batch_until(until), until.position
        self._origin, self._position = until.origin, last
        tasks = self._history.tasks(first, last) if first != last else []
        if not tasks:
            return []
        table = self._history.table()
        scan = table.scan(filter=option_filter(self._options.filter, table.iceberg.schema())).iceberg
        plan = ScanPlan.of(self._options, scan, self._schema, table.type == "managed")
        return plan.partitions(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's files. Runs on an executor."""
        assert isinstance(partition, ScanPartition)
        return partition.read()

    def _admitted(self, start: Position, is_limited: bool) -> Position:
        versions = self._options.max_versions_per_trigger if is_limited else None
        files = self._options.max_files_per_trigger if is_limited else None
        position = start
        for step in self._history.steps(start):
            taken = start.files if start.files is not None and step.is_at(start) else 0
            left = len(step.tasks) - taken
            if files is not None and left > files:
                return step.position(taken + files)
            position = step.position(None)
            if files is not None:
                files -= left
            if versions is not None and step.ends_version:
                versions -= 1
            if versions == 0 or files == 0:
                break
        return position
