"""`tl.spark.table`: rows, plans and the choice between Spark's Parquet reader and the data source."""

from __future__ import annotations

import datetime
import decimal
import math
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField, StringType, UUIDType
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import trinitylake as tl
from trinitylake.errors import InvalidArgument, ObjectNotFound, VersionNotFound

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "carrier": [["AA", "UA", None][i % 3] for i in range(100)],
        "delay": [float(i) if i % 10 else None for i in range(100)],
    }
)


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS)
    for start in range(0, 100, 25):
        table.append(ROWS.slice(start, 25))
    return table


def of_spark(frame: DataFrame) -> bool:
    """Whether Spark's own Parquet reader reads the frame."""
    return "FileScan parquet" in plan(frame)


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def same_as_source(spark: SparkSession, lake: tl.Lakehouse, frame: DataFrame, name: str) -> bool:
    source = spark.read.format("trinitylake").option("root", lake.uri).load(name)
    assert frame.columns == source.columns
    assert [field.dataType for field in frame.schema] == [field.dataType for field in source.schema]
    return sorted(map(str, frame.collect())) == sorted(map(str, source.collect()))


def test_a_query_reads_its_columns_and_rows_only(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    assert same_as_source(spark, lake, frame, "nyc.flights")
    chosen = frame.where("ID > 97").select("Carrier")
    assert "ReadSchema: struct<id:bigint,carrier:string>" in plan(chosen)
    assert "GreaterThan(id,97)" in plan(chosen)
    assert sorted(str(row[0]) for row in chosen.collect()) == ["AA", "None"]
    assert frame.count() == 100
    assert "ReadSchema: struct<>" in plan(frame.selectExpr("count(*)"))
    assert not any(field.metadata for field in frame.schema)


def test_a_join_of_small_tables_is_broadcast(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """Spark broadcasts a small table in a join. It estimated a self join of a Python data source as 7.6e37 bytes."""
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    assert frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() < 1 << 20
    assert "BroadcastHashJoin" in plan(frame.join(frame.select("id"), "id"))
    source = tl.spark.table(spark, lake.uri, "nyc.flights", filter="id < 30")
    assert not of_spark(source)
    assert "BroadcastHashJoin" in plan(source.join(source.select("id"), "id"))


def test_columns_are_found_by_field_id(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    with table.update_schema() as update:
        update.rename_column("carrier", "airline")
    with table.update_schema() as update:
        update.add_column("carrier", StringType())
        update.delete_column("delay")
    table.append(pa.table({"id": [100], "airline": ["B6"], "carrier": ["new"]}))
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    assert of_spark(frame)
    assert same_as_source(spark, lake, frame, "nyc.flights")
    assert frame.where("carrier = 'new'").count() == 1
    assert frame.where("airline = 'AA'").count() == 34


def test_columns_that_have_other_names_in_files_are_found(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Columns are found in files that spell their names differently, such as `A_x20b` for `A b` by Iceberg for Java."""
    lake.create_namespace("nyc")
    rows = pa.table({"A b": [1, 2], "c": ["x", None]})
    lake.create_table("nyc.odd", rows).append(rows)
    frame = tl.spark.table(spark, lake.uri, "nyc.odd")
    assert of_spark(frame)
    assert same_as_source(spark, lake, frame, "nyc.odd")


def test_all_types_are_read_as_by_the_source(spark: SparkSession, lake: tl.Lakehouse) -> None:
    moment = datetime.datetime(2013, 1, 2, 3, 4, 5, 678901)
    rows = {
        "i": pa.array([-(2**31)], pa.int32()),
        "l": pa.array([2**63 - 1]),
        "f": pa.array([1.5], pa.float32()),
        "b": pa.array([True]),
        "d": pa.array([datetime.date(1, 1, 1)]),
        "t": pa.array([datetime.datetime(1, 1, 1)], pa.timestamp("us")),
        "z": pa.array([moment], pa.timestamp("us", "UTC")),
        "small": pa.array([decimal.Decimal("-1.25")], pa.decimal128(5, 2)),
        "large": pa.array([decimal.Decimal("12345678901234567890.123")], pa.decimal128(30, 3)),
        "bytes": pa.array([b"\x00\xff"]),
        "list": pa.array([[1, None, 3]], pa.list_(pa.int64())),
        "map": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": 1, "y": {"z": "deep"}}]),
    }
    lake.create_namespace("nyc")
    lake.create_table("nyc.types", pa.table(rows)).append(pa.table(rows))
    schema = Schema(NestedField(1, "fixed", FixedType(3), required=False))
    lake.create_table("nyc.fixed", schema).append(pa.table({"fixed": pa.array([b"abc"], pa.binary(3))}))
    for name in ("nyc.types", "nyc.fixed"):
        frame = tl.spark.table(spark, lake.uri, name)
        assert of_spark(frame)
        assert same_as_source(spark, lake, frame, name)


def test_a_condition_finds_nan(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """A condition finds NaN, which is the greatest number in Spark, but not included in the bounds of row groups."""
    lake.create_namespace("nyc")
    for name, values in (("nyc.with", [1.0, math.nan]), ("nyc.without", [1.0, 2.0])):
        rows = pa.table({"x": values})
        lake.create_table(name, rows).append(rows)
    assert tl.spark.table(spark, lake.uri, "nyc.with").where("x > 1000").count() == 1
    assert tl.spark.table(spark, lake.uri, "nyc.without").where("x > 1").count() == 1


def test_a_filter_on_partitions_leaves_files_out(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    odd = ["a*b", "[c] {d}", "%2F?e", None]
    rows = pa.table({"id": list(range(8)), "carrier": odd * 2})
    lake.create_table("nyc.parts", rows, partition_spec="carrier").append(rows)
    everything = tl.spark.table(spark, lake.uri, "nyc.parts")
    assert of_spark(everything)
    assert len(everything.inputFiles()) == 4
    assert same_as_source(spark, lake, everything, "nyc.parts")
    for number, carrier in enumerate(odd):
        text = "carrier is null" if carrier is None else f"carrier = '{carrier}'"
        frame = tl.spark.table(spark, lake.uri, "nyc.parts", filter=text, columns=["ID"])
        assert of_spark(frame)
        assert len(frame.inputFiles()) == 1
        assert sorted(row.id for row in frame.collect()) == [number, number + 4]


def with_uuid(lake: tl.Lakehouse, table: tl.Table) -> None:
    with table.update_schema() as update:
        update.add_column("uuid", UUIDType())


def with_other_type(lake: tl.Lakehouse, table: tl.Table) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    lake.drop_table("nyc.flights")
    narrow = lake.create_table("nyc.flights", rows)
    narrow.append(rows)
    narrow.append(pa.table({"id": pa.array([2**40], pa.int64())}), evolve_schema=True)


def with_odd_part_name(lake: tl.Lakehouse, table: tl.Table) -> None:
    """Files have the field as `A_x20b`, for which Spark's Parquet reader returned NULL."""
    kind = pa.struct([("A b", pa.int64()), ("c", pa.int64())])
    rows = pa.table({"id": [1, 2], "s": pa.array([{"A b": 4, "c": 1}, None], kind)})
    lake.drop_table("nyc.flights")
    lake.create_table("nyc.flights", rows).append(rows)


@pytest.mark.parametrize("change", [with_uuid, with_other_type, with_odd_part_name])
def test_what_spark_would_read_otherwise_is_left_to_the_source(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, change: Callable[[tl.Lakehouse, tl.Table], None]
) -> None:
    change(lake, table)
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    assert not of_spark(frame)
    assert same_as_source(spark, lake, frame, "nyc.flights")


def test_a_file_with_a_hidden_name_is_read(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """A file with a hidden name is read. Hadoop's readers skip files whose names begin with a dot or an underscore."""
    shown = next(iter(table.scan().iceberg.plan_files())).file
    path = f"{shown.file_path.rpartition('/')[0]}/_hidden.parquet"
    shutil.copy(shown.file_path.removeprefix("file://"), path.removeprefix("file://"))
    same = ("content", "file_format", "partition", "record_count", "file_size_in_bytes", "spec_id", "sort_order_id")
    hidden = DataFile.from_args(file_path=path, **{name: getattr(shown, name) for name in same})
    with table.iceberg.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(hidden)
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    assert not of_spark(frame)
    assert frame.count() == 125


def test_states_of_a_table(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    version = lake.version
    moment = lake.at(version).created_at
    frame = tl.spark.table(spark, lake.uri, "nyc.flights")
    table.delete("id >= 0")
    txn = lake.begin()
    txn.table("nyc.flights").append(ROWS.slice(0, 10))
    txn.save()
    assert frame.count() == 100
    assert tl.spark.table(spark, lake.uri, "nyc.flights").collect() == []
    assert tl.spark.table(spark, lake.uri, "nyc.flights", version=version - 1).count() == 75
    assert tl.spark.table(spark, lake.uri, "nyc.flights", timestamp=moment).count() == 100
    inside = tl.spark.table(spark, lake.uri, "nyc.flights", txn=txn.id)
    assert of_spark(inside)
    assert inside.count() == 10


def test_mistakes_are_errors_of_the_library(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    with pytest.raises(ObjectNotFound, match=r"nyc\.nothing"):
        tl.spark.table(spark, lake.uri, "nyc.nothing")
    with pytest.raises(InvalidArgument, match="no column 'speed'"):
        tl.spark.table(spark, lake.uri, "nyc.flights", columns=["speed"])
    with pytest.raises(VersionNotFound, match="no version 99"):
        tl.spark.table(spark, lake.uri, "nyc.flights", version=99)


def test_frames_made_in_two_threads_leave_the_settings_of_the_session(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two threads make frames at the same time, the session's setting has its former value afterwards."""
    setting, listed = "spark.sql.sources.parallelPartitionDiscovery.parallelism", DataFrameReader.parquet
    before = spark.conf.get(setting)
    first, second, done = (threading.Event() for _ in range(3))

    def parquet(self: Any, *paths: str) -> DataFrame:
        if not first.is_set():
            first.set()
            second.wait(1)  # gives the second thread time to begin, which then waits for this one
            return listed(self, *paths)
        second.set()
        done.wait(60)
        return listed(self, *paths)

    def make() -> None:
        tl.spark.table(spark, lake.uri, "nyc.flights")
        done.set()

    monkeypatch.setattr("trinitylake.spark.table_frames._LISTED_BY_DRIVER", 0)
    monkeypatch.setattr(DataFrameReader, "parquet", parquet)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(make)
        assert first.wait(60)
        other = pool.submit(make)
        one.result()
        other.result()
    assert spark.conf.get(setting) == before
