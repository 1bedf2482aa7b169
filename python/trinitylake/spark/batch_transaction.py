"""Micro-batches of a stream that write to several tables, each batch exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any

from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.lakehouse import open as open_lakehouse
from trinitylake.spark.frames import Mode, write
from trinitylake.spark.row_changes import SparkMerge, merge
from trinitylake.spark.runtime import is_remote
from trinitylake.spark.table_frames import table as read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trinitylake.lakehouse.opening import Durability


class BatchTransaction:
    """The transaction of one micro-batch.

    Attributes:
        id: id of the transaction, derived from the query and the batch.
        attempt: name of this attempt of the transaction, for `option("txn", …)`.
        number: number of the micro-batch.
    """

    def __init__(self, spark: SparkSession, root: str, attempt: str, number: int, how: Mapping[str, Any]) -> None:
        self.id = attempt.partition("~")[0]
        self.attempt = attempt
        self.number = number
        self._spark = spark
        self._root = root
        self._how = {**how, "txn": attempt}

    def read(self, table: str) -> DataFrame:
        """Read a table, including rows that this batch has written, as `trinitylake.spark.table` does."""
        return read_table(self._spark, self._root, table, **self._how)

    def write(self, frame: DataFrame, table: str, *, mode: Mode = "append", **arguments: Any) -> bool:
        """Write a DataFrame to a table, with the arguments and the result of `trinitylake.spark.write`."""
        return write(frame, self._root, table, mode=mode, **arguments, **self._how)

    def merge(self, frame: DataFrame, table: str, on: Iterable[str] | None = None) -> SparkMerge:
        """Merge a DataFrame into a table, as `trinitylake.spark.merge` does."""
        return merge(frame, self._root, table, on, **self._how)


def foreach_batch(
    function: Callable[[DataFrame, BatchTransaction], object],
    root: str | PathLike[str],
    *,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch`, with one transaction for each micro-batch.

        def load(batch, tx):
            tx.write(batch, "nyc.flights")
            tx.write(batch.groupBy("carrier").count(), "nyc.counts", mode="overwrite")

        stream.writeStream.foreachBatch(tl.spark.foreach_batch(load, uri)).option("checkpointLocation", place).start()

    All writes of a batch are one commit, whose id contains the id of the query and the number of the batch. A committed
    batch that Spark repeats after a restart is not written again; the rest of a failed attempt is discarded.

    Args:
        function: called with the rows of a batch and the batch's transaction. It must write through the transaction.
        root: the URI of the lakehouse.
        message: stored in the log.
        author: stored in the log.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    The query fails with `CommitConflict` if another writer changed the same rows; the query can then be restarted.
    """
    how: dict[str, Any] = {"storage_options": storage_options, "durability": durability}

    def run(batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        if is_remote(spark):
            raise InvalidArgument("foreach_batch needs a session whose driver is this process; Spark Connect has none")
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise InvalidArgument(
                "foreach_batch works only inside writeStream.foreachBatch: no streaming query is running"
            )
        lake = open_lakehouse(root, **how)
        id = f"spark-{query}-{number}"
        transaction = lake.begin(
            id=id,
            restart=True,
            message=message or f"batch {number} of streaming query {query}",
            author=author,
            properties={"engine": "spark"},
        )
        if transaction.version is not None:
            return
        attempt = transaction.save()
        try:
            function(batch, BatchTransaction(spark, lake.uri, attempt, number, how))
        except BaseException:
            # The function's error is raised. If the rollback fails, the next attempt discards this transaction.
            with suppress(TrinityLakeError):
                lake.resume(attempt).rollback()
            raise
        lake.resume(attempt).commit()

    return run
