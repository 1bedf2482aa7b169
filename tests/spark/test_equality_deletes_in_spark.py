"""Tables with equality deletes, read by Iceberg for Java and by the data source."""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession
from test_equality_deletes import STATEMENTS, History

import trinitylake as tl


@pytest.mark.parametrize("seed", range(20, 24 if os.environ.get("TRINITYLAKE_DEEP") else 22))
def test_spark_reads_the_rows_that_deletes_by_value_leave(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str, seed: int
) -> None:
    lake.create_namespace("ns")
    history = History(lake, seed)
    history.append()
    for step in range(16):
        statement = history.random.choice(STATEMENTS)
        statement(history)
        if step % 4 == 3:
            history.check(statement.__name__)
            expected = sorted(row["id"] for row in history.rows)
            spark.sql(f"REFRESH TABLE {catalog}.ns.t")
            java = spark.table(f"{catalog}.ns.t")
            source = spark.read.format("trinitylake").option("root", lake.uri).load("ns.t")
            for frame in (java, source):
                assert sorted(row.id for row in frame.select("id").collect()) == expected, statement.__name__
                assert frame.filter("p = 'a'").count() == sum(row["p"] == "a" for row in history.rows)
