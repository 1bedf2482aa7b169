"""Differential test: after any statement, a table of any type, transform and evolution has the same rows as in DuckDB.

A scan, SQL and unmodified PyIceberg read the rows. `make test` runs a sample with many pairs of parameters.
`TRINITYLAKE_DEEP=1` runs all cases, and reads a sample of the tables with Spark. A test contains the cases of
one table; a failure names its case. `TRINITYLAKE_CASE=<name>` runs one case, and `TRINITYLAKE_SEED` draws another
sample.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from .history import Case, History, StockReader, all_cases, sample

#: Types that Spark reads as other types, or cannot read.
_UNKNOWN_TO_SPARK = ("time", "uuid", "timestamp_ns", "timestamptz_ns", "map", "nested")
SEED = int(os.environ.get("TRINITYLAKE_SEED", "36"))


def _cases() -> list[Case]:
    if name := os.environ.get("TRINITYLAKE_CASE"):
        return [Case.of(name)]
    return list(all_cases()) if os.environ.get("TRINITYLAKE_DEEP") else sample(SEED)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockReader]:
    reader = StockReader(tmp_path_factory.mktemp("stock"))
    yield reader
    reader.close()


def _tables() -> list[list[Case]]:
    """Cases by the table that they share."""
    tables: dict[str, list[Case]] = {}
    for case in _cases():
        tables.setdefault(case.table, []).append(case)
    return list(tables.values())


@pytest.mark.parametrize("cases", _tables(), ids=lambda cases: cases[0].table)
def test_rows_equal_those_of_duckdb(
    cases: list[Case], tmp_path: Path, stock: StockReader, subtests: pytest.Subtests
) -> None:
    history = History(cases[0], tmp_path, stock)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history.begin()
            for case in cases:
                with subtests.test(str(case)):
                    history.run(case)
    finally:
        history.close()


if os.environ.get("TRINITYLAKE_DEEP"):  # it starts Spark

    @pytest.mark.timeout(1800)
    def test_spark_reads_the_rows_of_duckdb(tmp_path: Path, stock: StockReader) -> None:
        """Also where a column has the name of a partition field whose source column was dropped."""
        from pyspark.sql import SparkSession

        from trinitylake.spark.runtime import package

        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.jars.packages", package())
        spark = builder.getOrCreate()
        cases = [case for case in all_cases() if case.kind not in _UNKNOWN_TO_SPARK and case.statement != "relocate"]
        named = [
            case for case in cases if (case.transform, case.evolution, case.statement) == ("v", "readded", "append")
        ]
        for number, case in enumerate([*named, *random.Random(SEED).sample(cases, 20)]):
            folder = tmp_path / str(number)
            folder.mkdir()
            history = History(case, folder, stock)
            try:
                history.begin()
                history.run(case)
                rows = spark.read.format("iceberg").load(history.metadata_location).toArrow()
                history.compare({"Spark": rows}, str(case))
            finally:
                history.close()
