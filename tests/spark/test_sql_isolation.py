"""SERIALIZABLE transactions of Spark: the reads of SQL statements and of the data source, and their conflicts.

Two SQL sessions committed 0 of 58 transactions next to one Python writer: Spark loads a table before each statement,
and a loaded table counted as read.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark.sql_transaction import SparkTransaction

Statement = Callable[[SparkTransaction], object]
Change = Callable[[tl.Lakehouse], object]


def rows(*ids: int, carrier: str = "XX") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "carrier": [carrier] * len(ids)})


@pytest.fixture
def is_committed(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> Callable[[Statement, Change], bool]:
    """A function that returns whether a transaction commits if another change is committed after its statements."""
    with shop.transaction() as txn:
        modes = {f"write.{one}.mode": "merge-on-read" for one in ("delete", "update", "merge")}
        table = txn.create_table("nyc.routes", rows(1), partition_spec=["carrier"], properties=modes)
        table.append(rows(1, 2, 3, carrier="AA"))
        table.append(rows(11, 12, carrier="UA"))
        txn.create_table("nyc.empty", rows(1))

    def run(mine: Statement, theirs: Change) -> bool:
        tx = tl.spark.transaction(spark, isolation="serializable", catalog=catalog)
        try:
            mine(tx)
            theirs(shop)
            tx.commit()
        except tl.CommitConflict as conflict:
            return not conflict.keys
        finally:
            tx.rollback()
        return True

    return run


def append(table: str, *ids: int, carrier: str = "XX") -> Change:
    return lambda lake: lake.table(f"nyc.{table}").append(rows(*ids, carrier=carrier))


def sql(*statements: str) -> Statement:
    return lambda tx: [tx.sql(one).collect() for one in statements]


WRITE = "INSERT INTO nyc.planes VALUES (77, 'mine')"
LOW, HIGH = "SELECT * FROM nyc.flights WHERE id < 50", "SELECT * FROM nyc.flights WHERE id > 50"


@pytest.mark.filterwarnings("ignore:.*not part of the transaction")
def test_statements_that_read_other_rows_do_not_conflict(is_committed: Callable[[Statement, Change], bool]) -> None:
    theirs = append("flights", 100)
    assert is_committed(sql("INSERT INTO nyc.flights VALUES (4, 'B6')"), theirs)
    assert is_committed(sql("INSERT INTO nyc.flights SELECT * FROM nyc.planes"), theirs)
    assert is_committed(sql(LOW, WRITE), theirs)
    assert is_committed(sql("DESCRIBE TABLE nyc.flights", WRITE), theirs)
    assert is_committed(sql("CREATE TABLE nyc.copy AS SELECT * FROM nyc.planes"), theirs)
    other_partition = append("routes", 13, carrier="UA")
    assert is_committed(sql("UPDATE nyc.routes SET id = 5 WHERE carrier = 'AA' AND id = 1"), other_partition)
    assert is_committed(sql("DELETE FROM nyc.routes WHERE carrier = 'AA' AND id = 2"), other_partition)


@pytest.mark.filterwarnings("ignore:.*not part of the transaction")
def test_change_of_read_rows_conflicts(is_committed: Callable[[Statement, Change], bool]) -> None:
    theirs = append("flights", 100)
    for mine in (
        sql("INSERT INTO nyc.flights SELECT id + 1000, carrier FROM nyc.flights"),
        sql("INSERT INTO nyc.planes SELECT * FROM nyc.flights"),
        sql(HIGH, WRITE),
        sql(HIGH, "INSERT INTO nyc.flights VALUES (4, 'B6')"),
        sql("SELECT count(*) FROM nyc.flights", WRITE),
        sql("UPDATE nyc.flights SET carrier = 'YY' WHERE id = 1"),
        sql("DELETE FROM nyc.flights WHERE id = 100000", WRITE),
        sql("INSERT OVERWRITE nyc.flights VALUES (1, 'AA')"),
        sql("SELECT * FROM nyc.flights.snapshots", WRITE),
        sql("SELECT * FROM nyc.flights.changes", WRITE),
    ):
        assert not is_committed(mine, theirs)
    same_partition = append("routes", 9, carrier="AA")
    assert not is_committed(sql("UPDATE nyc.routes SET id = 5 WHERE carrier = 'AA' AND id > 1"), same_partition)
    assert not is_committed(
        sql("DELETE FROM nyc.routes WHERE carrier = 'ZZ'", WRITE), append("routes", 9, carrier="ZZ")
    )
    assert not is_committed(sql("SELECT * FROM nyc.empty", WRITE), append("empty", 1))


@pytest.mark.filterwarnings("ignore:.*not part of the transaction")
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_write_skew_by_absent_rows(spark: SparkSession, shop: tl.Lakehouse, catalog: str, isolation: str) -> None:
    """Write skew by missing rows: each transaction books the seat in its table if the other table has no booking. Under
    snapshot isolation both commit."""
    both = [tl.spark.transaction(spark, isolation=isolation, catalog=catalog) for _ in range(2)]  # type: ignore[arg-type]
    for tx, mine, other in ((both[0], "flights", "planes"), (both[1], "planes", "flights")):
        assert not tx.sql(f"SELECT * FROM nyc.{other} WHERE id = 500").collect()
        tx.sql(f"INSERT INTO nyc.{mine} VALUES (500, 'seat')")
    both[0].commit()
    if isolation == "snapshot":
        both[1].commit()
    else:
        with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
            both[1].commit()


@pytest.mark.filterwarnings("ignore:.*not part of the transaction")
def test_a_catalog_that_does_not_plan_by_the_server_reads_whole_tables(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    tx = tl.spark.transaction(spark, isolation="serializable", catalog=catalog)
    spark.conf.set(f"spark.sql.catalog.{tx.catalog}.header.X-TrinityLake-Scan-Planning", "client")
    tx.sql("INSERT INTO nyc.flights VALUES (4, 'B6')")
    shop.table("nyc.flights").append(rows(100))
    with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
        tx.commit()


@pytest.mark.parametrize("is_phantom", [True, False])
def test_the_data_source_records_its_reads_in_a_saved_transaction(
    spark: SparkSession, shop: tl.Lakehouse, is_phantom: bool
) -> None:
    txn = shop.begin(id="job", isolation="serializable")
    txn.save()
    into = {"root": shop.uri, "txn": "job"}
    chosen = "id >= 50" if is_phantom else "id < 50"
    found = spark.read.format("trinitylake").options(**into).option("filter", chosen).load("nyc.flights")
    assert found.count() == (0 if is_phantom else 3)
    spark.sql("SELECT 77L AS id, 'mine' AS carrier").write.format("trinitylake").options(**into).mode("append").save(
        "nyc.planes"
    )
    shop.table("nyc.flights").append(rows(100))
    shop.table("nyc.planes").append(rows(100))
    if is_phantom:
        with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
            shop.resume("job").commit()
    else:
        assert shop.resume("job").commit() == shop.version


STATEMENTS = (
    "SELECT * FROM nyc.{} WHERE carrier = 'AA' AND id > 3",
    "SELECT min(id), max(id), count(*), count(carrier) FROM nyc.{}",
    "MERGE INTO nyc.{} t USING (SELECT 1L AS id, 'AA' AS carrier UNION ALL SELECT 100L, 'UA') s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET carrier = 'mm' WHEN NOT MATCHED THEN INSERT *",
    "UPDATE nyc.{} SET carrier = 'uu' WHERE id % 5 = 0",
    "DELETE FROM nyc.{} WHERE id = 7",
    "MERGE INTO nyc.{0} t USING nyc.{0} s ON t.id = s.id + 1 AND s.id < 3 WHEN MATCHED THEN DELETE",
    "INSERT INTO nyc.{0} SELECT id + 1000, carrier FROM nyc.{0} WHERE carrier IN ('AA', 'uu')",
    "SELECT a.id FROM nyc.{0} a JOIN nyc.{0} b ON a.id = b.id + 1000",
    "DELETE FROM nyc.{} WHERE carrier = 'AA'",
    "SELECT * FROM nyc.{}",
)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_scans_that_the_server_plans_give_the_same_rows(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, mode: str
) -> None:
    """Scans that the server plans return the same rows as scans that Spark plans. In a snapshot transaction Spark plans
    its scans itself."""
    answers = []
    for isolation in ("snapshot", "serializable"):
        with shop.transaction() as txn:
            modes = {f"write.{one}.mode": mode for one in ("delete", "update", "merge")}
            table = txn.create_table(f"nyc.{isolation}", rows(1), partition_spec=["carrier"], properties=modes)
            for carrier, ids in (("AA", range(10)), ("UA", range(10, 20))):
                table.append(rows(*ids, carrier=carrier))
        with tl.spark.transaction(spark, isolation=isolation, catalog=catalog) as tx:
            answers.append([sorted(tx.sql(one.format(isolation)).collect()) for one in STATEMENTS])
    assert answers[0] == answers[1]
    assert len(answers[1][-1]) > 10
