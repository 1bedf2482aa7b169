"""Limits of declared types: smallint, char(n), varchar(n) and binary(n) hold on every path that writes rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl

COLUMNS = {
    "id": "bigint",
    "small": "smallint",
    "code": "varchar(3)",
    "fixed": "char(2)",
    "raw": "binary(2)",
    "row": "row(code varchar(3), n int)",
    "list": "array<varchar(3)>",
    "map": "map<varchar(3), smallint>",
}
#: For each limit a value that is just within it and one that is just beyond it.
BOUNDARIES: list[tuple[str, Any, Any, str]] = [
    ("small", 32767, 32768, "small: the value 32768 .* SMALLINT is -32768 to 32767"),
    ("small", -32768, -32769, "small: the value -32769 .* SMALLINT is -32768 to 32767"),
    ("code", "äöü", "abcd", r"code: the value 'abcd' .* VARCHAR\(3\) has at most 3 characters"),
    ("fixed", "ab", "abc", r"fixed: the value 'abc' .* CHAR\(2\) has at most 2 characters"),
    ("raw", b"ab", b"abc", r"raw: the value b'abc' .* BLOB\(2\) has at most 2 bytes"),
    ("row", {"code": "abc", "n": 1}, {"code": "abcd", "n": 1}, "row.code: the value 'abcd'"),
    ("list", ["abc", None], ["a", "abcd"], "list.element: the value 'abcd'"),
    ("map", {"abc": 1}, {"abcd": 1}, "map.key: the value 'abcd'"),
    ("map", {"a": 32767, "b": None}, {"a": 1, "b": 40000}, "map.value: the value 40000"),
]

Write = Callable[[tl.Lakehouse, tl.Table, dict[str, Any]], object]


def arrow(row: dict[str, Any]) -> pa.Table:
    types = {"map": pa.map_(pa.string(), pa.int64())}
    return pa.table({name: pa.array([value], types.get(name)) for name, value in row.items()})


def stream(row: dict[str, Any]) -> pa.RecordBatchReader:
    table = arrow(row)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


def in_transaction(lake: tl.Lakehouse, table: tl.Table, row: dict[str, Any]) -> None:
    with lake.transaction() as txn:
        txn.table("n.t").append(arrow(row))


def merge(lake: tl.Lakehouse, table: tl.Table, row: dict[str, Any]) -> None:
    table.merge(arrow(row), on="id").when_matched_update().when_not_matched_insert().execute()


WRITES: dict[str, Write] = {
    "append": lambda lake, table, row: table.append(arrow(row)),
    "append of a dict": lambda lake, table, row: table.append({name: [value] for name, value in row.items()}),
    "append of a stream": lambda lake, table, row: table.append(stream(row)),
    "append in a transaction": in_transaction,
    "overwrite": lambda lake, table, row: table.overwrite(arrow(row)),
    "overwrite by a stream": lambda lake, table, row: table.overwrite(stream(row), "id = 1"),
    "upsert of a new row": lambda lake, table, row: table.upsert(arrow(row | {"id": 7}), on="id"),
    "upsert of a known row": lambda lake, table, row: table.upsert(arrow(row), on="id"),
    "merge": merge,
    "SQL INSERT": lambda lake, table, row: lake.sql(
        f"INSERT INTO n.t ({', '.join(row)}) SELECT * FROM given", data={"given": arrow(row)}
    ),
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("n")
    lake.create_table("n.t", COLUMNS).append({"id": [1]})
    return lake


@pytest.mark.parametrize("write", WRITES)
def test_a_value_beyond_a_declared_limit_is_refused(lake: tl.Lakehouse, write: str) -> None:
    """Iceberg's int and string could hold 70000 and 'abcd', but not smallint and varchar(3)."""
    version = lake.version
    for column, _, beyond, message in BOUNDARIES:
        with pytest.raises(tl.InvalidArgument, match=message):
            WRITES[write](lake, lake.table("n.t"), {"id": 1, column: beyond})
    assert lake.version == version
    # A row has one value of each column, and `smallint` has two limits.
    highest = {column: within for column, within, _, _ in reversed(BOUNDARIES)}
    lowest = {column: within for column, within, _, _ in BOUNDARIES}
    for within in (highest, lowest):
        WRITES[write](lake, lake.table("n.t"), {"id": 1, **within})
        stored = lake.table("n.t").scan().to_arrow().select(list(within)).to_pylist(maps_as_pydicts="strict")
        assert within in stored


def test_sql_update_and_merge_check_declared_limits(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="the value 'abcd' does not fit"):
        lake.sql("UPDATE n.t SET code = 'abcd' WHERE id = 1")
    with pytest.raises(tl.InvalidArgument, match="the value 70000 does not fit"):
        lake.sql(
            "MERGE INTO n.t AS t USING (SELECT 2 AS id) AS s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT (id, small) VALUES (s.id, 70000)"
        )
    lake.sql("UPDATE n.t SET code = 'abc', small = 32767 WHERE id = 1")
    assert lake.table("n.t").scan(columns=["code", "small"]).to_arrow().to_pylist() == [{"code": "abc", "small": 32767}]


def test_a_limit_follows_its_column_through_a_rename(lake: tl.Lakehouse) -> None:
    with lake.table("n.t").update_schema() as update:
        update.rename_column("code", "short")
    with pytest.raises(tl.InvalidArgument, match="column short: the value 'abcd'"):
        lake.table("n.t").append({"id": [2], "short": ["abcd"]})


def test_a_column_that_was_widened_has_no_limit(lake: tl.Lakehouse) -> None:
    data = pa.table({"id": [2], "small": pa.array([1 << 40], pa.int64())})
    lake.table("n.t").append(data, evolve_schema=True)
    lake.table("n.t").append({"id": [3], "small": [1 << 41]})
    assert sorted(lake.table("n.t").scan("id > 1").to_arrow()["small"].to_pylist()) == [1 << 40, 1 << 41]
