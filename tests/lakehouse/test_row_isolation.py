"""SERIALIZABLE by rows: which statements conflict, and random histories that must have a serial order.

A transaction that appended a row conflicted with every other append to the table, because opening a table counted as
reading all of its rows.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import trinitylake as tl

sys.path.insert(0, str(Path(__file__).parents[2] / "compatibility"))
from serialization_graph import Transaction as Observed
from serialization_graph import check

TABLES = ("s.t", "s.o")
Action = Callable[[Any], object]


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", name="rows")
    with lake.transaction() as txn:
        txn.create_namespace("s")
        for name in TABLES:
            txn.create_table(name, {"k": "int64", "v": "string"}).append(row(1, "a", 2, "b"))
    return lake


def row(*values: Any) -> pa.Table:
    """A table of `k` and `v`, from alternating values."""
    return pa.table({"k": pa.array(values[::2], pa.int64()), "v": pa.array(values[1::2], pa.string())})


def is_committed(lake: tl.Lakehouse, mine: Action, theirs: Action, isolation: Any = "serializable") -> bool:
    """Whether a transaction that did `mine` can commit after another transaction did `theirs` and committed."""
    txn = lake.begin(isolation=isolation)
    mine(txn)
    with lake.transaction() as other:
        theirs(other)
    winners = None
    try:
        txn.commit()
    except tl.CommitConflict as conflict:
        winners = [one.version for one in conflict.winners]
    assert winners in (None, [lake.version])
    return winners is None


def append_100(txn: tl.Transaction) -> None:
    txn.table("s.t").append(row(100, "z"))


def then_insert(read: Action) -> Action:
    """An action followed by an append to the other table, so that the transaction does not only read."""

    def both(txn: tl.Transaction) -> None:
        read(txn)
        txn.table("s.o").append(row(5, "mine"))

    return both


def add_column(txn: tl.Transaction) -> None:
    with txn.table("s.t").update_schema() as update:
        update.add_column("w", LongType())


COMPATIBLE: dict[str, tuple[Action, Action]] = {
    "append and append": (lambda txn: txn.table("s.t").append(row(5, "q")), append_100),
    "append and delete": (lambda txn: txn.table("s.t").append(row(5, "q")), lambda txn: txn.table("s.t").delete("k=1")),
    "opening a table and append": (then_insert(lambda txn: txn.table("s.t")), append_100),
    "columns and append": (then_insert(lambda txn: txn.table("s.t").schema), append_100),
    "existence and append": (then_insert(lambda txn: txn.exists("s.t")), append_100),
    "rows by another filter": (then_insert(lambda txn: txn.table("s.t").scan("k < 10").to_arrow()), append_100),
    "rows by another filter, then append": (
        lambda txn: (txn.table("s.t").scan("k < 10").to_arrow(), txn.table("s.t").append(row(5, "q"))),
        append_100,
    ),
    "delete of other rows": (lambda txn: txn.table("s.t").delete("k = 1"), append_100),
    "upsert of other rows": (lambda txn: txn.table("s.t").upsert(row(2, "c"), on=["k"]), append_100),
    "all rows and a compaction": (
        then_insert(lambda txn: txn.table("s.t").count()),
        lambda txn: txn.table("s.t").maintenance.compact(),
    ),
    "all rows, which nobody changed": (lambda txn: txn.sql("INSERT INTO s.t SELECT * FROM s.o"), append_100),
    "SQL with another filter": (
        then_insert(lambda txn: txn.sql("SELECT * FROM s.t WHERE k < 10").fetchall()),
        append_100,
    ),
    "INSERT … VALUES": (lambda txn: txn.sql("INSERT INTO s.t VALUES (5, 'q')"), append_100),
}

CONFLICTING: dict[str, tuple[Action, Action]] = {
    "phantom of a filter": (then_insert(lambda txn: txn.table("s.t").scan("k > 10").to_arrow()), append_100),
    "phantom of a filter, then append": (
        lambda txn: (txn.table("s.t").scan("k > 10").to_arrow(), txn.table("s.t").append(row(5, "q"))),
        append_100,
    ),
    "count": (then_insert(lambda txn: txn.table("s.t").count()), append_100),
    "all rows": (then_insert(lambda txn: txn.table("s.t").scan().to_arrow()), append_100),
    "rows that are deleted": (
        then_insert(lambda txn: txn.table("s.t").scan("k = 1").to_arrow()),
        lambda txn: txn.table("s.t").delete("k = 1"),
    ),
    "delete that finds nothing": (then_insert(lambda txn: txn.table("s.t").delete("k = 100")), append_100),
    "lost update": (
        lambda txn: txn.table("s.t").upsert(row(1, "mine"), on=["k"]),
        lambda txn: txn.table("s.t").upsert(row(1, "theirs"), on=["k"]),
    ),
    "upsert of a new key": (lambda txn: txn.table("s.t").upsert(row(100, "mine"), on=["k"]), append_100),
    "SQL": (then_insert(lambda txn: txn.sql("SELECT count(*) FROM s.t WHERE k > 10").fetchall()), append_100),
    "INSERT … SELECT from the same table": (lambda txn: txn.sql("INSERT INTO s.t SELECT * FROM s.t"), append_100),
    "INSERT … SELECT from a changed table": (lambda txn: txn.sql("INSERT INTO s.o SELECT * FROM s.t"), append_100),
    "PyIceberg's table": (then_insert(lambda txn: txn.table("s.t").iceberg), append_100),
    "snapshots": (then_insert(lambda txn: txn.table("s.t").snapshots()), append_100),
    "new column": (lambda txn: txn.table("s.t").append(row(5, "q")), add_column),
    "new column of a table that is only opened": (then_insert(lambda txn: txn.table("s.t").schema), add_column),
    "properties": (
        then_insert(lambda txn: txn.table("s.t").properties),
        lambda txn: txn.alter_table("s.t", {"a": "b"}),
    ),
    "existence": (then_insert(lambda txn: txn.exists("s.t")), lambda txn: txn.drop_table("s.t")),
    "absence": (then_insert(lambda txn: txn.exists("s.new")), lambda txn: txn.create_table("s.new", {"k": "int64"})),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_statements_that_read_other_rows_do_not_conflict(lake: tl.Lakehouse, name: str) -> None:
    assert is_committed(lake, *COMPATIBLE[name])


@pytest.mark.parametrize("name", CONFLICTING)
def test_change_of_read_rows_conflicts(lake: tl.Lakehouse, name: str) -> None:
    assert not is_committed(lake, *CONFLICTING[name])


def test_isolation_levels_of_the_table_do_not_weaken_serializable(lake: tl.Lakehouse) -> None:
    levels = {f"write.{one}.isolation-level": "snapshot" for one in ("delete", "update", "merge")}
    for name in TABLES:
        lake.alter_table(name, levels)
    find_nothing = CONFLICTING["delete that finds nothing"]
    assert not is_committed(lake, *find_nothing)
    assert is_committed(lake, *find_nothing, isolation="snapshot")


def test_a_transaction_that_only_reads_never_conflicts(lake: tl.Lakehouse) -> None:
    assert is_committed(lake, lambda txn: txn.table("s.t").count(), append_100)


def test_a_table_that_was_dropped_and_created_again_conflicts(lake: tl.Lakehouse) -> None:
    txn = lake.begin(isolation="serializable")
    then_insert(lambda txn: txn.table("s.t").schema)(txn)
    with lake.transaction() as other:
        other.drop_table("s.t")
    with lake.transaction() as other:
        other.create_table("s.t", {"k": "int64", "v": "string"})
    with pytest.raises(tl.CommitConflict, match="dropped and created again") as caught:
        txn.commit()
    assert [one.version for one in caught.value.winners] == [lake.version - 1, lake.version]


@pytest.mark.parametrize("is_phantom", [True, False])
def test_a_saved_transaction_keeps_the_rows_that_it_read(lake: tl.Lakehouse, is_phantom: bool) -> None:
    txn = lake.begin(id="job", isolation="serializable")
    txn.table("s.t").scan("k > 10" if is_phantom else "k < 10").to_arrow()
    txn.table("s.o").append(row(5, "mine"))
    txn.save()
    resumed = tl.open(lake.uri).resume("job")
    lake.table("s.t").append(row(100, "z"))
    if is_phantom:
        with pytest.raises(tl.CommitConflict, match=r"s\.t"):
            resumed.commit()
    else:
        assert resumed.commit() == lake.version


def test_after_many_scans_all_rows_count_as_read(lake: tl.Lakehouse) -> None:
    def scan_often(times: int) -> Action:
        return then_insert(lambda txn: [txn.table("s.t").scan(f"k = {k}").to_arrow() for k in range(times)])

    assert is_committed(lake, scan_often(90), append_100)
    lake.table("s.t").delete("k = 100")
    assert not is_committed(lake, scan_often(101), lambda txn: txn.table("s.t").append(row(5000, "z")))


def run_list_appends(
    lake: tl.Lakehouse, seed: int, isolation: Any, count: int
) -> tuple[list[Observed], dict[str, Any]]:
    """Run concurrent transactions that read some lists and append their ids to others. A list is identified by a table
    and a key."""
    chosen = random.Random(seed)
    keys = range(4)
    lists = [(name, k) for name in TABLES for k in keys]
    for name in TABLES:
        lake.table(name).overwrite(row(-1, ""))
    history: list[Observed] = []
    version_of: dict[str, int] = {}
    open_ones: list[tuple[tl.Transaction, str, dict[str, list[str]], set[str]]] = []

    def step(txn: tl.Transaction, id: str, reads: dict[str, list[str]], appends: set[str]) -> None:
        table, k = chosen.choice(lists)
        if chosen.random() < 0.6:
            last = chosen.choice([k, k, max(keys)])
            filters = f"k >= {k} AND k <= {last}"
            if chosen.random() < 0.5:
                found = txn.table(table).scan(filters).to_arrow().to_pylist()
            else:
                found = txn.sql(f"SELECT k, v FROM {table} WHERE {filters}").to_arrow().to_pylist()
            for one in range(k, last + 1):
                if f"{table} {one}" not in appends:  # the checker expects lists without the own id
                    seen = [each["v"] for each in found if each["k"] == one and each["v"] != id]
                    reads.setdefault(f"{table} {one}", sorted(seen, key=version_of.__getitem__))
        elif f"{table} {k}" not in appends:
            txn.table(table).append(row(k, id))
            appends.add(f"{table} {k}")

    for number in range(count):
        open_ones.append((lake.begin(isolation=isolation), str(number), {}, set()))
        while len(open_ones) > 3 or (number == count - 1 and open_ones):
            one = chosen.choice(open_ones)
            step(*one)
            txn, id, reads, appends = one
            if chosen.random() < 0.3:
                open_ones.remove(one)
                try:
                    version_of[id] = txn.commit()
                    outcome = True
                except tl.CommitConflict:
                    outcome = False
                history.append(Observed(id, reads, frozenset(appends), outcome))
    final = {}
    for table in TABLES:
        rows = lake.table(table).scan().to_arrow().to_pylist()
        for k in keys:
            found = [one["v"] for one in rows if one["k"] == k]
            final[f"{table} {k}"] = sorted(found, key=version_of.__getitem__)
    return history, final


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_scans_and_appends_have_no_cycle(lake: tl.Lakehouse, seed: int) -> None:
    history, final = run_list_appends(lake, seed, "serializable", 40)
    findings = check(history, final)
    assert findings.is_serializable, findings
    writers = [one for one in history if one.appends]
    refused = [one for one in writers if not one.outcome]
    assert refused
    assert len(writers) - len(refused) >= 10


def test_the_same_histories_under_snapshot_have_cycles(lake: tl.Lakehouse) -> None:
    cycles = []
    for seed in range(4):
        cycles += check(*run_list_appends(lake, seed, "snapshot", 40)).cycles
    assert cycles


def run_statement(chosen: random.Random, txn: tl.Transaction, id: str) -> tuple[str, Any]:
    """Run one random statement. Returns its text and its result."""
    table, other = chosen.sample(TABLES, 2)
    k = chosen.randrange(6)
    kind = chosen.choice(["scan", "append", "delete", "upsert", "overwrite", "copy", "update"])
    if kind == "scan":
        answer = sorted(txn.table(table).scan(f"k <= {k}").to_arrow()["v"].to_pylist())
    elif kind == "append":
        answer = txn.table(table).append(row(k, id)) and None
    elif kind == "delete":
        answer = txn.table(table).delete(f"k = {k}").rows_deleted
    elif kind == "upsert":
        answer = tuple(txn.table(table).upsert(row(k, id), on=["k"]))
    elif kind == "overwrite":
        answer = txn.table(table).overwrite(row(k, id), f"k > {k}").rows_deleted
    elif kind == "copy":
        answer = txn.sql(f"INSERT INTO {table} SELECT k + 3, v FROM {other} WHERE k = {k}").fetchall()
    else:
        answer = txn.sql(f"UPDATE {table} SET v = '{id}' WHERE k = {k}").fetchall()
    return f"{kind} {table} {k}", answer


MERGE_ON_READ = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}


@pytest.mark.sample(4)
@pytest.mark.parametrize("properties", [{}, MERGE_ON_READ, MERGE_ON_READ | {"format-version": "3"}])
@pytest.mark.parametrize("seed", range(3))
def test_committed_transactions_have_the_same_results_one_after_the_other(
    lake: tl.Lakehouse, tmp_path: Path, seed: int, properties: dict[str, str]
) -> None:
    """Concurrent transactions have a serial order: every statement of each committed transaction has the same result
    when it is run again in the order of the versions, on another lakehouse."""
    for name in TABLES:
        lake.alter_table(name, properties)
    serial = tl.create(tmp_path / "serial", name="serial")
    with serial.transaction() as txn:
        txn.create_namespace("s")
        for name in TABLES:
            txn.create_table(name, {"k": "int64", "v": "string"})
    for name in TABLES:
        for each in (lake, serial):
            each.table(name).overwrite(row(0, "x", 1, "y"))
    chosen = random.Random(seed)
    committed: dict[int, tuple[str, list[Any]]] = {}  # by version: the id, which is the seed of its statements
    started: list[tuple[tl.Transaction, str, list[Any]]] = []
    refused = 0
    for number in range(40):
        txn, id = lake.begin(isolation="serializable"), f"{seed} {number}"
        dice = random.Random(id)
        started.append((txn, id, [run_statement(dice, txn, id) for _ in range(2)]))
        if len(started) == 3:
            txn, id, answers = started.pop(chosen.randrange(3))
            before = lake.version
            try:
                version = txn.commit()
            except tl.CommitConflict:
                refused += 1
            else:
                if version > before:
                    committed[version] = id, answers
    assert refused
    assert len(committed) > 5
    for id, answers in committed.values():
        dice = random.Random(id)
        with serial.transaction() as txn:
            assert [run_statement(dice, txn, id) for _ in answers] == answers
    for name in TABLES:
        assert rows_of(lake, name) == rows_of(serial, name)


def rows_of(lake: tl.Lakehouse, name: str) -> list[tuple[int, str]]:
    return sorted((one["k"], one["v"]) for one in lake.table(name).scan().to_arrow().to_pylist())


def test_a_commit_whose_files_another_process_has_deleted_conflicts(tmp_path: Path) -> None:
    """A commit conflicts if another process rolled its saved transaction back and deleted its files. It raised an error
    of the file system, which a job does not expect."""
    lake = tl.create(tmp_path, durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"})
    before = set(tmp_path.rglob("snap-*.avro"))
    transaction = lake.begin(id="load")
    transaction.table("n.t").append({"id": [1]})
    transaction.save()
    [own] = set(tmp_path.rglob("snap-*.avro")) - before
    resumed = tl.open(tmp_path).resume("load")
    table.append({"id": [2]})
    own.unlink()
    with pytest.raises(tl.CommitConflict, match="a file is missing, as after a rollback"):
        resumed.commit()
