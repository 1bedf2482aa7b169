"""Errors of `format("trinitylake")` about the user's input have one line; faults keep their traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.errors import InvalidArgument
from trinitylake.spark.task_errors import one_line_errors

READS = {
    "unknown table": ({}, "nyc.nothing", "ObjectNotFound: table nyc.nothing does not exist"),
    "unknown option": ({"versoin": 1}, "nyc.flights", "InvalidArgument: unknown option versoin"),
    "unknown column": ({"columns": "speed"}, "nyc.flights", "InvalidArgument: the table has no column 'speed'"),
    "unknown column in a filter": ({"filter": "speed > 1"}, "nyc.flights", "InvalidArgument: the table has no column"),
    "unknown version": ({"version": 99}, "nyc.flights", "VersionNotFound: there is no version 99"),
}


@pytest.mark.parametrize(("options", "table", "message"), READS.values(), ids=READS)
def test_an_error_on_the_driver_has_no_traceback(
    spark: SparkSession, shop: tl.Lakehouse, options: dict[str, str], table: str, message: str
) -> None:
    """The error for an unknown table is one line, without a traceback of Python."""
    with pytest.raises(PySparkException, match=message) as raised:
        spark.read.format("trinitylake").option("root", shop.uri).options(**options).load(table).collect()
    assert "Traceback" not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 2  # the second line is Spark's SQLSTATE


def test_an_error_in_a_task_has_no_traceback(spark: SparkSession, shop: tl.Lakehouse) -> None:
    reader = spark.read.format("trinitylake").option("root", shop.uri).schema("id date")
    with pytest.raises(PySparkException, match="InvalidArgument: column id: cannot read int64 as date") as raised:
        reader.load("nyc.flights").collect()
    assert "Traceback" not in str(raised.value)


def test_an_error_of_a_stream_has_no_traceback(spark: SparkSession, shop: tl.Lakehouse) -> None:
    stream = spark.readStream.format("trinitylake").option("root", shop.uri).option("since", 99).load("nyc.flights")
    query = stream.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="VersionNotFound: there is no version 99") as raised:
        query.processAllAvailable()
    assert "Traceback" not in str(raised.value)


def test_an_error_of_a_write_has_no_traceback(spark: SparkSession, shop: tl.Lakehouse) -> None:
    writer = spark.range(1).selectExpr("id AS speed").write.format("trinitylake").option("root", shop.uri)
    with pytest.raises(PySparkException, match=r"InvalidArgument: table nyc\.flights has no column speed") as raised:
        writer.mode("append").save("nyc.flights")
    assert "Traceback" not in str(raised.value)


@one_line_errors
class Reader:
    def partitions(self) -> list[int]:
        raise ZeroDivisionError

    def read(self) -> Iterator[int]:
        yield 1
        raise InvalidArgument("wrong")


def test_only_errors_of_the_library_hide_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ZeroDivisionError):
        Reader().partitions()
    assert not os.environ["SPARK_HIDE_TRACEBACK"]
    rows = Reader().read()
    assert next(rows) == 1
    with pytest.raises(InvalidArgument):
        next(rows)
    assert os.environ["SPARK_HIDE_TRACEBACK"]
