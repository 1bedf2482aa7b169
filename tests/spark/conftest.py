"""Fixtures of Spark tests: a local session in each test process, and a lakehouse on disk that its workers open."""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.errors import InvalidArgument
from trinitylake.spark import connect, disconnect
from trinitylake.spark.runtime import EXTENSIONS, package, use_this_python

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", "AA"]})
#: Options for a JVM that runs small jobs and then ends: little compilation, a collector with one thread.
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Iceberg's runtime, which only tests of SQL need; the data source needs only PySpark."""
    use_this_python()
    builder = (
        SparkSession.builder.master("local[2,2]")  # a task that failed is tried once more
        .appName("trinitylake-tests")
        .config("spark.sql.extensions", EXTENSIONS)
        .config("spark.driver.memory", "1500m")
        .config("spark.driver.extraJavaOptions", SHORT_LIFE)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "trinitylake.spark.worker_daemon")
    )
    # Only one of several processes resolves the jars at a time, because their cache does not support concurrent use.
    with (tmp_path_factory.getbasetemp().parent / "spark-starts").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            session = builder.config("spark.jars.packages", package()).getOrCreate()
        except (PySparkRuntimeError, InvalidArgument):
            # Without a repository, or with a Spark version that Iceberg does not support, only the tests of SQL fail;
            # the others need no jar.
            session = builder.config("spark.jars.packages", "").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """An empty lakehouse on disk."""
    return tl.create(str(tmp_path / "lake"), name="test", durability="none")


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("nyc")
        for name in ("flights", "planes"):
            txn.create_table(f"nyc.{name}", ROWS).append(ROWS)
    return lake


@pytest.fixture
def catalog(spark: SparkSession, shop: tl.Lakehouse) -> Iterator[str]:
    """The lakehouse as a catalog of the session, under a new name, because a session never forgets a catalog."""
    name = f"lake{next(_numbers)}"
    assert connect(shop.uri, name, spark=spark, durability="none") is spark
    yield name
    disconnect(spark, name)
