"""Tables of every type, partitioned and evolved in every way, after every statement: their rows are those of DuckDB.

The rows are read by a scan, by SQL, and by PyIceberg as it is installed. `make test` runs a sample in which any two
choices meet; `TRINITYLAKE_DEEP=1` runs all. A failing case is named in its id, and `TRINITYLAKE_CASE=<id>` runs it
alone; `TRINITYLAKE_SEED` draws another sample.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from .history import Case, History, StockReader, all_cases, sample

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


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_a_table_has_the_rows_of_duckdb(case: Case, tmp_path: Path, stock: StockReader) -> None:
    history = History(case, tmp_path, stock)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history.run()
    finally:
        history.close()
