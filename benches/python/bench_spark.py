"""Spark: the data source beside Spark's own Parquet reader and writer, functions, and transactions in SQL."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import trinitylake as tl
from benches.python.measure import Bench, at_least, at_most, in_turn, seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = 30
FILES = 4
#: How the rows of one file are handed over by the source that does nothing else.
BATCH_ROWS = 65_536


@contextmanager
def session(bench: Bench) -> Iterator[SparkSession]:
    """Spark on two cores, with Iceberg's runtime; the Python workers are started and warm."""
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
    """Compute every row and throw it away."""
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


def ready_batches(file: Path, partitions: int, rows: int) -> type:
    """A data source that hands over a batch that is ready: what any Python data source costs at least.

    The batch lies in `file`, as Arrow has it in memory, and is mapped: nothing is read or decoded.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    ready = wide_rows(BATCH_ROWS)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, ready.schema) as writer:
        writer.write_table(ready)
    path = str(file)

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            batch = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
            for start in range(0, rows, BATCH_ROWS):
                yield batch.slice(0, min(BATCH_ROWS, rows - start))

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            kinds = ("bigint", "double", "string")
            return ", ".join(f"column_{number:02d} {kinds[number % 3]}" for number in range(COLUMNS))

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Ready


def bare_files(folder: Path) -> type:
    """A data source that writes its rows with bare pyarrow: what one in Python that writes Parquet costs at least.

    Columns of texts have a dictionary and others none, which is the quickest for these rows.
    """
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    place = str(folder)
    texts = [f"column_{number:02d}" for number in range(COLUMNS) if number % 3 == 2]

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            import uuid

            import pyarrow.parquet as pq

            from trinitylake.iceberg_storage.data_files.row_groups import ROW_GROUP_SIZE_BYTES
            from trinitylake.tables.compaction import together

            writer = None
            for rows in together((pa.Table.from_batches([batch]) for batch in iterator), ROW_GROUP_SIZE_BYTES):
                if writer is None:
                    name = f"{place}/{uuid.uuid4()}.parquet"
                    writer = pq.ParquetWriter(name, rows.schema, compression="zstd", use_dictionary=texts)
                writer.write_table(rows)
            if writer is not None:
                writer.close()
            return WriterCommitMessage()

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bare"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return Bare


def spark_rows(bench: Bench) -> None:
    """Full scans and appends of a wide table, beside Spark's own Parquet reader and writer."""
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
        spark.dataSource.register(ready_batches(bench.folder("ready.arrow"), FILES, rows))
        ours = spark.read.format("trinitylake").options(root=lake.uri, split_size_bytes=1)
        frames = {
            "ours": lambda: ours.load("n.wide"),
            "parquet": lambda: spark.read.parquet(*files),
            "floor": lambda: spark.read.format("ready").load(),
        }
        assert {frame().count() for frame in frames.values()} == {FILES * rows}
        times = in_turn(
            bench.size(3, 1),
            1,
            ours=lambda _: consume(frames["ours"]()),
            parquet=lambda _: consume(frames["parquet"]()),
            floor=lambda _: consume(frames["floor"]()),
        )
        what = f"Spark: full scan of {FILES * rows:,} rows of {COLUMNS} columns"
        own = "Spark's Parquet reader"
        note = "the floor is the line with a source that only hands over ready Arrow batches"
        bench.speed(None, what, times["ours"], own, times["parquet"], at_least(0.8), note)
        bench.speed(
            None, "Spark: the same, ready Arrow batches from a Python source", times["floor"], own, times["parquet"]
        )
        bench.cost(None, f"{what}, against the floor", times["ours"], "ready batches from Python", times["floor"])

        source = spark.read.parquet(*files).cache()
        source.count()
        bare = bench.folder("bare")
        bare.mkdir(parents=True, exist_ok=True)
        spark.dataSource.register(bare_files(bare))
        writer = source.write.format("trinitylake").options(root=lake.uri, durability="none").mode("append")
        times = in_turn(
            bench.size(3, 1),
            1,
            ours=lambda _: writer.save("n.copy"),
            parquet=lambda number: source.write.parquet(str(parquet / str(number))),
            floor=lambda _: source.write.format("bare").mode("append").save(),
        )
        assert any(parquet.rglob("*.parquet"))
        assert any(bare.glob("*.parquet"))
        what = f"Spark: append of {FILES * rows:,} cached rows of {COLUMNS} columns"
        bench.speed(None, what, times["ours"], "Spark's Parquet writer", times["parquet"], at_least(0.7))
        floor = "bare pyarrow from a Python source"
        bench.speed(None, f"{what}, against the floor", times["ours"], floor, times["floor"], at_least(0.85))
        source.unpersist()


def spark_functions(bench: Bench) -> None:
    """`optimize_path` as an Arrow UDF, beside one that returns what it gets."""
    from pyspark.sql import functions as sql

    from trinitylake.spark import functions

    def same(column: pa.Array) -> pa.Array:
        return column

    rows = bench.size(5_000_000, 50_000)
    with session(bench) as spark:
        identity = sql.arrow_udf(same, "string")  # type: ignore[attr-defined]
        paths = spark.range(0, rows, 1, 4).selectExpr("concat('data/part-', cast(id as string), '.parquet') as path")
        times = in_turn(
            bench.size(3, 1),
            1,
            ours=lambda _: consume(paths.select(functions.optimize_path("path"))),
            identity=lambda _: consume(paths.select(identity("path"))),
        )
    what = f"Spark: optimize_path of {rows:,} strings"
    bench.cost(None, what, times["ours"], "identity Arrow UDF", times["identity"], at_most(1.5))


class Requests(logging.Handler):
    """Counts what the log of requests says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def spark_transaction(bench: Bench) -> None:
    """The same statements over three tables: in one transaction, a commit each, and as plain Iceberg statements.

    They take turns statement by statement, so that a machine that is slow for a minute is slow for all.
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
        bench.cost(None, what, times["transaction"], plain, times["plain"], at_most(1.1))
        bench.figure(None, f"{what}: requests to the catalog", [counts["lake.one"] / len(rounds)], "count")
        what = f"Spark SQL: {4 * statements} statements, a commit each"
        bench.cost(None, what, times["statements"], plain, times["plain"])
        what = "Spark SQL: one transaction instead of a commit for each statement"
        bench.cost(None, what, times["transaction"], "the same statements, a commit each", times["statements"])
        disconnect(spark)


def spark_count(bench: Bench) -> None:
    """Counting the rows of a table: the metadata table `count` beside the rows themselves."""
    rows = bench.size(250_000, 5_000)
    lake = tl.create(str(bench.folder("lake")), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.wide", wide_rows(1))
    for number in range(FILES):
        table.append(wide_rows(rows, number * rows))
    with session(bench) as spark:
        ours = spark.read.format("trinitylake").options(root=lake.uri, split_size_bytes=1)
        counted = {
            "metadata": lambda: ours.load("n.wide", metadata="count").first().rows,  # type: ignore[union-attr]
            "rows": lambda: spark.read.format("trinitylake").options(root=lake.uri).load("n.wide").count(),
            "column": lambda: (
                spark.read.format("trinitylake").options(root=lake.uri, columns="column_00").load("n.wide").count()
            ),
        }
        assert {count() for count in counted.values()} == {FILES * rows}
        calls = {name: (lambda _, count=count: count()) for name, count in counted.items()}
        times = in_turn(bench.size(5, 1), 1, **calls)
    what = f"Spark: metadata table count, {FILES * rows:,} rows of {COLUMNS} columns"
    bench.cost(None, what, times["metadata"], "count() of the frame", times["rows"])
    bench.cost(None, what, times["metadata"], "count() of one column", times["column"])


def spark_clustered(bench: Bench) -> None:
    """Appends of rows in no order to a partitioned table, with the rows of a partition brought together and without."""
    rows, partitions, tasks = bench.size(1_000_000, 5_000), 50, 8
    lake = tl.create(str(bench.folder("lake")), durability="none")
    lake.create_namespace("n")
    sides = {"clustered": True, "plain": False}
    schema = pa.schema([("id", pa.int64()), ("kind", pa.int64()), ("name", pa.string())])
    for name in sides:
        lake.create_table(f"n.{name}", schema, partition_spec="kind")
    with session(bench) as spark:
        kinds = f"pmod(hash(id), {partitions})"
        source = spark.range(0, rows, 1, tasks).selectExpr(
            "id", f"cast({kinds} as bigint) AS kind", "concat('name ', id) AS name"
        )
        source = source.cache()
        assert source.count() == rows

        def write(name: str) -> None:
            tl.spark.write(source, lake.uri, f"n.{name}", mode="append", cluster=sides[name], durability="none")

        for name in sides:
            write(name)
        files = {name: len(list(lake.table(f"n.{name}").scan().iceberg.plan_files())) for name in sides}
        reader = spark.read.format("trinitylake").options(root=lake.uri)
        scans = in_turn(
            bench.size(3, 1),
            1,
            clustered=lambda _: consume(reader.load("n.clustered")),
            plain=lambda _: consume(reader.load("n.plain")),
        )
        writes = in_turn(bench.size(3, 1), 1, clustered=lambda _: write("clustered"), plain=lambda _: write("plain"))
    what = f"Spark: append of {rows:,} rows of {partitions} partitions by {tasks} tasks, clustered"
    bench.cost(None, what, writes["clustered"], "as they come", writes["plain"])
    for name in sides:
        bench.figure(None, f"{what}: files, {name}", [files[name]], "count")
    bench.cost(None, "Spark: full scan of what was clustered", scans["clustered"], "as it came", scans["plain"])


BENCHMARKS = {
    "spark-rows": spark_rows,
    "spark-functions": spark_functions,
    "spark-transaction": spark_transaction,
    "spark-count": spark_count,
    "spark-clustered": spark_clustered,
}
