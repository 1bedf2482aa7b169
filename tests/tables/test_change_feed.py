"""The change feed of a table against a dict of rows: base + feed = result, for random histories and pairs of versions.

The model keeps, for each version, the rows of the table by field id. What the feed must return follows from the rows of
consecutive versions: rows of the later one alone are inserted, rows of the earlier one alone are deleted, and two of
them with the same primary key are one update.
"""

from __future__ import annotations

import math
import os
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, StringType

import trinitylake as tl
from position_deletes import delete_positions
from trinitylake.tables.change_feed import feed as feed_module
from trinitylake.tables.change_feed import row_comparison
from trinitylake.tables.change_feed.row_signatures import signatures

HISTORIES = 400 if os.environ.get("TRINITYLAKE_DEEP") else 8
STATEMENTS = 30

MODES = "copy-on-write", "merge-on-read"
#: Stands for the row id among the fields of a row.
ROW_ID = -1
#: A row: values by field id. Rows of a version: in any order.
Row = dict[int, Any]
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "double": lambda r: r.choice([0.0, -0.0, math.nan, None, 1.5, float(r.randrange(5))]),
    "string": lambda r: r.choice([None, "", "a", "long " * 20 + str(r.randrange(3)), str(r.randrange(4))]),
    "list<bigint>": lambda r: r.choice([None, [], [1], [1, None], [r.randrange(3)] * 2]),
    "bigint": lambda r: r.choice([None, r.randrange(4), -(2**60)]),
}


@dataclass
class State:
    """What the model has for one version.

    Attributes:
        rows: of the table; None if the version does not have it.
        names: its columns by field id.
        at: its name.
        snapshots: that led to the rows. Row ids mean the same rows in two states if one descends from the other.
    """

    rows: list[Row] | None = None
    names: dict[int, str] = field(default_factory=dict)
    at: str = "n.t"
    snapshots: tuple[int, ...] = ()

    def is_ancestor_of(self, other: State) -> bool:
        return other.snapshots[: len(self.snapshots)] == self.snapshots


class History:
    """One random history of one table, with its model."""

    def __init__(self, seed: int, *, key: bool, format_version: str) -> None:
        self.random = random.Random(seed)
        self.lake = tl.create(f"memory://{uuid.uuid4()}", order=5)
        self.has_key = key
        self.lake.create_namespace("n")
        schema = {"id": "bigint", "x": "double", "s": "string", "l": "list<bigint>"}
        self.kinds = dict(zip(range(1, 5), schema.values(), strict=True))
        table = self.lake.create_table(
            "n.t",
            schema,
            primary_key=["id"] if key else [],
            properties={
                "format-version": format_version,
                **{f"write.{one}.mode": self.random.choice(MODES) for one in ("delete", "update", "merge")},
            },
        )
        self.id = table.id
        self.format_version = format_version
        names = {one.field_id: one.name for one in table.iceberg.schema().fields}
        self.kinds = {id: schema[name] for id, name in names.items()}
        self.states: dict[int, State] = {0: State(), 1: State(), self.lake.version: State([], names)}
        self.log: list[str] = []
        #: No rollback goes behind this version: it would bring back a column that files written since do not have.
        self.oldest = 1

    @property
    def now(self) -> State:
        return self.states[max(self.states)]

    def run(self) -> None:
        while len(self.log) < STATEMENTS:
            state = self.now
            actions = self._actions() if state.rows is not None else [self.restore]
            action = self.random.choice(actions)
            self.source: State | None = None  # the state that a rollback goes back to
            try:
                rows, names, at = action()
            except Skipped:
                continue
            self.log.append(f"{self.lake.version} {action.__name__}")
            after = State(rows, names, at, state.snapshots if self.source is None else self.source.snapshots)
            if rows is not None:
                current = self.lake.table(at).iceberg.metadata.current_snapshot_id
                if current is not None and current not in after.snapshots:
                    parents = [one.snapshot_id for one in self.lake.table(at).iceberg.metadata.snapshots]
                    after.snapshots = (*after.snapshots, *(one for one in parents if one not in after.snapshots))
            for version in range(max(self.states) + 1, self.lake.version):  # a statement of several commits
                raise AssertionError(f"{action.__name__} made version {version}")
            if self.lake.version > max(self.states):
                self.states[self.lake.version] = after

    def _actions(self) -> list[Callable[[], tuple[list[Row] | None, dict[int, str], str]]]:
        writes = [self.append, self.delete, self.overwrite, self.several, self.sql_update]
        writes += [self.upsert, self.merge] if self.has_key else []
        deletes = [self.position_delete] if self.format_version == "2" else [self.truncate]
        seldom = [
            self.compact,
            self.evolve,
            self.respecify,
            self.rename,
            self.drop,
            self.rollback,
            self.roll_back_table,
        ]
        return [*writes, *writes, *deletes, *deletes, *seldom, self.other_table, self.set_property, self.other_table]

    # Rows

    def table(self) -> tl.Table:
        return self.lake.table(self.now.at)

    def new_rows(self, count: int, taken: set[int]) -> list[Row]:
        rows = []
        for _ in range(count):
            row = {id: VALUES[self.kinds[id]](self.random) for id in self.now.names if self.now.names[id] != "id"}
            number = self.random.randrange(30)
            while self.has_key and number in taken:
                number = self.random.randrange(1000)
            taken.add(number)
            rows.append({self.id_field(): number, **row, ROW_ID: object()})
        return rows

    def id_field(self) -> int:
        return next(id for id, name in self.now.names.items() if name == "id")

    def arrow(self, rows: list[Row]) -> pa.Table:
        names = self.now.names
        kinds = {
            "double": pa.float64(),
            "string": pa.string(),
            "bigint": pa.int64(),
            "list<bigint>": pa.list_(pa.int64()),
        }
        return pa.table(
            {name: pa.array([r.get(id) for r in rows], kinds[self.kinds[id]]) for id, name in names.items()}
        )

    def ids(self) -> set[int]:
        return {row[self.id_field()] for row in self.now.rows or ()}

    def same(self, rows: list[Row] | None) -> tuple[list[Row] | None, dict[int, str], str]:
        return rows, self.now.names, self.now.at

    # Statements

    def append(self) -> Any:
        rows = self.new_rows(self.random.randrange(1, 6), self.ids())
        self.table().append(self.arrow(rows))
        return self.same([*self.now.rows, *rows])

    def _matching(self) -> tuple[str, Callable[[Row], bool]]:
        limit, id = self.random.randrange(30), self.id_field()
        if self.random.random() < 0.5:
            return f"id < {limit}", lambda row: row[id] < limit
        return f"id = {limit}", lambda row: row[id] == limit

    def delete(self) -> Any:
        text, matches = self._matching()
        self.table().delete(text)
        return self.same([row for row in self.now.rows if not matches(row)])

    def truncate(self) -> Any:
        self.table().delete(AlwaysTrue())
        return self.same([])

    def overwrite(self) -> Any:
        text, matches = self._matching()
        stays = [row for row in self.now.rows if not matches(row)]
        again = [row for row in self.now.rows if matches(row) and self.random.random() < 0.5]  # written again as it is
        again = [{**row, ROW_ID: object()} for row in again]
        rows = again + self.new_rows(2, {row[self.id_field()] for row in [*stays, *again]})
        self.table().overwrite(self.arrow(rows), text)
        return self.same([*stays, *rows])

    def upsert(self) -> Any:
        old = self.random.sample(self.now.rows, min(3, len(self.now.rows)))
        changed = [{**one, **self._other_values()} if self.random.random() < 0.7 else dict(one) for one in old]
        added = self.new_rows(1, self.ids())
        self.table().upsert(self.arrow([*changed, *added]))
        return self.same(self._replaced(changed) + added)

    def merge(self) -> Any:
        source = [dict(one) for one in self.random.sample(self.now.rows, min(4, len(self.now.rows)))]
        if not source:
            raise Skipped
        id = self.id_field()
        limit = self.random.choice([row[id] for row in source])
        source = [{**row, **self._other_values()} for row in source]
        merge = (
            self.table()
            .merge(self.arrow(source))
            .when_matched_delete(condition=f"source.id = {limit}")
            .when_matched_update()
        )
        merge.when_not_matched_insert().execute()
        return self.same([row for row in self._replaced(source) if row[id] != limit])

    def sql_update(self) -> Any:
        text, matches = self._matching()
        name = next((one for id, one in self.now.names.items() if self.kinds[id] == "double"), None)
        if name is None:
            raise Skipped
        field = next(id for id, one in self.now.names.items() if one == name)
        self.lake.sql(f'UPDATE {self.now.at} SET "{name}" = 4.5 WHERE {text}')
        return self.same([{**row, field: 4.5} if matches(row) else row for row in self.now.rows])

    def _other_values(self) -> Row:
        return {id: VALUES[self.kinds[id]](self.random) for id in self.now.names if self.now.names[id] != "id"}

    def _replaced(self, changed: list[Row]) -> list[Row]:
        by_id = {row[self.id_field()]: row for row in changed}
        return [by_id.get(row[self.id_field()], row) for row in self.now.rows]

    def several(self) -> Any:
        """A transaction that appends rows, deletes some of them, and appends again."""
        rows = self.new_rows(3, self.ids())
        more = self.new_rows(1, self.ids() | {row[self.id_field()] for row in rows})
        with self.lake.transaction() as txn:
            table = txn.table(self.now.at)
            table.append(self.arrow(rows))
            gone = rows.pop()[self.id_field()]
            table.delete(f"id = {gone}")
            table.append(self.arrow(more))
        kept = [row for row in [*self.now.rows, *rows] if row[self.id_field()] != gone]
        return self.same([*kept, *more])

    def position_delete(self) -> Any:
        table = self.table()
        tasks = [task for task in table.iceberg.scan().plan_files() if not task.delete_files]
        if not tasks:
            raise Skipped
        task = self.random.choice(tasks)
        positions = self.random.sample(
            range(task.file.record_count), self.random.randrange(1, 1 + task.file.record_count)
        )
        before = self.read(self.lake.version)
        delete_positions(table, task, positions)
        # Which rows these are only the table tells; the scan of position deletes has its own tests.
        after = self.read(self.lake.version)
        assert not Counter(map(repr, after)) - Counter(map(repr, before))
        return self.same(after)

    def read(self, version: int) -> list[Row]:
        rows = self.lake.at(version).table(self.now.at).scan().to_arrow().to_pylist()
        return [{id: row[name] for id, name in self.now.names.items()} for row in rows]

    def compact(self) -> Any:
        self.table().maintenance.compact()
        return self.same(self.now.rows)

    def set_property(self) -> Any:
        self.lake.alter_table(self.table().name, {"a": str(self.random.random())})
        return self.same(self.now.rows)

    def other_table(self) -> Any:
        """A version that changes another table, or re-creates one under a name that this one had."""
        name = f"n.o{self.random.randrange(3)}"
        if name == self.now.at:
            raise Skipped
        if self.lake.exists(name):
            self.lake.drop_table(name)
        else:
            self.lake.create_table(name, self.arrow(self.new_rows(2, set())).schema)
        return self.same(self.now.rows)

    def evolve(self) -> Any:
        names, table = dict(self.now.names), self.table()
        choice = self.random.choice(["add", "drop", "rename", "readd"])
        others = [id for id, name in names.items() if name != "id"]
        rows = self.now.rows
        with table.update_schema() as update:
            if choice == "add" or not others:
                name, kind = (
                    f"c{len(self.kinds)}",
                    self.random.choice([("double", DoubleType()), ("string", StringType())]),
                )
                update.add_column(name, kind[1])
            else:
                id = self.random.choice(others)
                if choice == "rename":
                    update.rename_column(names[id], f"r{self.random.random()}"[:12].replace(".", "_"))
                else:
                    update.delete_column(names[id])
                    self.oldest = self.lake.version + 1
        self._learn(table)
        names = {one.field_id: one.name for one in self.lake.table(self.now.at).iceberg.schema().fields}
        rows = [{id: row.get(id) for id in (*names, ROW_ID)} for row in rows]
        return rows, names, self.now.at

    def _learn(self, table: tl.Table) -> None:
        kinds = {DoubleType(): "double", StringType(): "string", LongType(): "bigint"}
        for one in self.lake.table(self.now.at).iceberg.schema().fields:
            self.kinds.setdefault(one.field_id, kinds.get(one.field_type, "list<bigint>"))

    def respecify(self) -> Any:
        with self.table().update_spec() as update:
            if self.table().partition_spec.fields:
                update.remove_field(self.table().partition_spec.fields[0].name)
            else:
                update.add_field("id", self.random.choice([BucketTransform(3), IdentityTransform()]), "part")
        return self.same(self.now.rows)

    def rename(self) -> Any:
        name = self.random.choice(["n.t", "n.o0", "n.o1", "n.o2", "n.u"])
        if self.lake.exists(name):
            raise Skipped
        self.lake.rename_table(self.now.at, name)
        return self.now.rows, self.now.names, name

    def drop(self) -> Any:
        self.lake.drop_table(self.now.at)
        return None, self.now.names, self.now.at

    def versions_with_rows(self) -> list[int]:
        found = [one for one, state in self.states.items() if state.rows is not None and one >= self.oldest]
        if not found:
            raise Skipped
        return found

    def restore(self) -> Any:
        version = self.random.choice(self.versions_with_rows())
        then = self.source = self.states[version]
        if self.lake.exists(then.at):
            raise Skipped
        self.lake.rollback(version, objects=[then.at])
        return then.rows, then.names, then.at

    def roll_back_table(self) -> Any:
        version = self.random.choice(self.versions_with_rows())
        then = self.source = self.states[version]
        self.lake.rollback(version, objects=[then.at])
        return then.rows, then.names, self.now.at

    def rollback(self) -> Any:
        version = self.random.choice(range(self.oldest, len(self.states)))
        self.lake.rollback(version)
        then = self.source = self.states[version]
        return then.rows, then.names, then.at

    # What the feed must return

    def projected(self, version: int, names: dict[int, str]) -> list[tuple[Any, str]]:
        """The row ids and rows of a version with the columns of another one, as text."""
        rows = self.states[version].rows or []
        return [(row.get(ROW_ID), shown({name: row.get(id) for id, name in names.items()})) for row in rows]

    def expected(self, before: int, after: int, names: dict[int, str]) -> Counter[tuple[str, str]]:
        then, now = self.projected(before, names), self.projected(after, names)
        result: Counter[tuple[str, str]] = Counter()

        def update(old: str, new: str) -> None:
            result["update_preimage", old] += 1
            result["update_postimage", new] += 1

        states = self.states[before], self.states[after]
        if self.format_version == "3" and (states[0].is_ancestor_of(states[1]) or states[1].is_ancestor_of(states[0])):
            ids = {id: row for id, row in now}
            for id, row in then:
                if id in ids and ids[id] != row:
                    update(row, ids[id])
            both = {id for id, _ in then} & ids.keys()
            then, now = ([(id, row) for id, row in side if id not in both] for side in (then, now))
        counts = Counter(row for _, row in then), Counter(row for _, row in now)
        deleted, inserted = list((counts[0] - counts[1]).elements()), list((counts[1] - counts[0]).elements())
        keys = [Counter(map(key_of, rows)) for rows in (deleted, inserted)]
        pairs = {key for key in keys[0] if self.has_key and keys[0][key] == keys[1][key] == 1}
        for row in deleted:
            result["update_preimage" if key_of(row) in pairs else "delete", row] += 1
        for row in inserted:
            result["update_postimage" if key_of(row) in pairs else "insert", row] += 1
        return result


class Skipped(Exception):
    """The statement makes no sense now."""


def shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def key_of(row: str) -> Any:
    return dict(eval(row, {"nan": math.nan}))["id"]


def histories() -> list[Any]:
    cases = [(key, version) for key in (True, False) for version in ("2", "3")]
    return [
        pytest.param(
            seed, *cases[seed % 4], id=f"{seed}-{'key' if cases[seed % 4][0] else 'no-key'}-v{cases[seed % 4][1]}"
        )
        for seed in range(HISTORIES)
    ]


@pytest.mark.parametrize(("seed", "key", "format_version"), histories())
def test_base_and_feed_are_the_result(
    seed: int, key: bool, format_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With row ids, parts do not find a row that was deleted and written again with equal values.
    if seed % 8 < 4 and format_version == "2":  # rows are compared in parts, and files are looked up in several pages
        monkeypatch.setattr(row_comparison, "MEMORY_MAX_SIZE_BYTES", 100)
        monkeypatch.setattr(row_comparison, "_PARTS", 3)
        monkeypatch.setattr(feed_module, "PAGE_VERSIONS", 3)
    history = History(seed, key=key, format_version=format_version)
    history.run()
    last = [version for version, state in history.states.items() if state.rows is not None][-1]
    versions = sorted(history.states)
    pairs = [(0, last), *(sorted(history.random.sample(versions, 2)) for _ in range(4))]
    for since, until in pairs:
        state = history.states[until]
        if state.rows is None:
            continue
        table = history.lake.at(until).table(state.at)
        rows = table.changes(since, until).read_all().to_pylist()
        case = f"seed {seed}, versions {since} to {until}\n" + "\n".join(history.log)
        for before, after in zip(range(since, until), range(since + 1, until + 1), strict=True):
            found = Counter((row["_change_type"], shown(own(row))) for row in rows if row["_version"] == after)
            assert found == history.expected(before, after, state.names), f"{case}\nversion {after}"
        assert [row["_version"] for row in rows] == sorted(row["_version"] for row in rows)
        pair = [row for row in rows if row["_change_type"].startswith("update")]
        for then, now in zip(pair[::2], pair[1::2], strict=True):
            assert (then["_change_type"], now["_change_type"]) == ("update_preimage", "update_postimage"), case
            assert (then["id"], then["_version"]) == (now["id"], now["_version"])
        net = history.lake.at(until).table(state.at).changes(since, until, net=True).read_all().to_pylist()
        found = Counter((row["_change_type"], shown(own(row))) for row in net)
        assert found == history.expected(since, until, state.names), case


def own(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in feed_module.COLUMNS["trinitylake"].names}


def test_signatures_depend_on_values_alone() -> None:
    """A text of up to 8 bytes had another signature in a batch without longer texts, so equal rows of two files were
    reported as an update."""
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
    """Rows were listed by the name of the table, so the deletes of the dropped table were missing, and two tables that
    exchanged their names showed no change."""
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
    assert sorted(found[1:], key=str) == [
        ("n.b", "n.c", []),
        ("n.c", "n.b", []),
        (None, "n.a", [("insert", 9)]),
    ]


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
    with pytest.raises(tl.InvalidArgument, match="names must be"):
        table.changes(0, names="delta")  # type: ignore[arg-type]


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
