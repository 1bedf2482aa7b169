"""Writing a batch: tasks write files, the driver commits them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from trinitylake.errors import CommitConflict, InvalidArgument, StorageError
from trinitylake.spark.commit import (
    begin_on,
    commit_or_delete,
    committed_by,
    is_written,
    resumed,
    save_in,
    stage,
    write_key,
)
from trinitylake.spark.one_line_errors import one_line_errors
from trinitylake.spark.options import Options
from trinitylake.spark.write_tasks import WritePlan, WrittenFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.lakehouse.lakehouse import Lakehouse


@one_line_errors
class BatchWriter(DataSourceArrowWriter):
    """One `frame.write`. Created in a process next to the driver, used on executors and in another such process.

    With the option `txn` the rows become part of a saved transaction, which is saved again. Otherwise the write is a
    commit: an append adds to whatever was committed meanwhile; an overwrite replaces the rows that the table had when
    the write was planned, and fails with `CommitConflict` if the table has changed since.
    """

    def __init__(self, options: Options, overwrite: bool, rows: StructType | None = None) -> None:
        if options.version is not None or options.timestamp is not None or options.metadata is not None:
            raise InvalidArgument("the options version, timestamp and metadata are for reading")
        if options.filter is not None and not overwrite:
            raise InvalidArgument("the option filter is for overwrites: it names the rows that are replaced")
        if options.partition_overwrite_mode is not None and not overwrite:
            raise InvalidArgument('the option partitionOverwriteMode is for overwrites: choose mode("overwrite")')
        if options.columns is not None:
            raise InvalidArgument("the option columns is for reading: choose columns of the frame with select(...)")
        self._overwrite = overwrite
        lake = options.open()
        if options.txn is not None:
            transaction = resumed(lake, options.txn)
            table = transaction.table(options.table_name)
            self._is_done = options.id is not None and is_written(table, write_key(options.txn, options.id))
            self._plan = WritePlan.of(options, table, transaction.base_version)
        else:
            self._is_done = options.id is not None and _is_committed(lake, options.id)
            state = lake.at()
            self._plan = WritePlan.of(options, state.table(options.table_name), state.version)
        if rows is not None:
            self._plan.check_columns(rows)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on an executor."""
        if self._is_done:
            return WrittenFiles([])
        return self._plan.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the reported files part of the table, all at once; with the option `txn`, as the transaction sees it.

        With the option `id` a write is done once, in whatever process: the transaction has that id.

        Raises:
            CommitConflict: for an overwrite whose table has changed, and for an id whose commit was undone.
            TransactionClosed, ObjectNotFound: the transaction has ended.
            CommitStateUnknown: it is not known whether the commit happened; no file was deleted.
        """
        if any(message is None for message in messages):
            self.abort(messages)
            raise StorageError(f"a task of the write to {self._plan.table_name} ended without reporting its files")
        if self._is_done:
            return
        if self._plan.options.txn is not None:
            save_in(self._plan.options.txn, self._plan, messages, self._overwrite)
            return
        lake = self._plan.options.open()
        id = self._plan.options.id
        if id is not None and _is_committed(lake, id):  # by another run of the same job, meanwhile
            self._plan.delete_all_but([])
            return
        transaction = begin_on(lake, self._plan, id or f"spark-{self._plan.write_id}")
        try:
            stage(transaction, self._plan, messages, self._overwrite)
        except BaseException:
            transaction.rollback()
            self._plan.delete_all_but([])
            raise
        commit_or_delete(transaction, self._plan, messages)
        if id is not None and not committed_by(lake, id, self._plan):
            self._plan.delete_all_but([])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks wrote, as far as possible.

        Spark comes here after a failed commit too. That has deleted the files if it was certain that they are in no
        version, so files that all tasks reported stay here.
        """
        commit_was_tried = all(message is not None for message in messages)
        self._plan.delete_all_but(messages if commit_was_tried else [])


def _is_committed(lake: Lakehouse, id: str) -> bool:
    """Whether a transaction of that id is in the lakehouse. Raises `CommitConflict` if it was and has been undone."""
    if not lake.transactions.is_committed(id):
        return False
    outcome = lake.transactions.outcome(id)
    if outcome.status == "undone":
        raise CommitConflict(
            f"the write {id} was committed as version {outcome.version}, which was undone by a rollback: to do it "
            "again is a decision, and takes another id"
        )
    return True
