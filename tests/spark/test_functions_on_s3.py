"""The functions of `trinitylake.spark`, and streams, with a lakehouse on S3 whose credentials are storage options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import trinitylake as tl
from s3_server import SECRET_KEY, S3Server, serve
from trinitylake.spark import BatchTransaction


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve() as server:
        yield server


def rows(lake: tl.Lakehouse, table: str) -> dict[int, str]:
    return {row["id"]: row["name"] for row in lake.table(table).to_arrow().to_pylist()}


def test_functions_and_streams_work_on_s3(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    """The functions and streams work on S3: they pass the storage options to tasks in other ways than SQL and the data
    source."""
    options = server.storage_options
    lake = tl.create(f"s3://{server.new_bucket()}/lake", storage_options=options)
    lake.create_namespace("n")

    def frame(*ids: int, name: str = "a") -> DataFrame:
        return spark.createDataFrame([(id, name) for id in ids], "id long, name string")

    def into_both(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.write(batch, "n.copy")
        tx.merge(batch.withColumn("name", f.lit("seen")), "n.seen", on="id").when_not_matched_insert().execute()

    def follow() -> None:
        stored = {f"storage.{name}": value for name, value in options.items()}
        stream = spark.readStream.format("trinitylake").options(root=lake.uri, **stored).load("n.rows")
        function = tl.spark.foreach_batch(into_both, lake.uri, storage_options=options)
        query = stream.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "place")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert tl.spark.write(frame(1, 2), lake.uri, "n.rows", partition_spec="bucket(2, id)", storage_options=options)
    for name in ("copy", "seen"):
        assert tl.spark.write(frame(), lake.uri, f"n.{name}", storage_options=options)
    follow()
    with lake.transaction() as txn:
        tl.spark.write(frame(3, 4), lake.uri, "n.rows", mode="append", txn=txn, storage_options=options)
    follow()
    assert rows(lake, "n.copy") == dict.fromkeys((1, 2, 3, 4), "a")
    assert rows(lake, "n.seen") == dict.fromkeys((1, 2, 3, 4), "seen")

    with lake.transaction() as txn:
        changed = tl.spark.consume(spark, lake.uri, "n.rows", "c", txn=txn, storage_options=options)
    assert sorted(row.id for row in changed.collect()) == [1, 2, 3, 4]
    merge = tl.spark.merge(frame(2, 5, name="b"), lake.uri, "n.rows", on="id", storage_options=options)
    merge.when_matched_update().when_not_matched_insert().execute()
    tl.spark.update(spark, lake.uri, "n.rows", {"name": "upper(name)"}, "id > 3", storage_options=options)
    tl.spark.delete(spark, lake.uri, "n.rows", "id = 1", storage_options=options)
    expected = {2: "b", 3: "a", 4: "A", 5: "B"}
    assert rows(lake, "n.rows") == expected
    read = tl.spark.table(spark, lake.uri, "n.rows", storage_options=options)
    assert dict(read.collect()) == expected
    assert SECRET_KEY not in read._jdf.queryExecution().toString()
    assert not [path for path, data in server.files(lake.uri.split("/")[2]).items() if SECRET_KEY.encode() in data]
