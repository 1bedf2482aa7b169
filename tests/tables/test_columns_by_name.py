"""The rule for columns of incoming rows: they are matched by name, never by position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import trinitylake as tl

Write = Callable[[tl.Table, Iterator[pa.RecordBatch]], object]
WRITES: dict[str, Write] = {
    "append": lambda table, rows: table.append(rows),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "upsert": lambda table, rows: table.upsert(rows),
    "merge": lambda table, rows: table.merge(rows).when_matched_update().when_not_matched_insert().execute(),
}


def _table(lake: tl.Lakehouse, **columns: str) -> tl.Table:
    lake.create_namespace("n")
    return lake.create_table("n.t", columns, primary_key=["id"])


def _rows(table: tl.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return rows


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_batches_of_a_stream_with_columns_in_another_order_are_matched_by_name(
    lake: tl.Lakehouse, write: Write
) -> None:
    """Arrow matches by position, so an upsert could write `v` into `id`."""
    table = _table(lake, id="bigint", s="text", v="bigint")
    write(
        table,
        iter([pa.record_batch({"id": [5], "s": ["x"], "v": [1]}), pa.record_batch({"v": [99], "s": ["y"], "id": [1]})]),
    )
    assert _rows(table) == [{"id": 1, "s": "y", "v": 99}, {"id": 5, "s": "x", "v": 1}]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "other", [{"id": [1], "w": ["x"]}, {"id": [1]}, {"id": [1], "s": ["x"], "v": [1]}, {"id": [1], "s": [2]}]
)
def test_batches_of_a_stream_with_other_columns_or_types_are_refused(
    lake: tl.Lakehouse, write: Write, other: dict[str, list[object]]
) -> None:
    table = _table(lake, id="bigint", s="text", v="bigint")
    table.append([{"id": 9, "s": "kept", "v": 0}])
    with pytest.raises(tl.InvalidArgument, match="a record batch"):
        write(table, iter([pa.record_batch({"id": [5], "s": ["x"]}), pa.record_batch(other)]))
    assert _rows(table) == [{"id": 9, "s": "kept", "v": 0}]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_reader_whose_batches_lie_about_their_columns_is_refused(lake: tl.Lakehouse, write: Write) -> None:
    table = _table(lake, id="bigint", s="text")
    first, second = pa.record_batch({"id": [5], "s": ["x"]}), pa.record_batch({"id": [1], "w": ["precious"]})
    with pytest.raises(tl.InvalidArgument, match="a record batch has the columns id, w"):
        write(table, pa.RecordBatchReader.from_batches(first.schema, iter([first, second])))


@pytest.mark.parametrize("on", [["order_id", "line"], ["line", "order_id"], None])
def test_keys_may_stand_in_any_order(lake: tl.Lakehouse, on: list[str] | None) -> None:
    """The order of key columns in `on` and in the table does not matter; a primary key is sorted by name."""
    lake.create_namespace("n")
    columns = {"order_id": "bigint", "line": "int", "v": "bigint"}
    table = lake.create_table("n.t", columns, primary_key=["order_id", "line"])
    table.append([{"order_id": 1, "line": 2, "v": 10}, {"order_id": 2, "line": 1, "v": 20}])
    assert table.upsert([{"line": 2, "v": 11, "order_id": 1}], on=on) == (1, 0)
    assert table.merge([{"line": 1, "v": 21, "order_id": 2}], on=on).when_matched_update().execute() == (1, 0, 0)
    found = table.scan().to_arrow().sort_by("order_id").to_pylist()
    assert found == [{"order_id": 1, "line": 2, "v": 11}, {"order_id": 2, "line": 1, "v": 21}]


def test_a_merge_reads_columns_of_the_table_that_stand_before_the_key(lake: tl.Lakehouse) -> None:
    table = _table(lake, v="bigint", id="bigint")
    table.append([{"id": 1, "v": 10}, {"id": 2, "v": 20}])
    merge = table.merge([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    merge = merge.when_matched_delete(condition="target.v = 10")
    assert merge.when_matched_update({"v": "target.v + source.v"}).execute() == (1, 1, 0)
    assert _rows(table) == [{"v": 22, "id": 2}]


@pytest.mark.parametrize("data", [[], iter([]), {}, pa.table({})], ids=["list", "iterator", "dict", "table"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_no_rows_fit_every_table(lake: tl.Lakehouse, write: Write, data: object) -> None:
    """`[]`, which has no columns because it has no rows, fits every table, also a table with a primary key."""
    table = _table(lake, id="bigint", s="text")
    write(table, data)  # type: ignore[arg-type]
    assert _rows(table) == []


def test_rows_without_columns_are_refused(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="the rows have no columns"):
        _table(lake, id="bigint").append([{}])


def test_a_key_that_names_a_column_twice_is_refused(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="named twice: id, id"):
        _table(lake, id="bigint").upsert([{"id": 1}], on=["id", "id"])
