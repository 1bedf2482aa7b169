"""Histories of one table in the lakehouse and in DuckDB. After each step the rows are compared.

The table has a number `k`, the column `v` under test, and a number `w`. Histories that differ only in their last
statement share the steps before it: the lakehouse is rolled back after each statement.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.transforms import BucketTransform, IdentityTransform

import trinitylake as tl

from .kinds import KINDS, Kind

EVOLUTIONS = ("none", "widened", "renamed", "readded", "respecified", "source-dropped")
STATEMENTS = (
    "append",
    "stream",
    "overwrite",
    "delete",
    "update",
    "upsert",
    "upsert-by-v",
    "merge",
    "sql",
    "compact",
    "rewrite_manifests",
    "export",
    "relocate",
    "restore",
)
#: Filters for the scan after each statement; the first of them are also used in a count and in SQL. In the deep run
#: each type, transform and evolution occurs in about 70 statements and forms, so with all filters.
_FILTERS, _FILTERS_IN_SQL = (3, 1) if os.environ.get("TRINITYLAKE_DEEP") else (6, 4)
_COMPARISONS: dict[str, Callable[..., expressions.BooleanExpression]] = {
    "=": expressions.EqualTo,
    "<>": expressions.NotEqualTo,
    "<": expressions.LessThan,
    "<=": expressions.LessThanOrEqual,
    ">": expressions.GreaterThan,
    ">=": expressions.GreaterThanOrEqual,
}


@dataclass(frozen=True)
class Case:
    """Parameters of a history. Its text names it, and `Case.of` parses the text."""

    kind: str
    transform: str
    evolution: str
    statement: str
    version: int
    is_merge_on_read: bool

    @property
    def form(self) -> str:
        """The format version and mode of the table."""
        return f"v{self.version}{'-merge-on-read' if self.is_merge_on_read else ''}"

    @property
    def table(self) -> str:
        """The parameters without the statement: cases with equal ones share a table."""
        return "/".join((self.kind, self.transform, self.evolution, self.form)).replace(" ", "")

    def __str__(self) -> str:
        return "/".join((self.kind, self.transform, self.evolution, self.statement, self.form)).replace(" ", "")

    @classmethod
    def of(cls, text: str) -> Case:
        """The inverse of `str`."""
        return next(case for case in all_cases() if str(case) == text)


def all_cases() -> Iterator[Case]:
    """All cases: every type with its transforms and evolutions, every statement, format version and mode."""
    for name, kind in KINDS.items():
        for transform in ("none", *kind.transforms):
            for evolution in EVOLUTIONS:
                if evolution == "widened" and not kind.wider:
                    continue
                for statement in STATEMENTS:
                    if statement == "upsert-by-v" and (evolution == "source-dropped" or kind.is_nested):
                        continue
                    if statement in ("update", "sql") and not kind.is_in_sql:
                        continue
                    for version, in_place in product(range(kind.format_version, 4), (False, True)):
                        if version > 1 or not in_place:
                            yield Case(name, transform, evolution, statement, version, in_place)


NEW_PAIRS = 8


def sample(seed: int) -> list[Case]:
    """A sample of the cases in which many pairs of choices for two parameters occur."""
    cases = list(all_cases())
    random.Random(seed).shuffle(cases)
    chosen, seen = [], set()
    for case in cases:
        parts = (case.kind, f"{case.kind} {case.transform}", case.evolution, case.statement, case.form)
        pairs = set(combinations(parts[1:], 2)) | set(combinations((parts[0], *parts[2:]), 2))
        # A lower limit makes the sample much larger, and it must run within a minute.
        if len(pairs - seen) >= NEW_PAIRS:
            chosen.append(case)
            seen |= pairs
    return chosen


class StockReader:
    """Unmodified PyIceberg in another process."""

    def __init__(self, folder: Path) -> None:
        self._target = folder / "rows.arrow"
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stock_reader.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rows(self, metadata_location: str) -> pa.Table:
        """The rows of a table. Raises `AssertionError` if PyIceberg cannot read it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(metadata_location, self._target, sep="\t", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        assert answer == "done", f"PyIceberg cannot read the table: {answer}"
        with pa.OSFile(str(self._target)) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


class History:
    """A table and its oracle in DuckDB, with rows written before and after the schema evolution of the case.

    Args:
        case: determines the table and all steps before the statement.
        folder: for the lakehouse.
        stock: unmodified PyIceberg, which reads the table as well.
    """

    def __init__(self, case: Case, folder: Path, stock: StockReader) -> None:
        self.case = case
        self._folder = folder
        self._stock = stock
        self._kind: Kind = KINDS[case.kind]
        self._v: str | None = "v"
        self._texts: dict[str, str] = {}  # of values, by their Python representation
        self._oracle = duckdb.connect(config={"threads": 1})
        self._oracle.execute("SET TimeZone = 'UTC'")
        self._oracle.execute(f"CREATE TABLE t (k BIGINT, v {self._kind.duckdb}, w BIGINT)")
        self._lake = tl.create(str(folder / "lake"), durability="none")
        self._lake.create_namespace("n")
        schema = pa.schema([("k", pa.int64()), ("v", self._kind.arrow), ("w", pa.int64())])
        spec = None if case.transform == "none" else [case.transform]
        properties = {"format-version": str(case.version)}
        if case.is_merge_on_read:
            properties |= {f"write.{mode}.mode": "merge-on-read" for mode in ("delete", "update", "merge")}
        self._lake.create_table("n.t", schema, partition_spec=spec, properties=properties)

    def close(self) -> None:
        """Close the oracle."""
        self._oracle.close()

    @property
    def _table(self) -> tl.Table:
        return self._lake.table("n.t")

    def begin(self) -> None:
        """Run all steps before the statement. Raises `AssertionError` if rows differ."""
        values = [*self._kind.values, None]
        for start in (0, 1):  # two files, each with values from the whole range
            rows = self._rows(start, values[start::2])
            self._table.append(rows)
            self._insert(rows)
        self._compare("appended")
        self._evolve()
        self._compare(self.case.evolution)
        rows = self._rows(100, [*self._kind.values, None])
        self._table.append(rows)
        self._insert(rows)
        for k in (101, 102):  # so the statement meets delete files
            self._table.delete(f"k = {k}")
            self._oracle.execute(f"DELETE FROM t WHERE k = {k}")
        self._compare("appended again")
        self._begun, self._version = self._lake, self._lake.version
        self._oracle.execute("CREATE TABLE begun AS FROM t")

    def run(self, case: Case) -> None:
        """Run the statement of a case on the table of `begin`. Raises `AssertionError` if rows differ."""
        self.case = case
        if self._lake is not self._begun or self._lake.version != self._version:
            self._lake = self._begun
            self._lake.rollback(self._version)
            self._version = self._lake.version
            self._oracle.execute("CREATE OR REPLACE TABLE t AS FROM begun")
            self._oracle.execute("DROP TABLE IF EXISTS missing")
        getattr(self, f"_{case.statement.replace('-', '_')}")()
        self._compare(case.statement)
        self._compare_filters()

    # The rows

    def _rows(self, start: int, values: Sequence[Any]) -> pa.Table:
        columns = {"k": pa.array(range(start, start + len(values)), pa.int64())}
        if self._v is not None:
            columns[self._v] = self._kind.array(values)
        return pa.table(columns | {"w": pa.array([10 * one for one in range(len(values))], pa.int64())})

    def _insert(self, rows: pa.Table) -> None:
        self._oracle.register("given", _for_duckdb(rows))
        self._oracle.execute("INSERT INTO t BY NAME SELECT * FROM given")
        self._oracle.unregister("given")

    def _text(self, value: Any) -> str:
        """A value as an SQL literal."""
        if value is None:
            return f"CAST(NULL AS {self._kind.duckdb})"
        if isinstance(value, bytes):
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        if repr(value) not in self._texts:
            self._oracle.register("one", _for_duckdb(pa.table({"v": self._kind.array([value])})))
            ((self._texts[repr(value)],),) = self._oracle.execute("SELECT v::VARCHAR FROM one").fetchall()
        return f"CAST('{self._texts[repr(value)].replace(chr(39), chr(39) * 2)}' AS {self._kind.duckdb})"

    # Evolutions and statements

    def _evolve(self) -> None:
        match self.case.evolution:
            case "widened":
                self._kind = KINDS[self._kind.wider]
                self._texts.clear()
                with self._table.update_schema() as update:
                    update.update_column("v", self._kind.iceberg)
                self._oracle.execute(f"ALTER TABLE t ALTER v TYPE {self._kind.duckdb}")
            case "renamed":
                with self._table.update_schema() as update:
                    update.rename_column("v", "renamed")
                self._oracle.execute("ALTER TABLE t RENAME v TO renamed")
                self._v = "renamed"
            case "readded":
                self._remove_spec()
                with self._table.update_schema() as update:
                    update.delete_column("v")
                with self._table.update_schema() as update:
                    update.add_column("v", self._kind.iceberg)
                self._oracle.execute("UPDATE t SET v = NULL")
            case "respecified":
                self._remove_spec()
                with self._table.update_spec() as update:
                    update.add_field("k", BucketTransform(4), "of_k")
                    if self.case.transform != "v" and not self._kind.is_nested:
                        update.add_field("v", IdentityTransform(), "of_v")
            case "source-dropped":
                self._remove_spec()
                with self._table.update_schema() as update:
                    update.delete_column("v")
                self._oracle.execute("ALTER TABLE t DROP v")
                self._v = None

    def _remove_spec(self) -> None:
        if names := [field.name for field in self._table.partition_spec.fields]:
            with self._table.update_spec() as update:
                for name in names:
                    update.remove_field(name)

    def _append(self) -> None:
        rows = self._rows(200, [*reversed(self._kind.values), None])
        self._table.append(rows)
        self._insert(rows)

    def _stream(self) -> None:
        rows = self._rows(200, [*self._kind.values, None])
        batches = rows.to_batches(max_chunksize=2)
        last = batches[-1].schema.names[::-1]
        self._table.append(iter([*batches[:-1], batches[-1].select(last)]))
        self._insert(rows)

    def _condition(self, number: int) -> tuple[expressions.BooleanExpression, str]:
        """A condition on `v`, or on `k` if `v` is dropped or nested, for the lakehouse and for DuckDB."""
        if self._v is None or self._kind.is_nested:
            return expressions.LessThan("k", 2), "k < 2"
        value = self._kind.compared[number % len(self._kind.compared)]
        operator = [*_COMPARISONS][number % len(_COMPARISONS)]
        return _COMPARISONS[operator](self._v, self._kind.literal(value)), f"{self._v} {operator} {self._text(value)}"

    def _overwrite(self) -> None:
        expression, text = self._condition(3)
        rows = self._rows(200, self._kind.values[:2])
        self._table.overwrite(rows, expression)
        self._oracle.execute(f"DELETE FROM t WHERE {text}")
        self._insert(rows)

    def _delete(self) -> None:
        for number in (1, 0):
            expression, text = self._condition(number)
            self._table.delete(expression)
            self._oracle.execute(f"DELETE FROM t WHERE {text}")
            self._compare(f"delete {text}")

    def _update(self) -> None:
        texts = [self._condition(number)[1] for number in (0, 3)]
        to = "" if self._v is None or self._kind.is_nested else f", {self._v} = {self._text(self._kind.values[-1])}"
        for text in texts:
            self._lake.sql(f"UPDATE n.t SET w = w + 1{to} WHERE {text}")
            self._oracle.execute(f"UPDATE t SET w = w + 1{to} WHERE {text}")

    def _upsert(self) -> None:
        rows = pa.concat_tables([self._rows(0, self._kind.values[::-1]), self._rows(300, [None])])
        self._table.upsert(rows, on=["k"])
        self._oracle.register("given", _for_duckdb(rows))
        columns = [name for name in rows.column_names if name != "k"]
        self._oracle.execute(
            f"UPDATE t SET {', '.join(f'{name} = given.{name}' for name in columns)} FROM given WHERE t.k = given.k"
        )
        self._oracle.execute("INSERT INTO t BY NAME SELECT * FROM given WHERE k NOT IN (SELECT k FROM t)")

    def _upsert_by_v(self) -> None:
        assert self._v is not None
        values = [value for value in self._kind.values if value != 0 or str(value) != "-0.0"]
        rows = self._rows(0, [*values, None]).drop_columns(["k"])
        rows = rows.set_column(rows.column_names.index("w"), "w", pa.array([-1] * len(rows), pa.int64()))
        self._table.upsert(rows, on=[self._v])
        self._oracle.register("given", _for_duckdb(rows))
        self._oracle.execute(
            f"CREATE TEMP TABLE missing AS SELECT * FROM given "
            f"WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.{self._v} = given.{self._v})"
        )
        self._oracle.execute(
            f"UPDATE t SET w = given.w, {self._v} = given.{self._v} FROM given WHERE t.{self._v} = given.{self._v}"
        )
        self._oracle.execute("INSERT INTO t BY NAME SELECT * FROM missing")
        if pa.types.is_floating(self._kind.arrow):  # DuckDB takes the other side of a join for a key that is 0.0
            self._oracle.execute(f"UPDATE t SET {self._v} = 0.0 WHERE {self._v} = 0 AND w = -1")

    def _merge(self) -> None:
        rows = self._rows(0, [*self._kind.values, None])
        merge = self._table.merge(rows, on="k").when_matched_delete(condition="target.w = 0")
        merge = merge.when_matched_update({"w": "target.w + source.w"})
        merge.when_not_matched_insert(condition="source.k > 1").execute()
        self._oracle.register("given", _for_duckdb(rows))
        self._oracle.execute(
            "CREATE TEMP TABLE missing AS SELECT * FROM given WHERE k > 1 AND k NOT IN (SELECT k FROM t)"
        )
        self._oracle.execute("DELETE FROM t WHERE w = 0 AND k IN (SELECT k FROM given)")
        self._oracle.execute("UPDATE t SET w = t.w + given.w FROM given WHERE t.k = given.k")
        self._oracle.execute("INSERT INTO t BY NAME SELECT * FROM missing")

    def _sql(self) -> None:
        _, text = self._condition(5)
        rows = self._rows(200, [*self._kind.values, None])
        given = {"given": rows}
        self._lake.sql("INSERT INTO n.t BY NAME SELECT * FROM given", data=given)
        self._insert(rows)
        self._lake.sql(f"DELETE FROM n.t WHERE {text}")
        self._oracle.execute(f"DELETE FROM t WHERE {text}")
        if self._v is None or self._kind.is_nested:
            return
        matched = f"WHEN MATCHED AND d.{self._v} IS NOT NULL THEN UPDATE SET w = 77"
        self._lake.sql(
            f"MERGE INTO n.t USING given AS d ON n.t.{self._v} = d.{self._v} AND d.k = 200 {matched}", data=given
        )
        self._oracle.register("given", _for_duckdb(rows))
        self._oracle.execute(f"UPDATE t SET w = 77 FROM given AS d WHERE t.{self._v} = d.{self._v} AND d.k = 200")

    def _compact(self) -> None:
        self._table.maintenance.compact(min_files=2)

    def _rewrite_manifests(self) -> None:
        self._table.maintenance.rewrite_manifests()

    def _export(self) -> None:
        self._lake.export(str(self._folder / "export"), mode="minimal")
        self._lake = tl.open(str(self._folder / "export"))
        assert self._lake.maintenance.fsck("all").is_sound

    def _relocate(self) -> None:
        shutil.copytree(self._folder / "lake", self._folder / "moved")
        self._lake = tl.open(str(self._folder / "moved"), durability="none")
        self._lake.maintenance.relocate()

    def _restore(self) -> None:
        version = self._lake.version
        self._table.delete("k >= 0")
        self._lake.drop_table("n.t")
        self._lake.rollback(version, objects="n.t")

    # The comparison

    @property
    def metadata_location(self) -> str:
        """URI of the current metadata file of the table."""
        return self._table.iceberg.metadata_location

    def compare(self, found: Mapping[str, pa.Table], after: str) -> None:
        """Compare the rows of each reader, by its name, with those of DuckDB. Raises `AssertionError`."""
        expected = _canonical(self._oracle.execute("SELECT * FROM t").to_arrow_table(), self._types())
        for reader, rows in found.items():
            there = _canonical(rows, self._types())
            assert there == expected, f"{reader} after {after}: {_difference(there, expected)}"

    def _compare(self, after: str) -> None:
        table = self._table
        found = {"scan": table.scan().to_arrow()}
        if self._v is None or self._kind.is_in_sql:
            found["sql"] = self._lake.sql("SELECT * FROM n.t").to_arrow()
        # Unmodified PyIceberg cannot read manifests with nanosecond partition values, and reads a NULL list of structs
        # as an empty list.
        is_partitioned = {"v", "respecified"} & {self.case.transform, self.case.evolution}
        if self.case.kind != "nested" and not (self.case.kind in ("timestamp_ns", "timestamptz_ns") and is_partitioned):
            found["PyIceberg"] = self._stock.rows(table.iceberg.metadata_location)
        self.compare(found, after)

    def _compare_filters(self) -> None:
        if self._v is None:
            return
        v = self._v
        conditions: list[tuple[expressions.BooleanExpression, str]] = [
            (expressions.IsNull(v), f"{v} IS NULL"),
            (expressions.NotNull(v), f"{v} IS NOT NULL"),
        ]
        if self._kind.compared:
            values = [self._kind.literal(one).value for one in self._kind.compared[:2]]
            conditions.append((expressions.In(v, values), self._among(2)))
        conditions += [
            (made(v, self._kind.literal(value)), f"{v} {operator} {self._text(value)}")
            for value in self._kind.compared
            for operator, made in _COMPARISONS.items()
        ]
        conditions = random.Random(str(self.case)).sample(conditions, min(_FILTERS, len(conditions)))
        table = self._table
        for number, (expression, text) in enumerate(conditions):
            query = f"SELECT coalesce(k, -1) AS k FROM {{}} WHERE {text} ORDER BY 1"
            expected = [k for (k,) in self._oracle.execute(query.format("t")).fetchall()]
            scan = table.scan(expression)
            keys = sorted(-1 if k is None else k for k in scan.to_arrow()["k"].to_pylist())
            assert keys == expected, f"scan({expression}): {keys} instead of {expected}"
            if number >= _FILTERS_IN_SQL:
                continue
            assert scan.count() == len(expected), f"scan({expression}).count()"
            if self._kind.is_in_sql:
                keys = [k for (k,) in self._lake.sql(query.format("n.t")).fetchall()]
                assert keys == expected, f"sql WHERE {text}: {keys} instead of {expected}"

    def _among(self, count: int) -> str:
        return f"{self._v} IN ({', '.join(map(self._text, self._kind.compared[:count]))})"

    def _types(self) -> dict[str, pa.DataType]:
        return {"k": pa.int64(), "w": pa.int64()} | ({} if self._v is None else {self._v: self._kind.arrow})


def _for_duckdb(rows: pa.Table) -> pa.Table:
    """DuckDB has other types for fixed-length binaries, UUIDs and nanoseconds with a time zone."""
    for number, field in enumerate(rows.schema):
        other = {pa.timestamp("ns", "UTC"): pa.timestamp("ns")}.get(field.type)
        if pa.types.is_fixed_size_binary(field.type):
            other = pa.binary()
        if other is not None:
            rows = rows.set_column(number, field.name, rows.column(number).cast(other))
    return rows


def _canonical(rows: pa.Table, types: dict[str, pa.DataType]) -> list[tuple[str, ...]]:
    """Rows as sorted texts, to compare them regardless of order."""
    assert sorted(rows.column_names) == sorted(types), f"columns {rows.column_names}"
    columns = [_texts(rows.column(name).combine_chunks(), kind) for name, kind in sorted(types.items())]
    return sorted(zip(*columns, strict=True))


def _texts(values: pa.Array, kind: pa.DataType) -> list[str]:
    if pa.types.is_temporal(kind):
        values = values.cast(kind).cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [_value_text(value) for value in values.to_pylist()]


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value).hex() + f" {value}"
    return str(value)


def _difference(found: Sequence[tuple[str, ...]], expected: Sequence[tuple[str, ...]]) -> str:
    more, less = [*found], [*expected]
    for row in expected:
        if row in more:
            more.remove(row)
            less.remove(row)
    return f"rows {more[:3]} instead of {less[:3]}"
