"""Queries over evolved tables have the results of DuckDB over its own table."""

from __future__ import annotations

import datetime as dt
import tempfile
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import LongType, StringType

import trinitylake as tl
from position_deletes import delete_positions
from trinitylake.tables.queries import source

DAYS = [dt.date(2026, 1, 1 + number) for number in range(3)]
VALUES = {
    "INTEGER": st.none() | st.integers(-3, 3),
    "BIGINT": st.none() | st.integers(-(1 << 40), 1 << 40),
    "VARCHAR": st.none() | st.sampled_from(["", "a", "it's", "日本", "z" * 40]),
    "DATE": st.none() | st.sampled_from(DAYS),
}
STEPS = ("append", "append", "add", "drop", "rename", "widen", "delete", "positions", "partition")
CONDITIONS = {
    "INTEGER": ["{} = 1", "{} <> 0", "{} > -2 AND {} < 2", "{} IN (1, 3)", "{} IS NULL", "abs({}) = 2"],
    "BIGINT": ["{} >= 0", "{} IS NOT NULL", "{} % 2 = 0", "{} = 1 OR {} < 0"],
    "VARCHAR": ["{} = 'a'", "{} LIKE 'z%'", "{} > 'b'", "{} IN ('', '日本')", "length({}) > 3"],
    "DATE": ["{} = DATE '2026-01-02'", "{} < DATE '2026-01-03'", "{} BETWEEN DATE '2026-01-01' AND DATE '2026-01-02'"],
}


class Both:
    """A table in a lakehouse and a table in DuckDB, which are changed in the same way."""

    def __init__(self, root: str, data: st.DataObject) -> None:
        self._draw = data.draw
        self.lake = tl.create(root, durability="none")
        self.lake.create_namespace("n")
        self.lake.create_table("n.t", {"c0": "int", "c1": "varchar", "c2": "date"})
        self.plain = duckdb.connect()
        self.plain.execute("CREATE SCHEMA n; CREATE TABLE n.t (c0 INTEGER, c1 VARCHAR, c2 DATE)")
        self.columns = {"c0": "INTEGER", "c1": "VARCHAR", "c2": "DATE"}
        self._numbers = iter(range(3, 100))

    def step(self, name: str) -> None:
        table = self.lake.table("n.t")
        column = self._draw(st.sampled_from(sorted(self.columns)))
        match name:
            case "append":
                row_of = st.tuples(*(VALUES[type] for type in self.columns.values()))
                rows = self._draw(st.lists(row_of, min_size=1, max_size=5))
                for row in rows:
                    self.plain.execute(f"INSERT INTO n.t VALUES ({', '.join('?' * len(row))})", row)
                marks = ", ".join(f"({', '.join('?' * len(row))})" for row in rows)
                self.lake.sql(f"INSERT INTO n.t VALUES {marks}", [value for row in rows for value in row])
            case "add":
                # A name that an earlier column may have had.
                partitions = {field.name for spec in table.iceberg.specs().values() for field in spec.fields}
                names = ("c0", "c1", "c2", f"c{next(self._numbers)}")
                # Iceberg refuses a column with the name of a partition field of another column.
                free = [one for one in names if one not in self.columns and one not in partitions]
                self.columns[free[0]] = "VARCHAR"
                self.plain.execute(f"ALTER TABLE n.t ADD COLUMN {free[0]} VARCHAR")
                with table.update_schema() as update:
                    update.add_column(free[0], StringType())
            case "drop" if len(self.columns) > 1 and not self._is_partitioned_by(column):
                del self.columns[column]
                self.plain.execute(f"ALTER TABLE n.t DROP COLUMN {column}")
                with table.update_schema() as update:
                    update.delete_column(column)
            case "rename":
                new = f"c{next(self._numbers)}"
                self.columns = {new if one == column else one: type for one, type in self.columns.items()}
                self.plain.execute(f"ALTER TABLE n.t RENAME COLUMN {column} TO {new}")
                with table.update_schema() as update:
                    update.rename_column(column, new)
            case "widen" if self.columns[column] == "INTEGER":
                self.columns[column] = "BIGINT"
                self.plain.execute(f"ALTER TABLE n.t ALTER COLUMN {column} TYPE BIGINT")
                with table.update_schema() as update:
                    update.update_column(column, LongType())
            case "delete":
                condition = self.condition(column)
                self.plain.execute(f"DELETE FROM n.t WHERE {condition}")
                self.lake.sql(f"DELETE FROM n.t WHERE {condition}")
            case "positions":
                self._delete_positions(table)
            case "partition" if table.partition_spec.is_unpartitioned():
                with table.update_spec() as update:
                    update.add_identity(column)

    def _is_partitioned_by(self, column: str) -> bool:
        iceberg = self.lake.table("n.t").iceberg
        id = iceberg.schema().find_field(column).field_id
        return any(field.source_id == id for spec in iceberg.specs().values() for field in spec.fields)

    def _delete_positions(self, table: tl.Table) -> None:
        tasks = [task for task in table.scan().iceberg.plan_files() if not task.delete_files]
        if not tasks:
            return
        delete_positions(table, min(tasks, key=lambda task: task.file.file_path), [0])
        # The remaining rows are copied to DuckDB, because rows cannot be identified there.
        left = self.lake.table("n.t").scan().to_arrow()
        self.plain.register("left_rows", left)
        self.plain.execute("DELETE FROM n.t; INSERT INTO n.t SELECT * FROM left_rows")
        self.plain.unregister("left_rows")

    def condition(self, column: str) -> str:
        return self._draw(st.sampled_from(CONDITIONS[self.columns[column]])).replace("{}", column)

    def check(self) -> None:
        conditions = [self.condition(column) for column in self.columns]
        columns = ", ".join(self.columns)
        for where in ["true", *conditions, " AND ".join(conditions[:2]), " OR ".join(conditions[:2])]:
            sql = f"SELECT {columns}, count(*) OVER () FROM n.t WHERE {where} ORDER BY ALL"
            assert self.lake.sql(sql).fetchall() == self.plain.execute(sql).fetchall(), where


@settings(max_examples=10)
@pytest.mark.parametrize("is_direct", [True, False], ids=["by DuckDB", "by our scan"])
@given(data=st.data(), steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=8))
def test_evolved_table_is_read_with_its_current_schema(is_direct: bool, data: st.DataObject, steps: list[str]) -> None:
    read_alike = source.are_read_alike
    source.are_read_alike = lambda metadata: is_direct and read_alike(metadata)
    try:
        with tempfile.TemporaryDirectory() as folder:
            both = Both(f"{folder}/lake", data)
            for step in ["append", *steps]:
                both.step(step)
            both.check()
    finally:
        source.are_read_alike = read_alike


def test_rows_that_positions_deleted_do_not_come_back(tmp_path: Any) -> None:
    """DuckDB ignores delete files, so it must not read a data file with deleted rows itself."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"x": "bigint"})
    table.append({"x": [0, 1, 2, 3]})
    table.append({"x": [4, 5]})
    first = next(task for task in table.scan().iceberg.plan_files() if task.file.record_count == 4)
    delete_positions(table, first, [1, 2])
    assert lake.sql("SELECT x FROM a.t ORDER BY x").fetchall() == [(0,), (3,), (4,), (5,)]
    assert lake.sql("SELECT count(*) FROM a.t WHERE x IN (1, 3)").fetchone() == (1,)
    lake.sql("UPDATE a.t SET x = x + 10 WHERE x >= 3")
    assert lake.sql("SELECT x FROM a.t ORDER BY x").fetchall() == [(0,), (13,), (14,), (15,)]
