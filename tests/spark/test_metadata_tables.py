"""The metadata tables of `format("trinitylake")` agree with the lakehouse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import trinitylake as tl

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", "AA"]})


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A lakehouse with five versions: empty, a load of two tables, a delete, a view, and a rollback of the last two."""
    with lake.transaction(message="load", author="etl") as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.flights", ROWS, partition_spec="carrier").append(ROWS)
        txn.create_table("nyc.planes", ROWS).append(ROWS)
    lake.table("nyc.planes").delete("id = 1")
    lake.create_view("nyc.busy", "SELECT 1", dialect="spark")
    lake.rollback(1, message="bad load")
    return lake


def metadata(spark: SparkSession, lake: tl.Lakehouse, kind: str, name: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("trinitylake").option("root", lake.uri).option("metadata", kind)
    return reader.options(**options).load(name)


def test_the_log_has_a_row_for_each_version(spark: SparkSession, shop: tl.Lakehouse) -> None:
    found = metadata(spark, shop, "log").collect()
    expected = shop.log(None)
    assert [row.version for row in found] == [entry.version for entry in expected] == [4, 3, 2, 1, 0]
    for row, entry in zip(found, expected, strict=True):
        assert row.created_at.timestamp() == entry.created_at.timestamp()
        assert (row.message, row.author, row.rollback_from) == (entry.message, entry.author, entry.rollback_from)
        assert [one.id for one in row.transactions] == [one.id for one in entry.transactions]
    assert [row.version for row in metadata(spark, shop, "log", version=1).select("version").collect()] == [1, 0]


def test_objects_are_those_of_the_version(spark: SparkSession, shop: tl.Lakehouse) -> None:
    frame = metadata(spark, shop, "objects")
    assert sorted((row.kind, row.namespace, row.name) for row in frame.collect() if row.kind != "namespace") == [
        ("table", "nyc", "flights"),
        ("table", "nyc", "planes"),
    ]
    assert frame.where("kind = 'namespace'").count() == 1
    then = metadata(spark, shop, "objects", version=3)
    assert [row.name for row in then.where("kind = 'view'").collect()] == ["busy"]
    assert all(row.location for row in then.collect())


def test_changes_tell_every_version_apart(spark: SparkSession, shop: tl.Lakehouse) -> None:
    found = [(row.version, row.change, row.kind, row.name) for row in metadata(spark, shop, "changes").collect()]
    assert found == [
        (1, "added", "namespace", "nyc"),
        (1, "added", "table", "nyc.flights"),
        (1, "added", "table", "nyc.planes"),
        (2, "changed", "table", "nyc.planes"),
        (3, "added", "view", "nyc.busy"),
        (4, "removed", "view", "nyc.busy"),
        (4, "changed", "table", "nyc.planes"),
    ]
    since = metadata(spark, shop, "changes", since=2).select("name", "version").collect()
    assert sorted({row.version for row in since}) == [3, 4]


def test_files_of_a_table_have_sizes_and_partitions(spark: SparkSession, shop: tl.Lakehouse) -> None:
    found = metadata(spark, shop, "files", "nyc.flights").collect()
    expected = {task.file.file_path: task.file for task in shop.table("nyc.flights").scan().iceberg.plan_files()}
    assert {row.file_path for row in found} == set(expected)
    assert {row.partition: row.record_count for row in found} == {"carrier=AA": 2, "carrier=UA": 1}
    for row in found:
        assert row.file_size_in_bytes == expected[row.file_path].file_size_in_bytes
        assert (row.content, row.file_format) == ("data", "PARQUET")


def test_a_metadata_table_is_read_only_and_outside_of_transactions(spark: SparkSession, shop: tl.Lakehouse) -> None:
    shop.begin(id="open").save()
    with pytest.raises(PySparkException, match="committed versions"):
        metadata(spark, shop, "log", txn="open").collect()
    frame = spark.createDataFrame([(1,)], "id long")
    with pytest.raises(PySparkException, match="for reading"):
        frame.write.format("trinitylake").option("root", shop.uri).option("metadata", "log").mode("append").save("x")
