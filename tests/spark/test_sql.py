"""Spark SQL over a lakehouse: single statements, and transactions of many of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import UnauthorizedError
from pyiceberg.table.metadata import TableMetadataUtil
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark import connect, resume
from trinitylake.spark.connection import connection_of
from trinitylake.spark.runtime import CATALOG_CLASS

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", "AA"]})


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {table}").collect())


def rows(lake: tl.Lakehouse, name: str) -> list[int]:
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def test_each_statement_is_a_commit(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    version = shop.version
    spark.sql(f"INSERT INTO {catalog}.nyc.flights VALUES (4, 'B6')")
    spark.sql(f"UPDATE {catalog}.nyc.flights SET carrier = 'DL' WHERE id = 2")
    spark.sql(f"DELETE FROM {catalog}.nyc.flights WHERE id = 3")
    spark.sql(f"""
        MERGE INTO {catalog}.nyc.planes AS old USING (SELECT 3L AS id, 'XX' AS carrier UNION SELECT 9L, 'YY') AS new
        ON old.id = new.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
    """)
    spark.sql(f"CREATE TABLE {catalog}.nyc.copy PARTITIONED BY (carrier) AS SELECT * FROM {catalog}.nyc.flights")
    assert shop.version == version + 5
    assert shop.table("nyc.flights").scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "carrier": "AA"}, {"id": 2, "carrier": "DL"}, {"id": 4, "carrier": "B6"},
    ]  # fmt: skip
    assert rows(shop, "nyc.planes") == [1, 2, 3, 9]
    assert rows(shop, "nyc.copy") == [1, 2, 4]
    shop.table("nyc.copy").delete("id = 1")  # commits of others are visible at once
    assert ids(spark, f"{catalog}.nyc.copy") == [2, 4]
    then = tl.spark.catalog_at(spark, version=version, catalog=catalog)
    assert ids(spark, f"{then}.nyc.flights") == [1, 2, 3]
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {then}.nyc").collect()] == ["flights", "planes"]


def test_a_transaction_of_many_statements_is_one_commit(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    version = shop.version
    with tl.spark.transaction(spark, catalog=catalog, message="two tables", author="ana", id="nightly") as tx:
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'B6')")
        spark.sql(f"DELETE FROM {tx}.nyc.planes WHERE id = 1")
        spark.sql(f"SELECT * FROM {tx}.nyc.flights WHERE id > 2").writeTo(f"{tx}.nyc.late").create()
        spark.sql(f"SELECT id + 10 AS id, carrier FROM {tx}.nyc.late").writeTo(f"{tx}.nyc.late").append()
        spark.sql(f"CREATE VIEW {tx}.nyc.all AS SELECT id FROM {tx}.nyc.late")
        assert ids(spark, f"{tx}.nyc.late") == [3, 4, 13, 14]
        assert ids(spark, f"{tx}.nyc.flights") == [1, 2, 3, 4]
        assert shop.version == version
        assert ids(spark, f"{catalog}.nyc.flights") == [1, 2, 3]
    assert tx.version == shop.version == version + 1
    assert (shop.log(1)[0].message, shop.log(1)[0].author) == ("two tables", "ana")
    assert shop.transactions.outcome("nightly").version == tx.version
    assert (rows(shop, "nyc.flights"), rows(shop, "nyc.planes")) == ([1, 2, 3, 4], [2, 3])
    assert rows(shop, "nyc.late") == [3, 4, 13, 14]
    assert shop.views("nyc") == ["nyc.all"]
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.sql(f"SELECT * FROM {tx}.nyc.flights").collect()


def test_views_made_in_a_transaction_are_readable_after_the_commit(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """Views that are created in a transaction can be read after the commit: they do not name the transaction's catalog,
    in any of four spellings."""
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        tx.sql("CREATE VIEW nyc.v1 AS SELECT * FROM nyc.flights")
        tx.sql(f"CREATE VIEW nyc.v2 AS SELECT * FROM {catalog}.nyc.flights")
        tx.sql(
            f"CREATE VIEW {catalog}.nyc.v3 AS SELECT a.id FROM {catalog}.nyc.flights a JOIN {catalog}.nyc.planes b "
            "USING (id)"
        )
        spark.sql(f"CREATE VIEW {tx}.nyc.v4 AS SELECT * FROM {tx}.nyc.flights")
    for name in ("v1", "v2", "v3", "v4"):
        assert ids(spark, f"{catalog}.nyc.{name}") == [1, 2, 3], name
        assert "_txn_" not in shop.view(f"nyc.{name}").sql


def test_a_view_shows_the_state_of_the_catalog_that_reads_it(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """A view whose SQL names the plain catalog shows the state of the catalog that reads it, of a transaction or of an
    older version, and a serializable transaction records what the view read."""
    spark.sql(f"CREATE VIEW {catalog}.nyc.all AS SELECT f.id FROM {catalog}.nyc.flights f")
    then = tl.spark.catalog_at(spark, version=shop.version, catalog=catalog)
    tx = tl.spark.transaction(spark, catalog=catalog, isolation="serializable")
    tx.sql("INSERT INTO nyc.flights VALUES (4, 'B6')")
    assert rows(shop, "nyc.flights") == [1, 2, 3]
    shop.table("nyc.flights").append({"id": [5], "carrier": ["DL"]})
    assert ids(spark, f"{tx}.nyc.all") == [1, 2, 3, 4]
    assert ids(spark, f"{then}.nyc.all") == [1, 2, 3]
    assert ids(spark, f"{catalog}.nyc.all") == [1, 2, 3, 5]
    with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
        tx.commit()


def test_a_discarded_attempt_takes_no_part_in_the_one_that_follows(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """A thread of a discarded attempt cannot write into the next attempt, which has the same id."""
    attempts = []
    for number in (10, 11):
        attempts.append(tl.spark.transaction(spark, id="load", restart=True, catalog=catalog))
        attempts[-1].sql(f"INSERT INTO nyc.flights VALUES ({number}, 'B6')")
    for late in (lambda: attempts[0].sql("INSERT INTO nyc.flights VALUES (12, 'B6')"), attempts[0].commit):
        with pytest.raises(tl.TransactionClosed):
            late()
    version = attempts[1].commit()
    assert rows(shop, "nyc.flights") == [1, 2, 3, 11]
    with tl.spark.transaction(spark, id="load", restart=True, catalog=catalog) as again:
        again.sql("INSERT INTO nyc.flights VALUES (13, 'B6')")
    assert again.version == version
    assert rows(shop, "nyc.flights") == [1, 2, 3, 11]


def test_a_new_name_of_a_table_may_have_the_name_of_the_catalog(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    spark.sql(f"ALTER TABLE {catalog}.nyc.flights RENAME TO {catalog}.nyc.trips")
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        tx.sql(f"ALTER TABLE nyc.planes RENAME TO {catalog}.nyc.aircraft")
    assert shop.tables("nyc") == ["nyc.aircraft", "nyc.trips"]


def test_a_created_table_has_the_metadata_that_a_java_catalog_gives_it(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, tmp_path: Path
) -> None:
    """A new table has the same properties as in a Java catalog, such as `write.parquet.compression-codec=zstd`; without
    this, Spark would write gzip, 2.1 times as slowly."""
    prefix = "spark.sql.catalog.java"
    settings = {prefix: CATALOG_CLASS, f"{prefix}.type": "hadoop", f"{prefix}.warehouse": str(tmp_path / "java")}
    for name, value in settings.items():
        spark.conf.set(name, value)
    found = []
    for place in ("java.nyc.made", f"{catalog}.nyc.made"):
        spark.sql(
            f"CREATE TABLE {place} (id bigint NOT NULL, at timestamp, tags array<string>) USING iceberg "
            "PARTITIONED BY (days(at)) TBLPROPERTIES ('color' = 'red')"
        )
        log = spark.sql(f"SELECT file FROM {place}.metadata_log_entries ORDER BY timestamp DESC").first()
        metadata = TableMetadataUtil.parse_raw(Path(log.file.removeprefix("file:")).read_text())
        own = {"location", "table_uuid", "last_updated_ms", "metadata_log", "snapshot_log"}
        found.append(metadata.model_dump(exclude=own))
    java, made = found
    assert made["properties"].pop("gc.enabled") == "false"
    assert made == java
    spark.sql(f"INSERT INTO {catalog}.nyc.made VALUES (1, TIMESTAMP '2026-01-01 00:00:00', array('a'))")
    (file,) = Path(shop.uri.removeprefix("file://")).glob("nyc/made-*/**/*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


def test_an_error_inside_leaves_nothing(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    version = shop.version
    tx = tl.spark.transaction(spark, catalog=catalog)

    def fails() -> None:
        with tx:
            spark.sql(f"DELETE FROM {tx}.nyc.flights WHERE id = 1")
            spark.sql(f"INSERT INTO {tx}.nyc.nowhere VALUES (4, 'B6')")

    with pytest.raises(PySparkException, match="nowhere"):
        fails()
    assert (tx.version, tx.is_open, shop.version) == (None, False, version)
    assert ids(spark, f"{catalog}.nyc.flights") == [1, 2, 3]


def test_a_check_that_does_not_hold_leaves_nothing(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    version = shop.version

    def publish() -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            tx.add_check("SELECT count(*) = 0 FROM nyc.flights WHERE carrier = 'XX'")
            spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'XX')")

    with pytest.raises(tl.CheckFailed, match="XX"):
        publish()
    assert shop.version == version


def test_a_conflict_is_raised_at_the_end_and_names_the_winner(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    def rewrite() -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            spark.sql(f"INSERT INTO {tx}.nyc.planes VALUES (4, 'B6')")
            spark.sql(f"UPDATE {tx}.nyc.flights SET carrier = 'DL' WHERE id = 1")
            shop.table("nyc.flights").delete("id = 1")

    with pytest.raises(tl.CommitConflict, match=r"nyc\.flights") as caught:
        rewrite()
    assert [winner.version for winner in caught.value.winners] == [shop.version]
    assert (rows(shop, "nyc.flights"), rows(shop, "nyc.planes")) == ([2, 3], [1, 2, 3])


def test_appends_that_meet_are_both_kept_and_serializable_reads_are_checked(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'B6')")
        shop.table("nyc.flights").append(ROWS.slice(0, 1))
    assert rows(shop, "nyc.flights") == [1, 1, 2, 3, 4]

    def skewed() -> None:
        with tl.spark.transaction(spark, isolation="serializable", catalog=catalog) as tx:
            spark.sql(f"INSERT INTO {tx}.nyc.planes SELECT max(id) + 100, 'S' FROM {tx}.nyc.flights")
            shop.table("nyc.flights").append(ROWS.slice(0, 1))

    with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
        skewed()
    assert rows(shop, "nyc.planes") == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*not part of the transaction")
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_statements_on_other_partitions_pass_in_a_transaction_as_they_do_without_one(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, mode: str
) -> None:
    """UPDATE and DELETE in a transaction conflicted with every commit to the table ("which rows it looked for is not
    known"), also on other partitions, where the same statements without a transaction pass."""
    modes = ", ".join(f"'write.{name}.mode' = '{mode}'" for name in ("update", "delete", "merge"))
    routes = f"{catalog}.nyc.routes"
    columns = "(id bigint, carrier string, miles int) PARTITIONED BY (carrier)"
    spark.sql(f"CREATE TABLE {routes} {columns} TBLPROPERTIES ({modes})")
    spark.sql(
        f"INSERT INTO {routes} SELECT id, 'AA', 0 FROM range(1, 6) UNION ALL SELECT id, 'UA', 0 FROM range(11, 15)"
    )
    before = shop.version
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"UPDATE {tx}.nyc.routes SET miles = 1 WHERE carrier = 'AA' AND id < 3")
        spark.sql(f"DELETE FROM {tx}.nyc.routes WHERE carrier = 'AA' AND id = 4")
        spark.sql(f"UPDATE {routes} SET miles = 2 WHERE carrier = 'UA' AND id < 13")
        spark.sql(f"DELETE FROM {routes} WHERE carrier = 'UA' AND id = 14")
        spark.sql(f"INSERT INTO {routes} VALUES (31, 'B6', 3)")
    assert shop.version == before + 4
    expected = [(1, 1), (2, 1), (3, 0), (5, 0), (11, 2), (12, 2), (13, 0), (31, 3)]
    assert [tuple(row) for row in spark.sql(f"SELECT id, miles FROM {routes} ORDER BY id").collect()] == expected
    found = shop.table("nyc.routes").scan(columns=["id", "miles"]).to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["miles"]) for row in found] == expected

    def overtaken() -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            spark.sql(f"UPDATE {tx}.nyc.routes SET miles = 9 WHERE carrier = 'AA' AND id = 1")
            spark.sql(f"UPDATE {routes} SET miles = 8 WHERE carrier = 'AA' AND id = 1")

    with pytest.raises(tl.CommitConflict, match=r"nyc\.routes"):
        overtaken()
    assert spark.sql(f"SELECT miles FROM {routes} WHERE id = 1").collect()[0].miles == 8


def test_transactions_in_one_another_are_independent(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    with tl.spark.transaction(spark, catalog=catalog) as outer:
        spark.sql(f"INSERT INTO {outer}.nyc.flights VALUES (4, 'B6')")
        with tl.spark.transaction(spark, catalog=catalog) as inner:
            spark.sql(f"INSERT INTO {inner}.nyc.planes VALUES (5, 'B6')")
            assert ids(spark, f"{inner}.nyc.flights") == [1, 2, 3]
        assert rows(shop, "nyc.planes") == [1, 2, 3, 5]
        assert ids(spark, f"{outer}.nyc.planes") == [1, 2, 3]
    assert (rows(shop, "nyc.flights"), outer.version) == ([1, 2, 3, 4], shop.version)


def test_a_transaction_is_shared_with_other_clients_and_handed_over(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    version = shop.version
    with tl.spark.transaction(spark, catalog=catalog, id="relay") as tx:
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'B6')")
        other = RestCatalog("other", uri=tx.uri, token=tx.token, warehouse=tx.warehouse)
        other.load_table("nyc.flights").append(pa.table({"id": pa.array([5], pa.int64()), "carrier": ["B6"]}))
        assert ids(spark, f"{tx}.nyc.flights") == [1, 2, 3, 4, 5]
        tx.save()
    assert shop.version == version
    elsewhere = tl.open(shop.uri, durability="none").resume("relay")
    elsewhere.table("nyc.planes").append(ROWS.slice(0, 1))
    elsewhere.save()
    with resume(spark, "relay", catalog=catalog) as tx:
        assert ids(spark, f"{tx}.nyc.planes") == [1, 1, 2, 3]
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (6, 'B6')")
    assert shop.version == version + 1
    assert rows(shop, "nyc.flights") == [1, 2, 3, 4, 5, 6]


KILLED_DRIVER = """
import os, signal, sys
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.exceptions import UnauthorizedError
import trinitylake as tl

server = tl.rest.serve(tl.open(sys.argv[1], durability="none")).start()
begun = server.transactions.begin(id="doomed")
client = RestCatalog("client", uri=server.url, token=server.token, warehouse="@txn/doomed")
client.load_table("nyc.flights").append(pa.table({"id": pa.array([4], pa.int64()), "carrier": ["B6"]}))
assert client.load_table("nyc.flights").scan().to_arrow().num_rows == 4
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_that_is_killed_leaves_nothing(shop: tl.Lakehouse) -> None:
    """A killed driver leaves no transaction. The test kills the process of the driver's server with an open transaction
    of a client."""
    version = shop.version
    done = subprocess.run([sys.executable, "-c", KILLED_DRIVER, shop.uri], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("written", -signal.SIGKILL), done.stderr
    assert shop.version == version
    assert shop.transactions.list() == []
    assert rows(shop, "nyc.flights") == [1, 2, 3]
    assert shop.transactions.outcome("doomed").status == "not committed"
    shop.table("nyc.flights").append(ROWS.slice(0, 1))  # no lock is held
    assert rows(shop, "nyc.flights") == [1, 1, 2, 3]


def test_names_and_sessions_that_cannot_be_connected_are_refused(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tl.InvalidArgument, match="not connected"):
        tl.spark.transaction(spark, catalog="elsewhere")
    with pytest.raises(tl.InvalidArgument, match="catalog's name"):
        connect(shop.uri, "a b", spark=spark)
    other = tl.create(shop.uri.rstrip("/") + "-other", durability="none")
    with pytest.raises(tl.InvalidArgument, match="choose another name"):
        connect(other.uri, catalog, spark=spark)
    monkeypatch.setattr("trinitylake.spark.runtime.CATALOG_CLASS", "org.apache.iceberg.spark.NoSuchCatalog")
    with pytest.raises(tl.InvalidArgument, match=r"spark\.jars\.packages"):
        connect(shop.uri, "fresh", spark=spark)


def test_server_of_the_driver_requires_its_token(spark: SparkSession, catalog: str) -> None:
    connection = connection_of(spark, catalog)
    assert len(connection.server.token) > 30
    assert connection.server.token not in repr(connection)
    with pytest.raises(UnauthorizedError):
        RestCatalog("stranger", uri=connection.server.url)
    with pytest.raises(UnauthorizedError):
        RestCatalog("stranger", uri=connection.server.url, token="guessed")
