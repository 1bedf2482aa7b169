"""Spark over a lakehouse on S3: SQL with the clients that `connect` provides, and Spark's own reader through s3a.

These tests are a separate lane, `--lane spark-on-s3`, which is part of `make compatibility`: they need packages of 60
MB and hadoop-aws with 640 MB, and a separate session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, S3Server, serve
from trinitylake.spark import connect, disconnect
from trinitylake.spark.runtime import jar_settings

pytestmark = pytest.mark.lane("spark-on-s3")

#: Hadoop's file system for S3, in the Hadoop version of PySpark 4.1.
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.4.2"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def lake(server: S3Server) -> tl.Lakehouse:
    return tl.create(f"s3://{server.new_bucket()}/lake", storage_options=server.storage_options)


@pytest.fixture(scope="module")
def session(server: S3Server, lake: tl.Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.jars.packages": ",".join([*jar_settings((), lake.uri).values(), HADOOP_AWS]),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
        "spark.hadoop.fs.s3a.session.token": SESSION_TOKEN,
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    session = connect(lake.uri, storage_options=server.storage_options, session_config=settings)
    yield session
    disconnect(session)
    session.stop()


def ids(session: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in session.sql(f"SELECT id FROM {table}").collect())


def test_statements_and_a_transaction_work_on_s3(session: SparkSession, server: S3Server, lake: tl.Lakehouse) -> None:
    session.sql("CREATE NAMESPACE lake.nyc")
    session.sql("CREATE TABLE lake.nyc.flights (id bigint, carrier string) PARTITIONED BY (carrier)")
    session.sql("INSERT INTO lake.nyc.flights VALUES (1, 'AA'), (2, 'UA')")
    version = lake.version
    with tl.spark.transaction(session) as tx:
        session.sql(f"INSERT INTO {tx}.nyc.flights VALUES (3, 'B6')")
        session.sql(f"DELETE FROM {tx}.nyc.flights WHERE id = 1")
        session.sql(f"CREATE TABLE {tx}.nyc.copy AS SELECT * FROM {tx}.nyc.flights")
        assert ids(session, f"{tx}.nyc.copy") == [2, 3]
        assert ids(session, "lake.nyc.flights") == [1, 2]
    assert lake.version == version + 1
    for name in ("nyc.flights", "nyc.copy"):
        assert ids(session, f"lake.{name}") == [2, 3]
        assert sorted(lake.table(name).scan().to_arrow()["id"].to_pylist()) == [2, 3]
    lake.table("nyc.copy").append({"id": [7], "carrier": ["DL"]})
    assert ids(session, "lake.nyc.copy") == [2, 3, 7]
    places = {
        row.file_path.rpartition("/lake/")[0] for row in session.sql("SELECT * FROM lake.nyc.flights.files").collect()
    }
    assert places == {lake.uri.rpartition("/lake/")[0]}
    files = server.files(lake.uri.split("/")[2])
    assert any(path.endswith(".parquet") for path in files)
    assert not [path for path, data in files.items() if SECRET_KEY.encode() in data or ACCESS_KEY.encode() in data]


def test_the_data_source_reads_what_sql_wrote(session: SparkSession, server: S3Server, lake: tl.Lakehouse) -> None:
    options = {f"storage.{name}": value for name, value in server.storage_options.items()}
    frame = session.read.format("trinitylake").options(root=lake.uri, **options).load("nyc.flights")
    assert sorted(row.id for row in frame.collect()) == [2, 3]


def test_spark_reads_parquet_through_s3a(session: SparkSession, server: S3Server, lake: tl.Lakehouse) -> None:
    """`tl.spark.table` reads a root with `s3://` through hadoop-aws, as docs/spark.md says."""
    table = lake.create_table("nyc.odd", {"id": "bigint", "A b": "text"}, partition_spec="bucket(2, id)")
    expected = {id: str(id) for id in range(50)}
    table.append({"id": list(expected), "A b": list(expected.values())})
    frame = tl.spark.table(session, lake.uri, "nyc.odd", storage_options=server.storage_options)
    assert "FileScan parquet" in frame._jdf.queryExecution().toString()
    assert dict(frame.collect()) == expected
    assert frame.where("id >= 40").count() == 10


def test_secrets_are_not_shown(session: SparkSession) -> None:
    shown = {row.key: row.value for row in session.sql("SET").collect()}
    assert SECRET_KEY not in " ".join(shown.values())
    assert shown["spark.sql.catalog.lake.uri"], "settings of the catalog are shown"
    assert not [name for name in shown if "secret-access-key" in name]
    assert Path(str(shown["spark.sql.warehouse.dir"]).removeprefix("file:")).exists()
