"""Random histories of one table, with a model of its rows in each version and the expected change feed.

The model keeps the rows of each version by field id. The expected feed follows from the rows of consecutive versions.
Rows only in the later version are inserted, and rows only in the earlier version are deleted. A deleted and an inserted
row with the same row id or primary key are one update.
"""

from __future__ import annotations

import importlib.util
import math
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, StringType

import trinitylake as tl
from position_deletes import delete_positions, delete_values
from trinitylake.tables.change_feed.feed import COLUMNS

MODES = "copy-on-write", "merge-on-read"
#: Key of the row id among the fields of a row.
ROW_ID = -1
#: A row is a mapping of field id to value; the rows of a version have no order.
Row = dict[int, Any]
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "double": lambda r: r.choice([0.0, -0.0, math.nan, None, 1.5, float(r.randrange(5))]),
    "text": lambda r: r.choice([None, "", "a", "long " * 20 + str(r.randrange(3)), str(r.randrange(4))]),
    "bigint[]": lambda r: r.choice([None, [], [1], [1, None], [r.randrange(3)] * 2]),
    "int": lambda r: r.choice([None, r.randrange(4), -(2**31)]),
    "bigint": lambda r: r.randrange(30),
}
ARROW = {
    "double": pa.float64(),
    "text": pa.string(),
    "bigint[]": pa.list_(pa.int64()),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
SCHEMA = {"id": "bigint", "x": "double", "s": "text", "l": "bigint[]", "i": "int"}


@dataclass
class State:
    """Model of one version.

    Attributes:
        rows: rows of the table; None if the version does not have the table.
        names: column names by field id.
        at: name of the table.
        snapshots: the snapshots from which the rows result. Row ids identify the same rows in two states if one of them
            descends from the other, and its metadata lists the snapshots in between.
        listed: the snapshots that have not expired.
        has_row_ids: whether the last snapshot assigned ids to all rows.
    """

    rows: list[Row] | None = None
    names: dict[int, str] = field(default_factory=dict)
    at: str = "n.t"
    snapshots: tuple[int, ...] = ()
    listed: frozenset[int] = frozenset()
    has_row_ids: bool = False

    def is_ancestor_of(self, other: State) -> bool:
        count = len(self.snapshots)
        return other.snapshots[:count] == self.snapshots and other.listed.issuperset(other.snapshots[count:])


#: The rows, columns and name of the table after a statement.
After = tuple["list[Row] | None", dict[int, str], str]


class Skipped(Exception):
    """The statement is not possible in the current state."""


class FeedHistory:
    """One random history of one table, with its model.

    Args:
        seed: determines all random choices.
        has_key: whether the table has a primary key.
        format_version: first format version of the table; version 2 may be upgraded.
        folder: location of a lakehouse on disk, which DuckDB reads as well; None for a lakehouse in memory.
    """

    def __init__(self, seed: int, *, has_key: bool, format_version: int, folder: Path | None = None) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        uri = f"memory://{uuid.uuid4()}" if folder is None else str(folder / "lake")
        self.lake = tl.create(uri, order=5, durability="none")
        self.has_key = has_key
        self.lake.create_namespace("n")
        table = self.lake.create_table(
            "n.t",
            SCHEMA,
            primary_key=["id"] if has_key else [],
            properties={
                "format-version": str(format_version),
                **{f"write.{one}.mode": self.random.choice(MODES) for one in ("delete", "update", "merge")},
            },
        )
        self.id = table.id
        self.format_version = format_version
        names = {one.field_id: one.name for one in table.iceberg.schema().fields}
        self.kinds = {id: SCHEMA[name] for id, name in names.items()}
        self.states: dict[int, State] = {0: State(), 1: State(), self.lake.version: State([], names)}
        self.log: list[str] = []
        self.source: State | None = None  # the state that a rollback restores
        #: First version to which a rollback may return: older versions have a column that later files do not have.
        self.oldest = 1

    @property
    def now(self) -> State:
        return self.states[max(self.states)]

    def run(self, statements: int) -> None:
        while len(self.log) < statements:
            state = self.now
            actions = self._actions() if state.rows is not None else [self.restore]
            action = self.random.choice(actions)
            self.source = None
            try:
                after = action()
            except Skipped:
                continue
            self.log.append(f"{self.lake.version} {action.__name__}")
            self.store(after, action.__name__)

    def store(self, after: After, action: str) -> None:
        """Record the state of the versions that a statement created."""
        rows, names, at = after
        before = self.now
        then = before if self.source is None else self.source
        state = State(rows, names, at, then.snapshots, then.listed, then.has_row_ids)
        if rows is not None:
            metadata = self.lake.table(at).iceberg.metadata
            current = metadata.current_snapshot()
            listed = [one.snapshot_id for one in metadata.snapshots]
            state.listed = frozenset(listed)
            if current is not None and current.snapshot_id not in state.snapshots:
                state.snapshots = (*state.snapshots, *(one for one in listed if one not in state.snapshots))
                state.has_row_ids = current.first_row_id is not None
        made = range(max(self.states) + 1, self.lake.version + 1)
        assert len(made) <= 1 or rows is before.rows or action == "erase", f"{action} made versions {made}"
        for version in made:
            self.states[version] = state

    def _actions(self) -> list[Callable[[], After]]:
        writes = [self.append, self.append_stream, self.delete, self.overwrite, self.several, self.saved]
        writes += [self.value_delete, self.lost_race]
        writes += [self.upsert, self.merge] if self.has_key else []
        in_sql = [self.sql_update, self.sql_delete, self.sql_insert]
        in_sql += [self.sql_merge] if self.has_key else []
        deletes = [self.position_delete] if self.now_format == 2 else [self.truncate]
        seldom = [
            self.compact,
            self.sort,
            self.rewrite_manifests,
            self.expire_snapshots,
            self.maintain,
            self.vacuum,
            self.expire,
            self.erase,
            self.export,
            self.upgrade,
            self.write_in_background,
            self.evolve,
            self.respecify,
            self.rename,
            self.drop,
            self.rollback,
            self.roll_back_table,
            self.set_property,
        ]
        return [*writes, *writes, *in_sql, *deletes, *deletes, *seldom, self.other_table, self.other_table]

    @property
    def now_format(self) -> int:
        return int(self.table().iceberg.format_version)

    # Rows

    def table(self) -> tl.Table:
        return self.lake.table(self.now.at)

    def rows(self) -> list[Row]:
        assert self.now.rows is not None
        return self.now.rows

    def new_rows(self, count: int, taken: set[int]) -> list[Row]:
        rows = []
        for _ in range(count):
            number = self.random.randrange(30)
            while self.has_key and number in taken:
                number = self.random.randrange(1000)
            taken.add(number)
            rows.append({**self._other_values(), self.id_field(): number, ROW_ID: object()})
        return rows

    def id_field(self) -> int:
        return next(id for id, name in self.now.names.items() if name == "id")

    def arrow(self, rows: list[Row]) -> pa.Table:
        names = self.now.names.items()
        return pa.table({name: pa.array([r.get(id) for r in rows], ARROW[self.kinds[id]]) for id, name in names})

    def ids(self) -> set[int]:
        return {row[self.id_field()] for row in self.rows()}

    def same(self, rows: list[Row] | None) -> After:
        return rows, self.now.names, self.now.at

    def _other_values(self) -> Row:
        return {id: VALUES[self.kinds[id]](self.random) for id, name in self.now.names.items() if name != "id"}

    def _replaced(self, changed: list[Row]) -> list[Row]:
        by_id = {row[self.id_field()]: row for row in changed}
        return [by_id.get(row[self.id_field()], row) for row in self.rows()]

    def _matching(self) -> tuple[str, Callable[[Row], bool]]:
        limit, id = self.random.randrange(30), self.id_field()
        if self.random.random() < 0.5:
            return f"id < {limit}", lambda row: row[id] < limit
        return f"id = {limit}", lambda row: row[id] == limit

    # Statements

    def append(self) -> After:
        rows = self.new_rows(self.random.randrange(1, 6), self.ids())
        self.table().append(self.arrow(rows))
        return self.same([*self.rows(), *rows])

    def append_stream(self) -> After:
        rows = self.new_rows(4, self.ids())
        self.table().append(self.arrow(rows).to_reader(max_chunksize=2))
        return self.same([*self.rows(), *rows])

    def write_in_background(self) -> After:
        rows = self.new_rows(2, self.ids())
        with self.table().writer(max_delay="1 minute", compact=False) as writer:
            for row in rows:
                writer.write(self.arrow([row]))
        return self.same([*self.rows(), *rows])

    def delete(self) -> After:
        text, matches = self._matching()
        self.table().delete(text)
        return self.same([row for row in self.rows() if not matches(row)])

    def truncate(self) -> After:
        self.table().delete(AlwaysTrue())
        return self.same([])

    def overwrite(self) -> After:
        text, matches = self._matching()
        stays = [row for row in self.rows() if not matches(row)]
        again = [row for row in self.rows() if matches(row) and self.random.random() < 0.5]  # written again unchanged
        again = [{**row, ROW_ID: object()} for row in again]
        rows = again + self.new_rows(2, {row[self.id_field()] for row in [*stays, *again]})
        self.table().overwrite(self.arrow(rows), text)
        return self.same([*stays, *rows])

    def upsert(self) -> After:
        old = self.random.sample(self.rows(), min(3, len(self.rows())))
        changed = [{**one, **self._other_values()} if self.random.random() < 0.7 else dict(one) for one in old]
        added = self.new_rows(1, self.ids())
        self.table().upsert(self.arrow([*changed, *added]))
        return self.same(self._replaced(changed) + added)

    def _merged(self) -> tuple[list[Row], int, list[Row]]:
        """The source of a merge, the id of a row that the merge deletes, and the expected rows."""
        source = [dict(one) for one in self.random.sample(self.rows(), min(4, len(self.rows())))]
        if not source:
            raise Skipped
        id = self.id_field()
        gone = self.random.choice([row[id] for row in source])
        source = [{**row, **self._other_values()} for row in source]
        added = self.new_rows(1, self.ids())
        return source + added, gone, [row for row in self._replaced(source) if row[id] != gone] + added

    def merge(self) -> After:
        source, gone, after = self._merged()
        merge = self.table().merge(self.arrow(source)).when_matched_delete(condition=f"source.id = {gone}")
        merge.when_matched_update().when_not_matched_insert().execute()
        return self.same(after)

    def sql_merge(self) -> After:
        source, gone, after = self._merged()
        self.lake.sql(
            f"MERGE INTO {self.now.at} AS t USING source ON t.id = source.id "
            f"WHEN MATCHED AND t.id = {gone} THEN DELETE WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT BY NAME",
            data={"source": self.arrow(source)},
        )
        return self.same(after)

    def sql_update(self) -> After:
        text, matches = self._matching()
        field = next((id for id in self.now.names if self.kinds[id] == "double"), None)
        if field is None:
            raise Skipped
        self.lake.sql(f'UPDATE {self.now.at} SET "{self.now.names[field]}" = 4.5 WHERE {text}')
        return self.same([{**row, field: 4.5} if matches(row) else row for row in self.rows()])

    def sql_delete(self) -> After:
        text, matches = self._matching()
        self.lake.sql(f"DELETE FROM {self.now.at} WHERE {text}")
        return self.same([row for row in self.rows() if not matches(row)])

    def sql_insert(self) -> After:
        rows = self.new_rows(2, self.ids())
        self.lake.sql(f"INSERT INTO {self.now.at} BY NAME FROM given", data={"given": self.arrow(rows)})
        return self.same([*self.rows(), *rows])

    def _write_several(self, txn: tl.Transaction) -> After:
        """Append rows, delete one of them and an older one, and append again."""
        rows = self.new_rows(3, self.ids())
        more = self.new_rows(1, self.ids() | {row[self.id_field()] for row in rows})
        table = txn.table(self.now.at)
        table.append(self.arrow(rows))
        gone = {
            one[self.id_field()] for one in (rows.pop(), *self.random.sample(self.rows(), min(1, len(self.rows()))))
        }
        for id in gone:
            table.delete(f"id = {id}")
        table.append(self.arrow(more))
        kept = [row for row in [*self.rows(), *rows] if row[self.id_field()] not in gone]
        return self.same([*kept, *more])

    def several(self) -> After:
        with self.lake.transaction() as txn:
            return self._write_several(txn)

    def saved(self) -> After:
        """Save a transaction and resume it, as another process does."""
        txn = self.lake.begin()
        after = self._write_several(txn)
        txn.save()
        self.lake.resume(txn.id).commit()
        return after

    def lost_race(self) -> After:
        """Rebase a delete after another append was committed.

        It is a conflict if the delete moved rows of an upgraded table to which the append assigned ids.
        """
        text, matches = self._matching()
        gets_ids = self.now_format > 2 and not self.now.has_row_ids
        txn = self.lake.begin()
        txn.table(self.now.at).delete(text)
        rows = [row for row in self.new_rows(3, self.ids()) if not matches(row)]
        self.table().append(self.arrow(rows))
        self.store(self.same([*self.rows(), *rows] if rows else self.rows()), "append")
        try:
            txn.commit()
        except tl.CommitConflict:
            if not gets_ids:
                raise
            return self.same(self.now.rows)
        return self.same([row for row in self.rows() if not matches(row)])

    # Statements of engines

    def position_delete(self) -> After:
        table = self.table()
        tasks = [task for task in table.iceberg.scan().plan_files() if not task.delete_files]
        if not tasks:
            raise Skipped
        task = self.random.choice(tasks)
        count = self.random.randrange(1, 1 + task.file.record_count)
        before = self.read(self.lake.version)
        delete_positions(table, task, self.random.sample(range(task.file.record_count), count))
        # Which rows are deleted is read from the table: the scan of position deletes has other tests.
        after = self.read(self.lake.version)
        assert not Counter(map(repr, after)) - Counter(map(repr, before))
        assert len(before) - len(after) == count
        return self.same(after)

    def value_delete(self) -> After:
        """Delete rows by equality deletes, as Flink does."""
        if not self.rows() or self.folder is not None:  # DuckDB 1.5.5 reads them wrongly
            raise Skipped
        some = self.random.sample(self.rows(), min(2, len(self.rows())))
        ids = {row[self.id_field()] for row in some} | {self.random.randrange(30)}
        delete_values(self.table(), pa.table({"id": pa.array(sorted(ids), pa.int64())}))
        return self.same([row for row in self.rows() if row[self.id_field()] not in ids])

    # Maintenance

    def compact(self) -> After:
        self.table().maintenance.compact(min_files=self.random.choice([1, 2, 5]))
        return self.same(self.now.rows)

    def sort(self) -> After:
        self.table().maintenance.compact(sort_by=["id desc"])
        return self.same(self.now.rows)

    def rewrite_manifests(self) -> After:
        self.table().maintenance.rewrite_manifests()
        return self.same(self.now.rows)

    def expire_snapshots(self) -> After:
        self.table().maintenance.expire_snapshots(keep=self.random.choice([1, 3]))
        return self.same(self.now.rows)

    def maintain(self) -> After:
        self.lake.maintenance.run()
        return self.same(self.now.rows)

    def vacuum(self) -> After:
        self.lake.maintenance.compact(force=True)
        self.lake.maintenance.vacuum(grace="0 seconds")
        return self.same(self.now.rows)

    def expire(self) -> After:
        if self.random.random() < 0.7:  # it takes half a second
            raise Skipped
        self.lake.maintenance.expire(keep=self.random.choice([3, 6]))
        self.store(self.same(self.now.rows), "expire")
        self._forget_expired()
        return self.same(self.now.rows)

    def erase(self) -> After:
        if not self.rows() or self.random.random() < 0.8:  # it takes two seconds
            raise Skipped
        id = self.id_field()
        number = self.random.choice(self.rows())[id]
        self.lake.erase(self.now.at, f"id = {number}", history=self.random.choice(["rewrite", "expire"]))
        self.store(self.same([row for row in self.rows() if row[id] != number]), "erase")
        self._forget_expired()
        for state in self.states.values():  # kept versions have lost the row, too
            state.rows = state.rows and [row for row in state.rows if row[id] != number]
        return self.same(self.now.rows)

    def _forget_expired(self) -> None:
        for version in sorted(self.states):
            try:
                self.lake.at(version)
            except tl.VersionExpired:
                del self.states[version]

    def export(self) -> After:
        """Export the lakehouse, and continue in the copy."""
        if self.folder is not None:  # the copy has another root than DuckDB's paths
            raise Skipped
        target = f"memory://{uuid.uuid4()}"
        self.lake.export(target)
        self.lake = tl.open(target)
        self.store(self.same(self.now.rows), "export")
        self._forget_expired()
        return self.same(self.now.rows)

    # Definitions

    def upgrade(self) -> After:
        self.lake.alter_table(self.now.at, {"format-version": "3"})
        return self.same(self.now.rows)

    def set_property(self) -> After:
        self.lake.alter_table(self.now.at, {"a": str(self.random.random())})
        return self.same(self.now.rows)

    def other_table(self) -> After:
        """Commit a version that changes another table, or creates a new table under a former name of this one."""
        name = f"n.o{self.random.randrange(3)}"
        if name == self.now.at:
            raise Skipped
        if self.lake.exists(name):
            self.lake.drop_table(name)
        else:
            self.lake.create_table(name, self.arrow(self.new_rows(2, set())).schema)
        return self.same(self.now.rows)

    def evolve(self) -> After:
        names, table = dict(self.now.names), self.table()
        choice = self.random.choice(["add", "drop", "rename", "widen"])
        others = [id for id, name in names.items() if name != "id"]
        schema = table.iceberg.schema()
        narrow = [id for id in others if str(schema.find_type(id)) == "int"]
        with table.update_schema() as update:
            if choice == "add" or not others:
                kind = self.random.choice([DoubleType(), StringType()])
                update.add_column(f"c{len(self.kinds)}", kind)
            elif choice == "widen" and narrow:
                update.update_column(names[narrow[0]], LongType())
            elif choice == "rename":
                update.rename_column(names[self.random.choice(others)], f"r{self.random.randrange(10**9)}")
            else:
                update.delete_column(names[self.random.choice(others)])
                self.oldest = self.lake.version + 1
        names = {one.field_id: one.name for one in self.lake.table(self.now.at).iceberg.schema().fields}
        for one in self.lake.table(self.now.at).iceberg.schema().fields:
            self.kinds.setdefault(one.field_id, "double" if isinstance(one.field_type, DoubleType) else "text")
        return [{id: row.get(id) for id in (*names, ROW_ID)} for row in self.rows()], names, self.now.at

    def respecify(self) -> After:
        with self.table().update_spec() as update:
            if self.table().partition_spec.fields:
                update.remove_field(self.table().partition_spec.fields[0].name)
            else:
                update.add_field("id", self.random.choice([BucketTransform(3), IdentityTransform()]), "part")
        return self.same(self.now.rows)

    def rename(self) -> After:
        name = self.random.choice(["n.t", "n.o0", "n.o1", "n.o2", "n.u"])
        if self.lake.exists(name):
            raise Skipped
        self.lake.rename_table(self.now.at, name)
        return self.now.rows, self.now.names, name

    def drop(self) -> After:
        self.lake.drop_table(self.now.at)
        return None, self.now.names, self.now.at

    def _versions(self, *, with_rows: bool) -> list[int]:
        """Versions to which a rollback may return."""
        found = [
            one for one, state in self.states.items() if one >= self.oldest and not (with_rows and state.rows is None)
        ]
        if not found:
            raise Skipped
        return found

    def restore(self) -> After:
        version = self.random.choice(self._versions(with_rows=True))
        then = self.source = self.states[version]
        if self.lake.exists(then.at):
            raise Skipped
        self.lake.rollback(version, objects=[then.at])
        return then.rows, then.names, then.at

    def roll_back_table(self) -> After:
        version = self.random.choice(self._versions(with_rows=True))
        then = self.source = self.states[version]
        self.lake.rollback(version, objects=[then.at])
        return then.rows, then.names, self.now.at

    def rollback(self) -> After:
        version = self.random.choice(self._versions(with_rows=False))
        self.lake.rollback(version)
        then = self.source = self.states[version]
        return then.rows, then.names, then.at

    # Expected rows and changes

    def read(self, version: int) -> list[Row]:
        """The rows of a version that has the columns of the latest version."""
        rows = self.lake.at(version).table(self.now.at).scan().to_arrow().to_pylist()
        return [{id: row[name] for id, name in self.now.names.items()} for row in rows]

    def check(self, since: int, until: int) -> None:
        """Compare the change feed, the net changes and the rows between two versions with the model."""
        state = self.states[until]
        if state.rows is None:
            return
        table = self.lake.at(until).table(state.at)
        rows = table.changes(since, until).read_all().to_pylist()
        by_version: dict[int, Counter[tuple[str, str]]] = {}
        for row in rows:
            by_version.setdefault(row["_version"], Counter())[row["_change_type"], shown(own(row))] += 1
        assert [*by_version] == sorted(by_version), "versions are in order"
        for before, after in zip(range(since, until), range(since + 1, until + 1), strict=True):
            found = by_version.get(after, Counter())
            assert found == self.expected(before, after, state.names), f"version {after}"
        _check_order(rows)
        net = table.changes(since, until, net=True).read_all().to_pylist()
        changes = Counter((row["_change_type"], shown(own(row))) for row in net)
        assert changes == self.expected(since, until, state.names), "net"
        base, result = (Counter(row for _, row in self.projected(one, state.names)) for one in (since, until))
        applied = base.copy()
        for row in rows:
            applied[shown(own(row))] += -1 if row["_change_type"] in ("delete", "update_preimage") else 1
        assert +applied == result == Counter(shown(row) for row in table.scan().to_arrow().to_pylist())
        assert not -applied
        if self.random.random() < 0.2:
            self._check_all_tables(since, until)
        if self.folder is not None:
            for version in (since, until):
                self._check_with_duckdb(version)

    def _check_all_tables(self, since: int, until: int) -> None:
        """Check that the feed of all tables contains the changes of this table, with the columns of each version."""
        found: dict[int, Counter[tuple[str, str]]] = {}
        for entry in self.lake.changes(since, rows=True, until=until):
            for changed in entry.rows:
                if changed.table_id == self.id:
                    rows = changed.read().read_all().to_pylist()
                    found[entry.version] = Counter((row["_change_type"], shown(own(row))) for row in rows)
        for before, after in zip(range(since, until), range(since + 1, until + 1), strict=True):
            state = self.states[before] if self.states[after].rows is None else self.states[after]
            expected = self.expected(before, after, state.names)
            assert found.get(after, Counter()) == expected, f"all tables, version {after}"

    def _check_with_duckdb(self, version: int) -> None:
        state = self.states[version]
        if state.rows is None:
            return
        metadata = self.lake.at(version).table(state.at).iceberg.metadata_location
        expected = Counter(row for _, row in self.projected(version, state.names))
        with duckdb.connect(config={"threads": 1}) as reader:
            for name in ("avro", "iceberg"):
                package = importlib.util.find_spec(f"duckdb_extension_{name}")
                assert package is not None
                assert package.origin is not None
                reader.execute(f"LOAD '{next(Path(package.origin).parent.rglob(f'{name}.duckdb_extension'))}'")
            rows = reader.execute(f"FROM iceberg_scan('{metadata}')").to_arrow_table().to_pylist()
        assert Counter(map(shown, rows)) == expected, f"DuckDB reads version {version}"

    def projected(self, version: int, names: dict[int, str]) -> list[tuple[Any, str]]:
        """The row ids and rows of a version, projected to the columns of another version, as text."""
        rows = self.states[version].rows or []
        return [(row.get(ROW_ID), shown({name: row.get(id) for id, name in names.items()})) for row in rows]

    def expected(self, before: int, after: int, names: dict[int, str]) -> Counter[tuple[str, str]]:
        then, now = self.projected(before, names), self.projected(after, names)
        result: Counter[tuple[str, str]] = Counter()

        def update(old: str, new: str) -> None:
            result["update_preimage", old] += 1
            result["update_postimage", new] += 1

        states = self.states[before], self.states[after]
        have_ids = states[0].has_row_ids and states[1].has_row_ids
        if have_ids and (states[0].is_ancestor_of(states[1]) or states[1].is_ancestor_of(states[0])):
            ids = {id: row for id, row in now if id is not None}
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


def _check_order(rows: list[dict[str, Any]]) -> None:
    """Check the order in each version: deletes, then updates in pairs, then inserts."""
    order = {"delete": 0, "update_preimage": 1, "update_postimage": 1, "insert": 2}
    places = [(row["_version"], order[row["_change_type"]]) for row in rows]
    assert places == sorted(places), "deletes, updates, inserts"
    pair = [row for row in rows if row["_change_type"].startswith("update")]
    for then, now in zip(pair[::2], pair[1::2], strict=True):
        assert (then["_change_type"], now["_change_type"]) == ("update_preimage", "update_postimage")
        assert (then["id"], then["_version"]) == (now["id"], now["_version"])


def shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def own(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in COLUMNS["trinitylake"].names}


def key_of(row: str) -> Any:
    return dict(eval(row, {"nan": math.nan}))["id"]
