"""Errors of libraries about an input become `InvalidArgument`; errors of callers stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, LongType

import trinitylake as tl
from trinitylake.iceberg_storage.errors import TableConflict, translated


def _table(lake: tl.Lakehouse, **options: Any) -> tl.Table:
    lake.create_namespace("n")
    return lake.create_table("n.t", {"id": "bigint", "p": "text"}, **options)


#: Data that libraries cannot convert to columns.
FRAMES: dict[str, Callable[[], Any]] = {
    "a struct without parts": lambda: pa.table({"id": pa.array([{}], pa.struct([]))}),
    "two columns of one name": lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]),
    "complex numbers": lambda: pd.DataFrame({"id": [1 + 2j]}),
    "numbers and texts": lambda: pd.DataFrame({"id": [1, "a"]}),
    "objects": lambda: pd.DataFrame({"id": [object()]}),
    "numbers of 128 bits": lambda: pl.DataFrame({"id": pl.Series([2**100], dtype=pl.Int128)}),
    "a number beyond 64 bits": lambda: {"id": [2**70]},
    "a text that is no UTF-8": lambda: [{"id": 1, "p": "\ud800"}],
}


@pytest.mark.parametrize("rows", FRAMES.values(), ids=FRAMES)
def test_rows_that_arrow_does_not_take_raise_invalid_argument(lake: tl.Lakehouse, rows: Callable[[], Any]) -> None:
    table = _table(lake)
    for write in (table.append, table.overwrite, lambda data: table.upsert(data, on="id")):
        with pytest.raises(tl.InvalidArgument, match=r"^[^(]"):  # the message was the text of a Python tuple
            write(rows())


@pytest.mark.parametrize("name", ["complex numbers", "numbers and texts", "objects", "numbers of 128 bits"])
def test_tables_that_arrow_makes_no_columns_of_raise_invalid_argument(lake: tl.Lakehouse, name: str) -> None:
    lake.create_namespace("n")
    with pytest.raises(tl.InvalidArgument):
        lake.create_table("n.t", FRAMES[name]())


#: Schema updates that PyIceberg refuses, either at once or at the end of the block.
UPDATES: dict[str, tuple[dict[str, Any], Callable[[Any], object]]] = {
    "of the spec": ({"partition_spec": ["p"]}, lambda update: update.delete_column("p")),
    "of the order": ({"sort_order": ["p"]}, lambda update: update.delete_column("p")),
    "of the key": ({"primary_key": ["p"]}, lambda update: update.delete_column("p")),
    "missing": ({}, lambda update: update.delete_column("zz")),
    "narrower": ({}, lambda update: update.update_column("id", IntegerType())),
    "taken": ({}, lambda update: update.rename_column("id", "p")),
    "required": ({}, lambda update: update.add_column("q", LongType(), required=True)),
    "no type": ({}, lambda update: update.add_column("q", object())),
}


@pytest.mark.parametrize(("options", "change"), UPDATES.values(), ids=UPDATES)
def test_schema_updates_that_pyiceberg_refuses_raise_invalid_argument(
    lake: tl.Lakehouse, options: dict[str, Any], change: Callable[[Any], object]
) -> None:
    table = _table(lake, **options)
    with pytest.raises(tl.InvalidArgument), table.update_schema() as update:
        change(update)
    transaction = lake.begin()
    with pytest.raises(tl.InvalidArgument), transaction.table("n.t").update_schema() as update:
        change(update)


def test_spec_updates_that_pyiceberg_refuses_raise_invalid_argument(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="day cannot transform long"), _table(lake).update_spec() as update:
        update.add_field("id", DayTransform(), "x")


class Mine(ValueError):
    """An error of a caller."""


@pytest.mark.parametrize("error", [Mine, ValueError, KeyError, AttributeError])
def test_errors_of_callers_pass_as_they_are(lake: tl.Lakehouse, error: type[Exception]) -> None:
    table = _table(lake)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise error("mine")

    with pytest.raises(error, match="mine") as raised:
        table.append(rows())
    assert type(raised.value) is error
    with pytest.raises(error, match="mine") as raised, table.update_schema():
        raise error("mine")
    assert type(raised.value) is error
    transaction = lake.begin()
    transaction.table("n.t").append([{"id": 1}])
    transaction.add_check(lambda _: next(rows_that_fail(error)))
    with pytest.raises(error, match="mine") as raised:
        transaction.commit()
    assert type(raised.value) is error


def rows_that_fail(error: type[Exception]) -> Iterator[bool]:
    yield from (_fail(error) for _ in range(1))


def _fail(error: type[Exception]) -> bool:
    raise error("mine")


def test_no_internal_error_leaves_a_statement() -> None:
    with pytest.raises(tl.CommitConflict, match="a file is gone") as raised, translated("table n.t"):
        raise TableConflict("a file is gone")
    assert type(raised.value) is tl.CommitConflict


def test_an_error_of_a_library_names_its_table() -> None:
    with pytest.raises(tl.InvalidArgument, match=r"^table n\.t: Could not find field"), translated(lambda: "table n.t"):
        Schema().find_field("x")


def test_an_error_of_pydantic_is_one_sentence(lake: tl.Lakehouse) -> None:
    """An error of pydantic becomes one sentence, without links to its web site."""
    lake.create_namespace("n")
    with pytest.raises(tl.InvalidArgument) as caught:
        lake.create_table("n.t", {"k": "double"}, primary_key=["k"])
    assert str(caught.value) == "Identifier field 1 invalid: must not be float or double field"
