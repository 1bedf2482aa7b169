"""Reads with `format("trinitylake")` return the rows that the lakehouse itself reads, in every state of a table."""

from __future__ import annotations

import datetime
import decimal
import functools
import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)  # fmt: skip
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringEndsWith,
    StringStartsWith,
)

import trinitylake as tl
from trinitylake.spark.filters import push

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "carrier": pa.array([["AA", "UA", None][i % 3] for i in range(100)]),
        "delay": pa.array([float(i) if i % 10 else None for i in range(100)]),
    }
)


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS)
    for start in range(0, 100, 25):
        table.append(ROWS.slice(start, 25))
    return table


def load(spark: SparkSession, lake: tl.Lakehouse, name: str = "nyc.flights", **options: Any) -> DataFrame:
    return spark.read.format("trinitylake").option("root", lake.uri).options(**options).load(name)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def test_all_rows_are_read(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = load(spark, lake)
    assert frame.schema.simpleString() == "struct<id:bigint,carrier:string,delay:double>"
    assert sorted(map(tuple, frame.collect())) == sorted(tuple(row.values()) for row in ROWS.to_pylist())


def test_an_empty_table_reads_as_no_rows(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    lake.create_table("nyc.empty", ROWS)
    assert load(spark, lake, "nyc.empty").collect() == []


def test_files_are_spread_over_tasks_by_size(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    assert load(spark, lake).rdd.getNumPartitions() == 1
    assert load(spark, lake, split_size_bytes=1).rdd.getNumPartitions() == 4


DAY = datetime.date(2013, 1, 5)
MOMENT = datetime.datetime(2013, 1, 3, 12)
#: A condition in SQL, Spark's filter for it, and whether the data source evaluates the filter completely.
CONDITIONS: list[tuple[str, Filter, bool]] = [
    ("id = 7", EqualTo(("id",), 7), True),
    ("id <> 7", Not(EqualTo(("id",), 7)), True),
    ("id > 90", GreaterThan(("id",), 90), True),
    ("id < 3.5", LessThan(("id",), decimal.Decimal("3.5")), False),
    ("NOT (id >= 10)", Not(GreaterThanOrEqual(("id",), 10)), False),
    ("id > 10000000000", GreaterThan(("id",), 10_000_000_000), True),
    ("carrier IS NULL", IsNull(("carrier",)), True),
    ("carrier IS NOT NULL", IsNotNull(("carrier",)), True),
    ("carrier <> 'AA'", Not(EqualTo(("carrier",), "AA")), True),
    ("carrier IN ('AA', NULL)", In(("carrier",), ("AA", None)), True),
    ("carrier NOT IN ('AA')", Not(In(("carrier",), ("AA",))), False),
    ("carrier LIKE 'A%'", StringStartsWith(("carrier",), "A"), True),
    ("carrier LIKE '%A'", StringEndsWith(("carrier",), "A"), False),
    ("carrier <=> NULL", EqualNullSafe(("carrier",), None), True),
    ("carrier <=> 'UA'", EqualNullSafe(("carrier",), "UA"), True),
    ("delay > 50", GreaterThan(("delay",), 50.0), False),
    ("delay = 'NaN'", EqualTo(("delay",), float("nan")), False),
    ("delay IS NULL", IsNull(("delay",)), True),
    ("day = DATE '2013-01-05'", EqualTo(("day",), DAY), True),
    ("at > TIMESTAMP_NTZ '2013-01-03 12:00:00'", GreaterThan(("at",), MOMENT), True),
    (
        "instant <= TIMESTAMP '2013-01-03 12:00:00Z'",
        LessThanOrEqual(("instant",), MOMENT.replace(tzinfo=datetime.UTC)),
        True,
    ),
    ("price = 1.50", EqualTo(("price",), decimal.Decimal("1.50")), True),
    ("late = true", EqualTo(("late",), True), True),
    ("late <> true", Not(EqualTo(("late",), True)), True),
]


def test_filters_that_are_taken_over_give_what_spark_gives(spark: SparkSession, lake: tl.Lakehouse) -> None:
    rows = ROWS.append_column("day", pa.array([datetime.date(2013, 1, 1 + i % 9) for i in range(100)]))
    at = [datetime.datetime(2013, 1, 1 + i % 9, i % 24) for i in range(100)]
    rows = rows.append_column("at", pa.array(at, pa.timestamp("us")))
    rows = rows.append_column("instant", pa.array(at, pa.timestamp("us", "UTC")))
    rows = rows.append_column("price", pa.array([decimal.Decimal(i) / 4 for i in range(100)], pa.decimal128(9, 2)))
    rows = rows.append_column("late", pa.array([[True, False, None][i % 3] for i in range(100)]))
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.all", rows)
    table.append(rows)
    columns = [sql.expr(condition).alias(str(number)) for number, (condition, _, _) in enumerate(CONDITIONS)]
    answers = load(spark, lake, "nyc.all").select("id", *columns).orderBy("id").toArrow()
    for number, (condition, filter, taken) in enumerate(CONDITIONS):
        expression, kept = push([filter], table.iceberg.schema())
        assert kept == ([] if taken else [filter]), condition
        if taken:
            expected = answers.filter(answers[str(number)])["id"].to_pylist()
            assert sorted(table.scan(filter=expression).to_arrow()["id"].to_pylist()) == expected, condition


def test_conditions_of_a_query_are_pushed_and_the_rest_is_left_to_spark(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    branches = {
        "id >= 10 AND carrier = 'AA' AND delay < 20": [12, 15, 18],
        "id + 1 = 5": [4],
        "carrier IS NULL AND NOT (id >= 6)": [2, 5],
    }
    frames = [load(spark, lake, pushdown=True).where(condition) for condition in branches]
    assert ids(functools.reduce(DataFrame.union, frames)) == sorted(id for found in branches.values() for id in found)


def test_pushed_filters_leave_files_unread(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = load(spark, lake, split_size_bytes=1, pushdown=True).where("id < 30")
    assert frame.rdd.getNumPartitions() == 2
    assert ids(frame) == list(range(30))


def test_a_frame_answers_any_number_of_conditions(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """A frame can be used with different conditions. Spark stores the plan of a reader with the frame, so a reader that
    uses conditions would return the rows of the first condition."""
    frame = load(spark, lake)
    assert ids(frame.where("id < 30")) == list(range(30))
    assert frame.count() == 100
    both = frame.where("id < 3").union(frame.where("id >= 98"))
    assert ids(both) == [0, 1, 2, 98, 99]


def test_a_session_without_pushdown_tells_which_setting_it_needs(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert ids(load(spark, lake).where("id < 30")) == list(range(30))
        with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
            load(spark, lake, pushdown=True).where("id < 30").collect()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_the_filter_option_works_without_pushdown(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    assert ids(load(spark, lake, filter="id >= 10 and id < 12")) == [10, 11]


def test_a_passed_schema_selects_columns(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    reader = spark.read.format("trinitylake").option("root", lake.uri)
    frame = reader.schema("delay float, ID long").load("nyc.flights")
    assert frame.columns == ["delay", "ID"]
    assert sorted(row.ID for row in frame.collect()) == list(range(100))
    with pytest.raises(PySparkException, match="no column 'speed'"):
        reader.schema("speed long").load("nyc.flights").collect()


def test_names_of_columns_ignore_case_as_spark_does(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = load(spark, lake, columns="ID, Carrier", filter="Id < 4 and not (CARRIER = 'UA' or DELAY = 4)")
    assert frame.columns == ["id", "carrier"]
    assert ids(frame.where("iD >= 0")) == [3]  # without rows whose carrier or delay is null
    assert load(spark, lake, metadata="count", filter="ID < 30").first().rows == 30


def test_names_that_differ_in_case_only_are_different_columns(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    rows = pa.table({"a": [1, 2], "A": [3, 4]})
    lake.create_table("nyc.cases", rows).append(rows)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert load(spark, lake, "nyc.cases", filter="A = 3").collect() == [(1, 3)]
        assert load(spark, lake, "nyc.cases", columns="a", filter="a = 2").collect() == [(2,)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_older_versions_are_read_by_number_and_time(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    version = lake.version
    moment = lake.at(version).created_at
    table.delete("id >= 50")
    assert load(spark, lake).count() == 50
    assert load(spark, lake, version=version).count() == 100
    assert load(spark, lake, version=version - 1).count() == 75
    assert load(spark, lake, versionAsOf=version).count() == 100
    assert load(spark, lake, timestamp=moment.isoformat()).count() == 100
    assert load(spark, lake, timestampAsOf=moment.isoformat(" ")).count() == 100


def test_a_frame_keeps_the_version_it_was_loaded_from(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = load(spark, lake)
    with_schema = spark.read.format("trinitylake").option("root", lake.uri).schema("id long").load("nyc.flights")
    spark.sql(f"CREATE TEMPORARY VIEW pinned USING trinitylake OPTIONS (root '{lake.uri}', table 'nyc.flights')")
    assert with_schema.count() == 100  # Spark reads nothing when it loads a frame with a schema
    table.delete("id >= 50")
    assert frame.count() == 100
    assert with_schema.count() == 100
    assert spark.table("pinned").count() == 100
    spark.catalog.dropTempView("pinned")
    assert load(spark, lake).count() == 50


def test_deleted_rows_are_not_read(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    table.delete("carrier = 'AA'")
    assert ids(load(spark, lake)) == [i for i in range(100) if i % 3]


def test_a_changed_schema_reads_old_files(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    with table.update_schema() as update:
        update.rename_column("carrier", "airline")
        update.add_column("tail", StringType())
        update.delete_column("delay")
    table.append(pa.table({"id": [100], "airline": ["B6"], "tail": ["N1"]}))
    rows = {row.id: row for row in load(spark, lake).collect()}
    assert len(rows) == 101
    assert (rows[0].airline, rows[0].tail) == ("AA", None)
    assert (rows[100].airline, rows[100].tail) == ("B6", "N1")


def test_partitioned_tables_are_pruned(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    lake.create_table("nyc.parts", ROWS, partition_spec="carrier").append(ROWS)
    assert load(spark, lake, "nyc.parts", split_size_bytes=1).rdd.getNumPartitions() == 3
    for condition, first in (("carrier = 'UA'", 1), ("carrier IS NULL", 2)):
        frame = load(spark, lake, "nyc.parts", split_size_bytes=1, pushdown=True).where(condition)
        assert frame.rdd.getNumPartitions() == 1
        assert ids(frame) == list(range(first, 100, 3))


def test_every_type_that_spark_has_is_read(spark: SparkSession, lake: tl.Lakehouse) -> None:
    kinds = [
        BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(12, 3), DateType(),
        TimestampType(), TimestamptzType(), StringType(), UUIDType(), FixedType(4), BinaryType(),
        ListType(element_id=101, element=StringType(), element_required=False),
        MapType(key_id=102, key_type=StringType(), value_id=103, value_type=IntegerType(), value_required=False),
        StructType(NestedField(104, "x", DoubleType(), required=False)),
    ]  # fmt: skip
    schema = Schema(*[NestedField(i, f"c{i}", kind, required=False) for i, kind in enumerate(kinds, 1)])
    moment = datetime.datetime(2013, 1, 2, 3, 4, 5, 678901)
    values = [
        True, 1, 2**40, 0.5, 0.25, decimal.Decimal("123456789.125"), datetime.date(2013, 1, 2), moment,
        moment.replace(tzinfo=datetime.UTC), "ü", b"0123456789abcdef", b"abcd", b"\x00\x01", ["a", None],
        [("k", 1)], {"x": 1.5},
    ]  # fmt: skip
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.types", schema)
    arrow = table.iceberg.schema().as_arrow()
    columns = [pa.array([value, None], field.type) if not isinstance(field.type, pa.BaseExtensionType) else
               pa.ExtensionArray.from_storage(field.type, pa.array([value, None], field.type.storage_type))
               for value, field in zip(values, arrow, strict=True)]  # fmt: skip
    table.append(pa.Table.from_arrays(columns, names=arrow.names))
    full, empty = sorted(load(spark, lake, "nyc.types").collect(), key=lambda row: row.c1 is None)
    assert list(empty) == [None] * len(kinds)
    got = full.asDict(recursive=True)
    assert got.pop("c9").astimezone(datetime.UTC) == values[8]
    assert got.pop("c11") == "30313233-3435-3637-3839-616263646566"
    assert got.pop("c15") == {"k": 1}
    expected = {f"c{i}": value for i, value in enumerate(values, 1) if i not in (9, 11, 15)}
    assert {name: bytes(value) if isinstance(value, bytearray) else value for name, value in got.items()} == expected


def test_ids_in_lists_and_structures_are_texts(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """UUIDs are strings in Spark also in lists and structs, although Arrow cannot cast them there."""
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.ids", {"id": "bigint", "l": "list<uuid>", "of": "struct<k: uuid>"})
    text = "6f1c8a9e-3d2b-4c5a-9e8f-0a1b2c3d4e5f"
    rows = [{"id": 1, "l": [text, None], "of": {"k": text}}, {"id": 2, "l": None, "of": None}]
    table.append(rows)
    frame = load(spark, lake, "nyc.ids")
    assert [row.asDict(recursive=True) for row in frame.orderBy("id").collect()] == rows
    frame.write.format("trinitylake").option("root", lake.uri).mode("append").save("nyc.ids")
    assert lake.table("nyc.ids").scan("id = 1").to_arrow()["of"].to_pylist() == [{"k": uuid.UUID(text)}] * 2


def test_a_column_that_spark_has_no_type_for_is_named(spark: SparkSession, lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "at", TimeType(), required=False))
    lake.create_table("nyc.times", schema).append(pa.table({"id": [1], "at": [datetime.time(1, 2)]}))
    with pytest.raises(PySparkException, match="no type for time columns"):
        load(spark, lake, "nyc.times")
    reader = spark.read.format("trinitylake").option("root", lake.uri).schema("id long")
    assert [tuple(row) for row in reader.load("nyc.times").collect()] == [(1,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versoin": 1}, "unknown option versoin"),
        ({"version": "x"}, "whole number"),
        ({"version": 1, "timestamp": "2013-01-01"}, "only one of"),
        ({"timestampAsOf": "2013-01-01 09:00:00"}, "needs a time zone"),  # in SQL the session's zone would apply
        ({"version": 1, "versionAsOf": "1"}, "version and versionAsOf are the same option"),
        ({"version": 99}, "VersionNotFound"),
        ({"filter": "id =="}, "filter"),
        ({"metadata": "nothing"}, "log, objects, files, changes"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=message):
        load(spark, lake, **options).collect()


def test_a_missing_table_and_a_missing_root_are_refused(spark: SparkSession, lake: tl.Lakehouse) -> None:
    with pytest.raises(PySparkException, match="ObjectNotFound"):
        load(spark, lake, "nyc.nothing")
    with pytest.raises(PySparkException, match="TRINITYLAKE_ROOT"):
        spark.read.format("trinitylake").load("nyc.flights")


def test_rows_that_spark_marked_as_deleted_are_not_read_without_the_jar(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    spark.sql(f"ALTER TABLE {catalog}.nyc.flights SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {catalog}.nyc.flights WHERE id = 2")
    source = spark.read.format("trinitylake").option("root", shop.uri)
    contents = [row.content for row in source.option("metadata", "files").load("nyc.flights").collect()]
    assert sorted(contents) == ["data", "position deletes"]
    plain = spark.read.format("trinitylake").option("root", shop.uri).load("nyc.flights")
    for frame in (plain, tl.spark.table(spark, shop.uri, "nyc.flights")):
        assert sorted(row.id for row in frame.collect()) == [1, 3]
