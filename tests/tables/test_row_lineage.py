"""Row lineage of format version 3: `_row_id` and `_last_updated_sequence_number` of every row, whatever rewrites it.

The oracle is a dictionary of the rows with the lineage that each must have: Iceberg's specification, "Row Lineage".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import lake_on_disk
from position_deletes import delete_positions
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files import parquet_batches

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("p", pa.string())])
COLUMNS = ["id", "n", "p", "_row_id", "_last_updated_sequence_number"]
V3 = {"format-version": "3"}


class Lineage(NamedTuple):
    row_id: int
    last_updated: int


class Row(NamedTuple):
    values: tuple[int, str | None]
    lineage: Lineage


lake = lake_on_disk("ns")


def rows_of(rows: dict[int, tuple[int, str | None]]) -> pa.Table:
    data = [{"id": id, "n": n, "p": p} for id, (n, p) in rows.items()]
    return pa.Table.from_pylist(data, schema=SCHEMA)


def shown(table: Any, filter: str | None = None) -> dict[int, Row]:
    """The rows with their lineage, by `id`."""
    found = table.scan(filter=filter, columns=COLUMNS).to_arrow().select(COLUMNS)
    rows = [tuple(row.values()) for row in found.to_pylist()]
    result = {id: Row((n, p), Lineage(row_id, last)) for id, n, p, row_id, last in rows}
    assert len(result) == len(rows)
    return result


class History:
    """Random statements on one table, with a dictionary of its rows."""

    def __init__(self, lake: tl.Lakehouse, seed: int) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        partitions = self.random.choice([None, ["p"], ["bucket(3, id)"]])
        mode = self.random.choice(["copy-on-write", "merge-on-read"])
        properties = V3 | {f"write.{statement}.mode": mode for statement in ("delete", "update", "merge")}
        properties["write.parquet.row-group-limit"] = "4"
        self.table = lake.create_table("ns.t", SCHEMA, partition_spec=partitions, properties=properties)
        self.rows: dict[int, Row] = {}
        self.used: set[int] = set()
        self.next_id = 0

    def new(self, count: int) -> dict[int, tuple[int, str | None]]:
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        return {id: (self.random.randrange(5), self.random.choice(["a", "b", None])) for id in ids}

    def some(self) -> dict[int, tuple[int, str | None]]:
        known = self.random.sample(sorted(self.rows), min(len(self.rows), self.random.randrange(4)))
        return {id: (self.random.randrange(5), self.rows[id].values[1]) for id in known}

    def step(self) -> str:
        verb = self.random.choice(sorted(STATEMENTS))
        before, sequence_number = self.rows, self.table.iceberg.metadata.last_sequence_number
        following = self.table.iceberg.metadata.next_row_id
        assert following is not None
        expected, changed, new = STATEMENTS[verb](self)
        self.table.refresh()
        self.rows = shown(self.table)
        assert {id: row.values for id, row in self.rows.items()} == expected, verb
        committed = range(sequence_number + 1, self.table.iceberg.metadata.last_sequence_number + 1)
        for id, row in self.rows.items():
            if id in new:
                assert row.lineage.row_id >= following
                assert row.lineage.row_id not in self.used, "no id is used twice"
                self.used.add(row.lineage.row_id)
            else:
                assert row.lineage.row_id == before[id].lineage.row_id, f"{verb}: row {id} keeps its id"
            if id in new or id in changed:
                assert row.lineage.last_updated in committed, f"{verb}: row {id} was changed"
            else:
                assert row.lineage == before[id].lineage, f"{verb}: row {id} was not changed"
        filter = self.random.choice(["n > 2", "p = 'a'", "id < 10", "p IS NULL"])
        holds = {
            "n > 2": lambda row: row[1].values[0] > 2,
            "p = 'a'": lambda row: row[1].values[1] == "a",
            "id < 10": lambda row: row[0] < 10,
            "p IS NULL": lambda row: row[1].values[1] is None,
        }[filter]
        assert shown(self.table, filter) == dict(one for one in self.rows.items() if holds(one)), f"{verb}: {filter}"
        return verb

    def values(self) -> dict[int, tuple[int, str | None]]:
        return {id: row.values for id, row in self.rows.items()}


#: The result of a statement: the rows, and the ids of changed rows and of new rows.
After = tuple[dict[int, tuple[int, "str | None"]], set[int], set[int]]


def append(history: History) -> After:
    new = history.new(history.random.randrange(1, 12))
    history.table.append(rows_of(new))
    return history.values() | new, set(), set(new)


def delete(history: History) -> After:
    n = history.random.randrange(5)
    if history.random.random() < 0.5:
        history.table.delete(f"n = {n}")
    else:
        history.lake.sql(f"DELETE FROM ns.t WHERE n = {n}")
    return {id: row for id, row in history.values().items() if row[0] != n}, set(), set()


def overwrite(history: History) -> After:
    n, new = history.random.randrange(5), history.new(2)
    history.table.overwrite(rows_of(new), filter=f"n = {n}")
    return {id: row for id, row in history.values().items() if row[0] != n} | new, set(), set(new)


def update(history: History) -> After:
    n = history.random.randrange(5)
    changed = {id: (row[0] + 1, row[1]) for id, row in history.values().items() if row[0] == n}
    history.lake.sql(f"UPDATE ns.t SET n = n + 1 WHERE n = {n}")
    return history.values() | changed, set(changed), set()


def upsert(history: History) -> After:
    some, new, before = history.some(), history.new(1), history.values()
    history.table.upsert(rows_of(some | new), on=["id"])
    return before | some | new, {id for id, row in some.items() if row != before[id]}, set(new)


def merge(history: History) -> After:
    some, new, before = history.some(), history.new(1), history.values()
    if history.random.random() < 0.5:
        merge = history.table.merge(rows_of(some | new), on=["id"]).when_matched_delete(condition="source.n = 0")
        merge.when_matched_update().when_not_matched_insert().execute()
    else:
        data = rows_of(some | new)
        history.lake.sql(
            "MERGE INTO ns.t USING data AS source ON t.id = source.id WHEN MATCHED AND source.n = 0 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET n = source.n WHEN NOT MATCHED THEN INSERT (id, n, p) "
            "VALUES (source.id, source.n, source.p)",
            data={"data": data},
        )
    gone = {id for id, row in some.items() if row[0] == 0}
    changed = {id: row for id, row in some.items() if id not in gone}
    return {id: row for id, row in (before | changed | new).items() if id not in gone}, set(changed), set(new)


def compact(history: History) -> After:
    history.table.maintenance.compact(min_files=1)
    return history.values(), set(), set()


def sort(history: History) -> After:
    history.table.maintenance.compact(sort_by=["n desc"])
    return history.values(), set(), set()


def rewrite_manifests(history: History) -> After:
    history.table.maintenance.rewrite_manifests()
    return history.values(), set(), set()


def lost_race(history: History) -> After:
    """A transaction that is rebased because another statement is committed first."""
    n = history.random.randrange(5)
    changed = {id: (9, row[1]) for id, row in history.values().items() if row[0] == n}
    first, second = history.new(1), history.new(1)
    transaction = history.lake.begin()
    transaction.sql(f"UPDATE ns.t SET n = 9 WHERE n = {n} AND id < {min(first)}")
    transaction.table("ns.t").append(rows_of(first))
    history.table.append(rows_of(second))
    transaction.commit()
    return history.values() | changed | first | second, set(changed), {*first, *second}


STATEMENTS: dict[str, Callable[[History], After]] = {
    one.__name__: one
    for one in (append, delete, overwrite, update, upsert, merge, compact, sort, rewrite_manifests, lost_race)
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
def test_rows_keep_their_lineage_through_random_statements(
    lake: tl.Lakehouse, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", 3)
    history = History(lake, seed)
    for _ in range(25):
        history.step()
    lake.export(str(tmp_path / "export"), mode="minimal")
    assert shown(tl.open(str(tmp_path / "export")).table("ns.t")) == history.rows
    (tmp_path / "lake").rename(tmp_path / "moved")
    moved = tl.open(str(tmp_path / "moved"), durability="none")
    moved.maintenance.relocate()
    assert shown(moved.table("ns.t")) == history.rows


def test_rows_of_an_upgraded_table_have_ids_since_its_next_commit(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", SCHEMA)
    table.append(rows_of({1: (1, "a"), 2: (2, "a"), 3: (3, "a")}))
    with pytest.raises(InvalidArgument, match="since format version 3, and the table has version 2"):
        table.scan(columns=["_row_id"]).to_arrow()
    lake.alter_table(table.name, V3)
    table.refresh()
    assert shown(table)[1].lineage == (None, None)
    table.upsert(rows_of({2: (20, "a"), 4: (4, "a")}), on=["id"])
    after = shown(table)
    assert len({row.lineage.row_id for row in after.values()}) == 4
    assert {row.lineage.last_updated for row in after.values()} == {2}
    table.delete("id = 1")
    assert shown(table) == {id: row for id, row in after.items() if id != 1}


def test_positions_count_in_the_file_and_not_among_rows_that_are_left(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", SCHEMA, properties=V3)
    table.append(rows_of({id: (id, "a") for id in range(10)}))
    (task,) = table.scan().iceberg.plan_files()
    delete_positions(table, task, [0, 4, 5])
    left = {id: Row((id, "a"), Lineage(id, 1)) for id in (1, 2, 3, 6, 7, 8, 9)}
    table.refresh()
    assert shown(table) == left
    table.delete("id = 2")
    del left[2]
    assert shown(table) == left


def test_row_ids_are_read_in_batches_of_selected_row_groups(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", SCHEMA, properties=V3 | {"write.parquet.row-group-limit": "4"})
    table.append(rows_of({id: (id, "a") for id in range(30)}))
    found = shown(table, "id = 7 or id > 26")
    assert {id: row.lineage.row_id for id, row in found.items()} == {id: id for id in (7, 27, 28, 29)}
    assert table.scan(columns=["*", "_row_id"], limit=1).to_arrow().column_names == ["id", "n", "p", "_row_id"]
    assert sorted(table.scan(columns=["_row_id"]).to_arrow()["_row_id"].to_pylist()) == list(range(30))


def test_sql_reads_the_lineage_that_a_query_names(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", SCHEMA, properties=V3)
    table.append(rows_of({id: (id, "a") for id in range(5)}))
    table.upsert(rows_of({2: (20, "a"), 9: (9, "b")}), on=["id"])
    lake.create_table("ns.old", SCHEMA).append(rows_of({1: (1, "a")}))
    lake.create_view("ns.ids", 'SELECT id, "_ROW_ID" AS r FROM ns.t')
    expected = {id: row.lineage for id, row in shown(table).items()}
    sql = "SELECT id, _row_id, t._last_updated_sequence_number FROM ns.t"
    assert {id: (row_id, last) for id, row_id, last in lake.sql(sql).fetchall()} == expected
    assert lake.sql("SELECT id FROM ns.t WHERE _row_id = 2 AND n > 1").fetchall() == [(2,)]
    assert dict(lake.sql("FROM ns.ids").fetchall()) == {id: one.row_id for id, one in expected.items()}
    assert lake.sql("SELECT * FROM ns.t").columns == ["id", "n", "p"]
    assert lake.sql("SELECT * FROM ns.t ORDER BY _row_id").columns == ["id", "n", "p", "_row_id"]
    joined = "SELECT t.id, _row_id FROM ns.t JOIN ns.old USING (id)"
    assert lake.sql(joined).fetchall() == [(1, expected[1].row_id)]
    with pytest.raises(InvalidArgument, match="_row_id"):
        lake.sql("SELECT _row_id FROM ns.old")


def test_columns_with_reserved_names_are_read_and_do_not_move(lake: tl.Lakehouse) -> None:
    rows = pa.table({"id": [1, 2], "_row_id": ["x", "y"]})
    table = lake.create_table("ns.t", rows, properties=V3)
    table.append(rows)
    assert table.scan(columns=["_row_id"]).to_arrow()["_row_id"].to_pylist() == ["x", "y"]
    with pytest.raises(InvalidArgument, match="column _row_id has a name that Iceberg reserves"):
        table.delete("id = 1")
    table.delete("id < 3")
    assert table.count() == 0
