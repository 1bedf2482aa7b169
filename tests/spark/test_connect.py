"""Spark Connect: a client, a driver in another process, and a server of the lakehouse that both can reach.

These tests are a separate lane, `--lane spark-connect`, which is part of `make compatibility`: they need gRPC, and a
Python process can have either sessions of Spark Connect or other sessions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import trinitylake as tl
from trinitylake.spark import functions as tlf
from trinitylake.spark.runtime import EXTENSIONS, package

pytestmark = pytest.mark.lane("spark-connect")

TOKEN = "far-away-0123456789"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", "AA"]})
REFERENCE = "env:LAKE_TOKEN"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tl.Lakehouse:
    return tl.create(str(tmp_path_factory.mktemp("connect") / "lake"), name="test", durability="none")


@pytest.fixture(scope="module")
def server(lake: tl.Lakehouse) -> Iterator[str]:
    """The address of a server that has no settings for Spark."""
    server = tl.rest.serve(lake, token=TOKEN).start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def remote(server: str, events: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A client of Spark Connect. Its driver is another process, with the catalog `fixed` in its own settings."""
    settings = {
        "spark.sql.extensions": EXTENSIONS,
        "spark.jars.packages": package(),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.catalog.fixed": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.fixed.type": "rest",
        "spark.sql.catalog.fixed.uri": server,
        "spark.sql.catalog.fixed.rest.auth.type": "oauth2",
        "spark.sql.catalog.fixed.token": REFERENCE,
        "spark.sql.catalog.fixed.cache-enabled": "false",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKE_TOKEN", TOKEN)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.remote("local[2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def spark(remote: SparkSession, server: str, lake: tl.Lakehouse) -> Iterator[SparkSession]:
    """The client, connected to the lakehouse as the catalog `lake`, which has two tables."""
    with lake.transaction() as txn:
        txn.create_namespace("nyc")
        for name in ("flights", "planes"):
            txn.create_table(f"nyc.{name}", ROWS).append(ROWS)
    assert tl.spark.connect(uri=server, token=REFERENCE, spark=remote) is remote
    yield remote
    tl.spark.disconnect(remote)
    lake.drop_namespace("nyc", cascade=True)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def test_a_catalog_of_the_servers_settings_reads_and_writes(
    remote: SparkSession, spark: SparkSession, lake: tl.Lakehouse
) -> None:
    """If an administrator has set up the catalog, a client of Spark Connect can use it without this package."""
    remote.sql("INSERT INTO fixed.nyc.flights VALUES (4, 'B6')")
    remote.range(5, 7).selectExpr("id", "'DL' AS carrier").writeTo("fixed.nyc.flights").append()
    assert ids(remote.table("fixed.nyc.flights")) == [1, 2, 3, 4, 5, 6]
    assert sorted(lake.table("nyc.flights").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_the_token_is_nowhere_that_spark_writes(spark: SparkSession, events: Path) -> None:
    """The token is in nothing that Spark writes. Settings of a session become properties of its jobs, which the
    driver's event log contains without redaction; with Connect, this log is on another machine."""
    assert ids(spark.sql("SELECT f.id FROM lake.nyc.flights f JOIN fixed.nyc.planes p ON f.id = p.id")) == [1, 2, 3]
    shown = [str(spark.sql(statement).collect()) for statement in ("SET", "SET -v")]
    for mode in ("EXTENDED", "FORMATTED"):
        shown.append(spark.sql(f"EXPLAIN {mode} SELECT count(*) FROM lake.nyc.flights").first()[0])
    written = b"".join(file.read_bytes() for file in events.rglob("*") if file.is_file())
    assert all(event in written for event in (b"JobStart", b"SQLExecutionStart", b"spark.sql.catalog.fixed.token"))
    assert REFERENCE.encode() in written
    assert TOKEN.encode() not in written
    assert TOKEN not in "".join(shown)


def test_what_would_not_work_is_refused(remote: SparkSession, server: str, lake: tl.Lakehouse) -> None:
    """Functions that need the driver in this process are refused with a clear error, and so is a token that would be a
    setting of the session."""
    with pytest.raises(tl.InvalidArgument, match="give connect"):
        tl.spark.connect(lake.uri, spark=remote)
    with pytest.raises(tl.InvalidArgument, match="among its settings"):
        tl.spark.connect(uri=server, token=TOKEN, spark=remote)
    with pytest.raises(tl.InvalidArgument, match="leave engine out"):
        lake.maintenance.fsck(engine=remote)
    objects = pa.table({"kind": ["namespace"], "namespace": ["far"], "name": pa.array([None], pa.string())})
    with pytest.raises(tl.InvalidArgument, match="leave engine out"):
        lake.register(objects, engine=remote)


def test_statements_and_procedures(spark: SparkSession, lake: tl.Lakehouse) -> None:
    spark.sql("CREATE TABLE lake.nyc.routes (id bigint, c string) PARTITIONED BY (c)")
    spark.sql("ALTER TABLE lake.nyc.routes ADD PARTITION FIELD bucket(4, id)")
    spark.range(3).selectExpr("id", "'a' AS c").writeTo("lake.nyc.routes").append()
    spark.sql("INSERT INTO lake.nyc.routes VALUES (:id, :c)", {"id": 7, "c": "b"})
    spark.sql(
        "MERGE INTO lake.nyc.routes t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET c = 'b'"
    )
    spark.sql("CREATE VIEW lake.nyc.some AS SELECT id FROM lake.nyc.routes WHERE c = 'b'")
    assert ids(spark.table("lake.nyc.some")) == [1, 7]
    with pytest.raises(Exception, match="UNBOUND_SQL_PARAMETER"):
        spark.sql("SELECT id FROM lake.nyc.routes WHERE id > ?", [1]).collect()
    assert spark.sql("CALL lake.system.rewrite_manifests('nyc.routes')").first().rewritten_manifests_count > 0
    with pytest.raises(Exception, match="GC is disabled"):
        spark.sql("CALL lake.system.expire_snapshots('nyc.routes')").collect()
    then = tl.spark.catalog_at(spark, version=lake.version)
    spark.sql("DELETE FROM lake.nyc.routes")
    assert ids(spark.table(f"{then}.nyc.routes")) == [0, 1, 2, 7]


def test_queries_of_a_transaction_read_it(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """A query of `tx.sql` reads the transaction, although Spark Connect resolves its names again when it is
    evaluated."""
    version = lake.version
    spark.catalog.setCurrentCatalog("lake")
    with tl.spark.transaction(spark, message="far") as tx:
        tx.sql("INSERT INTO nyc.flights VALUES (:id, :carrier)", {"id": 4, "carrier": "B6"})
        spark.sql(f"DELETE FROM {tx}.nyc.planes WHERE id = 1")
        spark.range(2).writeTo(f"{tx}.nyc.made").create()
        for table in ("nyc.flights", "lake.nyc.flights", f"{tx}.nyc.flights"):
            assert ids(tx.sql(f"SELECT id FROM {table}")) == [1, 2, 3, 4]
        frame = tx.sql("SELECT id FROM nyc.flights WHERE id > 2")
        assert ids(frame.where("id < 4")) == [3]
        assert ids(spark.table("lake.nyc.flights")) == [1, 2, 3]
        assert lake.version == version
    assert (tx.version, lake.log(1)[0].message) == (version + 1, "far")
    assert [ids(spark.table(f"lake.nyc.{name}")) for name in ("flights", "planes", "made")] == [
        [1, 2, 3, 4],
        [2, 3],
        [0, 1],
    ]
    with pytest.raises(Exception, match="has ended"):
        frame.collect()
    assert tx.catalog in [row.catalog for row in spark.sql("SHOW CATALOGS").collect()]
    assert spark.catalog.currentCatalog() == "lake"
    spark.catalog.setCurrentCatalog("spark_catalog")


def test_transactions_end_as_elsewhere(spark: SparkSession, lake: tl.Lakehouse) -> None:
    def given_up() -> None:
        with tl.spark.transaction(spark) as tx:
            tx.sql("DELETE FROM nyc.flights")
            raise KeyError

    def overtaken() -> None:
        with tl.spark.transaction(spark) as tx:
            tx.sql("UPDATE nyc.flights SET carrier = 'DL' WHERE id = 1")
            lake.table("nyc.flights").delete("id = 1")

    version = lake.version
    with pytest.raises(KeyError):
        given_up()
    assert lake.version == version
    with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
        overtaken()
    tl.spark.run(spark, lambda tx: tx.sql("UPDATE nyc.flights SET carrier = 'B6' WHERE id = 2"))
    tx = tl.spark.transaction(spark, id="handed-over")
    tx.sql("INSERT INTO nyc.flights VALUES (8, 'DL')")
    tx.save()
    with tl.spark.resume(spark, "handed-over") as tx:
        tx.sql("INSERT INTO nyc.flights VALUES (9, 'DL')")
    assert {row.id: row.carrier for row in spark.table("lake.nyc.flights").collect()} == {
        2: "B6",
        3: "AA",
        8: "DL",
        9: "DL",
    }


def reader(spark: SparkSession, lake: tl.Lakehouse) -> DataFrameReader:
    return spark.read.format("trinitylake").option("root", lake.uri)


def in_a_thread(function: Callable[[], list[int]]) -> list[list[int]]:
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results


def test_the_data_source(spark: SparkSession, lake: tl.Lakehouse) -> None:
    more = spark.createDataFrame([(4, "Q")], "id long, carrier string")
    more.write.format("trinitylake").option("root", lake.uri).mode("append").save("nyc.flights")
    assert ids(reader(spark, lake).load("nyc.flights")) == [1, 2, 3, 4]
    assert reader(spark, lake).option("metadata", "count").load("nyc.flights").first().rows == 4
    assert in_a_thread(lambda: ids(reader(spark, lake).load("nyc.flights"))) == [[1, 2, 3, 4]]


def test_the_data_source_in_a_transaction(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.begin(id="by-two").save()
    replaced = spark.createDataFrame([(5, "Q")], "id long, carrier string").write.format("trinitylake")
    replaced.option("root", lake.uri).option("txn", "by-two").option("filter", "carrier = 'Q'").mode("overwrite").save(
        "nyc.flights"
    )
    assert ids(reader(spark, lake).load("nyc.flights")) == [1, 2, 3]
    lake.resume("by-two").commit()
    assert ids(reader(spark, lake).load("nyc.flights")) == [1, 2, 3, 5]


def test_frames_that_make_tables(spark: SparkSession, lake: tl.Lakehouse) -> None:
    frame = spark.range(20).selectExpr("id", "concat('C', id % 2) AS c")
    assert tl.spark.write(frame, lake.uri, "nyc.hashed", partition_spec="bucket(4, id)", durability="none")
    assert len(list(lake.table("nyc.hashed").scan().iceberg.plan_files())) == 4


def test_functions_that_change_rows(spark: SparkSession, lake: tl.Lakehouse) -> None:
    source = spark.createDataFrame([(2, "DL"), (9, "WN")], "id long, carrier string")
    merge = tl.spark.merge(source, lake.uri, "nyc.flights", on="id", durability="none")
    merge.when_matched_update().when_not_matched_insert().execute()
    with lake.transaction() as txn:
        tl.spark.update(spark, lake.uri, "nyc.flights", {"carrier": "lower(carrier)"}, "id = 1", txn=txn)
        tl.spark.delete(spark, lake.uri, "nyc.flights", "id = 3", txn=txn)
        changed = tl.spark.consume(spark, lake.uri, "nyc.flights", "far", txn=txn, durability="none")
    expected = {1: "aa", 2: "DL", 9: "WN"}
    assert {row.id: row.carrier for row in tl.spark.table(spark, lake.uri, "nyc.flights").collect()} == expected
    assert {row.id: row.carrier for row in changed.collect()} == {1: "AA", 2: "DL", 3: "AA", 9: "WN"}


def test_a_stream(spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """A stream can be read and written. The query has no time limit of its own, because 120 s were not enough on a busy
    machine."""
    lake.create_table("nyc.copy", ROWS)
    stream = spark.readStream.format("trinitylake").option("root", lake.uri).load("nyc.flights")
    sink = stream.writeStream.format("trinitylake").option("root", lake.uri).trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start("nyc.copy")
    query.awaitTermination()
    assert sorted(lake.table("nyc.copy").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_the_functions(spark: SparkSession) -> None:
    frame = spark.range(2).select(
        tlf.bucket_of("id", 16).alias("bucket"), tlf.root_version(tlf.root_path("id")).alias("v")
    )
    assert [(row.bucket, row.v) for row in frame.collect()] == [(12, 0), (4, 1)]
    tl.spark.register_functions(spark)
    assert spark.sql("SELECT decode_key(table_key('nyc', 'flights')).name AS name").first().name == "flights"
