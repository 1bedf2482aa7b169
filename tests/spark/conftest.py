"""What Spark tests share: one local session for the whole run, and a lakehouse on disk that its workers can open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session without any jar of ours: what a plain `pip install pyspark` gives."""
    session = (
        SparkSession.builder.master("local[2]")
        .appName("trinitylake-tests")
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
