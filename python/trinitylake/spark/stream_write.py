"""Writes a stream: each micro-batch is one transaction, which is committed once even if Spark repeats the batch.

A query is a producer. The number of a batch is its sequence number, which the commit stores together with the rows
(`tables/ingestion/producers.py`). A repeated batch finds this number in the table, and adds nothing. If two drivers run
the same batch at the same time, one commit fails, and the next attempt of this driver finds the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from trinitylake.errors import CommitConflict, InvalidArgument, StorageError
from trinitylake.spark.commit import begin_on, planned, stage
from trinitylake.spark.options import Options
from trinitylake.spark.task_errors import one_line_errors
from trinitylake.spark.write_tasks import WritePlan, WrittenFiles, files_of
from trinitylake.tables.ingestion.producers import Producer

if TYPE_CHECKING:
    import pyarrow as pa

#: Number of attempts to commit a batch, which another driver may commit at the same time.
ATTEMPTS = 3


@one_line_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Sink of one streaming query. In the output mode "complete" each batch replaces all rows."""

    def __init__(self, options: Options, overwrite: bool, rows: StructType | None = None) -> None:
        if options.version is not None or options.timestamp is not None or options.metadata is not None:
            raise InvalidArgument("the options version, timestamp and metadata are for reading")
        if options.txn is not None:
            raise InvalidArgument("a stream cannot take part in a transaction: each of its batches is one")
        if options.partition_overwrite_mode is not None:
            raise InvalidArgument("the option partitionOverwriteMode is for batches: mode complete replaces all rows")
        if options.id is not None or options.columns is not None:
            raise InvalidArgument("the options id and columns are for batches: each batch of a stream has an id")
        self._options = options
        self._overwrite = overwrite
        self._rows = rows

    @cached_property
    def _plan(self) -> WritePlan:
        """The plan of a batch, made on the driver's machine; tasks get it, and send it back for the commit."""
        return planned(self._options, self._rows)[0]

    def __getstate__(self) -> dict[str, object]:
        """Make the plan before the writer is pickled for tasks, so that all tasks write into one folder."""
        _ = self._plan
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on an executor."""
        written = self._plan.write(iterator)
        written.plan = self._plan
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make the files of a batch part of the table, unless the batch was committed before.

        Raises:
            CommitConflict: another writer changed the table in a way that conflicts with this batch.
            CommitStateUnknown: it is unknown whether the commit happened; the restarted query finds out.
        """
        if not messages:
            return
        reported = [message for message in messages if isinstance(message, WrittenFiles)]
        if len(reported) < len(messages):
            self.abort(messages, batchId)
            raise StorageError(
                f"a task of batch {batchId} ended without reporting its files; nothing was committed: restart the query"
            )
        plan, query_id = reported[0].plan, reported[0].query_id
        assert plan is not None
        if not query_id:
            raise InvalidArgument("Spark named no streaming query, so a repeated batch cannot be recognized")
        if files_of(reported) or self._overwrite:
            self._commit_once(plan, query_id, batchId, reported)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Try to delete the files that the tasks wrote, by the same rule as `BatchWriter.abort`."""
        plans = [message.plan for message in messages if isinstance(message, WrittenFiles) and message.plan]
        commit_was_tried = all(message is not None for message in messages)
        for plan in plans[:1]:
            plan.delete_all_but(messages if commit_was_tried else [])

    def _commit_once(self, plan: WritePlan, query_id: str, batch_id: int, messages: list[WrittenFiles]) -> None:
        """Commit the batch, unless it was committed before."""
        producer = f"spark-{query_id}"
        # A batch of mode "complete" replaces all rows, also if the session's overwrites replace only partitions.
        whole = [replace(message, is_dynamic=False) for message in messages]
        for attempts_left in reversed(range(ATTEMPTS)):
            lake = plan.options.open()
            done = Producer(lake.begin()._state(), producer, plan.table_id).sequence
            if done is not None and done >= batch_id:
                plan.delete_all_but([])
                return
            # A batch of mode "complete" replaces all rows of the latest version, so earlier commits do not conflict
            # with it.
            base = lake.version if self._overwrite else plan.version
            transaction = begin_on(lake, plan, f"spark-{query_id}-{batch_id}", base)
            try:
                with transaction:
                    stage(transaction, plan, whole, self._overwrite)
                    Producer(transaction._state(), producer, plan.table_id).store(batch_id, None)
            except CommitConflict:
                if not attempts_left:
                    plan.delete_all_but([])
                    raise
            else:
                plan.delete_all_but(messages)
                return
