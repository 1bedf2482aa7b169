"""A joined and an aggregated table on Spark, kept up to date from the row changes of their inputs.

    python examples/incremental_pipeline.py s3://bucket/lake

`update` reads the rows of `shop.orders` and `shop.items` that changed since the last update. It writes both derived
tables, and its position in the inputs, in one transaction. So an update that fails or is killed has no effect, and the
next one does its work: each change counts once. Without an argument, the example uses a new folder.

Needs PySpark and DuckDB: pip install 'trinitylake[spark,sql]'.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import trinitylake as tl
from trinitylake.spark.runtime import use_this_python

#: The name under which the position in the inputs is stored.
CONSUMER = "derived"

TOTALS = "SELECT item, count(*) AS orders, sum(amount) AS amount FROM shop.orders GROUP BY item ORDER BY item"
TITLED = "SELECT id, title, amount FROM shop.orders JOIN shop.items USING (item) ORDER BY id"


def create(root: str) -> tl.Lakehouse:
    lake = tl.create(root)
    with lake.transaction(message="create tables") as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", {"id": "bigint", "item": "text", "amount": "bigint"}, primary_key="id")
        txn.create_table("shop.items", {"item": "text", "title": "text"}, primary_key="item")
        txn.create_table("shop.totals", {"item": "text", "orders": "bigint", "amount": "bigint"}, primary_key="item")
        txn.create_table("shop.titled", {"id": "bigint", "title": "text", "amount": "bigint"}, primary_key="id")
    return lake


def update(spark: SparkSession, lake: tl.Lakehouse, before_commit: Callable[[], None] = lambda: None) -> None:
    """Bring both derived tables to the state of their inputs."""
    with lake.transaction(message="update derived tables", author="pipeline") as txn:
        orders = tl.spark.consume(spark, lake.uri, "shop.orders", CONSUMER, txn=txn).cache()
        items = tl.spark.consume(spark, lake.uri, "shop.items", CONSUMER, txn=txn)
        update_totals(lake.uri, txn, orders)
        update_titled(lake.uri, txn, orders, items)
        before_commit()
    orders.unpersist()


def update_totals(uri: str, txn: tl.Transaction, orders: DataFrame) -> None:
    """Each change adds to a group or subtracts from it. A group without orders is deleted."""
    sign = f.when(f.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    change = orders.groupBy("item").agg(f.sum(sign).alias("orders"), f.sum(sign * f.col("amount")).alias("amount"))
    (
        tl.spark.merge(change, uri, "shop.totals", on="item", txn=txn)
        .when_matched_delete(condition="target.orders + source.orders = 0")
        .when_matched_update({"orders": "target.orders + source.orders", "amount": "target.amount + source.amount"})
        .when_not_matched_insert(condition="source.orders > 0")
        .execute()
    )


def update_titled(uri: str, txn: tl.Transaction, orders: DataFrame, items: DataFrame) -> None:
    """Find the keys of the result whose inputs changed, and compute these rows again."""
    all_orders, all_items = (
        tl.spark.table(orders.sparkSession, uri, name, version=txn.base_version)
        for name in ("shop.orders", "shop.items")
    )
    of_items = all_orders.join(items, "item", "left_semi")
    affected = orders.select("id").union(of_items.select("id")).distinct()
    joined = all_orders.join(all_items, "item").select("id", "title", "amount", f.lit(True).alias("is_joined"))
    (
        tl.spark.merge(affected.join(joined, "id", "left"), uri, "shop.titled", on="id", txn=txn)
        .when_matched_delete(condition="source.is_joined IS NULL")
        .when_matched_update()
        .when_not_matched_insert(condition="source.is_joined")
        .execute()
    )


def check(lake: tl.Lakehouse) -> None:
    """Compare both derived tables with queries over all rows of the inputs, in DuckDB."""
    for table, query in (("shop.totals", TOTALS), ("shop.titled", TITLED)):
        found = lake.sql(f"SELECT * FROM {table} ORDER BY ALL").fetchall()
        assert found == lake.sql(query).fetchall(), table
        print(f"  {table}: {found}")


def main(root: str) -> None:
    use_this_python()
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    lake = create(root)
    orders, items = lake.table("shop.orders"), lake.table("shop.items")

    print("first load")
    items.append({"item": ["pen", "ink"], "title": ["Pen", "Ink"]})
    orders.append({"id": [1, 2, 3], "item": ["pen", "ink", "pen"], "amount": [100, 200, 400]})
    update(spark, lake)
    check(lake)

    print("a changed order, a new one, and another title")
    orders.upsert({"id": [1, 4], "item": ["ink", "pen"], "amount": [800, 1600]})
    items.upsert({"item": ["ink"], "title": ["Black ink"]})

    def fail() -> None:
        raise OSError("the disk of a worker is full")

    before = lake.version
    try:
        update(spark, lake, before_commit=fail)
    except OSError as error:
        print(f"  the update failed ({error}): both tables and the position are as before")
    assert not lake.diff(before, lake.version)
    update(spark, lake)
    check(lake)

    print("no pens any more")
    orders.delete("item = 'pen'")
    update(spark, lake)
    check(lake)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"{tempfile.mkdtemp()}/lake")
