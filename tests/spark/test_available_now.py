"""The trigger `availableNow` with limits, for which Spark 4.2 has calls to a reader: `make test-spark-4.3`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import trinitylake as tl

pytestmark = pytest.mark.lane("spark-4.3")


@pytest.fixture
def source(lake: tl.Lakehouse) -> tl.Table:
    """A table with rows 0 to 3, each in a separate file and version."""
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", pa.table({"id": pa.array([], pa.int64())}))
    lake.create_table("nyc.copy", table.schema)
    for id in range(4):
        table.append(pa.table({"id": [id]}))
    return table


def run(spark: SparkSession, lake: tl.Lakehouse, checkpoint: Path, **limits: int) -> StreamingQuery:
    """Run a query over the available data to its end."""
    stream = spark.readStream.format("trinitylake").option("root", lake.uri).options(**limits).load("nyc.flights")
    sink = stream.writeStream.format("trinitylake").option("root", lake.uri).trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(checkpoint)).start("nyc.copy")
    query.awaitTermination()
    return query


def rows_of_batches(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, [4]), ({"max_files_per_trigger": 1}, [1, 1, 1, 1]), ({"max_files_per_trigger": 3}, [3, 1])],
)
def test_a_query_with_limits_runs_until_all_is_read(
    spark: SparkSession,
    lake: tl.Lakehouse,
    source: tl.Table,
    tmp_path: Path,
    limits: dict[str, int],
    expected: list[int],
) -> None:
    """With the trigger availableNow, a query with limits runs until it has read everything, also in Spark 4.2 and later
    with several micro-batches."""
    assert rows_of_batches(run(spark, lake, tmp_path / "checkpoint", **limits)) == expected
    source.append(pa.table({"id": [4, 5]}))
    assert rows_of_batches(run(spark, lake, tmp_path / "checkpoint", **limits)) == [2]
    assert rows_of_batches(run(spark, lake, tmp_path / "checkpoint", **limits)) == []
    assert sorted(lake.table("nyc.copy").scan().to_arrow()["id"].to_pylist()) == list(range(6))


def test_a_limit_of_versions_applies(spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path) -> None:
    limits = {"since": lake.version - 4, "max_versions_per_trigger": 2}
    assert rows_of_batches(run(spark, lake, tmp_path / "checkpoint", **limits)) == [2, 2]
