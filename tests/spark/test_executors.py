"""The extension inside Spark's Python workers: they are forked, short-lived, and may fork again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark import worker_daemon


def test_workers_read_the_lakehouse_before_and_after_they_fork(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Locks, threads and connections of the parent are not there in the child."""
    lake.create_namespace("nyc")
    lake.create_table("nyc.flights", pa.table({"id": [1, 2, 3]})).append(pa.table({"id": [1, 2, 3]}))
    uri = lake.uri

    def count(opened: tl.Lakehouse) -> int:
        return opened.table("nyc.flights").scan().to_arrow().num_rows

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            opened = tl.open(uri, durability="none")
            counts = [count(opened)]
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, bytes([count(opened), tl.open(uri, durability="none").version]))
                os._exit(0)
            os.close(writer)
            counts += os.read(reader, 2)
            os.close(reader)
            os.waitpid(child, 0)
            counts.append(count(opened))
            yield pa.record_batch({"counts": pa.array([counts] * batch.num_rows, pa.list_(pa.int64()))})

    found = spark.range(0, 4, 1, 4).mapInArrow(work, "counts array<long>").collect()
    assert [row.counts for row in found] == [[3, 3, lake.version, 3]] * 4


def test_workers_are_forked_with_this_package_loaded(spark: SparkSession) -> None:
    """Each worker imported Iceberg, Arrow and pandas anew, which took longer than most tasks."""

    def of_the_daemon(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        maps = Path(f"/proc/{os.getppid()}/maps").read_text()
        for batch in batches:
            loaded = ["trinitylake/_core" in maps, "pyarrow/_dataset" in maps]
            yield pa.record_batch({"loaded": pa.array([loaded] * batch.num_rows, pa.list_(pa.bool_()))})

    found = spark.range(0, 2, 1, 2).mapInArrow(of_the_daemon, "loaded array<boolean>").collect()
    assert [row.loaded for row in found] == [[True, True]] * 2


def test_a_module_that_cannot_be_loaded_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 3.5 has no data sources in Python: the daemon ended at their import, and every task of the application
    with it, whatever it did."""
    begun = []
    monkeypatch.setattr(worker_daemon, "NEEDED", ("pyspark.sql.not_in_this_version", "trinitylake.spark.functions"))
    monkeypatch.setattr("pyspark.daemon.manager", lambda: begun.append("trinitylake.spark.functions" in sys.modules))
    worker_daemon.main()
    assert begun == [True]
