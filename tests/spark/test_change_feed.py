"""The change feed in Spark: batches and streams return the same as Python and as Iceberg's changelog view."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count
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
    """A table whose versions are inserts, an update, a delete, a compaction and a new column."""
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
    """Without `since`, a batch or stream reads all rows as inserted, with several tasks."""
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
    with pytest.raises(AnalysisException, match="column _version, which the feed has, too"):
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


def changelog(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> list[dict[str, Any]]:
    """The changes after the first snapshot, as Iceberg's changelog view shows them."""
    snapshots = [one.snapshot_id for one in table.snapshots()]
    connect(lake.uri, "feed", spark=spark, durability="none")
    try:
        spark.sql(
            f"CALL feed.system.create_changelog_view(table => '{table.name}', changelog_view => 'shown', "
            f"options => map('start-snapshot-id', '{snapshots[0]}', 'end-snapshot-id', '{snapshots[-1]}'), "
            "identifier_columns => array('id'))"
        )
        return [row.asDict() for row in spark.sql("SELECT * FROM shown").collect()]
    finally:
        disconnect(spark, "feed")


def in_snapshots(rows: list[dict[str, Any]], *hidden: str) -> Counter[str]:
    return shown([{k: v for k, v in row.items() if k not in ("_change_ordinal", *hidden)} for row in rows])


def test_changelog_view_of_iceberg_shows_the_same(spark: SparkSession, lake: tl.Lakehouse, orders: tl.Table) -> None:
    ours = orders.changes(3, names="iceberg").read_all().to_pylist()
    assert in_snapshots(ours) == in_snapshots(changelog(spark, lake, orders))


def a_statement(choice: random.Random, new: Iterator[int]) -> str:
    """A random statement on the table `{t}`, whose keys stay unique. Some statements match no row, or set unchanged
    values."""
    where = choice.choice([f"id % 4 = {choice.randrange(4)}", f"id = {choice.randrange(30)}", "x IS NULL", "x > 2"])
    number = choice.choice(["NULL", "'nan'::double", "0.5", "x + 1", "x"])
    match choice.randrange(4):
        case 0:
            return f"DELETE FROM {{t}} WHERE {where}"
        case 1:
            return f"UPDATE {{t}} SET x = {number} WHERE {where}"
        case 2:
            keys = ", ".join(f"({key}, {key}.5)" for key in (choice.randrange(30), next(new)))
            return (
                f"MERGE INTO {{t}} AS t USING (VALUES {keys}) AS s(id, x) ON t.id = s.id "
                "WHEN MATCHED AND t.x > 3 THEN DELETE WHEN MATCHED THEN UPDATE SET x = s.x "
                "WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, s.x)"
            )
    return "INSERT INTO {t} VALUES " + ", ".join(f"({next(new)}, {choice.randrange(5)})" for _ in range(4))


@pytest.mark.parametrize("seed", range(20 if os.environ.get("TRINITYLAKE_DEEP") else 2))
def test_changelog_view_shows_the_same_for_any_statements(spark: SparkSession, lake: tl.Lakehouse, seed: int) -> None:
    """Iceberg's view reads no delete files. So tables with them are compared with the view of their copy-on-write twin,
    after the same statements."""
    lake.create_namespace("n")
    choice, new = random.Random(seed), count(100)
    modes = {f"write.{one}.mode": "merge-on-read" for one in ("delete", "update", "merge")}
    tables = {
        f"n.v{version}_{number}": {"format-version": version, **properties}
        for version in ("2", "3")
        for number, properties in enumerate(({}, modes))
    }
    statements = ["INSERT INTO {t} SELECT i, i FROM range(20) AS r(i)", *(a_statement(choice, new) for _ in range(12))]
    feeds = {}
    for name, properties in tables.items():
        table = lake.create_table(name, {"id": "bigint", "x": "double"}, primary_key=["id"], properties=properties)
        versions = [lake.sql(statement.format(t=name)) and lake.version for statement in statements]
        table = lake.table(name)
        feed = table.changes(versions[0], names="iceberg").read_all().to_pylist()
        ids = [one.snapshot_id for one in table.snapshots()]
        for row in feed:
            row["_commit_snapshot_id"] = ids.index(row["_commit_snapshot_id"])
        feeds[name] = in_snapshots(feed)
        if not name.endswith("1"):
            view = changelog(spark, lake, table)
            for row in view:
                row["_commit_snapshot_id"] = ids.index(row["_commit_snapshot_id"])
            assert feeds[name] == in_snapshots(view)
    assert len({frozenset(feed.items()) for feed in feeds.values()}) == 1
