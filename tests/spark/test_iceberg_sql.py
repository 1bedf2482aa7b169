"""What Iceberg adds to Spark SQL, over a lakehouse: time travel, references, evolution, procedures, streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import trinitylake as tl


def ids(spark: SparkSession, query: str) -> list[int]:
    return sorted(row.id for row in spark.sql(query).collect())


def snapshots(lake: tl.Lakehouse, name: str = "nyc.flights") -> list[Any]:
    return list(lake.table(name).iceberg.snapshots())


def test_a_table_is_read_as_of_a_snapshot_a_time_a_branch_and_a_tag(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    table = f"{catalog}.nyc.flights"
    first = snapshots(shop)[0]
    spark.sql(f"ALTER TABLE {table} CREATE TAG loaded")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH audit")
    spark.sql(f"INSERT INTO {table}.branch_audit VALUES (9, 'XX')")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'B6')")
    assert ids(spark, f"SELECT * FROM {table}") == [1, 2, 3, 4]
    assert ids(spark, f"SELECT * FROM {table} VERSION AS OF {first.snapshot_id}") == [1, 2, 3]
    assert ids(spark, f"SELECT * FROM {table} VERSION AS OF 'loaded'") == [1, 2, 3]
    assert ids(spark, f"SELECT * FROM {table} VERSION AS OF 'audit'") == [1, 2, 3, 9]
    seconds = first.timestamp_ms / 1000 + 0.001
    assert ids(spark, f"SELECT * FROM {table} TIMESTAMP AS OF timestamp_millis({int(seconds * 1000)})") == [1, 2, 3]
    assert sorted(shop.table("nyc.flights").iceberg.refs()) == ["audit", "loaded", "main"]


def test_a_table_is_replaced_by_a_query_and_its_partitioning_evolves(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    table = f"{catalog}.nyc.flights"
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note string AFTER id")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'late', 'B6'), (5, 'late', 'B6')")
    assert [field.name for field in shop.table("nyc.flights").iceberg.spec().fields] == ["id_bucket_2"]
    assert shop.table("nyc.flights").scan(filter="note = 'late'").to_arrow().num_rows == 2
    before = shop.version
    spark.sql(
        f"CREATE OR REPLACE TABLE {table} PARTITIONED BY (carrier) AS SELECT id, carrier FROM {table} WHERE id > 3"
    )
    assert shop.version == before + 1
    assert shop.table("nyc.flights").iceberg.schema().column_names == ["id", "carrier"]
    assert ids(spark, f"SELECT * FROM {table}") == [4, 5]
    spark.sql(f"INSERT OVERWRITE {table} SELECT 6L, 'B6'")
    assert ids(spark, f"SELECT * FROM {table}") == [6]
    assert shop.at(before).table("nyc.flights").scan().to_arrow().num_rows == 5


def test_rows_that_spark_wrote_have_the_same_arrow_types_as_ours(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """A scan of files that Spark wrote, which contain no Arrow types, has the same Arrow schema as a scan of this
    library's files."""
    types = [field.type for field in shop.table("nyc.flights").scan(limit=0).to_arrow().schema]
    spark.sql(f"INSERT INTO {catalog}.nyc.flights VALUES (4, 'B6')")
    for filter in ("id = 4", "id < 4", "id > 0", "id > 4"):
        assert [field.type for field in shop.table("nyc.flights").scan(filter=filter).to_arrow().schema] == types


def test_partitions_by_fixed_are_read_and_a_write_to_them_is_refused(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    """Spark can read tables that are partitioned by a column of type `fixed`, and a write to them is refused. Iceberg
    1.11 for Java writes a length before such partition values, contrary to the Avro schema, so no other reader
    understands its manifests."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "code", FixedType(4)))
    codes = pa.table({"id": [1, 2, 3], "code": pa.array([b"abcd", b"\0\0\0\0", None], pa.binary(4))})
    shop.create_table("nyc.codes", schema, partition_spec=["code"]).append(codes)
    table = f"{catalog}.nyc.codes"
    assert ids(spark, f"SELECT id FROM {table}") == [1, 2, 3]
    assert ids(spark, f"SELECT id FROM {table} WHERE code = X'61626364'") == [1]
    with pytest.raises(Exception, match="damaged, or is not a manifest"):
        spark.sql(f"INSERT INTO {table} VALUES (4, X'65666768')")
    assert ids(spark, f"SELECT id FROM {table}") == [1, 2, 3]


def test_procedures_change_a_table_in_one_commit_each(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    table = f"{catalog}.nyc.flights"
    for number in range(4, 8):
        spark.sql(f"INSERT INTO {table} VALUES ({number}, 'B6')")
    before = shop.version
    (rewritten,) = spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => 'nyc.flights', options => map('min-input-files', '2'))"
    ).collect()
    assert (rewritten.rewritten_data_files_count, rewritten.added_data_files_count) == (5, 1)
    assert shop.version == before + 1
    first = snapshots(shop)[0]
    spark.sql(f"CALL {catalog}.system.rollback_to_snapshot('nyc.flights', {first.snapshot_id})")
    assert ids(spark, f"SELECT * FROM {table}") == [1, 2, 3]
    assert shop.at(before).table("nyc.flights").scan().to_arrow().num_rows == 7


def test_a_procedure_and_a_branch_take_part_in_a_transaction(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str
) -> None:
    before = shop.version
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'B6')")
        spark.sql(
            f"CALL {tx}.system.rewrite_data_files(table => 'nyc.flights', options => map('min-input-files', '2'))"
        )
        spark.sql(f"ALTER TABLE {tx}.nyc.planes CREATE TAG before_the_load")
        assert len(shop.table("nyc.planes").iceberg.refs()) == 1
    assert shop.version == before + 1
    assert shop.table("nyc.flights").iceberg.inspect.data_files().num_rows == 1
    assert sorted(shop.table("nyc.planes").iceberg.refs()) == ["before_the_load", "main"]


def test_streams_of_iceberg_read_and_write_tables_of_the_catalog(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {catalog}.nyc.copy (id bigint, carrier string)")

    def copy() -> None:
        stream = spark.readStream.format("iceberg").load(f"{catalog}.nyc.flights")
        query = (
            stream.writeStream.format("iceberg")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .toTable(f"{catalog}.nyc.copy")
        )
        query.awaitTermination()

    copy()
    assert ids(spark, f"SELECT * FROM {catalog}.nyc.copy") == [1, 2, 3]
    spark.sql(f"INSERT INTO {catalog}.nyc.flights VALUES (4, 'B6')")
    copy()
    assert ids(spark, f"SELECT * FROM {catalog}.nyc.copy") == [1, 2, 3, 4]


def test_the_past_is_not_written_to(spark: SparkSession, shop: tl.Lakehouse, catalog: str) -> None:
    then = tl.spark.catalog_at(spark, version=shop.version, catalog=catalog)
    with pytest.raises(PySparkException):
        spark.sql(f"INSERT INTO {then}.nyc.flights VALUES (4, 'B6')")
    assert ids(spark, f"SELECT * FROM {catalog}.nyc.flights") == [1, 2, 3]


OWN_SESSION = """
import sys
from trinitylake.spark import connect
from trinitylake.errors import InvalidArgument

root, jar, temporary = sys.argv[1:]
try:
    connect(root, jars=jar + ".missing")
except InvalidArgument as error:
    assert "there is no jar at" in str(error), error
settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1", "spark.sql.warehouse.dir": temporary,
            "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = connect(root, jars=jar, durability="none", session_config=settings)
spark.sql("INSERT INTO lake.nyc.flights VALUES (4, 'B6')")
print([row.id for row in spark.sql("SELECT id FROM lake.nyc.flights ORDER BY id").collect()])
assert connect(root, durability="none") is spark  # the active session, and the same server
"""


def test_connect_starts_a_session_with_a_jar_that_is_given(
    spark: SparkSession, shop: tl.Lakehouse, tmp_path: Path
) -> None:
    (jar,) = (jar for jar in spark.conf.get("spark.jars", "").split(",") if "iceberg-spark-runtime" in jar)
    jar = jar.removeprefix("file://")
    done = subprocess.run(
        [sys.executable, "-c", OWN_SESSION, shop.uri, jar, str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("[1, 2, 3, 4]", 0), done.stderr


@pytest.mark.parametrize("name", ["late flights", "late+flights", "late%20flights", "späte+r flüge/a"])
def test_a_name_is_the_same_in_spark_and_in_python(
    spark: SparkSession, shop: tl.Lakehouse, catalog: str, name: str
) -> None:
    """A table with a blank in its name can be used in Spark and in Python: the plus in the path of Iceberg's Java
    client is a blank."""
    table = f"{catalog}.`in space`.`{name}`"
    spark.sql(f"CREATE NAMESPACE {catalog}.`in space`")
    spark.sql(f"CREATE TABLE {table} (id bigint)")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    assert shop.tables("in space") == [f"in space.{name}"]
    shop.table(f"in space.{name}").append({"id": [2]})
    assert ids(spark, f"SELECT * FROM {table}") == [1, 2]
    spark.sql(f"CREATE VIEW {catalog}.`in space`.`{name} seen` AS SELECT * FROM {table}")
    assert ids(spark, f"SELECT * FROM {catalog}.`in space`.`{name} seen`") == [1, 2]
    spark.sql(f"DROP TABLE {table}")
    assert shop.tables("in space") == []
