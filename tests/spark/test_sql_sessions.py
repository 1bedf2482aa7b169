"""A Spark session before, during and after transactions: current catalog, listed catalogs, errors, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.rest import RestCatalog
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.iceberg_storage.view_names import in_catalog
from trinitylake.spark.catalog_server import LocalServer
from trinitylake.spark.connection import ENDED_CATALOGS, connection_of

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", "AA"]})


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {table}").collect())


def rows(lake: tl.Lakehouse, name: str) -> list[int]:
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def catalogs(spark: SparkSession) -> list[str]:
    return [row.catalog for row in spark.sql("SHOW CATALOGS").collect()]


def test_a_transaction_that_ended_says_so_and_leaves_the_session_as_it_was(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """After its end, a transaction says so in errors, and the session has its former current catalog. The catalog of
    the transaction stayed the current one: every statement failed with "Connection pool shut down", and `SHOW CATALOGS`
    listed it."""
    spark.sql(f"USE {catalog}.nyc")
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"USE {tx}.nyc")
        spark.sql("INSERT INTO flights VALUES (4, 'B6')")
        late = spark.table(f"{tx}.nyc.planes")
        assert tx.catalog in catalogs(spark)
    assert (spark.catalog.currentCatalog(), spark.catalog.currentDatabase()) == (catalog, "nyc")
    assert ids(spark, "flights") == [1, 2, 3, 4]
    assert tx.catalog not in catalogs(spark)
    ended = rf"transaction {tx.id} has ended: it was committed as version {tx.version}"
    with pytest.raises((PySparkException, Py4JJavaError), match=ended):
        spark.sql(f"SELECT * FROM {tx}.nyc.flights").collect()
    with pytest.raises((PySparkException, Py4JJavaError), match=ended):
        late.writeTo(f"{tx}.nyc.planes").append()
    with pytest.raises(tl.TransactionClosed, match="has ended"):
        tx.sql("SELECT * FROM nyc.flights")
    assert tx.catalog not in catalogs(spark)
    for _ in range(ENDED_CATALOGS):
        tl.spark.transaction(spark, catalog=catalog).rollback()
    assert not [name for name in spark.sparkContext.getConf().getAll() if tx.catalog in name[0]]
    assert spark.conf.get(f"spark.sql.catalog.{tx}", "") == ""
    spark.sql("USE spark_catalog.default")


def test_statements_of_a_transaction_name_tables_as_ever(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    """A statement on the plain catalog inside of a transaction's block is part of the transaction. Such statements
    committed at once, and survived the rollback."""
    version = shop.version
    spark.createDataFrame([(7, "B6")], "id long, carrier string").createOrReplaceTempView("staged")
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        tx.sql("INSERT INTO nyc.flights SELECT * FROM staged")
        tx.sql(f"DELETE FROM {catalog}.nyc.flights WHERE id = 1")
        tx.sql(f"CREATE TABLE {tx}.nyc.late AS SELECT * FROM `{catalog}`.nyc.flights WHERE id > 2")
        assert [row.id for row in tx.sql("SELECT id FROM nyc.late ORDER BY id").collect()] == [3, 7]
        assert tx.sql(f"SHOW TABLES IN {catalog}.nyc").count() == 3
        assert spark.catalog.currentCatalog() == "spark_catalog"
        assert shop.version == version
    assert shop.version == version + 1
    assert (rows(shop, "nyc.flights"), rows(shop, "nyc.late")) == ([2, 3, 7], [3, 7])

    def through_the_plain_catalog() -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            spark.sql(f"INSERT INTO {catalog}.nyc.planes VALUES (8, 'B6')")
            tx.sql("INSERT INTO nyc.planes VALUES (9, 'B6')")
            raise ValueError("the load is bad")

    with (
        pytest.warns(
            tl.spark.OutsideTransaction, match=rf"version {version + 2}: they are not part of the transaction"
        ),
        pytest.raises(ValueError, match="the load is bad"),
    ):
        through_the_plain_catalog()
    assert rows(shop, "nyc.planes") == [1, 2, 3, 8]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT lake.nyc.f.id FROM lake.nyc.f", "SELECT tx.nyc.f.id FROM tx.nyc.f"),
        ("INSERT INTO `lake`.`nyc`.f VALUES ('lake.nyc.f')", "INSERT INTO tx.`nyc`.f VALUES ('lake.nyc.f')"),
        ("SELECT lake.id FROM nyc.f AS lake -- lake.nyc.f", "SELECT lake.id FROM nyc.f AS lake -- lake.nyc.f"),
        ("SHOW TABLES IN lake.nyc", "SHOW TABLES IN tx.nyc"),
        ("USE lake", "USE tx"),
        ("SELECT * FROM other.lake.nyc.f", "SELECT * FROM other.lake.nyc.f"),
        ('SELECT lakes.nyc.f, /* lake.nyc.f */ "lake.nyc.f"', 'SELECT lakes.nyc.f, /* lake.nyc.f */ "lake.nyc.f"'),
        ("CALL lake . system . rewrite(table => 'lake.nyc.f')", "CALL tx . system . rewrite(table => 'lake.nyc.f')"),
    ],
)
def test_names_of_the_plain_catalog_are_those_of_the_transaction(statement: str, expected: str) -> None:
    """In a statement of a transaction, names of the plain catalog are replaced; strings, comments, aliases and parts of
    other names do not change."""
    assert in_catalog(statement, "lake", "tx") == expected


def test_a_function_is_run_again_on_conflicts(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    attempts: list[list[int]] = []

    def bump(tx: tl.spark.SparkTransaction) -> int:
        seen = [row.id for row in tx.sql("SELECT id FROM nyc.flights ORDER BY id").collect()]
        attempts.append(seen)
        tx.sql("UPDATE nyc.flights SET carrier = 'DL' WHERE id = 2")
        if len(attempts) < 3:
            shop.table("nyc.flights").append(ROWS.slice(0, 1))  # the row conflicts with the UPDATE
        return len(seen)

    assert tl.spark.run(spark, bump, retries=2, message="bump", catalog=catalog) == 5
    assert [len(seen) for seen in attempts] == [3, 4, 5]
    assert shop.log(1)[0].message == "bump"
    carriers = shop.table("nyc.flights").scan(filter="id = 2").to_arrow()["carrier"].to_pylist()
    assert carriers == ["DL"]
    attempts.clear()
    with pytest.raises(tl.CommitConflict):
        tl.spark.run(spark, bump, retries=1, catalog=catalog)
    assert len(attempts) == 2
    attempts.clear()

    def fails(tx: tl.spark.SparkTransaction) -> None:
        attempts.append([])
        raise ValueError("no conflict")

    with pytest.raises(ValueError, match="no conflict"):
        tl.spark.run(spark, fails, catalog=catalog)
    assert len(attempts) == 1
    with pytest.raises(tl.InvalidArgument, match="retries"):
        tl.spark.run(spark, fails, retries=-1, catalog=catalog)
    assert connection_of(spark, catalog).server.latest_commits() == []


@pytest.mark.parametrize("kind", [threading.Thread, InheritableThread])
def test_threads_find_the_format(
    spark: SparkSession, shop: tl.Lakehouse, kind: Callable[..., threading.Thread]
) -> None:
    """A thread that Python starts can write with `format("trinitylake")`, also with `InheritableThread`, although Spark
    looks for the format in the session of the JVM's thread, which has none."""
    frame = spark.createDataFrame([(7, "B6")], "id long, carrier string")
    failed: list[BaseException] = []

    def copy(name: str) -> None:
        try:
            frame.write.format("trinitylake").option("root", shop.uri).mode("append").save(name)
            assert spark.read.format("trinitylake").option("root", shop.uri).load(name).count() == 4
        except BaseException as error:
            failed.append(error)

    threads = [kind(target=copy, args=(name,)) for name in ("nyc.flights", "nyc.planes")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (rows(shop, "nyc.flights"), rows(shop, "nyc.planes")) == ([1, 2, 3, 7], [1, 2, 3, 7])


def test_statements_take_parameters(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    """Statements have parameters, in a transaction and outside of it. Iceberg's parser drops the parameters of Spark
    4.1, so statements with `args` failed with UNBOUND_SQL_PARAMETER."""
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        tx.sql("INSERT INTO nyc.flights VALUES (:id, :carrier)", {"id": 4, "carrier": "it's"})
        tx.sql("DELETE FROM nyc.flights WHERE id = ?", [1])
        assert [
            row.carrier for row in tx.sql("SELECT carrier FROM nyc.flights WHERE id > :id", {"id": 3}).collect()
        ] == ["it's"]
    found = spark.sql(f"SELECT id FROM {catalog}.nyc.flights WHERE id < ? ORDER BY id", [4]).collect()
    assert [row.id for row in found] == [2, 3]


@pytest.mark.parametrize("kind", [threading.Thread, InheritableThread])
def test_threads_have_transactions_of_their_own(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, kind: Callable[..., threading.Thread]
) -> None:
    """Each thread can have its own transaction. A transaction in a thread failed with CATALOG_NOT_FOUND, because the
    JVM's thread has no active session."""

    def insert(number: int) -> None:
        with tl.spark.transaction(spark, isolation="serializable", catalog=catalog) as tx:
            tx.sql(f"INSERT INTO nyc.flights VALUES ({number}, 'B6')")

    threads = [kind(target=insert, args=(number,)) for number in (11, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shop.table("nyc.flights").scan("id > 10").to_arrow()["id"].to_pylist()) == [11, 12]


def test_commits_of_spark_have_spark_as_author(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake")
    server = LocalServer(lake, {})
    server.start()
    try:
        RestCatalog("spark", uri=server.url, token=server.token).create_namespace("shop")
    finally:
        server.stop()
    assert lake.log(1)[0].author == "spark"
