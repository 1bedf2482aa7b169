"""What Spark's Python data sources leave open: modes that make tables, rows by partition, writes done once, counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import trinitylake as tl
from trinitylake.spark.batch_write import BatchWriter
from trinitylake.spark.metadata_tables import MetadataReader, schema_of
from trinitylake.spark.options import Options
from trinitylake.spark.source import TrinityLakeDataSource

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", None]})


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS, partition_spec="carrier")
    table.append(ROWS)
    return table


def options(lake: tl.Lakehouse, **given: Any) -> dict[str, str]:
    return {"root": lake.uri, "path": "nyc.flights", **{name: str(value) for name, value in given.items()}}


def rows(*ids: int, carrier: str = "AA") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "carrier": [carrier] * len(ids)})


def written(lake: tl.Lakehouse, data: pa.Table, overwrite: bool = False, **given: Any) -> BatchWriter:
    """A write as Spark makes it: planned, written by one task, committed."""
    writer = BatchWriter(Options.parse(options(lake, **given)), overwrite, from_arrow_schema(data.schema))
    writer.commit([writer.write(iter(data.to_batches()))])
    return writer


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("nyc.flights").scan().to_arrow()["id"].to_pylist())


def files(lake: tl.Lakehouse) -> int:
    return len(list(Path(lake.uri.removeprefix("file://")).rglob("*.parquet")))


def test_a_write_with_an_id_is_done_once(lake: tl.Lakehouse, table: tl.Table) -> None:
    """A job that ran again because its first run was thought dead added its rows twice, unless a transaction had been
    saved for it."""
    late = BatchWriter(Options.parse(options(lake, id="load-7")), False)
    written(lake, rows(10), id="load-7")
    version, before = lake.version, files(lake)
    assert lake.transactions.outcome("load-7").version == version
    written(lake, rows(10), id="load-7")
    late.commit([late.write(iter(rows(10).to_batches()))])  # planned before the first was committed
    assert (lake.version, ids(lake), files(lake)) == (version, [1, 2, 3, 10], before)
    written(lake, rows(11), id="load-8")
    assert ids(lake) == [1, 2, 3, 10, 11]
    lake.rollback(version)
    with pytest.raises(tl.CommitConflict, match="undone by a rollback"):
        written(lake, rows(11), id="load-8")
    with pytest.raises(tl.InvalidArgument):
        written(lake, rows(11), columns="id")


def test_rows_that_an_overwrite_does_not_replace_are_refused(lake: tl.Lakehouse, table: tl.Table) -> None:
    """Rows outside of the filter were added without replacing any, again by each run of the job."""
    written(lake, rows(5), overwrite=True, filter="carrier = 'AA'")
    assert ids(lake) == [2, 3, 5]
    version, before = lake.version, files(lake)
    mixed = pa.concat_tables([rows(6), rows(7, carrier="UA")])
    with pytest.raises(tl.InvalidArgument, match="1 rows of the overwrite do not match its filter"):
        written(lake, mixed, overwrite=True, filter="carrier = 'AA'")
    assert (lake.version, files(lake)) == (version, before)


def test_rows_without_a_column_of_the_partitions_are_refused(lake: tl.Lakehouse, table: tl.Table) -> None:
    """They all went to the partition of null, or failed in a task with a message about another thing."""
    with pytest.raises(tl.InvalidArgument, match=r"no column 'carrier', by which table nyc\.flights is partitioned"):
        written(lake, rows(5).select(["id"]))


def test_rows_are_counted_from_metadata(lake: tl.Lakehouse, table: tl.Table) -> None:
    """`count()` reads every column of every row: Spark 4.1 offers a Python source neither columns nor aggregates."""
    table.delete("id = 2")
    for given, expected in (({}, 2), ({"filter": "id > 2"}, 1), ({"version": 2}, 0)):
        reader = MetadataReader(Options.parse(options(lake, metadata="count", **given)), schema_of("count"))
        assert list(reader.read(None)) == [(expected,)]  # type: ignore[arg-type]


def test_columns_are_chosen_by_name(lake: tl.Lakehouse, table: tl.Table) -> None:
    def chosen(columns: str) -> StructType:
        return TrinityLakeDataSource(options(lake, columns=columns)).schema()

    assert chosen("Carrier, id").fieldNames() == ["carrier", "id"]
    with pytest.raises(tl.InvalidArgument, match="no column 'speed'"):
        chosen("id, speed")
    with pytest.raises(tl.InvalidArgument, match="names no column"):
        chosen(" ")


def test_frames_make_tables_and_come_by_partition(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """Eight tasks with rows of seven partitions wrote 56 files, and Spark refused `ignore` and `errorifexists`."""
    frame = spark.range(560).selectExpr("id", "concat('C', id % 7) AS carrier").repartition(8)
    with pytest.raises(PySparkException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE|cannot be written with"):
        frame.write.format("trinitylake").options(**options(lake)).save()
    version = lake.version
    settings: dict[str, Any] = {"partition_spec": "carrier", "durability": "none"}
    assert tl.spark.write(frame, lake.uri, "nyc.routes", message="load", **settings)
    assert (lake.version, lake.log(1)[0].message) == (version + 1, "load")
    made = lake.table("nyc.routes")
    assert made.scan().to_arrow().num_rows == 560
    assert len(list(made.scan().iceberg.plan_files())) == 7
    with pytest.raises(tl.ObjectAlreadyExists, match="exists"):
        tl.spark.write(frame, lake.uri, "nyc.routes", **settings)
    assert not tl.spark.write(frame, lake.uri, "nyc.routes", mode="ignore", **settings)
    assert tl.spark.write(frame, lake.uri, "nyc.routes", mode="append", id="second", durability="none")
    assert not tl.spark.write(frame, lake.uri, "nyc.routes", mode="append", id="second", durability="none")
    made.refresh()
    assert made.scan().to_arrow().num_rows == 1120
    assert len(list(made.scan().iceberg.plan_files())) == 14
    lake.create_table("nyc.hashed", ROWS, partition_spec="bucket(4, id)")
    assert tl.spark.write(frame, lake.uri, "nyc.hashed", mode="append", durability="none")
    assert len(list(lake.table("nyc.hashed").scan().iceberg.plan_files())) == 4
    with pytest.raises(tl.ObjectNotFound):
        tl.spark.write(frame, lake.uri, "nyc.nowhere", mode="append", durability="none")
    counted = spark.read.format("trinitylake").option("root", lake.uri).option("metadata", "count").load("nyc.routes")
    assert counted.collect()[0].rows == 1120


def test_a_server_elsewhere_takes_the_place_of_the_drivers_own(spark: SparkSession, shop: tl.Lakehouse) -> None:
    """Many drivers, and sessions of Spark Connect, need a server that runs: `connect` only made its own."""
    token = "far-away-0123456789"
    server = tl.rest.serve(shop, token=token).start()
    try:
        with pytest.raises(tl.PermissionDenied):
            tl.spark.connect(catalog="far", uri=server.url, token="guessed-0123456789", spark=spark)
        tl.spark.connect(catalog="far", uri=server.url, token=token, spark=spark)
        version = shop.version
        with tl.spark.transaction(spark, catalog="far", message="remote", id="remote-1") as tx:
            tx.sql("INSERT INTO nyc.flights VALUES (4, 'B6')")
            spark.sql(f"DELETE FROM {tx}.nyc.planes WHERE id = 1")
            assert shop.version == version
            with pytest.raises(tl.InvalidArgument, match="no checks over HTTP"):
                tx.add_check("SELECT true")
        assert tx.version == shop.version == version + 1
        assert shop.log(1)[0].message == "remote"
        assert [row.n for row in spark.sql("SELECT count(*) AS n FROM far.nyc.planes").collect()] == [2]
        tl.spark.transaction(spark, catalog="far").rollback()
        then = tl.spark.catalog_at(spark, version=version, catalog="far")
        assert [row.n for row in spark.sql(f"SELECT count(*) AS n FROM {then}.nyc.planes").collect()] == [3]
        with pytest.raises(tl.VersionNotFound):
            tl.spark.catalog_at(spark, version=999, catalog="far")

        def overtaken() -> None:
            with tl.spark.transaction(spark, catalog="far") as tx:
                tx.sql("UPDATE nyc.flights SET carrier = 'DL' WHERE id = 1")
                shop.table("nyc.flights").delete("id = 1")

        with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
            overtaken()
        with pytest.raises(tl.InvalidArgument, match="root of a lakehouse"):
            tl.spark.connect(spark=spark)
    finally:
        tl.spark.disconnect(spark, "far")
        server.stop()
    with pytest.raises(tl.StorageError, match=r"does not answer|cannot be reached"):
        tl.spark.connect(catalog="gone", uri=server.url, token=token, spark=spark)
