"""Keys of merges: equality of keys of every type, and the files that are read for given keys."""

from __future__ import annotations

import decimal
import uuid
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trinitylake as tl
from local_files import lake_on_disk
from merged_rows import content, files, numbers, pairs
from trinitylake.errors import InvalidArgument
from trinitylake.tables.merging import matching
from trinitylake.tables.merging.join_keys import DenseKeys

lake = lake_on_disk("ns")


@pytest.mark.parametrize("on", [["key"], ["id"], ["key", "id"]])
def test_ids_of_the_type_uuid_are_keys_and_values(lake: tl.Lakehouse, on: list[str]) -> None:
    """Columns of UUIDs, also nested ones, can be keys and values of an upsert and an append, although Arrow cannot
    count, join or compare them."""

    def row(number: int, mark: int = 0) -> dict[str, Any]:
        id = uuid.UUID(int=number).bytes
        return {"key": id, "id": number, "mark": uuid.UUID(int=mark).bytes, "part": {"mark": uuid.UUID(int=mark).bytes}}

    columns = {"key": "uuid", "id": "bigint", "mark": "uuid", "part": "struct<mark: uuid>"}
    table = lake.create_table("ns.ids", columns)
    table.append([row(number) for number in range(4)])
    assert table.upsert([row(1), row(2, 7), row(9)], on=on) == (1, 1)
    assert table.upsert([row(2, 7)], on=on) == (0, 0)
    with pytest.raises(InvalidArgument, match="more than once"):
        table.upsert([row(3), row(3)], on=on)
    table.merge([row(0)], on=on).when_matched_delete().execute()
    found = {one["id"]: (one["mark"], one["part"]["mark"]) for one in table.scan().to_arrow().to_pylist()}
    none, seven = uuid.UUID(int=0), uuid.UUID(int=7)
    assert found == {1: (none, none), 2: (seven, seven), 3: (none, none), 9: (none, none)}


def test_files_that_cannot_hold_a_key_stay_unread(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upsert reads only files whose bounds do not exclude its keys, and does not compare every row with a filter of
    all keys."""
    table = lake.create_table("ns.t", numbers([]))
    for start in range(0, 60, 10):
        table.append(numbers(list(range(start, start + 10))))
    before = files(table)
    read: list[str] = []
    batches_of = matching.LiveRows.batches

    def counted(self: Any, task: Any, *args: Any) -> Any:
        read.append(task.file.file_path)
        return batches_of(self, task, *args)

    monkeypatch.setattr(matching.LiveRows, "batches", counted)
    assert table.upsert(numbers([11, 55, 100], [0, 55, 1]), on="id") == (1, 1)
    after = files(table)
    assert len(set(read)) == 2
    assert len(before.keys() & after.keys()) == 5, "only one of the two files had a changed row"
    read.clear()
    many = list(range(10)) + list(range(50, 60)) + list(range(1000, 1300))
    assert table.upsert(numbers(many, many), on="id") == (0, 300)
    assert len(set(read)) == 2, "two files are read for more keys than a filter can have"
    assert files(table).keys() >= after.keys(), "no row changed, so no file is replaced"
    assert sum(files(table).values()) == 361


def test_partitions_that_no_key_lies_in_stay_unread(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]), partition_spec=["bucket(16, id)"])
    table.append(numbers(list(range(400))))
    before = files(table)
    assert table.upsert(numbers([3, 500], [0, 0]), on="id") == (1, 1)
    assert len(before.keys() - files(table).keys()) == 1
    assert pairs(table) == {id: id for id in range(400)} | {3: 0, 500: 0}


def test_keys_that_come_twice_are_named(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([1]), primary_key=["id"])
    with pytest.raises(InvalidArgument, match=r"2 keys occur more than once.*\(id=7\), \(id=8\)"):
        table.upsert(numbers([7, 8, 9, 7, 8], [1, 2, 3, 4, 5]))
    assert table.upsert(numbers([1, 1], [1, 1]).slice(1)) == (0, 1)


def test_more_than_one_row_for_a_row_is_an_error(lake: tl.Lakehouse) -> None:
    """A merge in which more than one row of the data would change the same row is refused. It is accepted if a
    condition selects one of the rows, or if nothing is changed.
    """
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1, 2]))
    data = numbers([1, 1, 3, 3], [10, 20, 30, 40])
    with pytest.raises(InvalidArgument, match=r"more than one row of the data would change.*\(id=1\)"):
        table.merge(data, on="id").when_matched_update().execute()
    assert pairs(table) == {1: 1, 2: 2}
    merge = table.merge(data, on="id").when_matched_update(condition="source.n > 15").when_not_matched_insert()
    assert merge.execute() == (1, 0, 2)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [2, 20, 30, 40]


def test_a_null_in_a_key_equals_nothing(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([None, 1], [5, 1]))
    assert table.upsert(numbers([None, 1], [7, 2]), on="id") == (1, 1)
    assert content(table) == [{"id": None, "n": 5}, {"id": None, "n": 7}, {"id": 1, "n": 2}]
    assert table.upsert(numbers([None, None], [8, 9]), on="id") == (0, 2)
    merge = table.merge(numbers([None]), on="id").when_matched_delete()
    assert merge.execute() == (0, 0, 0)


def test_nan_equals_nan_and_zero_equals_zero(lake: tl.Lakehouse) -> None:
    """NaN equals NaN and 0.0 equals -0.0 in keys. Bounds do not include NaN, so a file with only NaN must not be left
    out."""
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    table = lake.create_table("ns.t", schema)
    table.append(pa.table({"x": [float("nan")], "n": [1]}))
    table.append(pa.table({"x": [0.0, 1.5], "n": [2, 3]}))
    assert table.upsert(pa.table({"x": [float("nan"), -0.0], "n": [10, 20]}), on="x") == (2, 0)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [3, 10, 20]
    again = pa.table({"x": [float("nan"), -0.0], "n": [10, 20]})
    assert table.upsert(again, on="x") == (0, 0), "NaN and -0.0 are unchanged values"
    with pytest.raises(InvalidArgument, match="more than once"):
        table.upsert(pa.table({"x": [0.0, -0.0], "n": [1, 2]}), on="x")


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "decimal": (pa.decimal128(20, 3), [decimal.Decimal("1.500"), decimal.Decimal("-2.000"), decimal.Decimal("7.125")]),
    "timestamptz": (pa.timestamp("us", "UTC"), [datetime(2024, 5, day, 12, tzinfo=UTC) for day in (1, 2, 3)]),
    "timestamp": (pa.timestamp("us"), [datetime(2024, 5, day, 12) for day in (1, 2, 3)]),
    "date": (pa.date32(), [date(1960, 1, 1), date(2024, 5, 1), date(2030, 1, 1)]),
    "text": (pa.string(), ["a" * 40, "ä", "z'\"\\"]),
    "binary": (pa.binary(), [b"\0", b"\xff" * 20, b""]),
    "fixed": (pa.binary(16), [bytes([n]) * 16 for n in (1, 200, 255)]),
    "boolean": (pa.bool_(), [True, False, None]),
    "float": (pa.float32(), [1.5, float("inf"), -1.0]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_many", [False, True])
def test_keys_of_every_type(lake: tl.Lakehouse, kind: str, is_many: bool) -> None:
    type, values = KEYS[kind]
    table = lake.create_table("ns.t", pa.schema([("k", type), ("part", pa.int64()), ("n", pa.int64())]))
    table.append(pa.table({"k": pa.array(values[:2], type), "part": [1, 1], "n": [1, 2]}))
    data = pa.table({"k": pa.array(values[1:], type), "part": [1, 1], "n": [20, 30]})
    if is_many:  # more than a filter lists
        more = pa.table({"k": pa.array([values[1]] * 300, type), "part": list(range(2, 302)), "n": [0] * 300})
        data = pa.concat_tables([data, more])
    assert table.upsert(data, on=["k", "part"]) == (1, data.num_rows - 1)
    found = table.scan(filter="n > 0").to_arrow()
    assert sorted(found["n"].to_pylist()) == [1, 20, 30]
    merge = table.merge(data, on=["k", "part"]).when_matched_update({"n": "source.n + 1"}, condition="source.n > 0")
    assert merge.execute().rows_updated == (1 if None in values else 2)


LEAST, MOST = -(1 << 63), (1 << 63) - 1
near = st.sampled_from([LEAST, -3, 0, 100, MOST - 60]).flatmap(
    lambda low: st.lists(st.one_of(st.none(), st.integers(low, low + 60)), min_size=1, max_size=30)
)


@given(keys=near, looked_up=st.lists(st.one_of(near, st.just([LEAST, 0, MOST, None])), max_size=4))
def test_keys_near_each_other_are_looked_up(keys: list[int | None], looked_up: list[list[int | None]]) -> None:
    """Integer keys in a small range are looked up in an array with a place for each number between the smallest and the
    largest key. Numbers outside of the range, up to the ends of 64 bits, and nulls match nothing."""
    source = pa.table({"k": pa.array(keys, pa.int64())})
    known = {key: row for row, key in enumerate(keys) if key is not None}
    dense = DenseKeys.of(source, ["k"], rows=100)
    if not known or len(known) + keys.count(None) < len(keys):
        assert dense is None, "keys that occur twice are joined instead"
        return
    assert dense is not None
    for values in [*looked_up, keys]:
        column = pa.chunked_array([pa.array(values, pa.int64())])
        expected = [known.get(value, -1) if value is not None else -1 for value in values]
        assert dense.rows_of(column).tolist() == expected


def test_keys_far_from_each_other_are_joined(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer keys in a large range are joined, because an array from the least to the greatest key would take more
    memory than all rows.
    """
    table = lake.create_table("ns.t", numbers([]).schema)
    table.append(numbers([LEAST, 5, MOST]))
    far = numbers([MOST, LEAST, 6], [1, 2, 3])
    assert DenseKeys.of(far, ["id"], rows=1000) is None
    assert table.upsert(far, on="id") == (2, 1)
    assert pairs(table) == {LEAST: 2, 5: 5, 6: 3, MOST: 1}
    monkeypatch.setattr(matching, "_chunks", None)
    assert table.upsert(numbers([5, 6, 7], [50, 60, 70]), on="id") == (2, 1), "keys in a small range are not joined"
