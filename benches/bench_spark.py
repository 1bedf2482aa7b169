"""Spark: the data source compared with Spark's Parquet reader and writer, and transactions in SQL."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

import trinitylake as tl
from benches.measure import Bench, at_least, at_most, in_turn, seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = 30
FILES = 4


@contextmanager
def session(bench: Bench) -> Iterator[SparkSession]:
    """Spark on two cores with Iceberg's runtime and started Python workers."""
    from pyspark.sql import SparkSession

    from trinitylake.spark import functions
    from trinitylake.spark.runtime import EXTENSIONS, package, use_this_python

    use_this_python()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("trinitylake-bench")
        .config("spark.jars.packages", package())
        .config("spark.sql.extensions", EXTENSIONS)
        .config("spark.driver.memory", "3g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.catalog.plain", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.plain.type", "hadoop")
        .config("spark.sql.catalog.plain.warehouse", str(bench.folder("plain-iceberg")))
        .config("spark.sql.catalog.plain.cache-enabled", "false")
        .getOrCreate()
    )
    try:
        paths = spark.range(0, 100_000, 1, 2).selectExpr("cast(id as string) as path")
        for _ in range(3):
            consume(paths.select(functions.optimize_path("path")))
        yield spark
    finally:
        spark.stop()


def consume(frame: DataFrame) -> None:
    """Compute every row and discard it."""
    frame.write.format("noop").mode("overwrite").save()


def wide_rows(rows: int, first: int = 0) -> pa.Table:
    """A table of integers, floating point numbers and text, a third of each."""
    ids = range(first, first + rows)
    kinds = [
        pa.array(ids, pa.int64()),
        pa.array([id * 0.37 for id in ids], pa.float64()),
        pa.array([f"text {id % 1_000}" for id in ids]),
    ]
    return pa.table({f"column_{number:02d}": kinds[number % 3] for number in range(COLUMNS)})


def spark_rows(bench: Bench) -> None:
    """Full scans and appends of a wide table, compared with Spark's own Parquet reader and writer."""
    rows = bench.size(250_000, 5_000)
    lake = tl.create(str(bench.folder("lake")), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.wide", wide_rows(1))
    lake.create_table("n.copy", wide_rows(1))
    for number in range(FILES):
        table.append(wide_rows(rows, number * rows))
    files = [task.file.file_path for task in table.scan().iceberg.plan_files()]
    assert len(files) == FILES
    parquet = bench.folder("parquet")
    with session(bench) as spark:
        ours = spark.read.format("trinitylake").options(root=lake.uri, split_size_bytes=1)
        assert ours.load("n.wide").count() == spark.read.parquet(*files).count() == FILES * rows
        times = in_turn(
            bench.size(3, 1),
            1,
            ours=lambda _: consume(ours.load("n.wide")),
            parquet=lambda _: consume(spark.read.parquet(*files)),
        )
        what = f"Spark: full scan of {FILES * rows:,} rows of {COLUMNS} columns"
        bench.speed(what, times["ours"], "Spark's Parquet reader", times["parquet"], at_least(0.8))
        source = spark.read.parquet(*files).cache()
        source.count()
        writer = source.write.format("trinitylake").options(root=lake.uri, durability="none").mode("append")
        times = in_turn(
            bench.size(3, 1),
            1,
            ours=lambda _: writer.save("n.copy"),
            parquet=lambda number: source.write.parquet(str(parquet / str(number))),
        )
        assert any(parquet.rglob("*.parquet"))
        what = f"Spark: append of {FILES * rows:,} cached rows of {COLUMNS} columns"
        bench.speed(what, times["ours"], "Spark's Parquet writer", times["parquet"], at_least(0.65))
        source.unpersist()


class Requests(logging.Handler):
    """Counts the lines of the access log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def spark_transaction(bench: Bench) -> None:
    """The same statements over three tables: in one transaction, a commit each, and as plain Iceberg statements.

    The statements alternate, so that a machine that is slow for a minute is slow for all.
    """
    from trinitylake.spark import connect, disconnect, transaction

    lake = tl.create(str(bench.folder("lake")), durability="none")
    statements = bench.size(4, 1)
    requests = Requests()
    log = logging.getLogger("trinitylake.rest.access")
    with session(bench) as spark:
        connect(lake.uri, "lake", spark=spark, durability="none")
        # Tables of their own for each side: a DELETE takes longer the more files there are.
        for namespace in ("lake.one", "lake.many", "plain.many"):
            spark.sql(f"CREATE NAMESPACE {namespace}")
            for table in ("a", "b", "c"):
                spark.sql(f"CREATE TABLE {namespace}.{table} (id bigint, name string)")

        def texts(number: int) -> Iterator[str]:
            for statement in range(statements):
                rows = f"SELECT id, 'name' FROM range({number * 1_000}, {number * 1_000 + 500})"
                for table in ("a", "b", "c"):
                    yield f"INSERT INTO {{}}.{table} {rows}"
                yield f"DELETE FROM {{}}.a WHERE id = {number * 1_000 + statement}"

        counts: Counter[str] = Counter()

        def one_round(number: int) -> dict[str, float]:
            began = time.perf_counter()
            tx = transaction(spark)
            took = {f"{tx}.one": time.perf_counter() - began, "plain.many": 0.0, "lake.many": 0.0}
            for turn, text in enumerate(texts(number)):
                targets = list(took)
                for target in targets[turn % 3 :] + targets[: turn % 3]:
                    before = requests.count
                    took[target] += seconds(lambda text=text, target=target: spark.sql(text.format(target)))  # type: ignore[misc]
                    counts[target.replace(str(tx), "lake")] += requests.count - before
            took[f"{tx}.one"] += seconds(tx.commit)
            return dict(zip(("transaction", "plain", "statements"), took.values(), strict=True))

        log.setLevel(logging.INFO)
        log.addHandler(requests)
        one_round(0)
        counts.clear()
        rounds = [one_round(number + 1) for number in range(bench.size(6, 1))]
        log.removeHandler(requests)
        times = {name: [one[name] for one in rounds] for name in rounds[0]}
        what = f"Spark SQL: {4 * statements} statements in one transaction"
        plain = "plain Iceberg, Hadoop catalog"
        bench.cost(what, times["transaction"], plain, times["plain"], at_most(1.1))
        bench.figure(f"{what}: requests to the catalog", [counts["lake.one"] / len(rounds)], "count")
        what = f"Spark SQL: {4 * statements} statements, a commit each"
        bench.cost(what, times["statements"], plain, times["plain"])
        what = "Spark SQL: one transaction instead of a commit for each statement"
        bench.cost(what, times["transaction"], "the same statements, a commit each", times["statements"])
        disconnect(spark)


BENCHMARKS = {"spark-rows": spark_rows, "spark-transaction": spark_transaction}
