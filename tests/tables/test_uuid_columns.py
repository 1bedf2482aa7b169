"""Columns of UUIDs can be compared, sorted and used as partitions like other columns."""

from __future__ import annotations

import operator
import uuid
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import lake_on_disk

#: Keys in ascending order of their bytes.
KEYS = [uuid.UUID(int=number * 0x0123_4567_89AB_CDEF_0123_4567_89AB) for number in range(24)]
KEY, OTHER = KEYS[7], KEYS[8]


lake = lake_on_disk("a")


def filled(lake: tl.Lakehouse, **options: Any) -> tl.Table:
    """A table with four files, each with keys of the whole range, and a file with a null key."""
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
    """Filters on UUIDs work, also in tables that are partitioned by UUIDs, although Arrow cannot compare them."""
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
        # As for other columns: for Arrow, nulls match neither `!=` nor `not in`.
        scan = table.scan(filter)
        found = [n for n in numbers(scan.to_arrow()) if n >= 0 or "is null" in filter]
        assert found == expected, filter
        assert numbers(scan.to_arrow_batch_reader().read_all()) == numbers(scan.to_arrow()), filter
        if "!=" not in filter:  # PyIceberg counts nulls that Arrow leaves out
            assert scan.count() == scan.to_arrow().num_rows, filter


@pytest.mark.sample(2)
@pytest.mark.parametrize("spec", SPECS)
def test_rows_of_an_id_are_deleted_overwritten_and_merged(lake: tl.Lakehouse, spec: str | None) -> None:
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
    table = filled(lake)
    table.maintenance.compact(sort_by=[order])
    found = [n for n in table.scan().to_arrow()["n"].to_pylist() if n >= 0]
    assert found == sorted(found, reverse="desc" in order)
    assert len(found) == 24


def test_ids_may_come_as_texts(lake: tl.Lakehouse) -> None:
    """UUIDs can be written as strings, as DuckDB returns them."""
    table = filled(lake)
    table.append({"key": [str(KEY), None], "n": [101, 102]})
    table.append(pa.table({"key": pa.chunked_array([[str(OTHER)], []], pa.large_string()), "n": [103]}))
    assert numbers(table.scan(f"key in ('{KEY}', '{OTHER}')").to_arrow()) == [7, 8, 101, 103]
    with pytest.raises(tl.errors.InvalidArgument, match="column key: cannot cast VARCHAR"):
        table.append({"key": ["no id"], "n": [1]})
    lake.sql(f"insert into a.t values ('{KEYS[1]}', 104)")
    lake.sql(f"update a.t set key = '{KEYS[2]}' where n = 104")
    assert numbers(lake.table("a.t").scan(f"key = '{KEYS[2]}'").to_arrow()) == [2, 104]


def test_sql_joins_ids_with_what_it_knows(lake: tl.Lakehouse) -> None:
    """SQL can join by UUIDs, although DuckDB's filter pushdown to Arrow does not support them."""
    filled(lake)
    one = f"(select '{KEY}'::uuid as key, 70 as n)"
    assert lake.sql(f"select t.n from a.t t join {one} s using (key)").to_arrow()["n"].to_pylist() == [7]
    merge = "merge into a.t t using {} s on t.key = s.key when matched then update set n = s.n "
    lake.sql(merge.format(one) + "when not matched then insert (key, n) values (s.key, s.n)")
    lake.sql(f"delete from a.t where key in (select '{OTHER}'::uuid)")
    table = lake.table("a.t")
    assert numbers(table.scan(f"key >= '{KEY}' and key < '{KEYS[10]}'").to_arrow()) == [9, 70]


#: Types with UUIDs, each with two values in the form that users write, and the first value in SQL.
PARTS: dict[str, tuple[Any, Any, str]] = {
    "list<uuid>": ([str(KEY), None], [], f"['{KEY}'::uuid, null]"),
    "struct<k: uuid, n: int>": ({"k": KEY, "n": 1}, {"k": None, "n": None}, f"{{'k': '{KEY}'::uuid, 'n': 1}}"),
    "map<text, uuid>": ([("a", KEY)], [], f"map {{'a': '{KEY}'::uuid}}"),
    "map<uuid, list<uuid>>": ([(KEY, [OTHER])], [(KEY, None)], f"map {{'{KEY}'::uuid: ['{OTHER}'::uuid]}}"),
    "list<struct<k: uuid, of: struct<l: list<uuid>>>>": (
        [{"k": KEY, "of": {"l": [OTHER]}}],
        [{"k": OTHER, "of": None}],
        f"[{{'k': '{KEY}'::uuid, 'of': {{'l': ['{OTHER}'::uuid]}}}}]",
    ),
}


def as_text(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: as_text(part) for name, part in value.items()}
    return type(value)(map(as_text, value)) if isinstance(value, list | tuple) else value


def in_texts(kind: pa.DataType) -> pa.DataType:
    """The same type with strings in place of UUIDs."""
    if kind == pa.uuid():
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(in_texts(kind.key_type), in_texts(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.list_(in_texts(kind.value_type))
    return kind


@pytest.mark.parametrize("kind", PARTS)
def test_texts_are_ids_wherever_they_stand_in_a_column(lake: tl.Lakehouse, kind: str) -> None:
    one, other, in_sql = PARTS[kind]
    table = lake.create_table("a.t", {"n": "int", "c": kind})
    target = table.scan().to_arrow().schema.field("c").type
    texts = pa.array([as_text(one), None, as_text(other), as_text(one)], in_texts(target))
    numbered = pa.table({"n": pa.array([1, 2, 3, 4], pa.int32()), "c": texts})
    table.append(numbered)
    table.append(numbered.slice(1, 2).to_reader(max_chunksize=1))
    table.append(numbered.slice(3))
    wanted = {1: as_text(one), 2: None, 3: as_text(other), 4: as_text(one)}

    def found(rows: pa.Table) -> dict[int, Any]:
        assert rows.num_rows
        return {row["n"]: as_text(row["c"]) for row in rows.to_pylist()}

    assert found(table.scan().to_arrow()) == wanted
    assert table.scan().to_arrow().num_rows == 7
    assert table.scan("n > 1").count() == 6
    assert found(lake.sql("select * from a.t where n < 3").to_arrow()) == {1: wanted[1], 2: None}
    assert table.scan().to_polars(lazy=True).collect().height == 7
    assert table.upsert(numbered.slice(0, 1).set_column(1, "c", texts.slice(2, 1)), on=["n"]) == (1, 0)
    assert found(table.scan("n = 1").to_arrow()) == {1: wanted[3]}
    lake.sql(f"insert into a.t values (6, {in_sql})")
    lake.sql(f"update a.t set c = {in_sql} where n = 1")
    lake.sql("delete from a.t where n = 4")
    assert found(lake.table("a.t").scan().to_arrow()) == {1: wanted[1], 2: None, 3: wanted[3], 6: wanted[1]}
    lake.sql("create table a.copy as select * from a.t")
    copy = lake.table("a.copy")
    assert copy.scan().to_arrow().schema.field("c").type == target
    assert found(copy.scan().to_arrow()) == {1: wanted[1], 2: None, 3: wanted[3], 6: wanted[1]}
    lake.table("a.t").maintenance.compact(min_files=1)
    assert lake.table("a.t").scan("n = 5").count() == 0, "no row is between 3 and 6"


def test_objects_of_python_are_ids_in_structures(lake: tl.Lakehouse) -> None:
    """`uuid.UUID` objects are accepted in lists and structs, so that scanned rows can be written again."""
    table = lake.create_table("a.t", {"n": "int", "l": "list<uuid>", "of": "struct<k: uuid>"})
    rows = [{"n": 1, "l": [KEY, None], "of": {"k": OTHER}}, {"n": 2, "l": None, "of": None}]
    table.append(rows)
    table.append(table.scan().to_arrow().to_pylist())
    table.append({name: [row[name] for row in rows] for name in rows[0]})
    assert table.scan("n = 1").to_arrow().to_pylist() == rows[:1] * 3
    assert table.scan("n = 2").to_arrow().to_pylist() == rows[1:] * 3
    with pytest.raises(tl.errors.InvalidArgument, match="column l: cannot cast"):
        table.append([{"n": 1, "l": ["no id"]}])


def test_sql_makes_columns_of_ids(lake: tl.Lakehouse) -> None:
    """A table that SQL creates from UUIDs has UUID columns, although DuckDB returns UUIDs as strings."""
    filled(lake)
    declared = "id uuid not null, l uuid[], s struct(k uuid, e int, x struct(y uuid)[]), m map(uuid, text), f uuid[2]"
    lake.sql(f"create table a.declared ({declared}, primary key (id))")
    lake.sql("create table a.selected as select key, n, key::text as text, {'UUID': n} as named from a.t")
    types = {
        name: {field.name: str(field.field_type) for field in lake.table(f"a.{name}").iceberg.schema().fields}
        for name in ("declared", "selected")
    }
    assert types["declared"]["id"] == "uuid"
    assert types["declared"]["l"] == types["declared"]["f"] == "list<uuid>"
    assert types["declared"]["m"] == "map<uuid, string>"
    assert types["declared"]["s"].count("uuid") == 2
    assert {name: types["selected"][name] for name in ("key", "n", "text")} == {
        "key": "uuid",
        "n": "long",
        "text": "string",
    }
    assert "uuid" not in types["selected"]["named"]
    selected = lake.table("a.selected")
    assert numbers(selected.scan(f"key in ('{KEY}', '{OTHER}')").to_arrow()) == [7, 8]
    assert numbers(selected.scan("key is null").to_arrow()) == [-1]
