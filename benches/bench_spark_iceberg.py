"""Spark: the same tables read and written without a jar, through `connect`, and as plain Iceberg (Hadoop catalog)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import trinitylake as tl
from benches.bench_spark import consume, session
from benches.bench_sql import generated
from benches.measure import Action, Bench, at_most, in_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

PLAIN = "plain Iceberg, Hadoop catalog"
#: The columns of the measured tables, as SQL over `range`.
COLUMNS = {
    "id": "id",
    "carrier": "concat('C', id % 20)",
    "day": "date_add(DATE '2026-01-01', cast(id % 30 as int))",
    "distance": "cast(id % 5000 as int)",
    "amount": "id * 0.37D",
    "note": "concat('text ', id % 1000)",
}


@dataclass
class Sides:
    """One session with a lakehouse as the catalog `lake` and a Hadoop catalog `plain`, each with a namespace `n`."""

    spark: SparkSession
    lake: tl.Lakehouse

    def rows(self, count: int, files: int = 2) -> DataFrame:
        """Generated rows in as many tasks as a table gets files."""
        columns = [f"{text} AS {name}" for name, text in COLUMNS.items()]
        return self.spark.range(0, count, 1, files).selectExpr(*columns)

    def create(self, table: str, rows: DataFrame) -> None:
        """The same table on both sides, written by Iceberg."""
        for catalog in ("lake", "plain"):
            rows.writeTo(f"{catalog}.n.{table}").using("iceberg").create()

    @property
    def source(self) -> DataFrameReader:
        """Read through the data source, which needs no jar."""
        return self.spark.read.format("trinitylake").option("root", self.lake.uri)


@contextmanager
def sides(bench: Bench) -> Iterator[Sides]:
    """A session with both catalogs."""
    from trinitylake.spark import connect, disconnect

    lake = tl.create(str(bench.folder("lake")), durability="none")
    with session(bench) as spark:
        connect(lake.uri, "lake", spark=spark, durability="none")
        for catalog in ("lake", "plain"):
            spark.sql(f"CREATE NAMESPACE {catalog}.n")
        yield Sides(spark, lake)
        disconnect(spark)


def spark_read(bench: Bench) -> None:
    """Full scan, count and sum of one column, over large and over small files."""
    rows, small_files = bench.size(5_000_000, 20_000), bench.size(1_000, 4)
    rounds = bench.size(3, 1)
    queries: dict[str, Any] = {
        "full scan": consume,
        "count(*)": lambda frame: frame.count(),
        "sum of one column": lambda frame: frame.selectExpr("sum(amount)").collect(),
    }
    with sides(bench) as both:
        both.create("large", both.rows(rows))
        both.create("small", both.rows(rows, small_files))
        measured = [(f"{what} of {rows:,} rows", "large", query) for what, query in queries.items()]
        measured.append((f"full scan of {small_files:,} files", "small", consume))
        for what, table, query in measured:
            times = _warm(
                rounds,
                table=lambda _, table=table, query=query: query(
                    tl.spark.table(both.spark, both.lake.uri, f"n.{table}")
                ),
                source=lambda _, table=table, query=query: query(both.source.load(f"n.{table}")),
                sql=lambda _, table=table, query=query: query(both.spark.table(f"lake.n.{table}")),
                plain=lambda _, table=table, query=query: query(both.spark.table(f"plain.n.{table}")),
            )
            limit = 1.2 if table == "small" else 1.5
            bench.cost(f"tl.spark.table: {what}", times["table"], PLAIN, times["plain"], at_most(limit))
            bench.cost(f"Spark SQL: {what}", times["sql"], PLAIN, times["plain"], at_most(min(limit, 1.1)))
            bench.cost(f"Spark data source: {what}", times["source"], PLAIN, times["plain"])
        files = [task.file.file_path for task in both.lake.table("n.small").iceberg.scan().plan_files()]
        columns = both.spark.table("plain.n.small").schema
        times = _warm(
            rounds,
            parquet=lambda _: consume(both.spark.read.schema(columns).parquet(*files)),
            plain=lambda _: consume(both.spark.table("plain.n.small")),
        )
        what = f"Spark's Parquet reader, given the schema: full scan of {small_files:,} files"
        bench.cost(what, times["parquet"], PLAIN, times["plain"])
        _cost_of_the_interface(both, bench, rows, rounds)


def spark_write(bench: Bench) -> None:
    """Appends to a partitioned table, and MERGE of a fiftieth of its rows, half of them new, in both modes."""
    rows, rounds = bench.size(5_000_000, 20_000), bench.size(3, 1)
    from pyspark.sql import functions as f

    with sides(bench) as both:
        spark, lake = both.spark, both.lake
        given = both.rows(rows)
        spark.dataSource.register(_discarding_source())
        for table in ("plain.n.t", "lake.n.sql", "lake.n.function", "lake.n.source"):
            given.limit(0).writeTo(table).using("iceberg").partitionedBy(f.col("carrier")).create()
        to_source = given.write.format("trinitylake").options(root=lake.uri, durability="none").mode("append")

        def discard(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (batch.slice(0, 0) for batch in batches)

        times = _warm(
            rounds,
            function=lambda _: tl.spark.write(given, lake.uri, "n.function", mode="append", durability="none"),
            source=lambda _: to_source.save("n.source"),
            sql=lambda _: given.writeTo("lake.n.sql").append(),
            plain=lambda _: given.writeTo("plain.n.t").append(),
            discarding=lambda _: given.write.format("discarding").mode("append").save(),
            clustered=lambda _: consume(given.repartition("carrier").mapInArrow(discard, given.schema)),
        )
        what = f"append of {rows:,} rows to 20 partitions"
        bench.cost(f"tl.spark.write: {what}", times["function"], PLAIN, times["plain"], at_most(1.2))
        bench.cost(f"Spark data source: {what}", times["source"], PLAIN, times["plain"], at_most(1.2))
        bench.cost(f"Spark SQL: {what}", times["sql"], PLAIN, times["plain"], at_most(1.2))
        bench.cost(f"Python data source that discards {rows:,} rows", times["discarding"], PLAIN, times["plain"])
        what = f"Spark: {rows:,} rows brought together by partition, passed to Python and discarded"
        bench.cost(what, times["clustered"], PLAIN, times["plain"])

        half = rows // 100

        def changes(number: int) -> DataFrame:
            known = spark.range(half).selectExpr("id * 100 AS id")
            new = spark.range(rows + number * half, rows + (number + 1) * half)
            return known.union(new).selectExpr(
                *(f"{text} AS {name}" for name, text in {**COLUMNS, "note": "'changed'"}.items())
            )

        def by_sql(table: str, number: int) -> None:
            changes(number).createOrReplaceTempView("changes")
            clauses = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            spark.sql(f"MERGE INTO {table} AS t USING changes AS s ON t.id = s.id {clauses}")

        def by_function(table: str, number: int) -> None:
            merge = tl.spark.merge(changes(number), lake.uri, table, on="id", durability="none")
            merge.when_matched_update().when_not_matched_insert().execute()

        for mode in ("copy-on-write", "merge-on-read"):
            names = [f"{catalog}_{mode.replace('-', '_')}" for catalog in ("plain.n.m", "lake.n.m", "lake.n.merged")]
            for table in names:
                given.writeTo(table).using("iceberg").partitionedBy(f.col("carrier")).tableProperty(
                    "write.merge.mode", mode
                ).create()
            plain, sql, function = names
            times = _warm(
                rounds,
                function=lambda number, table=function: by_function(table.removeprefix("lake."), number),
                sql=lambda number, table=sql: by_sql(table, number),
                plain=lambda number, table=plain: by_sql(table, number),
            )
            what = f"MERGE of {2 * half:,} rows into {rows:,}, {mode}"
            bench.cost(f"tl.spark.merge: {what}", times["function"], PLAIN, times["plain"], at_most(2.0))
            bench.cost(f"Spark SQL: {what}", times["sql"], PLAIN, times["plain"], at_most(1.1))


def spark_tpch(bench: Bench) -> None:
    """TPC-H's 22 queries in Spark SQL, through `connect` and on plain Iceberg."""
    scale = 0.01 if bench.quick else 1.0
    made, folder = generated(scale), bench.folder("parquet")
    folder.mkdir()
    with sides(bench) as both:
        for (name,) in made.execute("SHOW TABLES").fetchall():
            made.execute(f"COPY {name} TO '{folder}/{name}.parquet'")
            both.create(name, both.spark.read.parquet(f"{folder}/{name}.parquet"))
        queries = [query for _, query in made.execute("SELECT * FROM tpch_queries() ORDER BY 1").fetchall()]
        made.close()

        def rows(catalog: str, query: str) -> list[Any]:
            both.spark.sql(f"USE {catalog}.n")
            return both.spark.sql(query).collect()

        best: list[dict[str, float]] = []
        for number, query in enumerate(queries, 1):
            if sorted(rows("lake", query)) != sorted(rows("plain", query)):
                raise AssertionError(f"query {number} has different results")
            times = in_turn(  # both sides are warm now
                bench.size(2, 1),
                1,
                sql=lambda _, query=query: rows("lake", query),
                plain=lambda _, query=query: rows("plain", query),
            )
            best.append({side: min(took) for side, took in times.items()})
        both.spark.sql("USE spark_catalog.default")
    sums = {side: [sum(one[side] for one in best)] for side in ("sql", "plain")}
    what = f"Spark SQL: TPC-H's 22 queries at scale {scale}, sum"
    bench.cost(what, sums["sql"], PLAIN, sums["plain"], at_most(1.1))


def _discarding_source() -> Any:
    """A Python data source that receives rows and writes nothing, to measure the interface. A local class, as below."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Discarding(DataSource):
        @classmethod
        def name(cls) -> str:
            return "discarding"

        def schema(self) -> str:
            return "id long, carrier string, day date, distance int, amount double, note string"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            return Writer()

    return Discarding


def _cost_of_the_interface(both: Sides, bench: Bench, rows: int, rounds: int) -> None:
    """Sources without storage: the cost of Spark's interface for Python data sources, and of a query with tasks."""
    empty, memory = _sources()
    for kind in (empty, memory):
        both.spark.dataSource.register(kind)
    options = {"rows": str(rows), "tasks": "2"}
    times = _warm(
        rounds,
        empty=lambda _: consume(both.spark.read.format("empty").load()),
        memory=lambda _: consume(both.spark.read.format("memory").options(**options).load()),
        plain=lambda _: consume(both.spark.table("plain.n.large")),
    )
    bench.cost("Python data source without rows", times["empty"], PLAIN, times["plain"])
    bench.cost(f"Python data source with {rows:,} rows in memory", times["memory"], PLAIN, times["plain"])
    # Plain Iceberg answers count(*) in the planner, without a task.
    ready = tl.spark.table(both.spark, both.lake.uri, "n.large")
    times = _warm(
        rounds,
        ready=lambda _: ready.count(),
        numbers=lambda _: both.spark.range(0, rows, 1, 2).count(),
        plain=lambda _: both.spark.table("plain.n.large").count(),
    )
    bench.cost("tl.spark.table: count(*) of a frame that exists", times["ready"], PLAIN, times["plain"])
    bench.cost(f"Spark: count(*) of range({rows:,}), two tasks", times["numbers"], PLAIN, times["plain"])


def _warm(rounds: int, **actions: Action) -> dict[str, list[float]]:
    """`in_turn` after a call of each action, so that no side starts workers or compiles in a measured round."""
    in_turn(1, 1, **actions)
    return in_turn(rounds, 1, **actions)


def _sources() -> tuple[Any, Any]:
    """Python data sources that return no rows, and rows of the measured table from memory.

    Local classes: Spark sends them to its workers, which do not have this package.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, rows: int, tasks: int) -> None:
            self.rows, self.tasks = rows, tasks

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.rows // self.tasks)] * self.tasks

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            size = 65_536
            ids = pa.array(range(size), pa.int64())
            columns = {
                "id": ids,
                "carrier": pa.array([f"C{id % 20}" for id in range(size)]),
                "day": pa.array([id % 30 + 20_454 for id in range(size)], pa.int32()).cast(pa.date32()),
                "distance": pa.array([id % 5_000 for id in range(size)], pa.int32()),
                "amount": pa.array([id * 0.37 for id in range(size)]),
                "note": pa.array([f"text {id % 1_000}" for id in range(size)]),
            }
            batch = pa.RecordBatch.from_pydict(columns)
            for first in range(0, partition.value, size):
                yield batch.slice(0, min(size, partition.value - first))

    class Empty(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "id long, carrier string, day date, distance int, amount double, note string"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(int(self.options.get("rows", "0")), int(self.options.get("tasks", "2")))

    class Memory(Empty):
        @classmethod
        def name(cls) -> str:
            return "memory"

    return Empty, Memory


BENCHMARKS = {"spark-read": spark_read, "spark-write": spark_write, "spark-tpch": spark_tpch}
