"""Writes a batch: tasks write files, and the driver commits them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument, StorageError
from trinitylake.spark.commit import commit_write, planned
from trinitylake.spark.options import Options
from trinitylake.spark.task_errors import one_line_errors
from trinitylake.spark.write_tasks import WrittenFiles

if TYPE_CHECKING:
    import pyarrow as pa


@one_line_errors
class BatchWriter(DataSourceArrowWriter):
    """One `frame.write`. Spark creates it in a process on the driver's machine, and pickles it for other processes.

    With the option `txn` the rows become part of a saved transaction, which is saved again. Otherwise the write is a
    commit. An append is applied again after concurrent commits. An overwrite replaces the rows that the table had when
    the write was planned, and fails with `CommitConflict` if the table has changed since then.
    """

    def __init__(self, options: Options, overwrite: bool, rows: StructType | None = None) -> None:
        if options.version is not None or options.timestamp is not None or options.metadata is not None:
            raise InvalidArgument("the options version, timestamp and metadata are for reading")
        if options.filter is not None and not overwrite:
            raise InvalidArgument("the option filter is for overwrites: it chooses the rows that are replaced")
        if options.partition_overwrite_mode is not None and not overwrite:
            raise InvalidArgument('the option partitionOverwriteMode is for overwrites: choose mode("overwrite")')
        if options.columns is not None:
            raise InvalidArgument("the option columns is for reading: choose columns of the frame with select(...)")
        self._overwrite = overwrite
        self._plan, _, self._is_done = planned(options, rows)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on an executor."""
        if self._is_done:
            return WrittenFiles([])
        return self._plan.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the files that the tasks reported (`commit_write`)."""
        if any(message is None for message in messages):
            self.abort(messages)
            raise StorageError(
                f"a task of the write to {self._plan.table_name} ended without reporting its files; nothing was "
                "committed: write again"
            )
        if not self._is_done:
            commit_write(self._plan, messages, self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Try to delete the files that the tasks wrote.

        Spark also calls this after a failed commit, which is the case if all tasks reported their files. The commit has
        already deleted the reported files if no version can contain them, so these files are not deleted here.
        """
        commit_was_tried = all(message is not None for message in messages)
        self._plan.delete_all_but(messages if commit_was_tried else [])
