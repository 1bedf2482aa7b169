"""What Spark tests share: one local session for the whole run, and a lakehouse on disk that its workers can open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark.runtime import EXTENSIONS, package, use_this_python


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Iceberg's runtime, which only the tests of SQL need; the data source is plain PySpark."""
    use_this_python()
    session = (
        SparkSession.builder.master("local[2,2]")  # a task that failed is tried once more
        .appName("trinitylake-tests")
        .config("spark.jars.packages", package())
        .config("spark.sql.extensions", EXTENSIONS)
        .config("spark.driver.memory", "1500m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """An empty lakehouse on disk."""
    return tl.create(str(tmp_path / "lake"), name="test", durability="none")
