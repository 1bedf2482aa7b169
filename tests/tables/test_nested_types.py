"""Nested types: the deepest ones, lists that other libraries represent in other ways, and null lists with elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.types import IcebergType, ListType, LongType

import trinitylake as tl
from trinitylake.definitions.sql_type_grammar import MAX_DEPTH

#: For each nested type, a function from an inner type and value to the nested type and its value.
LEVELS: dict[str, Callable[[pa.DataType, Any], tuple[pa.DataType, Any]]] = {
    "list": lambda kind, value: (pa.list_(kind), [value]),
    "map": lambda kind, value: (pa.map_(pa.string(), kind), [("k", value)]),
    "structure": lambda kind, value: (pa.struct([("a", kind)]), {"a": value}),
}


def nested(depth: int, *levels: str) -> pa.Table:
    kind, value = pa.int64(), 7
    for number in range(depth):
        kind, value = LEVELS[levels[number % len(levels)]](kind, value)
    return pa.table({"k": [1, 2], "v": pa.array([value, None], kind)})


@pytest.mark.parametrize("levels", [["list"], ["map"], ["structure"], ["list", "structure"], ["map", "list"]])
def test_deepest_type_is_read_by_every_reader(lake: tl.Lakehouse, levels: list[str]) -> None:
    """The deepest type that can be written can be read by every reader, also by SQL in reasonable time."""
    lake.create_namespace("n")
    rows = nested(MAX_DEPTH, *levels)
    table = lake.create_table("n.t", rows)
    table.append(rows)
    table.upsert(rows, on="k")
    assert table.scan().to_arrow().sort_by("k").to_pylist() == rows.to_pylist()
    assert lake.sql("FROM n.t ORDER BY k").to_arrow().to_pylist() == rows.to_pylist()
    assert lake.maintenance.fsck("all", files=True).is_sound


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100])
def test_deeper_type_is_refused(lake: tl.Lakehouse, level: str, depth: int) -> None:
    """A deeper type is refused when the table is created. With 99 levels the definition would be unreadable, and vacuum
    would fail."""
    lake.create_namespace("n")
    with pytest.raises(tl.InvalidArgument, match="more than 30 levels"):
        lake.create_table("n.t", nested(depth, level))
    table = lake.create_table("n.t", {"k": "bigint"})
    kind: IcebergType = LongType()
    for number in range(depth):
        kind = ListType(1000 + number, kind, element_required=False)
    with pytest.raises(tl.InvalidArgument, match="more than 30 levels"), table.update_schema() as update:
        update.add_column("v", kind)
    assert lake.table("n.t").schema.names == ("k",)
    assert lake.maintenance.fsck("all", files=True).is_sound


FIXED = pa.list_(pa.int64(), 2)
VIEW = pa.list_view(pa.int64())
PAIRS = [[1, 2], None, [3, 4]]


@pytest.mark.parametrize(
    "values",
    {
        "fixed size": pa.array(PAIRS, FIXED),
        "slice": pa.array([[9, 9], *PAIRS], FIXED).slice(1),
        "list view": pa.array(PAIRS, VIEW),
        "large list view": pa.array(PAIRS, pa.large_list_view(pa.int64())),
        "list view without order": pa.ListViewArray.from_arrays(
            pa.array([2, 0, 0], pa.int32()),
            pa.array([2, 0, 2], pa.int32()),
            pa.array([3, 4, 1, 2]),
            mask=pa.array([False, True, False]),
        ).take(pa.array([0, 1, 2])),
        "null with elements": pa.LargeListArray.from_arrays(
            pa.array([0, 2, 4, 6]), pa.array([1, 2, 8, 9, 3, 4]), mask=pa.array([False, True, False])
        ),
    }.items(),
    ids=lambda one: one[0],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_lists_of_other_libraries_have_their_values(
    lake: tl.Lakehouse, values: tuple[str, pa.Array], is_nested: bool
) -> None:
    """Lists of other libraries keep their values: elements that Arrow stores for a NULL list do not go to the list
    before it, and list views are accepted."""
    column = values[1]
    if is_nested:
        column = pa.StructArray.from_arrays([column], ["a"])
    rows = pa.table({"k": [1, 2, 3], "v": column})
    lake.create_namespace("n")
    kind = pa.list_(pa.int64())
    table = lake.create_table(
        "n.t", pa.schema([("k", pa.int64()), ("v", pa.struct([("a", kind)]) if is_nested else kind)])
    )
    table.append(rows)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    table.overwrite(iter(rows.to_batches()))
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    table.upsert(rows, on="k")
    lake.sql("UPDATE n.t SET k = k + 10")
    lake.sql("INSERT INTO n.t FROM given", data={"given": rows})
    assert [row["v"] for row in lake.table("n.t").scan().to_arrow().sort_by("k").to_pylist()] == [
        *rows["v"].to_pylist()
    ] * 2


def test_arrays_of_polars_and_duckdb_have_their_values(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.schema([("v", pa.list_(pa.int64()))]))
    table.append(pl.DataFrame({"v": pl.Series(PAIRS, dtype=pl.Array(pl.Int64, 2))}))
    with duckdb.connect() as connection:
        table.append(connection.sql("SELECT v::BIGINT[2] AS v FROM (VALUES ([1, 2]), (NULL), ([3, 4])) t(v)"))
    assert table.scan().to_arrow()["v"].to_pylist() == [*PAIRS, *PAIRS]


def test_null_map_with_entries_is_null(lake: tl.Lakehouse) -> None:
    whole = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int64()))
    column = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, mask=pa.array([False, True, False]))
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.table({"v": column}))
    table.append(pa.table({"v": column}))
    assert table.scan().to_arrow()["v"].to_pylist() == [[("a", 1)], None, [("c", 3)]]
