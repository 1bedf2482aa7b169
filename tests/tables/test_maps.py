"""Columns of maps accept Python dictionaries.

Arrow converts a dictionary to a struct with all keys of all rows as its fields. So `append([{"sold": {"tea": 3}}])` was
refused with an error about a cast, and no other Python value could be appended to a map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl

ROWS: list[dict[str, Any]] = [
    {"id": 1, "sold": {"tea": 3, "salt": None}, "days": [{"mon": 1}, {}, None]},
    {"id": 2, "sold": {}, "days": []},
    {"id": 3, "sold": None, "days": None},
    {"id": 4, "sold": {"rum": 1}, "days": [{"tue": 2, "mon": 3}]},
]


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    """A table with a map, and a list of maps."""
    lake.create_namespace("shop")
    lake.create_table("shop.sales", {"id": "long", "sold": "map<string, long>", "days": "list<map<string, int>>"})
    return lake.table("shop.sales")


def found(table: tl.Table) -> list[dict[str, Any]]:
    return table.scan().to_arrow().sort_by("id").to_pylist(maps_as_pydicts="strict")


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("form", [list, iter, tuple, columns], ids=["list", "iterator", "tuple", "columns"])
def test_a_dictionary_is_a_map(table: tl.Table, form: Callable[[Any], Any]) -> None:
    table.append(form(ROWS))
    assert found(table) == ROWS
    table.overwrite(form(ROWS[:1]))
    assert found(table) == ROWS[:1]


def test_upserts_and_merges_take_dictionaries(table: tl.Table) -> None:
    table.append(ROWS)
    table.upsert([{"id": 2, "sold": {"tea": 5}, "days": None}], on=["id"])
    table.merge([{"id": 9, "sold": {"tea": 9}, "days": [{}]}], on="id").when_not_matched_insert().execute()
    assert [row["sold"] for row in found(table)] == [ROWS[0]["sold"], {"tea": 5}, None, {"rum": 1}, {"tea": 9}]


def test_maps_take_pairs_and_dictionaries(table: tl.Table) -> None:
    table.append([{"id": 1, "sold": {"tea": 3}, "days": None}, {"id": 2, "sold": [("rum", 1)], "days": None}])
    assert [row["sold"] for row in found(table)] == [{"tea": 3}, {"rum": 1}]


@pytest.mark.parametrize("rows", [[[]], [[], None], [[("tea", None)]], [[("rum", 1), ("tea", 2)], []], [{}], [None]])
def test_maps_take_what_arrow_returns(table: tl.Table, rows: list[Any]) -> None:
    """Maps accept the forms that scans return, also maps without entries and lists of pairs in all rows, so a scanned
    row can be written again."""
    table.append([{"id": number, "sold": row, "days": [row]} for number, row in enumerate(rows)])
    scanned = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [row["sold"] for row in scanned] == [None if row is None else list(dict(row).items()) for row in rows]
    table.upsert(scanned, on="id")
    table.append([{**row, "id": 10 + row["id"]} for row in scanned])
    assert [row["sold"] for row in table.scan("id >= 10").to_arrow().sort_by("id").to_pylist()] == [
        row["sold"] for row in scanned
    ]


@pytest.mark.parametrize("wrong", [{"tea": "three"}, {"tea": 1.5}, {"tea": {"green": 1}}, {None: 1}, [1], 7])
def test_values_that_do_not_fit_are_refused(table: tl.Table, wrong: Any) -> None:
    with pytest.raises(tl.InvalidArgument):
        table.append([{"id": 1, "sold": wrong}])
    assert found(table) == []


def test_a_structure_in_a_map_loses_no_part(lake: tl.Lakehouse) -> None:
    """A dictionary with an unknown field is refused as the value of a map of structs. Given the type, Arrow would drop
    the field.
    """
    lake.create_namespace("shop")
    lake.create_table("shop.t", {"m": "map<string, struct<a: long>>"})
    with pytest.raises(tl.InvalidArgument):
        lake.table("shop.t").append([{"m": {"x": {"a": 1, "b": 2}}}])


def test_a_table_of_dictionaries_has_structures(lake: tl.Lakehouse) -> None:
    """In a new table, a dictionary becomes a struct, as in Arrow."""
    lake.create_namespace("shop")
    rows = pa.table({"sold": [{"tea": 3}]})
    lake.create_table("shop.t", rows).append([{"sold": {"tea": 3}}])
    assert pa.types.is_struct(lake.table("shop.t").scan().to_arrow().schema.field("sold").type)
