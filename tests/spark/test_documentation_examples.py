"""The examples of docs/spark.md and docs/operate/bulk-on-spark.md run in their order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import trinitylake as tl
import trinitylake.spark
from documentation import run_examples

DOCS = Path(__file__).parents[2] / "docs"
ROWS = pa.table({"id": [1, 2, 3], "month": [1, 1, 2], "origin": ["JFK", "EWR", "JFK"], "carrier": ["AA", "UA", "AA"]})
PLANES = pa.table({"tailnum": ["N1", "N2"], "retired": [False, True]})


def test_the_examples_for_spark_run(spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path) -> None:
    for number in range(10):
        lake.create_namespace(f"before{number}")
    lake.create_namespace("nyc")
    lake.create_table("nyc.flights", ROWS).append(ROWS)
    lake.create_table("nyc.copy", ROWS)
    spark.createDataFrame(ROWS).createOrReplaceTempView("staged")
    other = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db", warehouse=f"file://{tmp_path}/other")
    other.create_namespace("elsewhere")
    other.create_table("elsewhere.items", ROWS.schema).append(ROWS)
    names = {
        "spark": spark,
        "lake": lake,
        "uri": lake.uri,
        "tl": tl,
        "trinitylake": trinitylake,
        "place": str(tmp_path / "checkpoint"),
        "reader": spark.read.format("trinitylake").option("root", lake.uri),
        "planes": spark.createDataFrame(PLANES),
        "frame": spark.createDataFrame(pa.table({"path": ["a", "b"], "id": [1, 2]})),
        "objects": pa.table(
            {"kind": ["namespace"], "namespace": ["registered"], "name": pa.array([None], pa.string())}
        ),
        "catalog": other,
    }
    try:
        roots = {"s3://bucket/lake": lake.uri, "s3://backup/lake": str(tmp_path / "backup")}
        after = run_examples(DOCS / "spark.md", names, roots)
        run_examples(DOCS / "operate" / "bulk-on-spark.md", names, roots)
    finally:
        trinitylake.spark.disconnect(spark, "lake")
        for query in spark.streams.active:
            query.stop()
    assert after["january"].count() >= 2
    # 3 rows of the first example, 3 of the retried load, and the 9 rows of the table from each of two streams.
    assert lake.table("nyc.copy").scan().count() == 24
    assert lake.exists("registered")
    assert lake.exists("elsewhere.items")
    assert [entry.message for entry in lake.log(None)].count("nightly") == 1
    retired = lake.table("nyc.planes").scan(filter="retired = true").to_arrow()
    assert retired.num_rows == 0
