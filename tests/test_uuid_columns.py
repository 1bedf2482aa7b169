"""Columns of UUIDs: compared, sorted, partitioned by and written as other columns are."""

from __future__ import annotations

import operator
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl

#: In the order of their bytes.
KEYS = [uuid.UUID(int=number * 0x0123_4567_89AB_CDEF_0123_4567_89AB) for number in range(24)]
KEY, OTHER = KEYS[7], KEYS[8]


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    return lake


def filled(lake: tl.Lakehouse, **options: Any) -> tl.Table:
    """Four files, each with keys from everywhere, and one without."""
    table = lake.create_table("a.t", {"key": "uuid", "n": "bigint"}, **options)
    for part in range(4):
        table.append([{"key": KEYS[n], "n": n} for n in range(part, len(KEYS), 4)])
    table.append([{"key": None, "n": -1}])
    return table


def numbers(rows: pa.Table) -> list[int]:
    return sorted(rows["n"].to_pylist())


SPECS: list[Any] = [None, "key", "bucket(3, key)", "truncate(5, n)"]


@pytest.mark.parametrize("spec", SPECS)
def test_filters_compare_ids_by_their_bytes(lake: tl.Lakehouse, spec: str | None) -> None:
    """Arrow compares no UUIDs, so whoever looked for one got its `ArrowNotImplementedError`. Of a table that is
    partitioned by them PyIceberg found no file at all: it read the partition as a UUID and held it against bytes."""
    table = filled(lake, partition_spec=spec)
    every = range(len(KEYS))
    wanted: dict[str, list[int]] = {
        f"key in ('{KEY}', '{OTHER}')": [7, 8],
        f"key not in ('{KEY}', '{OTHER}')": [n for n in every if n not in (7, 8)],
        f"key = '{KEY}' and n > 7": [],
        f"key = '{KEY}' or n = 3": [3, 7],
        "key is null": [-1],
        "key is not null": list(every),
    }
    for sign, holds in {
        "=": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }.items():
        wanted[f"key {sign} '{KEY}'"] = [n for n in every if holds(n, 7)]
    for filter, expected in wanted.items():
        # As for other columns: Arrow leaves nulls out of `!=`, and in `not in` a null is none of them.
        scan = table.scan(filter)
        found = [n for n in numbers(scan.to_arrow()) if n >= 0 or "is null" in filter]
        assert found == expected, filter
        assert numbers(scan.to_arrow_batch_reader().read_all()) == numbers(scan.to_arrow()), filter
        if "!=" not in filter:  # of a partition of nulls PyIceberg counts all rows, and Arrow gives none
            assert scan.count() == scan.to_arrow().num_rows, filter


@pytest.mark.parametrize("spec", SPECS)
def test_rows_of_an_id_are_deleted_overwritten_and_merged(lake: tl.Lakehouse, spec: str | None) -> None:
    """`table.delete("key = '…'")` ended with Arrow's error; rows could not be written at all in partitions of ids."""
    table = filled(lake, partition_spec=spec)
    table.delete(f"key = '{KEY}'")
    assert numbers(table.scan().to_arrow()) == [-1, *(n for n in range(24) if n != 7)]
    table.delete(f"key in ('{OTHER}', '{KEYS[9]}')")
    table.overwrite([{"key": OTHER, "n": 100}], f"key > '{KEYS[20]}'")
    assert numbers(table.scan().to_arrow()) == [-1, 0, 1, 2, 3, 4, 5, 6, *range(10, 21), 100]
    result = table.upsert([{"key": KEYS[3], "n": 33}, {"key": KEY, "n": 7}], on=["key"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    with lake.transaction() as change:
        inside = change.table("a.t")
        inside.upsert([{"key": KEYS[4], "n": 44}], on=["key"])
        assert numbers(inside.scan(f"key = '{KEYS[4]}'").to_arrow()) == [44]
        inside.delete(f"key = '{KEYS[4]}'")
    assert numbers(lake.table("a.t").scan(f"key <= '{KEY}'").to_arrow()) == [0, 1, 2, 5, 6, 7, 33]


def test_a_structure_s_id_can_be_filtered_by(lake: tl.Lakehouse) -> None:
    table = lake.create_table("a.t", {"n": "bigint", "of": "struct<key: uuid>"})
    table.append([{"n": n, "of": {"key": KEYS[n].bytes}} for n in range(4)])
    assert numbers(table.scan(f"of.key = '{KEYS[2]}'").to_arrow()) == [2]
    table.delete(f"of.key = '{KEYS[2]}'")
    assert numbers(table.scan().to_arrow()) == [0, 1, 3]


@pytest.mark.parametrize("order", ["key", "key desc"])
def test_rows_are_sorted_by_ids(lake: tl.Lakehouse, order: str) -> None:
    """A compaction that sorts ended with "Unsupported type for RecordBatch sorting"."""
    table = filled(lake)
    table.maintenance.compact(sort_by=[order])
    found = [n for n in table.scan().to_arrow()["n"].to_pylist() if n >= 0]
    assert found == sorted(found, reverse="desc" in order)
    assert len(found) == 24


def test_ids_may_come_as_texts(lake: tl.Lakehouse) -> None:
    """DuckDB hands out UUIDs as texts, so no statement in SQL could write one."""
    table = filled(lake)
    table.append({"key": [str(KEY), None], "n": [101, 102]})
    table.append(pa.table({"key": pa.chunked_array([[str(OTHER)], []], pa.large_string()), "n": [103]}))
    assert numbers(table.scan(f"key in ('{KEY}', '{OTHER}')").to_arrow()) == [7, 8, 101, 103]
    with pytest.raises(tl.errors.InvalidArgument, match="column key: cannot cast string"):
        table.append({"key": ["no id"], "n": [1]})
    lake.sql(f"insert into a.t values ('{KEYS[1]}', 104)")
    lake.sql(f"update a.t set key = '{KEYS[2]}' where n = 104")
    assert numbers(lake.table("a.t").scan(f"key = '{KEYS[2]}'").to_arrow()) == [2, 104]


def test_sql_joins_ids_with_what_it_knows(lake: tl.Lakehouse) -> None:
    """DuckDB told the scan of a table which ids the other side of a join has, and refused to: "Unimplemented type UUID
    for Arrow Filter Pushdown"."""
    filled(lake)
    one = f"(select '{KEY}'::uuid as key, 70 as n)"
    assert lake.sql(f"select t.n from a.t t join {one} s using (key)").to_arrow()["n"].to_pylist() == [7]
    merge = "merge into a.t t using {} s on t.key = s.key when matched then update set n = s.n "
    lake.sql(merge.format(one) + "when not matched then insert (key, n) values (s.key, s.n)")
    lake.sql(f"delete from a.t where key in (select '{OTHER}'::uuid)")
    table = lake.table("a.t")
    assert numbers(table.scan(f"key >= '{KEY}' and key < '{KEYS[10]}'").to_arrow()) == [9, 70]
