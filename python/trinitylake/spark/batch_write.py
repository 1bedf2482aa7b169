"""Writing a batch: tasks write files, the driver commits them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from trinitylake.errors import InvalidArgument, StorageError
from trinitylake.spark.commit import begin_on, commit_or_delete, resumed, save_in, stage
from trinitylake.spark.options import Options
from trinitylake.spark.write_tasks import WritePlan, files_of

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWriter(DataSourceArrowWriter):
    """One `frame.write`. Made in a process beside the driver, used on executors and in another such process.

    With the option `txn` the rows go into a saved transaction, which is saved again and committed by somebody else.
    Otherwise an append goes onto whatever was committed meanwhile. An overwrite replaces what the table held when
    the write was planned, and fails with `CommitConflict` if it holds something else by now.
    """

    def __init__(self, options: Options, overwrite: bool) -> None:
        if options.version is not None or options.timestamp is not None or options.metadata is not None:
            raise InvalidArgument("the options version, timestamp and metadata are for reading")
        if options.filter is not None and not overwrite:
            raise InvalidArgument("the option filter is for overwrites: it names the rows that are replaced")
        self._overwrite = overwrite
        lake = options.open()
        if options.txn is not None:
            transaction = resumed(lake, options.txn)
            self._plan = WritePlan.of(options, transaction.table(options.table_name), transaction.base_version)
        else:
            state = lake.at()
            self._plan = WritePlan.of(options, state.table(options.table_name), state.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on an executor."""
        return self._plan.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the reported files part of the table, all at once; with the option `txn`, as the transaction sees it.

        Raises:
            CommitConflict: for an overwrite whose table has changed.
            TransactionClosed, ObjectNotFound: the transaction has ended.
            CommitStateUnknown: it is not known whether the commit happened; no file was deleted.
        """
        if any(message is None for message in messages):
            self.abort(messages)
            raise StorageError(f"a task of the write to {self._plan.table_name} ended without reporting its files")
        if self._plan.options.txn is not None:
            save_in(self._plan.options.txn, self._plan, messages, self._overwrite)
            return
        transaction = begin_on(self._plan.options.open(), self._plan, f"spark-{self._plan.write_id}")
        try:
            stage(transaction, self._plan, files_of(messages), self._overwrite)
        except BaseException:
            transaction.rollback()
            self._plan.delete_all_but([])
            raise
        commit_or_delete(transaction, self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what the tasks wrote, as far as possible.

        Spark comes here after a failed commit too. That has deleted the files if it was certain that they are in no
        version, so files that all tasks reported stay here.
        """
        commit_was_tried = all(message is not None for message in messages)
        self._plan.delete_all_but(messages if commit_was_tried else [])
