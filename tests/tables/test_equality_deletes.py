"""Equality deletes as Flink writes them, in random histories. The oracles are a list of rows and, in `tests/spark`,
Iceberg for Java. DuckDB's Iceberg extension is not an oracle: version 1.5.5 also deletes rows that have NULL, and
crashes for some partitions.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import FileScanTask
from pyiceberg.types import LongType

import trinitylake as tl
from local_files import lake_on_disk
from position_deletes import delete_positions, delete_values
from trinitylake.iceberg_storage.data_files import parquet_batches
from trinitylake.iceberg_storage.data_files.streamed_rows import streamed_rows
from trinitylake.iceberg_storage.snapshot_counts import live_rows

Row = dict[str, Any]
NAN = float("nan")


lake = lake_on_disk("ns")


def spelled(row: Row) -> str:
    return repr(sorted(row.items()))


class History:
    """A table with equality deletes, and a list of its rows."""

    def __init__(self, lake: tl.Lakehouse, seed: int) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.key, self.kind = "k", pa.int32()
        schema = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("p", pa.string()), ("x", pa.float64())])
        mode = self.random.choice(["copy-on-write", "merge-on-read"])
        properties = {f"write.{statement}.mode": mode for statement in ("delete", "update", "merge")}
        properties |= {"format-version": self.random.choice(["2", "3"]), "write.parquet.row-group-limit": "3"}
        self.table = lake.create_table("ns.t", schema, properties=properties)
        self.rows: list[Row] = []
        self.next_id = 0
        self.is_partitioned = self.random.random() < 0.7
        if self.random.random() < 0.5:  # files without partitions stay
            self.append()
        if self.is_partitioned:
            with self.table.update_spec() as change:
                change.add_identity("p")

    def rows_of_table(self) -> list[Row]:
        return self.table.scan().to_arrow().to_pylist()

    def new(self) -> list[Row]:
        count = self.random.randrange(1, 8)
        start, self.next_id = self.next_id, self.next_id + count
        return [
            {
                "id": start + number,
                self.key: self.random.choice([None, 1, 2, 3]),
                "p": self.random.choice(["a", "b", None]),
                "x": self.random.choice([None, 0.0, -0.0, NAN, 1.5]),
            }
            for number in range(count)
        ]

    def arrow(self, rows: list[Row]) -> pa.Table:
        schema = pa.schema([("id", pa.int64()), (self.key, self.kind), ("p", pa.string()), ("x", pa.float64())])
        return pa.Table.from_pylist(rows, schema=schema)

    def append(self) -> None:
        rows = self.new()
        self.table.append(self.arrow(rows))
        self.rows = [*self.rows, *rows]

    def equality_delete(self) -> None:
        columns = self.random.choice([[self.key], [self.key, "p"], ["x"], ["id"], ["x", self.key]])
        keys = [{name: row[name] for name in columns} for row in self.new()] + [
            {name: row[name] for name in columns} for row in self.random.sample(self.rows, min(len(self.rows), 2))
        ]
        tasks = list(self.table.scan().iceberg.plan_files())
        task = self.random.choice(tasks) if tasks and self.random.random() < 0.6 else None
        if task is not None and not len(task.file.partition):  # a file of the spec without fields
            task = None
        partition = None if task is None else task.file.partition[0]
        data = self.arrow([{"id": None, self.key: None, "p": None, "x": None, **key} for key in keys]).select(columns)
        delete_values(self.table, data, task)
        gone = {spelled(key) for key in keys}
        elsewhere = set() if task is None else {row["id"] for row in self.rows if row["p"] != partition}
        if task is not None:
            elsewhere |= {id for one in tasks if not len(one.file.partition) for id in self.ids_in(one)}
        self.rows = [
            row
            for row in self.rows
            if row["id"] in elsewhere or spelled({name: row[name] for name in columns}) not in gone
        ]

    def ids_in(self, task: FileScanTask) -> list[int]:
        scan = self.table.scan(columns=["id"]).iceberg
        return [id for batch in streamed_rows(scan, [task], scan.projection()) for id in batch["id"].to_pylist()]

    def position_delete(self) -> None:
        tasks = [task for task in self.table.scan().iceberg.plan_files() if not task.delete_files]
        if tasks and self.table.iceberg.metadata.format_version == 2:
            task = self.random.choice(tasks)
            ids = self.ids_in(task)
            delete_positions(self.table, task, [0])
            self.rows = [row for row in self.rows if row["id"] != ids[0]]

    def delete(self) -> None:
        value = self.random.choice([1, 2, 3])
        self.table.delete(f"{self.key} = {value}")
        self.rows = [row for row in self.rows if row[self.key] != value]

    def update(self) -> None:
        value = self.random.choice([1, 2, 3])
        self.lake.sql(f"UPDATE ns.t SET x = 7 WHERE {self.key} = {value}")
        self.rows = [{**row, "x": 7.0} if row[self.key] == value else row for row in self.rows]

    def upsert(self) -> None:
        changed = [{**row, "x": 9.0} for row in self.random.sample(self.rows, min(len(self.rows), 2))]
        new = self.new()
        self.table.upsert(self.arrow([*changed, *new]), on=["id"])
        ids = {row["id"] for row in changed}
        self.rows = [row for row in self.rows if row["id"] not in ids] + changed + new

    def compact(self) -> None:
        self.table.maintenance.compact(min_files=1)

    def rename(self) -> None:
        name = "k2" if self.key == "k" else "k"
        with self.table.update_schema() as change:
            change.rename_column(self.key, name)
        for row in self.rows:
            row[name] = row.pop(self.key)
        self.key = name

    def widen(self) -> None:
        if self.kind == pa.int32():
            with self.table.update_schema() as change:
                change.update_column(self.key, LongType())
            self.kind = pa.int64()

    def values(self) -> Counter[str]:
        return Counter(repr([row["id"], row[self.key], row["p"], row["x"]]) for row in self.rows)

    def changes(self, since: int) -> Counter[str]:
        """For each row the number of inserts minus the number of deletes since a version."""
        found: Counter[str] = Counter()
        for row in self.table.changes(since).read_all().to_pylist():
            is_there = row["_change_type"] in ("insert", "update_postimage")
            found[repr([row["id"], row[self.key], row["p"], row["x"]])] += 1 if is_there else -1
        return found

    def check(self, said: str) -> None:
        self.table.refresh()
        expected = sorted(map(spelled, self.rows))
        assert sorted(map(spelled, self.rows_of_table())) == expected, said
        assert self.table.count() == len(self.rows), said
        ids = sorted(row["id"] for row in self.rows)
        assert sorted(self.table.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == ids, said
        some = self.table.scan(filter=f"{self.key} = 2 or p = 'a'", columns=["id"]).to_arrow()["id"].to_pylist()
        assert sorted(some) == sorted(row["id"] for row in self.rows if row[self.key] == 2 or row["p"] == "a"), said
        assert self.lake.sql("SELECT count(*), sum(id) FROM ns.t").fetchall() == [
            (len(ids), sum(ids) if ids else None)
        ], said
        assert len(self.table.head(3)) == min(3, len(ids)), said


STATEMENTS: list[Callable[[History], None]] = [
    History.append,
    History.append,
    History.equality_delete,
    History.equality_delete,
    History.equality_delete,
    History.position_delete,
    History.delete,
    History.update,
    History.upsert,
    History.compact,
    History.rename,
    History.widen,
]


@pytest.mark.parametrize("seed", range(20) if os.environ.get("TRINITYLAKE_DEEP") else (1, 2))
def test_rows_that_are_deleted_by_their_values_are_gone(
    lake: tl.Lakehouse, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", 2)
    history = History(lake, seed)
    history.append()
    for _ in range(18):
        version, before = lake.version, history.values()
        statement = history.random.choice(STATEMENTS)
        statement(history)
        history.check(statement.__name__)
        before.update(history.changes(version))
        assert before == history.values(), f"changes of {statement.__name__}"


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.10"), Decimal("-0.01")]),
    "text": (pa.string(), ["", "é"]),
    "binary": (pa.binary(), [b"", b"\\0"]),
    "fixed": (pa.binary(2), [b"ab", b"cd"]),
    "uuid": (pa.uuid(), [b"0" * 16, b"1" * 16]),
    "date": (pa.date32(), [0, -1]),
    "time": (pa.time64("us"), [0, 1]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1]),
    "timestamp_ns": (pa.timestamp("ns"), [0, 1]),
    "float": (pa.float32(), [0.0, -0.0]),
}


@pytest.mark.parametrize("name", KEYS)
def test_values_of_every_type_are_compared(lake: tl.Lakehouse, name: str) -> None:
    kind, (deleted, left) = KEYS[name]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_temporal(kind):
        storage = pa.int32() if kind.bit_width == 32 else pa.int64()

    def column(*values: Any) -> pa.Array:
        stored = pa.array(values, storage)
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, stored)
        return stored.cast(kind)

    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": column(deleted, left, None)})
    table = lake.create_table("ns.t", rows, properties={"format-version": "3"})
    table.append(rows)
    keys = pa.table({"v": rows["v"].take([0, 2])})
    delete_values(table, pa.table({"v": keys["v"].combine_chunks()}))
    table.refresh()
    assert table.scan(columns=["id"]).to_arrow()["id"].to_pylist() == [2]


def test_a_dropped_column_and_a_later_one_count_as_they_were(lake: tl.Lakehouse) -> None:
    """As in Iceberg for Java, a column that a data file lacks is NULL or has its default value."""
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "k": pa.array([1, 2, None], pa.int64())})
    table = lake.create_table("ns.t", rows)
    table.append(rows)
    delete_values(table, pa.table({"k": pa.array([1], pa.int64())}))
    with table.update_schema() as change:
        change.delete_column("k")
    table.refresh()
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [2, 3]
    table.append(pa.table({"id": pa.array([1], pa.int64()), "later": pa.array([1], pa.int64())}), evolve_schema=True)
    table.refresh()
    delete_values(table, pa.table({"later": pa.array([None], pa.int64())}))
    table.refresh()
    assert table.scan().to_arrow()["id"].to_pylist() == [1]


def test_fields_of_structs_are_compared(lake: tl.Lakehouse) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "s": pa.array([{"a": 1}, {"a": 2}, None], kind)})
    table = lake.create_table("ns.t", rows)
    table.append(rows)
    ids = table.iceberg.schema()
    keys = pa.table({"s": pa.array([{"a": 1}, None], pa.struct([ids.as_arrow().field("s").type.field("a")]))})
    delete_values(table, keys, equality_ids=[ids.find_field("s.a").field_id])
    table.refresh()
    assert table.scan(columns=["id"]).to_arrow()["id"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("deletes", "rows"), [({}, 7), ({"total-position-deletes": "2"}, 5), ({"total-equality-deletes": "1"}, None)]
)
def test_summary_with_equality_deletes_gives_no_number_of_rows(deletes: dict[str, str], rows: int | None) -> None:
    """The summary also counts deleted rows."""
    assert live_rows({"total-records": "7", **deletes}) == rows
