"""The change feed of a table and of all tables. `tests/differential` compares random histories with a model."""

from __future__ import annotations

import math
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import trinitylake as tl
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.tables import frozen_table
from trinitylake.tables.change_feed import row_comparison
from trinitylake.tables.change_feed.equal_rows import signatures


def test_signatures_depend_on_values_alone() -> None:
    """Otherwise equal rows of two files would appear as an update."""
    count = 40
    storage = pa.array([bytes([i] * 16) for i in range(count)] + [None], pa.binary(16))
    columns = [
        pa.array(["a" * i for i in range(count)] + [None], pa.large_string()),
        pa.array([b"z" * i for i in range(count)] + [None], pa.large_binary()),
        pa.array([Decimal(i) for i in range(count)] + [None], pa.decimal128(20, 2)),
        pa.array([float(i) for i in range(count)] + [math.nan, None], pa.float32()),
        pa.array([i % 2 == 0 for i in range(count)] + [None]),
        pa.array([datetime(2020, 1, 1 + i % 28) for i in range(count)] + [None], pa.timestamp("us", "UTC")),
        pa.array([time(i % 24) for i in range(count)] + [None], pa.time64("us")),
        pa.ExtensionArray.from_storage(pa.uuid(), storage),
        pa.array([[i] * (i % 5) for i in range(count)] + [None], pa.large_list(pa.int64())),
        pa.array([[(i, "x" * i)] for i in range(count)] + [None], pa.map_(pa.int32(), pa.large_string())),
        pa.array(
            [{"a": i, "b": ["q" * i]} for i in range(count)] + [None],
            pa.struct([("a", pa.int32()), ("b", pa.large_list(pa.large_string()))]),
        ),
    ]
    for column in columns:
        whole = signatures([column], len(column))
        assert len(set(whole.tolist())) == len(set(map(repr, column.to_pylist())))
        for size in (1, 3, 7):
            chunks = pa.chunked_array([column.slice(begin, size) for begin in range(0, len(column), size)])
            assert (signatures([chunks], len(column)) == whole).all(), column.type
        backwards = np.arange(len(column))[::-1]
        assert (signatures([column.take(pa.array(backwards))], len(column)) == whole[backwards]).all(), column.type


def test_rows_of_all_tables_come_transaction_by_transaction(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    with lake.transaction(id="first") as txn:
        for name in ("n.a", "n.b"):
            txn.create_table(name, {"id": "bigint"}, primary_key=["id"]).append({"id": [1, 2]})
    since = lake.version
    with lake.transaction(id="second") as txn:
        txn.table("n.a").delete("id = 1")
        txn.rename_table("n.b", "n.c")
        txn.table("n.c").append({"id": [3]})
    lake.drop_table("n.a")
    first, second, third = lake.changes(0, rows=True, until=since), *[lake.changes(since, rows=True)] * 2
    [created, filled] = first
    assert {table.name: table.read().read_all()["id"].to_pylist() for table in filled.rows} == {
        "n.a": [1, 2],
        "n.b": [1, 2],
    }
    assert not created.rows
    changed, dropped = second
    found = {table.name: pa.table(table).select(["id", "_change_type"]).to_pylist() for table in changed.rows}
    assert changed.transaction.id == "second"
    assert found == {"n.a": [{"id": 1, "_change_type": "delete"}], "n.c": [{"id": 3, "_change_type": "insert"}]}
    [table] = dropped.rows
    assert (table.former_name, table.name) == ("n.a", None)
    assert table.read().read_all()["id"].to_pylist() == [2]
    assert third is second


def test_a_table_that_takes_the_name_of_a_dropped_one_follows_it(lake: tl.Lakehouse) -> None:
    """The feed of all tables follows ids, also if two tables exchange their names."""
    lake.create_namespace("n")
    for number, name in enumerate(["n.a", "n.b", "n.c"]):
        lake.create_table(name, {"id": "bigint"}).append({"id": [number]})
    since = lake.version
    with lake.transaction() as txn:
        txn.drop_table("n.a")
        txn.create_table("n.a", {"id": "bigint"}).append({"id": [9]})
        for old, new in [("n.b", "n.x"), ("n.c", "n.b"), ("n.x", "n.c")]:
            txn.rename_table(old, new)
    [entry] = lake.changes(since, rows=True)
    found = [
        (table.former_name, table.name, [(row["_change_type"], row["id"]) for row in pa.table(table).to_pylist()])
        for table in entry.rows
    ]
    assert found[0] == ("n.a", None, [("delete", 0)])
    assert sorted(found[1:], key=str) == [("n.b", "n.c", []), ("n.c", "n.b", []), (None, "n.a", [("insert", 9)])]


def test_expired_version_raises_version_expired(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"})
    for number in range(4):
        table.append({"id": [number]})
    kept = lake.version
    for number in range(3):
        table.append({"id": [10 + number]})
    lake.maintenance.expire(before=kept + 1)
    with pytest.raises(tl.VersionExpired):
        table.changes(kept)
    assert table.changes(kept + 1).read_all()["id"].to_pylist() == [11, 12]


def test_rows_of_expired_snapshots_are_in_the_feed(lake: tl.Lakehouse) -> None:
    """PyIceberg removes the parent of the oldest kept snapshot, which then looks like the first one."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"})
    since = lake.version
    for number in range(3):
        table.append({"id": [number]})
    first, second, third = table.snapshots()
    assert table.maintenance.expire_snapshots(keep=1) == [first.snapshot_id, second.snapshot_id]
    table.refresh()
    assert table.iceberg.metadata.snapshot_by_id(third.snapshot_id).parent_snapshot_id == second.snapshot_id
    for before in (0, since):
        assert sorted(table.changes(before, net=True).read_all()["id"].to_pylist()) == [0, 1, 2]


def test_a_version_costs_two_requests(tmp_path: Path) -> None:
    """Its root and the definition. Reads of data files are not counted on a local disk."""
    lake = tl.create(tmp_path, durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"})
    since, count = lake.version, 60
    for number in range(count):
        table.append({"id": [number]})
    lake = tl.open(tmp_path)
    before = lake._storage.counters()
    assert lake.table("n.t").changes(since).read_all()["id"].to_pylist() == list(range(count))
    lists, gets = (lake._storage.counters()[verb] - before[verb] for verb in ("list", "get"))
    assert lists <= 7
    assert 2 * count <= gets <= 2 * count + 12


def test_metadata_is_read_once_for_many_versions(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each metadata file lists all snapshots: opening it for each of 10,000 versions takes 150 ms per version."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "old": "bigint"})
    since, read = lake.version, 0
    for number in range(20):
        table.append({"id": [number], "old": [number]})
    with table.update_schema() as update:
        update.delete_column("old")
    table.append({"id": [20]})

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal read
        read += 1
        return read_metadata(*args, **options)

    monkeypatch.setattr(frozen_table, "read_metadata", counted)
    changed = [one.read().read_all() for entry in lake.changes(since, rows=True) for one in entry.rows]
    names = [[name for name in rows.schema.names if not name.startswith("_")] for rows in changed]
    assert names == [["id", "old"]] * 20 + [["id"]] * 2  # the columns of each version
    assert [rows["id"].to_pylist() for rows in changed] == [[number] for number in range(20)] + [[], [20]]
    assert changed[3]["old"].to_pylist() == [3]
    assert read == 2  # the first one has no snapshot


def test_unsuitable_arguments_are_refused(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "_version": "bigint"})
    with pytest.raises(tl.InvalidArgument, match="has a column _version"):
        table.changes(0)
    assert table.changes(0, columns=["id"]).read_all().num_rows == 0
    with pytest.raises(tl.InvalidArgument, match="has no column x"):
        table.changes(0, columns=["x"])
    with pytest.raises(tl.InvalidArgument, match="version 0 is older than version 1"):
        table.changes(1, 0)
    for rows in (False, True):  # nothing was returned, as if nothing had changed
        with pytest.raises(tl.InvalidArgument, match="version 0 is older than version 1"):
            next(lake.changes(1, 0, rows=rows))
    with pytest.raises(tl.InvalidArgument, match="names must be"):
        table.changes(0, names="delta")  # type: ignore[arg-type]


def test_columns_are_those_of_the_last_version_also_under_a_former_name(lake: tl.Lakehouse) -> None:
    """Of a table that was renamed after both bounds, the feed had the columns of the latest version."""
    lake.create_namespace("n")
    lake.create_table("n.t", {"id": "bigint"})
    created = lake.version
    lake.rename_table("n.t", "n.u")
    renamed = lake.version
    table = lake.table("n.u")
    with table.update_schema() as update:
        update.add_column("e", "varchar")
    for until in (created, renamed):
        assert table.changes(created, until).schema.names[:2] == ["id", "_change_type"]
    assert table.changes(created, lake.version).schema.names[:2] == ["id", "e"]


def test_names_of_iceberg(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "x": "bigint"}, primary_key=["id"])
    table.append({"id": [1, 2], "x": [1, 2]})
    lake.alter_table(table.name, {"a": "b"})
    table.upsert({"id": [2], "x": [3]})
    rows = table.changes(0, names="iceberg").read_all().to_pylist()
    snapshots = [one.snapshot_id for one in table.snapshots()]
    assert [tuple(row.values()) for row in rows] == [
        (1, 1, "INSERT", 0, snapshots[0]),
        (2, 2, "INSERT", 0, snapshots[0]),
        (2, 2, "UPDATE_BEFORE", 1, snapshots[-1]),
        (2, 3, "UPDATE_AFTER", 1, snapshots[-1]),
    ]


def test_sql_reads_the_change_feed(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "x": "double"}, primary_key=["id"])
    table.append({"id": [1, 2], "x": [1.0, 2.0]})
    since = lake.version
    table.upsert({"id": [2], "x": [5.0]})
    until = lake.version
    lake.sql("INSERT INTO n.t VALUES (3, 3)")
    expected = table.changes(since, until).read_all()

    def rows(sql: str, reader: Any = lake, **options: Any) -> Any:
        return reader.sql(sql, **options).fetchall()

    assert lake.sql(f"FROM table_changes('n.t', {since}, {until})").to_arrow().to_pylist() == expected.to_pylist()
    assert rows(f"SELECT sum(x) FROM table_changes('t', {since}) AS c WHERE c.id = 2", default_namespace="n") == [(7,)]
    assert rows("SELECT max(table_changes.id) FROM table_changes('n.t', -1)") == [(3,)]
    assert rows(f"SELECT count(*) FROM table_changes('n.t', {since})", lake.at(until)) == [(2,)]
    twice = f"WITH a AS (FROM table_changes('n.t', {since})) SELECT (SELECT sum(x) FROM a), (SELECT count(*) FROM a)"
    assert rows(twice) == [(10, 3)]
    lake.sql(f"CREATE TABLE n.u AS SELECT id, ')' AS s FROM table_changes('n.t', {since}), (SELECT ')')")
    assert lake.table("n.u").count() == 3
    with lake.transaction() as txn:
        txn.table("n.t").append({"id": [9], "x": [9.0]})
        assert rows(f"SELECT count(*) FROM table_changes('n.t', {since})", txn) == [(3,)]
    for arguments, error in (
        ("'n.t'", "takes a table"),
        ("'n.t', id", "not a constant"),
        ("getenv('HOME')", "getenv is not"),
    ):
        with pytest.raises(tl.InvalidArgument, match=error):
            lake.sql(f"FROM table_changes({arguments})")
    with pytest.raises(tl.ObjectNotFound, match=r"n\.z"):
        lake.sql("FROM table_changes('n.z', 1)")


def test_a_rollback_of_a_wider_type_is_shown(lake: tl.Lakehouse) -> None:
    """It failed with "Cannot promote long to int", and a consumer could not continue."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "i": "int"})
    table.append({"id": [1], "i": [1]})
    narrow = lake.version
    with table.update_schema() as update:
        update.update_column("i", LongType())
    table.append({"id": [2], "i": [2]})
    with lake.transaction() as txn:
        txn.table("n.t").consume("c").read_all()
    lake.table("n.t").append({"id": [3], "i": [2**40]})
    wide = lake.version
    lake.rollback(narrow, objects=["n.t"])
    deleted = [{"id": 2, "i": 2, "_change_type": "delete"}, {"id": 3, "i": 2**40, "_change_type": "delete"}]
    shown = ["id", "i", "_change_type"]
    table = lake.table("n.t")
    assert table.changes(wide).read_all().select(shown).sort_by("id").to_pylist() == deleted
    [entry] = lake.changes(wide, rows=True)
    assert pa.table(entry.rows[0]).select(shown).sort_by("id").to_pylist() == deleted
    with lake.transaction() as txn:
        assert txn.table("n.t").consume("c", net=True).read_all().select(shown).to_pylist() == deleted[:1]
    with pytest.raises(tl.InvalidArgument, match="a rollback made the type of a column narrower again"):
        table.changes(narrow).read_all()
    assert table.changes(narrow, columns=["id"]).read_all().num_rows == 4
    assert table.changes(narrow, net=True).read_all().num_rows == 0


def test_large_comparisons_are_as_small_ones(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons beyond 256 MiB are done in parts."""
    lake.create_namespace("n")
    properties = {"format-version": "3"}
    table = lake.create_table("n.t", {"id": "bigint", "x": "bigint"}, primary_key=["id"], properties=properties)
    table.append({"id": range(100), "x": [0] * 100})
    since = lake.version
    with lake.transaction() as txn:
        written = txn.table("n.t")
        written.upsert({"id": range(10), "x": [1] * 10})
        written.overwrite({"id": [*range(30, 50), *range(200, 220)], "x": [0] * 40}, "id >= 20 and id < 60")
    small = table.changes(since).read_all()
    monkeypatch.setattr(row_comparison, "MEMORY_MAX_SIZE_BYTES", 100)
    large = table.changes(since).read_all()
    kinds = large["_change_type"].to_pylist()
    assert kinds == ["delete"] * 20 + ["update_preimage", "update_postimage"] * 10 + ["insert"] * 20
    assert sorted(map(str, large.to_pylist())) == sorted(map(str, small.to_pylist()))
