"""Values in SQL: NaN, -0.0, infinities and times without a zone have the same meaning in every statement. The oracle is
DuckDB over its own rows.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import trinitylake as tl

NAN, INF = math.nan, math.inf
NUMBERS = [NAN, -0.0, 0.0, 5.0, -INF, INF, None]
CONDITIONS = ["> 1", ">= 1", "< 1", "= 'NaN'", "<> 'NaN'", "<> 5", "IN (0, 7)", "NOT IN (0, 7)", "= 'inf'", "IS NULL"]


def _of_duckdb(type: str, condition: str) -> list[tuple[int]]:
    with duckdb.connect() as oracle:
        oracle.execute(f"CREATE TABLE t (i INT, f {type}, s STRUCT(f {type}), l {type}[])")
        for number, value in enumerate(NUMBERS):
            oracle.execute("INSERT INTO t VALUES (?, ?, {'f': ?}, [?])", [number, value, value, value])
        found: list[tuple[int]] = oracle.execute(f"SELECT i FROM t WHERE {condition} ORDER BY i").fetchall()
        return found


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path_factory.mktemp("numbers") / "lake"), durability="none")
    lake.create_namespace("n")
    rows = [{"i": i, "f": f, "s": {"f": f}, "l": [f]} for i, f in enumerate(NUMBERS)]
    for type in ("float", "double"):
        lake.create_table(f"n.{type}s", {"i": "int", "f": type, "s": f"row(f {type})", "l": f"array<{type}>"})
        lake.table(f"n.{type}s").append(rows)
    return lake


@pytest.mark.sample(24)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("column", ["f", "s.f", "l[1]"])
@pytest.mark.parametrize("type", ["float", "double"])
def test_comparisons_mean_the_same_in_select_update_delete_and_given_rows(
    numbers: tl.Lakehouse, type: str, column: str, condition: str
) -> None:
    """UPDATE missed rows: for Arrow, to which DuckDB passed filters on struct fields, NaN is not greater than 1."""
    table = numbers.table(f"n.{type}s")
    given = {"d": table.scan().to_arrow()}
    where = f"WHERE {column} {condition}"
    expected = _of_duckdb(type, f"{column} {condition}")
    assert numbers.sql(f"SELECT i FROM {table.name} {where} ORDER BY i").fetchall() == expected
    assert numbers.sql(f"SELECT i FROM d {where} ORDER BY i", data=given).fetchall() == expected
    with numbers.begin() as transaction:
        updated = transaction.sql(f"UPDATE {table.name} SET i = i + 10 {where}").fetchone()
        deleted = transaction.sql(f"DELETE FROM {table.name} {where}").fetchone()
        assert (updated, deleted) == ((len(expected), 0, 0, None), (0, len(expected), 0, None))
        left = transaction.table(table.name).scan().to_arrow()["i"].to_pylist()
        assert sorted(left) == [i for i in range(len(NUMBERS)) if (i,) not in expected]
        transaction.rollback()


def test_a_number_beyond_the_range_of_a_column_is_refused(lake: tl.Lakehouse) -> None:
    """A number beyond the range of a `float` column is refused, instead of becoming infinite."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"k": "int", "f": "float", "s": "row(f float)", "l": "array<float>"})
    for bad in ({"f": 1e300}, {"s": {"f": -1e300}}, {"l": [0.0, 1e300]}):
        for write in (table.append, table.overwrite, lambda rows: table.upsert(rows, on="k")):
            with pytest.raises(tl.InvalidArgument, match="out of range"):
                write([{"k": 1, **bad}])
    table.append([{"k": 1, "f": INF, "s": {"f": -INF}, "l": [NAN, INF]}, {"k": 2, "f": 1e-300}])
    found = table.scan().to_arrow().sort_by("k")
    assert found["f"].to_pylist() == [INF, 0.0]
    assert found["s"].to_pylist() == [{"f": -INF}, None]


WRITES_OF_INFINITY = (
    "INSERT INTO n.t VALUES (2, 'infinity', NULL, NULL, NULL)",
    "INSERT INTO n.t (k, t) SELECT 2, '-infinity'::timestamp",
    "INSERT INTO n.t (k, s) VALUES (2, {'z': ['infinity'::timestamptz]})",
    "UPDATE n.t SET z = 'infinity' WHERE k = 1",
    "MERGE INTO n.t AS t USING (SELECT 1 AS k) AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET d = '-infinity'",
    "CREATE TABLE n.u AS SELECT 'infinity'::date AS d",
)


def test_infinity_as_a_date_or_timestamp_is_refused(lake: tl.Lakehouse) -> None:
    """Stored as the largest number, it would be a date in the year 5881580 for other readers."""
    lake.create_namespace("n")
    columns = {"k": "int", "d": "date", "t": "timestamp", "z": "timestamptz", "s": "row(z array<timestamptz>)"}
    table = lake.create_table("n.t", columns)
    table.append({"k": [1]})
    for sql in WRITES_OF_INFINITY:
        with pytest.raises(tl.InvalidArgument, match="infinity does not exist in Iceberg"):
            lake.sql(sql)
    rows = duckdb.sql("SELECT 1::int AS k, 'infinity'::timestamp AS t")
    for write in (table.append, table.overwrite, lambda rows: table.upsert(rows, on="k")):
        with pytest.raises(tl.InvalidArgument, match="infinity does not exist in Iceberg"):
            write(rows)
    assert table.scan().to_arrow().to_pylist() == [{"k": 1, "d": None, "t": None, "z": None, "s": None}]
    assert not lake.exists("n.u")


@pytest.mark.parametrize("type", ["float", "double"])
def test_an_upsert_changes_zero_into_negative_zero(lake: tl.Lakehouse, type: str) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"k": "int", "f": type, "s": f"row(f {type})"})
    table.append([{"k": 1, "f": 0.0, "s": {"f": 0.0}}, {"k": 2, "f": NAN, "s": {"f": NAN}}])
    assert table.upsert([{"k": 1, "f": -0.0}, {"k": 2, "f": NAN}], on="k") == (1, 0)
    assert table.upsert([{"k": 1, "s": {"f": -0.0}}], on="k") == (1, 0)
    (row,) = table.scan("k = 1").to_arrow().to_pylist()
    assert [math.copysign(1, row["f"]), math.copysign(1, row["s"]["f"])] == [-1, -1]


OF_ANOTHER_ZONE = """
import json, sys, datetime as dt
import pyarrow as pa
import trinitylake as tl
lake = tl.create(sys.argv[1], durability="none")
lake.create_namespace("n")
table = lake.create_table("n.t", {"id": "int", "ts": "timestamptz"})
naive = pa.table({"id": pa.array([1], pa.int32()), "ts": pa.array([dt.datetime(2020, 6, 1)], pa.timestamp("us"))})
table.append(naive)
lake.sql("INSERT INTO n.t SELECT 2, ts FROM d", data={"d": naive})
lake.create_view("n.v", "SELECT id FROM n.t WHERE ts >= '2020-06-01'", dialect="duckdb")
lake.sql("UPDATE n.t SET ts = '2020-06-02' WHERE id = 2 AND ts = '2020-06-01'")
print(json.dumps([
    [str(row["ts"]) for row in lake.table("n.t").scan().to_arrow().sort_by("id").to_pylist()],
    lake.sql("SELECT id FROM n.v ORDER BY id").fetchall(),
    lake.sql("SELECT id FROM n.t WHERE ts = '2020-06-01'", allow_external=True).fetchall(),
    [str(row[0]) for row in lake.sql("SELECT ts::TIMESTAMP FROM n.t ORDER BY id").fetchall()],
    table.merge(naive, on="id").when_matched_update({"id": "7"}, condition="target.ts = '2020-06-01'").execute(),
]))
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_times_without_a_zone_are_in_utc_whatever_the_zone_of_the_machine(tmp_path: Path, zone: str) -> None:
    command = [sys.executable, "-c", OF_ANOTHER_ZONE, str(tmp_path / "lake")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": zone})
    assert json.loads(run.stdout) == [
        ["2020-06-01 00:00:00+00:00", "2020-06-02 00:00:00+00:00"],
        [[1], [2]],
        [[1]],
        ["2020-06-01 00:00:00", "2020-06-02 00:00:00"],
        [1, 0, 0],
    ]


def test_filters_on_times_with_a_zone_need_no_other_library(lake: tl.Lakehouse) -> None:
    """Filters on times with a zone do not need pytz, which DuckDB requires to convert constants for Arrow."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "int", "ts": "timestamptz"})
    moments = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)]
    table.append([{"id": 1, "ts": moments[0]}, {"id": 2, "ts": None}])
    among = "ts IN (TIMESTAMPTZ '2020-01-01 00:00:00+00', TIMESTAMPTZ '2020-01-02 00:00:00+00')"
    given = {"d": pa.table({"ts": pa.array(moments, pa.timestamp("us", "UTC"))})}
    assert lake.sql(f"SELECT count(*) FROM d WHERE {among}", data=given).fetchall() == [(2,)]
    assert lake.sql(f"UPDATE n.t SET id = 5 WHERE {among}").fetchone() == (1, 0, 0, lake.version)
    assert lake.sql("DELETE FROM n.t WHERE ts IN (SELECT ts FROM d)", data=given).fetchone() == (0, 1, 0, lake.version)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE n.t SET a = 'q' WHERE n.t.id = 1", (1, 0, 0)),
        ("UPDATE n.t SET a = N.T.a || 'q' WHERE n . t . id = (SELECT max(n.t.id) FROM n.t)", (1, 0, 0)),
        ('UPDATE "n"."t" SET a = d.a FROM d WHERE n."t".id = d.id', (1, 0, 0)),
        ("DELETE FROM n.t WHERE n.t.id = 1", (0, 1, 0)),
        ("DELETE FROM n.t USING d WHERE n.t.id = d.id", (0, 1, 0)),
        ("MERGE INTO n.t USING d ON n.t.id = d.id WHEN MATCHED AND n.t.id = 1 THEN UPDATE SET a = n.t.a", (1, 0, 0)),
    ],
)
def test_columns_are_named_with_the_namespace_of_their_table(
    lake: tl.Lakehouse, statement: str, expected: tuple[int, ...]
) -> None:
    """SELECT accepted `n.t.id`; UPDATE, DELETE and MERGE, which replace the table by a query named `t`, did not."""
    lake.create_namespace("n")
    lake.create_table("n.t", {"id": "bigint", "a": "text"}).append([{"id": 1, "a": "x"}])
    assert lake.sql(statement, data={"d": [{"id": 1, "a": "z"}]}).fetchone() == (*expected, lake.version)
