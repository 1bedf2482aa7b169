"""Iceberg's own housekeeping on tables of a lakehouse: Spark refuses it, and no file is deleted.

`expire_snapshots`, `remove_orphan_files` and `DROP TABLE … PURGE` deleted what older versions, saved transactions and
the latest version needed, also inside a transaction that was rolled back afterwards.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import trinitylake as tl

HOUSEKEEPING = [
    "CALL {catalog}.system.expire_snapshots(table => 'nyc.flights', older_than => {later}, retain_last => 1)",
    "CALL {catalog}.system.remove_orphan_files(table => 'nyc.flights', older_than => {later})",
    "DROP TABLE {catalog}.nyc.flights PURGE",
]


def files(lake: tl.Lakehouse) -> set[str]:
    return {str(one) for one in Path(lake.uri.removeprefix("file://")).rglob("*.[pa][av]*") if one.is_file()}


@pytest.mark.parametrize("statement", HOUSEKEEPING)
def test_housekeeping_of_an_engine_is_refused_and_deletes_nothing(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, statement: str
) -> None:
    spark.sql(f"INSERT INTO {catalog}.nyc.flights VALUES (4, 'B6')")
    with shop.transaction() as txn:  # the replaced files are only in an older version
        txn.table("nyc.flights").delete("id = 4")
    later = f"TIMESTAMP '{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(time.time() - 1))}'"
    before, kept = files(shop), shop.version - 1

    def in_a_transaction() -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            spark.sql(statement.format(catalog=tx, later=later)).collect()

    refusals = (PySparkException, Py4JJavaError)
    with pytest.raises(refusals, match=r"GC is disabled|gc\.enabled"):
        spark.sql(statement.format(catalog=catalog, later=later)).collect()
    with pytest.raises(refusals, match=r"GC is disabled|gc\.enabled"):
        in_a_transaction()
    assert before <= files(shop)
    assert shop.at(kept).table("nyc.flights").scan().to_arrow().num_rows == 4
    assert shop.table("nyc.flights").scan().to_arrow().num_rows == 3
