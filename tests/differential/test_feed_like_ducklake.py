"""The change feed of a table equals DuckLake's `table_changes` after the same SQL statements."""

from __future__ import annotations

import importlib.util
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import trinitylake as tl

SEEDS = 50 if os.environ.get("TRINITYLAKE_DEEP") else 2
MODES = {f"write.{one}.mode": "merge-on-read" for one in ("delete", "update", "merge")}


@pytest.fixture
def ducklake(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    package = importlib.util.find_spec("duckdb_extension_ducklake")
    assert package is not None
    assert package.origin is not None
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"LOAD '{next(Path(package.origin).parent.rglob('ducklake.duckdb_extension'))}'")
        connection.execute(f"ATTACH 'ducklake:{tmp_path}/catalog' AS n (DATA_PATH '{tmp_path}/data')")
        connection.execute("CREATE TABLE n.t (id BIGINT, x DOUBLE, s VARCHAR)")
        yield connection


def _statement(choice: random.Random) -> str:
    """A random statement on `n.t`. Keys repeat, and some statements match no rows."""
    limit = choice.randrange(20)
    condition = choice.choice([f"id = {limit}", f"id < {limit}", f"x > {limit}", "s IS NULL", f"id % 5 = {limit % 5}"])
    number = choice.choice(["NULL", "'nan'::DOUBLE", "0.5", str(limit)])
    text = choice.choice(["NULL", "''", "'a'", f"'{limit}'"])
    match choice.randrange(4):
        case 0:
            return f"DELETE FROM n.t WHERE {condition}"
        case 1:
            return f"UPDATE n.t SET x = {number}, s = {text} WHERE {condition}"
        case _:
            values = ", ".join(f"({choice.randrange(20)}, {number}, {text})" for _ in range(choice.randrange(1, 6)))
            return f"INSERT INTO n.t VALUES {values}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_changes_of_each_statement_are_those_of_ducklake(seed: int, ducklake: duckdb.DuckDBPyConnection) -> None:
    choice = random.Random(seed)
    lake = tl.create(f"memory://like-ducklake-{seed}")
    lake.create_namespace("n")
    properties = {"format-version": "3"} | (MODES if seed % 2 else {})
    lake.create_table("n.t", {"id": "bigint", "x": "double", "s": "text"}, properties=properties)
    begin = ours, theirs = lake.version, _snapshot(ducklake)
    for _ in range(15):
        sql = _statement(choice)
        lake.sql(sql)
        ducklake.execute(sql)
        assert _ours(lake, ours, lake.version) == _theirs(ducklake, theirs, _snapshot(ducklake)), sql
        ours, theirs = lake.version, _snapshot(ducklake)
    assert _ours(lake, begin[0], ours) == _theirs(ducklake, begin[1], theirs)


def _ours(lake: tl.Lakehouse, since: int, until: int) -> Counter[str]:
    rows = lake.table("n.t").changes(since, until).read_all().select(["_change_type", "id", "x", "s"]).to_pylist()
    return Counter(repr(tuple(row.values())) for row in rows)


def _theirs(ducklake: duckdb.DuckDBPyConnection, since: int, until: int) -> Counter[str]:
    """DuckLake's changes after a snapshot, both bounds included, without updates that changed no value."""
    changes: Counter[str] = Counter()
    for snapshot in range(since + 1, until + 1):
        sql = f"SELECT change_type, id, x, s FROM n.table_changes('t', {snapshot}, {snapshot})"
        rows = Counter(map(repr, ducklake.execute(sql).fetchall()))
        for row in list(rows):
            if "update_preimage" in row:
                same = row.replace("update_preimage", "update_postimage")
                unchanged = min(rows[row], rows[same])
                rows -= Counter({row: unchanged, same: unchanged})
        changes += rows
    return changes


def _snapshot(ducklake: duckdb.DuckDBPyConnection) -> int:
    [(number,)] = ducklake.execute("SELECT max(snapshot_id) FROM n.snapshots()").fetchall()
    return int(number)
