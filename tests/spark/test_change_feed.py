"""The change feed in Spark: batches and streams return what Python returns, and what Iceberg's changelog view shows."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import trinitylake as tl
from trinitylake.spark import connect, disconnect


@pytest.fixture
def orders(lake: tl.Lakehouse) -> tl.Table:
    """Inserts, an update, a deletion, a compaction and a new column, each in a version."""
    lake.create_namespace("n")
    table = lake.create_table("n.orders", {"id": "bigint", "x": "double"}, primary_key=["id"])
    table.append({"id": [1, 2, 3, 4], "x": [1.0, 2.0, 3.0, 4.0]})
    table.append({"id": [5, 6], "x": [None, 6.0]})
    table.upsert({"id": [2, 7], "x": [20.0, 7.0]})
    table.delete("id = 3")
    table.maintenance.compact()
    with table.update_schema() as update:
        update.add_column("s", StringType())
    table.append({"id": [8], "x": [8.0], "s": ["new"]})
    return table


def shown(rows: list[dict[str, Any]]) -> Counter[str]:
    hidden = "_committed_at", "_transaction_id"
    return Counter(repr(sorted((k, v) for k, v in row.items() if k not in hidden)) for row in rows)


def test_batch_returns_the_feed(spark: SparkSession, lake: tl.Lakehouse, orders: tl.Table) -> None:
    reader = spark.read.format("trinitylake").option("root", lake.uri).option("changes", "true")
    for since, until in ((0, lake.version), (3, 5), (3, 3)):
        frame = reader.option("since", since).option("version", until).load("n.orders")
        expected = lake.at(until).table("n.orders").changes(since, until).read_all().to_pylist()
        assert shown([row.asDict() for row in frame.collect()]) == shown(expected)
    some = reader.option("since", 3).option("version", lake.version).option("columns", "id").load("n.orders")
    assert some.columns == ["id", "_change_type", "_version", "_committed_at", "_transaction_id"]
    assert some.where("_change_type = 'delete'").select("id").collect()[0].id == 3


def test_all_rows_are_inserted_by_several_tasks(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Without `since`, a batch failed, and a stream read all rows in one task, however large the table."""
    lake.create_namespace("n")
    table = lake.create_table("n.rows", {"id": "bigint", "name": "text"}, partition_spec="id")
    reader = spark.read.format("trinitylake").option("root", lake.uri).option("changes", "true")
    assert reader.load("n.rows").count() == 0
    table.append({"id": [*range(4)], "name": ["a", "b", "c", "d"]})
    table.delete("id = 2")
    frame = reader.option("split_size_bytes", 1).load("n.rows")
    assert frame.rdd.getNumPartitions() == 3
    entry = lake.log(1)[0]
    expected = [(id, name, "insert", entry.version, None) for id, name in ((0, "a"), (1, "b"), (3, "d"))]
    assert sorted(frame.drop("_committed_at").collect()) == expected
    assert {row[0] for row in frame.selectExpr("unix_millis(_committed_at)").collect()} == {
        round(entry.created_at.timestamp() * 1000)
    }
    lake.create_table("n.taken", {"id": "bigint", "_version": "int"})
    with pytest.raises(AnalysisException, match="column _version, which is a name of the feed"):
        reader.load("n.taken")
    assert reader.option("columns", "id").load("n.taken").count() == 0


def test_consume_returns_what_a_transaction_consumes(spark: SparkSession, lake: tl.Lakehouse, orders: tl.Table) -> None:
    """`tl.spark.consume` and `consume` of a table share positions, and a rolled back one does not advance."""

    def consume(name: str, other: str) -> DataFrame:
        with lake.transaction() as txn:
            frame = tl.spark.consume(spark, lake.uri, "n.orders", name, txn=txn)
            expected = txn.table("n.orders").consume(other).read_all().to_pylist()
        assert shown([row.asDict() for row in frame.collect()]) == shown(expected)
        return frame

    first = consume("one", "two")
    rows = first.collect()
    assert len(rows) == 7
    orders.upsert({"id": [1], "x": [10.0], "s": ["a"]})
    txn = lake.begin()
    tl.spark.consume(spark, lake.uri, "n.orders", "one", txn=txn)
    txn.rollback()
    orders.delete("id = 5")
    assert consume("one", "two").count() == 3
    assert consume("two", "one").count() == 0
    assert sorted(first.collect()) == sorted(rows)


def test_stream_is_exact_across_restarts(
    spark: SparkSession, lake: tl.Lakehouse, orders: tl.Table, tmp_path: Path
) -> None:
    delivered: list[list[dict[str, Any]]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        delivered.append([row.asDict() for row in frame.collect()])

    def run(**options: Any) -> None:
        source = spark.readStream.format("trinitylake").option("root", lake.uri).option("changes", "true")
        stream = source.options(**options).load("n.orders").writeStream.foreachBatch(keep)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    first = lake.version
    run()
    assert shown([*chain(*delivered)]) == shown(
        [{**row, "_change_type": "insert", "_version": first} for row in orders.scan().to_arrow().to_pylist()]
    )
    delivered.clear()
    run()
    assert [*chain(*delivered)] == []
    lake.create_namespace("other")
    orders.refresh()
    orders.upsert({"id": [1], "x": [10.0], "s": ["a"]})
    orders.delete("id = 5")
    orders.append({"id": [9], "x": [9.0], "s": ["b"]})
    run(max_versions_per_trigger=1)
    batches = [one for one in delivered if one]
    assert [len({row["_version"] for row in one}) for one in batches] == [1, 1, 1]
    assert shown([*chain(*batches)]) == shown(orders.changes(first).read_all().to_pylist())


def test_changelog_view_of_iceberg_shows_the_same(spark: SparkSession, lake: tl.Lakehouse, orders: tl.Table) -> None:
    connect(lake.uri, "feed", spark=spark, durability="none")
    try:
        snapshots = [one.snapshot_id for one in orders.snapshots()]
        spark.sql(
            "CALL feed.system.create_changelog_view(table => 'n.orders', changelog_view => 'shown', "
            f"options => map('start-snapshot-id', '{snapshots[0]}', 'end-snapshot-id', '{snapshots[-1]}'), "
            "identifier_columns => array('id'))"
        )
        theirs = [row.asDict() for row in spark.sql("SELECT * FROM shown").collect()]
    finally:
        disconnect(spark, "feed")
    ours = orders.changes(3, names="iceberg").read_all().to_pylist()
    for rows in (theirs, ours):
        for row in rows:
            row.pop("_change_ordinal")
    assert shown(ours) == shown(theirs)
