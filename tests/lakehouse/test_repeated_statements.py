"""A statement that loses a race runs again automatically, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import age
from trinitylake.tables import spool
from trinitylake.tables.spool import Spool

COLUMNS = {"number": [3, 4], "word": ["c", "d"]}
TABLE = pa.table(COLUMNS)


class SingleUse:
    """Rows of an unknown library: an Arrow stream that is empty when it is read again."""

    def __init__(self) -> None:
        self._rows = TABLE
        self.reads = 0

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        rows, self._rows = self._rows, TABLE.schema.empty_table()
        self.reads += 1
        return rows.__arrow_c_stream__(requested_schema)


def relation() -> duckdb.DuckDBPyRelation:
    return duckdb.connect().sql("SELECT * FROM (VALUES (3::BIGINT, 'c'), (4::BIGINT, 'd')) AS t(number, word)")


INPUTS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "single-use stream": SingleUse,
    "duckdb relation": relation,
    "generator of batches": lambda: (batch for batch in TABLE.to_batches()),
    "iterator of tables": lambda: iter([TABLE]),
    "generator of dictionaries": lambda: (row for row in TABLE.to_pylist()),
    "list of dictionaries": lambda: TABLE.to_pylist(),
    "dictionary of iterators": lambda: {name: iter(values) for name, values in COLUMNS.items()},
    "polars": lambda: pl.DataFrame(COLUMNS),
    "lazy polars": lambda: pl.LazyFrame(COLUMNS),
    "pandas": lambda: pd.DataFrame(COLUMNS),
}


@pytest.fixture
def numbers(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("a")
    table = lake.create_table("a.numbers", {"number": "bigint", "word": "varchar"}, primary_key="number")
    table.append({"number": [1, 2], "word": ["a", "b"]})
    return table


@pytest.fixture
def beaten_once(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Another writer commits first, once, so the statement runs again. Returns the number of runs."""
    runs = 0
    execute = tl.Transaction.commit

    def commit(self: tl.Transaction, **options: Any) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            self.rollback()
            raise tl.CommitConflict("somebody else was faster")
        return execute(self, **options)

    monkeypatch.setattr(tl.Transaction, "commit", commit)
    return lambda: runs


def rows_of(table: tl.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


@pytest.mark.parametrize("given", INPUTS)
def test_an_overwrite_that_lost_a_race_writes_its_rows(
    numbers: tl.Table, beaten_once: Callable[[], int], given: str
) -> None:
    """An overwrite that is repeated after a conflict writes the rows of its stream, which can be read only once.
    Otherwise it would leave an empty table and report success."""
    numbers.overwrite(INPUTS[given]())
    assert beaten_once() == 2
    assert rows_of(numbers) == [(3, "c"), (4, "d")]


@pytest.mark.parametrize("given", INPUTS)
def test_an_append_and_an_upsert_that_lost_a_race_write_their_rows(
    numbers: tl.Table, beaten_once: Callable[[], int], given: str
) -> None:
    numbers.append(INPUTS[given]())
    assert beaten_once() == 2
    numbers.delete("number = 3")
    assert numbers.upsert(INPUTS[given]()) == (0, 1)
    assert rows_of(numbers) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_an_input_is_read_once(numbers: tl.Table, beaten_once: Callable[[], int]) -> None:
    rows = SingleUse()
    numbers.append(rows)
    assert (beaten_once(), rows.reads) == (2, 1)


@pytest.mark.parametrize("given", INPUTS)
def test_a_transaction_takes_the_same_inputs(lake: tl.Lakehouse, numbers: tl.Table, given: str) -> None:
    with lake.transaction() as txn:
        txn.table("a.numbers").overwrite(INPUTS[given]())
    assert rows_of(lake.table("a.numbers")) == [(3, "c"), (4, "d")]


def test_large_stream_is_spooled_to_disk_for_a_retry(
    numbers: tl.Table, beaten_once: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MEMORY_MAX_SIZE_BYTES", 100_000)
    on_disk: list[bool] = []
    close = Spool.close

    def closing(self: Spool) -> None:
        on_disk.append(self.is_on_disk)
        close(self)

    monkeypatch.setattr(Spool, "close", closing)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(10, 50_010, 5_000):
            yield pa.record_batch({"number": range(start, start + 5_000), "word": ["w"] * 5_000})

    numbers.append(batches())
    assert beaten_once() == 2
    assert on_disk == [True]
    assert numbers.scan().count() == 50_002


def test_a_statement_runs_again_after_each_garbage_collection_that_overtook_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement is repeated after every garbage collection that expires its transaction, also twice as beside an
    erasure."""
    lake = tl.create(tmp_path, durability="none")
    lake.create_namespace("a")
    numbers = lake.create_table("a.numbers", TABLE)
    abandoned, commit = [], tl.Transaction.commit

    def overtaken(self: tl.Transaction, **options: Any) -> int:
        if len(abandoned) < 3:
            abandoned.append(lake.begin())
            abandoned[-1].table("a.numbers").overwrite(TABLE)  # no version will reference these files
            age(tmp_path)
            assert lake.maintenance.vacuum(grace="1 second").version is not None
        return commit(self, **options)

    monkeypatch.setattr(tl.Transaction, "commit", overtaken)
    numbers.append(TABLE)
    monkeypatch.undo()
    assert len(abandoned) == 3
    assert rows_of(lake.table("a.numbers")) == [(3, "c"), (4, "d")]


def test_an_error_of_the_input_ends_the_statement(lake: tl.Lakehouse, numbers: tl.Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise RuntimeError("the source broke off")

    version = lake.version
    with pytest.raises(RuntimeError, match="broke off"):
        numbers.overwrite(batches())
    assert lake.version == version
    assert rows_of(numbers) == [(1, "a"), (2, "b")]


def test_a_column_that_only_later_rows_have_is_written(numbers: tl.Table) -> None:
    """Columns that only later dictionaries of a list have are written, although pyarrow takes the columns from the
    first one."""
    numbers.append([{"number": 3}, {"number": 4, "word": "d"}])
    assert rows_of(numbers) == [(1, "a"), (2, "b"), (3, None), (4, "d")]


def test_data_without_rows_is_refused(numbers: tl.Table) -> None:
    for wrong in [7, None, "rows", b"rows", object(), [1, 2], range(2), [{"number": 1}, 2]]:
        with pytest.raises(tl.InvalidArgument, match="expected Arrow data"):
            numbers.append(wrong)


def test_iterator_arguments_are_read_once(
    lake: tl.Lakehouse, numbers: tl.Table, beaten_once: Callable[[], int]
) -> None:
    """An iterator as an argument, such as a partition spec, has its values also in a repeated attempt."""
    table = lake.create_table(
        "a.parts",
        SingleUse(),
        partition_spec=(column for column in ["number"]),
        sort_order=(column for column in ["word"]),
        primary_key=(column for column in ["number"]),
    )
    assert beaten_once() == 2
    assert [field.name for field in table.partition_spec.fields] == ["number"]
    assert len(table.sort_order.fields) == 1
    assert table.primary_key == ["number"]


class TestUpsert:
    """`upsert` accepts data without a nullable column, as `append` does."""

    def test_updated_row_keeps_omitted_columns(self, lake: tl.Lakehouse) -> None:
        lake.create_namespace("a")
        like = pa.table({"k": [1], "word": ["x"], "n": [0], "list": [[1]]})
        table = lake.create_table("a.t", like, primary_key="k")
        table.append([{"k": 1, "word": "a", "n": 10, "list": [1]}, {"k": 2, "word": "b", "n": 20, "list": [2, 2]}])
        assert table.upsert({"n": [21, 30], "k": [2, 3]}) == (1, 1)
        assert rows_of(table)[:2] == [(1, "a", 10, [1]), (2, "b", 21, [2, 2])]
        assert rows_of(table)[2] == (3, None, 30, None)

    def test_a_key_is_one_column_or_several(self, numbers: tl.Table) -> None:
        assert numbers.upsert({"number": [2, 9]}, on="number") == (0, 1)
        assert rows_of(numbers) == [(1, "a"), (2, "b"), (9, None)]

    def test_missing_required_column_is_refused(self, lake: tl.Lakehouse, numbers: tl.Table) -> None:
        with pytest.raises(tl.InvalidArgument, match="required columns are missing from the data: number"):
            numbers.upsert({"word": ["z"]}, on=["word"])
