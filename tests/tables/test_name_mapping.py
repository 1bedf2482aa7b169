"""Files without field ids, whose columns are found by the name mapping of the table."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from local_files import lake_on_disk

FILTERS = {
    "q = 'x1'": lambda row: row["q"] == "x1",
    "q != 'x1'": lambda row: row["q"] is not None and row["q"] != "x1",
    "q is null": lambda row: row["q"] is None,
    "q is not null": lambda row: row["q"] is not None,
    "p = 'x1'": lambda row: row["p"] == "x1",
    "p is null": lambda row: row["p"] is None,
    "q is null and p > 'x1'": lambda row: row["q"] is None and row["p"] > "x1",
}


def with_moved_name(lake: tl.Lakehouse, transform: str | None) -> tl.Table:
    """A table with three added files. Its column `p` was then renamed to `q`, and a new column `p` was added."""
    table = lake.create_table("s.t", {"id": "bigint", "p": "text"})
    if transform is not None:
        with table.update_spec() as update_spec:
            update_spec.add_field("p", transform, "part")
    folder = Path(table.location.removeprefix("file://")) / "data"
    folder.mkdir(exist_ok=True)
    for number in range(3):
        rows = pa.table({"id": [2 * number, 2 * number + 1], "p": [f"x{number}"] * 2})
        pq.write_table(rows, folder / f"{number}.parquet")
    table.iceberg.add_files([f"{table.location}/data/{number}.parquet" for number in range(3)])
    with table.update_schema() as update:
        update.rename_column("p", "q")
    with table.update_schema() as update:
        update.add_column("p", "text")
    return lake.table("s.t")


lake = lake_on_disk("s")


@pytest.mark.parametrize("transform", [None, "identity", "truncate[1]"])
def test_filters_after_a_name_moved_to_another_column(lake: tl.Lakehouse, transform: str | None) -> None:
    """Otherwise `q = 'x1'` would return rows whose q is NULL, in files without field ids."""
    table = with_moved_name(lake, transform)
    rows = table.to_arrow().to_pylist()
    assert [row["p"] for row in rows] == ["x0", "x0", "x1", "x1", "x2", "x2"]
    for text, is_match in FILTERS.items():
        expected = sorted(row["id"] for row in rows if is_match(row))
        assert sorted(table.scan(text).to_arrow()["id"].to_pylist()) == expected, text
        assert table.scan(text).count() == len(expected), text
        assert [id for (id,) in lake.sql(f"SELECT id FROM s.t WHERE {text} ORDER BY id").fetchall()] == expected, text


@pytest.mark.parametrize("transform", [None, "truncate[1]"])
def test_statements_after_a_name_moved_to_another_column(lake: tl.Lakehouse, transform: str | None) -> None:
    """A delete removes only rows that match, not whole files whose bounds match."""
    table = with_moved_name(lake, transform)
    assert table.delete("q = 'x1'").rows_deleted == 0
    lake.sql("UPDATE s.t SET q = 'y' WHERE q IS NULL AND id = 2")
    assert table.upsert({"id": [9], "q": ["x1"], "p": ["new"]}, on=["q"])[:2] == (0, 1)
    assert table.upsert({"id": [8], "q": ["y"], "p": ["new"]}, on=["q"])[:2] == (1, 0)
    assert sorted((row["id"], row["q"]) for row in table.to_arrow().to_pylist() if row["q"]) == [(8, "y"), (9, "x1")]
    assert table.count() == 7
    table.maintenance.compact(min_files=1)
    assert table.count() == 7


def test_columns_that_the_mapping_lacks_are_ignored(lake: tl.Lakehouse) -> None:
    """A scan ignores a field of a struct that files have and the name mapping lacks, as after a migration by Spark."""
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64()))])
    table = lake.create_table("s.t", schema)
    folder = Path(table.location.removeprefix("file://")) / "data"
    folder.mkdir(exist_ok=True)
    rows = pa.table({"id": [1], "s": [{"a": 2}], "l": [[3]]})
    pq.write_table(rows, folder / "0.parquet")
    table.iceberg.add_files([f"{table.location}/data/0.parquet"])
    with table.update_schema() as update:
        update.add_column(("s", "b"), "bigint")
        update.add_column("c", "bigint")
    mapping = [
        {"field-id": 1, "names": ["id", "id2"]},
        {"field-id": 2, "names": ["s"], "fields": [{"names": ["a"]}, {"field-id": 6, "names": ["b"]}]},
        {"field-id": 3, "names": ["l"], "fields": [{"field-id": 5, "names": ["element"]}]},
        {"field-id": 7, "names": []},
    ]
    with table._writing() as changed, changed.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
    expected = [{"id": 1, "s": {"a": None, "b": None}, "l": [3], "c": None}]
    assert lake.table("s.t").scan().to_arrow().to_pylist() == expected
