"""Micro-batches of a stream that write several tables, each batch exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Literal

from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.lakehouse import open as open_lakehouse
from trinitylake.spark.frames import clustered
from trinitylake.spark.options import Options
from trinitylake.spark.runtime import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trinitylake.lakehouse.opening import Durability
    from trinitylake.spark.row_changes import SparkMerge


class BatchTransaction:
    """The transaction of one micro-batch.

    Attributes:
        id: of the transaction, made of the query and the batch; for `option("txn", …)`.
        number: of the micro-batch.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str], id: str, number: int) -> None:
        self.id = id
        self.number = number
        self._spark = spark
        self._options = {**options, "txn": id}

    def read(self, table: str) -> DataFrame:
        """A table as the transaction sees it, with what the batch has written."""
        return self._spark.read.format("trinitylake").options(**self._options).load(table)

    def write(
        self,
        frame: DataFrame,
        table: str,
        *,
        mode: Literal["append", "overwrite"] = "append",
        filter: str | None = None,
        cluster: bool = True,
    ) -> None:
        """Write a frame to a table. The arguments are those of `trinitylake.spark.write`."""
        rows = (
            clustered(frame, Options.parse({**self._options, "path": table}).open_table().iceberg) if cluster else frame
        )
        options = self._options if filter is None else {**self._options, "filter": filter}
        rows.write.format("trinitylake").options(**options).mode(mode).save(table)

    def merge(self, frame: DataFrame, table: str, on: Iterable[str] | None = None) -> SparkMerge:
        """MERGE of a frame into a table, as `trinitylake.spark.merge`."""
        from trinitylake.spark.row_changes import merge_into

        return merge_into(frame, Options.parse({**self._options, "path": table}), on)


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

    All writes of a batch are one commit, under an id made of the query and the batch. A batch that Spark repeats after
    a restart is not written again; an attempt that failed is discarded and begins again.

    Args:
        function: called with the rows of a batch and its transaction. It must write through the transaction.
        root: the URI of the lakehouse.
        message: stored in the log.
        author: stored in the log.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    The query fails with `CommitConflict` if another writer changed the same rows; Spark can restart it.
    """
    options = {f"storage.{name}": value for name, value in (storage_options or {}).items()}
    if durability is not None:
        options["durability"] = durability

    def run(batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        if is_remote(spark):
            raise InvalidArgument("foreach_batch needs a session whose driver is this process; Spark Connect has none")
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise InvalidArgument("foreach_batch is for writeStream.foreachBatch: Spark names no streaming query")
        lake = open_lakehouse(root, storage_options=storage_options, durability=durability)
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
        transaction.save()
        try:
            function(batch, BatchTransaction(spark, {**options, "root": lake.uri}, id, number))
        except BaseException:
            with suppress(TrinityLakeError):  # the error of the function is raised; the next attempt discards this one
                lake.resume(id).rollback()
            raise
        lake.resume(id).commit()

    return run
