"""Concurrent transactions on one table: if they commit, the result equals a serial execution.

Random statements on a partitioned table are compared with rows in a list. The second transaction is rebased on the
result of the first one. If this does not equal an execution after the first one, it must conflict and have no effect.
"""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from test_iceberg_rebase import check_whole, set_properties
from test_iceberg_staging import Lake, ids, rows

import trinitylake as tl
from iceberg_disjoint import live_files, rewrite
from iceberg_storage import STORES, Store, make_store
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict
from trinitylake.tables.transaction_table import TransactionTable
from waiting import in_threads

Row = tuple[int, str, int]
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string()), pa.field("value", pa.int64())]
)
CITIES = "abcd"
HISTORIES = 1000 if os.environ.get("TRINITYLAKE_DEEP") else 32
MERGE_ON_READ = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}
#: Properties of the table.
FORMS = {
    "version 2": {},
    "version 2, merge-on-read": MERGE_ON_READ,
    "version 3": {"format-version": "3"} | MERGE_ON_READ,
}


@dataclass(frozen=True)
class Statement:
    """A statement for a table, and its effect on a list of rows."""

    kind: str
    run: Callable[[tl.Table], object]
    apply: Callable[[list[Row]], list[Row]]
    text: str


def data(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def new_rows(random: Random) -> list[Row]:
    cities = random.sample(CITIES, random.choice([1, 1, 2]))
    ids = random.sample(range(40), random.randint(1, 3))
    return [(id, random.choice(cities), random.randint(0, 99)) for id in ids]


def new_filter(random: Random) -> tuple[str, Callable[[Row], bool]]:
    city, id, value = random.choice(CITIES), random.randrange(40), random.randint(0, 99)
    return random.choice(
        [
            (f"city = '{city}'", lambda row: row[1] == city),
            (f"id = {id}", lambda row: row[0] == id),
            (f"id >= {id} and id < {id + 5}", lambda row: id <= row[0] < id + 5),
            (f"city = '{city}' and id < {id}", lambda row: row[1] == city and row[0] < id),
            (f"city = '{city}' and value > {value}", lambda row: row[1] == city and row[2] > value),
            (f"city != '{city}' and value = {value}", lambda row: row[1] != city and row[2] == value),
        ]
    )


def upserted(rows: list[Row], new: list[Row]) -> list[Row]:
    """Replace all rows whose key is among the new rows (keys are not enforced), and append the others."""
    by_key = {row[0]: row for row in new}
    there = {row[0] for row in rows}
    return [by_key.get(row[0], row) for row in rows] + [row for row in new if row[0] not in there]


def new_statement(random: Random) -> Statement:
    kind = random.choice(["append", "overwrite", "delete", "delete", "dynamic", "upsert", "compact"])
    new = new_rows(random)
    text, matches = new_filter(random)
    city = random.choice(CITIES)
    match kind:
        case "append":
            return Statement(kind, lambda table: table.append(data(new)), lambda rows: rows + new, f"{kind} {new}")
        case "overwrite":
            return Statement(
                kind,
                lambda table: table.overwrite(data(new), filter=text),
                lambda rows: [row for row in rows if not matches(row)] + new,
                f"{kind} {new} {text}",
            )
        case "delete":
            return Statement(
                kind,
                lambda table: table.delete(text),
                lambda rows: [row for row in rows if not matches(row)],
                f"{kind} {text}",
            )
        case "dynamic":
            cities = {row[1] for row in new}
            return Statement(
                kind,
                lambda table: table.iceberg.dynamic_partition_overwrite(data(new)),
                lambda rows: [row for row in rows if row[1] not in cities] + new,
                f"{kind} {new}",
            )
        case "upsert":
            return Statement(
                kind, lambda table: table.upsert(data(new)), lambda rows: upserted(rows, new), f"{kind} {new}"
            )
        case _:
            return Statement("compact", lambda table: compact(table, city), lambda rows: rows, f"compact {city}")


def compact(table: tl.Table, city: str) -> None:
    assert isinstance(table, TransactionTable)
    assert table.iceberg is not None
    assert table._staged is not None
    if any(file.partition[0] == city for file in live_files(table._staged)):
        rewrite(table._staged, city)


def rows_of(lake: tl.Lakehouse) -> list[Row]:
    table = lake.table("ns.t").scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def begin(lake: tl.Lakehouse, random: Random) -> tuple[tl.Transaction, list[Statement]]:
    """Begin a transaction, and run one or two statements that PyIceberg accepts."""
    txn, done = lake.begin(), []
    for _ in range(random.choice([1, 1, 2])):
        statement = new_statement(random)
        try:
            statement.run(txn.table("ns.t"))
        except tl.errors.InvalidArgument:  # an upsert of a key that several rows have
            continue
        done.append(statement)
    return txn, done


def stored_data(lake: tl.Lakehouse) -> set[str]:
    return {path for path, _, _ in lake._storage.list("") if path.endswith((".parquet", ".puffin"))}


@pytest.mark.parametrize("form", FORMS)
def test_concurrent_commits_are_serializable(form: str) -> None:
    outcomes = Counter[str]()
    redone = Counter[str]()
    for seed in range(HISTORIES):
        random = Random(seed)
        lake = tl.create(f"memory://{uuid.uuid4()}")
        rows: list[Row] = [(id, CITIES[id // 10], 10 * id % 100) for id in random.sample(range(40), 14)]
        with lake.transaction() as txn:
            txn.create_namespace("ns")
            table = txn.create_table(
                "ns.t", SCHEMA, partition_spec=["city"], primary_key=["id"], properties=FORMS[form]
            )
            for start in (0, 7):
                table.append(data(rows[start : start + 7]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a delete that matched nothing
            first, before = begin(lake, random)
            stored = stored_data(lake)
            second, after = begin(lake, random)
        story = f"seed {seed}: {[one.text for one in before]} then {[one.text for one in after]}"
        for statement in before:
            rows = statement.apply(rows)
        first.commit()
        assert rows_of(lake) == sorted(rows), story
        version = lake.version
        try:
            committed = second.commit()
        except tl.CommitConflict as conflict:
            message = str(conflict)
        else:
            message = ""
        if message:
            assert "assert-" in message, story
            assert lake.version == version, story
            assert stored_data(lake) <= stored | stored_data_of(lake), story
            outcomes["conflict"] += 1
        elif committed == second.base_version:  # the transaction wrote nothing, so it comes first
            outcomes["nothing written"] += 1
        else:
            for statement in after:
                rows = statement.apply(rows)
            is_redone = first.version != first.base_version
            outcomes["redone" if is_redone else "not raced"] += 1
            redone.update({one.kind for one in after} if is_redone else ())
        assert rows_of(lake) == sorted(rows), story
        for file in lake.table("ns.t").iceberg.inspect.files()["file_path"].to_pylist():
            assert file.removeprefix(lake.uri) in stored_data(lake), story
    assert outcomes["redone"] >= HISTORIES // 4, outcomes
    assert outcomes["conflict"] >= HISTORIES // 10, outcomes
    for kind in ("append", "overwrite", "delete", "dynamic", "upsert", "compact"):
        assert redone[kind] >= 2, redone


def stored_data_of(lake: tl.Lakehouse) -> set[str]:
    """Data files and delete files of all snapshots of the table."""
    files = lake.table("ns.t").iceberg.inspect.all_files()["file_path"].to_pylist()
    return {file.removeprefix(lake.uri) for file in files}


# Many writers


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


def test_eight_writers_on_one_table_all_land(store: Store) -> None:
    """As a lakehouse does, each rebases after a lost race and tries again."""
    lake = Lake(store)
    slot = threading.Lock()
    redone = []

    def work(start: int) -> None:
        for id in range(start, start + 5):
            base = lake.path
            staged = StagedTable.load(("ns", "t"), base, io=lake.io)
            staged.table.append(rows(id))
            while True:
                path, data = staged.finish()
                store.put_many([(path, data)])
                with slot:
                    if lake.path == base:
                        lake.path = path
                        break
                    base = lake.path
                redone.append(id)
                staged.reapply(base)

    in_threads(work, range(0, 80, 10))
    assert lake.ids() == sorted(start * 10 + id for start in range(8) for id in range(5))
    assert redone, "no writer lost a race"
    check_whole(lake)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_random_races_end_as_if_one_came_after_the_other(tmp_path: Path) -> None:
    """The oracle is a set of ids. Only statements whose rows have changed conflict."""
    outcomes = Counter[str]()
    for seed in range(5):
        race(Random(seed), Lake(make_store("remote", tmp_path)), outcomes)
    assert outcomes["redone with deletes"] >= 3, outcomes
    assert outcomes["conflict"] >= 3, outcomes


def race(random: Random, lake: Lake, outcomes: Counter[str]) -> None:
    """Six races of two transactions each."""
    model: set[int] = set()
    fresh = count(1)
    for _ in range(6):
        sides = [lake.begin(), lake.begin()]
        plans: list[list[tuple[str, list[int]]]] = []
        for staged in sides:
            plan = []
            seen = set(model)
            for _ in range(random.randint(1, 4)):
                kind = random.choice(["append", "append", "append", "delete", "property"])
                if kind == "append":
                    new = [next(fresh) for _ in range(random.randint(1, 3))]
                    staged.table.append(rows(*new))
                    seen |= set(new)
                elif kind == "delete" and seen:
                    new = random.sample(sorted(seen), min(len(seen), 2))
                    staged.table.delete(f"id in ({', '.join(map(str, new))})" if len(new) > 1 else f"id = {new[0]}")
                    seen -= set(new)
                else:
                    new = []
                    set_properties(**{f"p{next(fresh)}": "x"})(staged.table)
                plan.append((kind, new))
            plans.append(plan)
            assert ids(staged) == sorted(seen)
        lake.commit(sides[0])
        model = replay(model, plans[0])
        assert lake.ids() == sorted(model)
        depends = any(kind == "delete" and gone for kind, gone in plans[1])
        moved = any(new for kind, new in plans[0] if kind != "property")
        try:
            sides[1].reapply(lake.path)
        except TableConflict as conflict:
            outcomes["conflict"] += 1
            reason = conflict.requirement
        else:
            reason = ""
        assert not reason or ("assert-ref-snapshot-id" in reason and depends and moved)
        if reason:
            continue
        outcomes["redone with deletes" if depends and moved else "redone"] += 1
        lake.commit(sides[1])
        model = replay(model, plans[1])
        assert lake.ids() == sorted(model)
    check_whole(lake)


def replay(ids: set[int], plan: list[tuple[str, list[int]]]) -> set[int]:
    result = set(ids)
    for kind, changed in plan:
        result = result | set(changed) if kind == "append" else result - set(changed)
    return result
