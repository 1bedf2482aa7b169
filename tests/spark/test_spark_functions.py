"""The format's functions as Arrow UDFs return the same on executors as the core in this process."""

from __future__ import annotations

import decimal

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import trinitylake as tl
from trinitylake import core
from trinitylake.core import KeySizes
from trinitylake.spark import functions as tlf
from trinitylake.spark import register_functions

PATHS = ["data/a.parquet", None, "data/b.parquet", "ünïcode/ç.parquet", ""]
NARROW = KeySizes(12, 10, 8)


def column_of(frame: object) -> list[object]:
    return [row[0] for row in frame.collect()]  # type: ignore[attr-defined]


def test_paths_are_optimized_as_the_core_does(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(path,) for path in PATHS], "path string").repartition(2).orderBy("path")
    result = {row[0]: row[1] for row in frame.select("path", tlf.optimize_path("path")).collect()}
    expected = dict(zip(PATHS, core.optimize_paths(PATHS).to_pylist(), strict=True))
    assert result == expected
    assert result[None] is None


def test_root_paths_round_trip(spark: SparkSession) -> None:
    versions = [0, 1, 4, 2**40, None]
    frame = spark.createDataFrame([(version,) for version in versions], "version long").coalesce(1)
    rows = frame.select("version", tlf.root_path("version").alias("path")).select(
        "version", "path", tlf.root_version("path")
    )
    for version, path, back in rows.collect():
        assert path == (None if version is None else core.root_path(version))
        assert back == version
    assert column_of(spark.createDataFrame([("data/a",)], "path string").select(tlf.root_version("path"))) == [None]


@pytest.mark.parametrize("sizes", [None, NARROW])
def test_keys_are_encoded_and_decoded_as_the_core_does(spark: SparkSession, sizes: KeySizes | None) -> None:
    names = [("nyc", "flights"), ("nyc", None), (None, "planes"), ("a.b", "ünï"), ("nyc", "planes")]
    frame = spark.createDataFrame(names, "namespace string, name string").coalesce(1)
    rows = frame.select(
        "namespace",
        "name",
        tlf.namespace_key("namespace", sizes).alias("namespace_key"),
        tlf.table_key("namespace", "name", sizes).alias("table_key"),
        tlf.view_key("namespace", "name", sizes).alias("view_key"),
    )
    decoded = rows.select("*", tlf.decode_key("table_key", sizes).alias("decoded")).collect()
    assert len(decoded) == len(names)
    for row in decoded:
        if row.namespace is None:
            assert row.namespace_key is None
        else:
            assert row.namespace_key == core.encode_namespace_keys([row.namespace], sizes)[0].as_py()
        if row.namespace is None or row.name is None:
            assert row.table_key is row.view_key is row.decoded is None
        else:
            assert row.table_key == core.encode_table_keys([row.namespace], [row.name], sizes)[0].as_py()
            assert row.view_key == core.encode_view_keys([row.namespace], [row.name], sizes)[0].as_py()
            assert tuple(row.decoded) == ("table", row.namespace, row.name)


def test_a_name_that_no_key_can_hold_fails_the_query(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("nyc", "x" * 11)], "namespace string, name string")
    with pytest.raises(Exception, match="InvalidName"):
        frame.select(tlf.table_key("namespace", "name", NARROW)).collect()


def test_buckets_are_those_of_the_iceberg_specification(spark: SparkSession) -> None:
    """Hash values from the table in appendix B of the Iceberg specification."""
    rows = spark.sql("""
        SELECT 34 AS i, 34L AS l, CAST(14.20 AS DECIMAL(9, 2)) AS d, DATE '2017-11-16' AS day,
               TIMESTAMP_NTZ '2017-11-16 22:31:08' AS moment, 'iceberg' AS s, X'00010203' AS b
    """)
    hashes = {
        "i": 2017239379, "l": 2017239379, "d": -500754589, "day": -653330422,
        "moment": -2047944441, "s": 1210000089, "b": -188683207,
    }  # fmt: skip
    result = rows.select(*[tlf.bucket_of(name, 1000).alias(name) for name in hashes]).first()
    assert result is not None
    assert result.asDict() == {name: (value & 0x7FFFFFFF) % 1000 for name, value in hashes.items()}
    assert decimal.Decimal("14.20") == rows.first()["d"]


def test_the_functions_are_known_to_sql(spark: SparkSession) -> None:
    names = register_functions(spark, NARROW, prefix="tl_")
    assert "tl_optimize_path" in names
    row = spark.sql("""
        SELECT tl_optimize_path('data/a.parquet') AS path, tl_root_version(tl_root_path(7L)) AS version,
               tl_decode_key(tl_table_key('nyc', 'flights')).name AS name, tl_bucket_of(34, 16) AS bucket
    """).first()
    assert row is not None
    assert row.path == core.optimize_paths(["data/a.parquet"])[0].as_py()
    assert (row.version, row.name, row.bucket) == (7, "flights", 2017239379 % 16)


def test_many_short_tasks_share_the_extension(spark: SparkSession) -> None:
    frame = spark.range(0, 400, 1, 20).select(sql.concat(sql.lit("data/"), sql.col("id").cast("string")).alias("path"))
    optimized = frame.select("path", tlf.optimize_path("path")).collect()
    paths = [row[0] for row in optimized]
    assert [row[1] for row in optimized] == core.optimize_paths(paths).to_pylist()
    assert len(paths) == 400


def test_pyspark_without_arrow_functions_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sql, "arrow_udf")
    with pytest.raises(tl.InvalidArgument, match=r"need PySpark 4\.1"):
        register_functions(spark)
