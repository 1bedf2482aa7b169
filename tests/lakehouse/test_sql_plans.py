"""Plans of DuckDB use row counts and bounds of files, and no state of other queries."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import local_path, write_parquet_of_size
from trinitylake.tables.queries import running, source
from trinitylake.tables.queries.source import TableSource
from waiting import in_threads


@pytest.fixture(scope="module")
def tpch(tmp_path_factory: pytest.TempPathFactory) -> tuple[tl.Lakehouse, Any, list[str]]:
    """The tables of TPC-H in a lakehouse, a DuckDB connection with views of their files, and the 22
    queries.

    Some tables have one file, others several.
    """
    package = importlib.util.find_spec("duckdb_extension_tpch")
    assert package is not None
    assert package.origin is not None
    made = duckdb.connect()
    extension = next(Path(package.origin).parent.rglob("tpch.duckdb_extension"))
    made.execute(f"LOAD '{extension}'")
    made.execute("CALL dbgen(sf = 0.01)")
    lake = tl.create(tmp_path_factory.mktemp("tpch") / "lake", durability="none")
    lake.create_namespace("tpch")
    plain = duckdb.connect()
    for (name,) in made.execute("SHOW TABLES").fetchall():
        rows = made.execute(f"FROM {name}").to_arrow_table()
        with lake.transaction() as txn:
            table = txn.create_table(f"tpch.{name}", rows.schema)
            for start in range(0, len(rows), 20_000):
                table.append(rows.slice(start, 20_000))
        tasks = lake.table(f"tpch.{name}").scan().iceberg.plan_files()
        files = [str(local_path(task.file.file_path)) for task in tasks]
        plain.execute(f"CREATE VIEW {name} AS FROM read_parquet({files})")
    queries = [query for _, query in made.execute("SELECT * FROM tpch_queries() ORDER BY 1").fetchall()]
    return lake, plain, queries


@pytest.mark.parametrize("number", range(1, 23))
def test_tpch_queries_return_the_rows_of_duckdb(tpch: tuple[tl.Lakehouse, Any, list[str]], number: int) -> None:
    lake, plain, queries = tpch
    ours = lake.sql(queries[number - 1], default_namespace="tpch").fetchall()
    theirs = plain.execute(queries[number - 1]).fetchall()
    assert len(ours) == len(theirs)
    for row, expected in zip(ours, theirs, strict=True):
        for one, other in zip(row, expected, strict=True):
            assert math.isclose(one, other, rel_tol=1e-9) if isinstance(one, float) else one == other


def test_filters_of_joins_reach_the_plans_of_tables(tpch: tuple[tl.Lakehouse, Any, list[str]]) -> None:
    """Filters of queries with joins are pushed down, also if DuckDB swaps the sides of a join."""
    lake, _, queries = tpch
    for number, query in enumerate(queries, 1):
        prepared = lake.sql(query, default_namespace="tpch")._prepared
        assert prepared._tables().keys() <= prepared._pushed.keys(), number
    third = lake.sql(queries[2], default_namespace="tpch")._prepared
    assert "1995-03-15" in str(third.filter_of(("tpch", "orders")))


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on disk, whose files DuckDB reads itself."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    return lake


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    return lake.create_table("a.t", {"x": "bigint", "y": "bigint"})


def plan_of(table: tl.Table, where: str = "true") -> str:
    """The plan of DuckDB for the rows of a table."""
    of = TableSource(table)
    text = of.rows(of.planned(None), "none")
    (row,) = duckdb.connect().execute(f"EXPLAIN SELECT x FROM ({text}) WHERE {where}").fetchall()
    return str(row[1])


def test_duckdb_knows_how_many_rows_a_table_has(table: tl.Table) -> None:
    """DuckDB knows the number of rows of a table, by which it orders joins. If it assumed that every table is small,
    the fifth query of TPC-H at scale 1 would take 17 times as long."""
    for rows in (10, 4_990, 700):
        table.append({"x": range(rows), "y": range(rows)})
    assert set(re.findall(r"~([\d,]+) rows", plan_of(table))) == {"5,700"}


def test_duckdb_knows_the_bounds_of_a_table_of_one_file(table: tl.Table) -> None:
    table.append({"x": range(1000), "y": range(1000)})
    empty = re.compile("empty.result", re.IGNORECASE)
    assert empty.search(plan_of(table, "x > 2000"))
    assert not empty.search(plan_of(table, "x > 900"))


def written_elsewhere(table: tl.Table, names: list[str], ids: list[int | None]) -> None:
    """Replace the only file of the table by a file of another writer. Its first column has the value 1, the second one
    2, and so on."""
    (task,) = table.scan().iceberg.plan_files()
    fields = [
        pa.field(name, pa.int64(), metadata=None if id is None else {"PARQUET:field_id": str(id)})
        for name, id in zip(names, ids, strict=True)
    ]
    rows = pa.table([[number] for number in range(1, len(names) + 1)], schema=pa.schema(fields))
    write_parquet_of_size(rows, local_path(task.file.file_path), task.file.file_size_in_bytes)


@pytest.mark.parametrize(
    ("names", "ids", "expected"),
    [
        (["x", "y"], [1, 2], (1, 2)),
        (["y", "x"], [2, 1], (2, 1)),
        (["x", "y"], [2, 1], (2, 1)),
        (["y", "x"], [1, 2], (1, 2)),
        (["x", "z", "y"], [1, 7, 2], (1, 3)),
        (["x", "y"], [1, 9], (1, None)),
        (["x", "X"], [1, 2], (1, 2)),
        (["x"], [1], (1, None)),
    ],
)
def test_columns_of_other_writers_are_found_by_id(
    lake: tl.Lakehouse, table: tl.Table, names: list[str], ids: list[int | None], expected: tuple[int | None, ...]
) -> None:
    """DuckDB reads a file by names of columns only if this has the same result as by ids."""
    table.append({"x": [0], "y": [0]})
    written_elsewhere(table, names, ids)
    assert lake.sql("SELECT x, y FROM a.t").fetchall() == [expected]


def test_a_name_in_capitals_is_another_column(lake: tl.Lakehouse, table: tl.Table) -> None:
    """A column in a file whose name differs only in case is another column. DuckDB considers both names equal, and
    calls the second column of the file `x_1`."""
    table.append({"x": [0], "y": [0]})
    written_elsewhere(table, ["X", "x", "y"], [8, 1, 2])
    assert lake.sql("SELECT x, y FROM a.t").fetchall() == [(2, 3)]


@pytest.mark.parametrize("by_name", [True, False])
def test_nan_is_found_by_a_join(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, by_name: bool) -> None:
    """A join finds NaN. DuckDB adds filters during a join, here `x > 51`, which excluded a row group by bounds without
    NaN."""
    if not by_name:
        monkeypatch.setattr(source, "has_columns_by_name", lambda path, columns: False)
    lake.create_table("a.f", {"x": "double"}).append({"x": [1.0, math.nan, 3.0]})
    assert lake.sql("SELECT count(*) FROM a.f JOIN a.f AS g ON f.x > g.x + 50").fetchone() == (2,)
    assert lake.sql("SELECT count(*) FROM a.f WHERE x >= ALL (SELECT x FROM a.f)").fetchone() == (1,)
    assert math.isnan(lake.sql("SELECT max(x) FROM a.f").fetchall()[0][0])


def test_pooled_connection_has_no_state_of_earlier_queries(lake: tl.Lakehouse, table: tl.Table) -> None:
    """A pooled connection keeps no state of earlier queries, because the next query may come from another user."""
    lake.create_table("a.other", {"z": "text"})
    lake.sql("SELECT * FROM a.t, given", data={"given": [{"n": 1}]}).fetchall()
    lake.sql("SELECT setseed(0.5), x FROM a.t, a.other").fetchall()
    with running.planning("a test") as connection:
        made = connection.execute("SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views()")
        names = {name for (name,) in made.fetchall()}
        assert not names & {"t", "other", "given"}
        with pytest.raises(duckdb.CatalogException):
            connection.execute("FROM given")
    with pytest.raises(tl.ObjectNotFound):
        lake.sql("SELECT * FROM given")


def test_planning_connection_is_pooled_and_closed_after_an_error(table: tl.Table, lake: tl.Lakehouse) -> None:
    lake.sql("SELECT x FROM a.t")
    kept = list(running._idle[os.getpid()])
    assert kept
    lake.sql("SELECT y FROM a.t")
    assert running._idle[os.getpid()] == kept
    with pytest.raises(tl.InvalidArgument):
        lake.sql("SELECT nothing FROM a.t")
    assert len(running._idle[os.getpid()]) == len(kept) - 1


def test_a_duckdb_whose_plans_are_not_known_is_refused(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of DuckDB whose parsed queries have another form is refused by name, instead of failing with a
    `KeyError`."""
    monkeypatch.setattr(duckdb, "__version__", "2.1.0")
    with pytest.raises(tl.InvalidArgument, match=r"needs DuckDB before 2\.1, and 2\.1\.0 is installed"):
        lake.sql("WITH one AS (SELECT 1 AS x) SELECT x FROM one")


def test_concurrent_queries_do_not_share_state(lake: tl.Lakehouse, table: tl.Table) -> None:
    table.append({"x": range(10), "y": range(10)})
    found: list[Any] = []

    def ask(number: int) -> None:
        for _ in range(5):
            sql = "SELECT count(*), (SELECT n FROM given) FROM a.t WHERE x >= ?"
            found.append(lake.sql(sql, [number], data={"given": [{"n": number}]}).fetchall() == [(10 - number, number)])

    in_threads(ask, range(8))
    assert found == [True] * 40


def _asked(root: str) -> Any:
    return tl.open(root).sql("SELECT count(*) FROM a.t").fetchone()


def test_a_forked_child_plans_with_its_own_connection(lake: tl.Lakehouse, table: tl.Table) -> None:
    """Connections of a parent do not work in a forked child: locks stay locked, and threads do not run."""
    table.append({"x": [1], "y": [2]})
    assert lake.sql("SELECT count(*) FROM a.t").fetchone() == (1,)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_asked, (lake.uri,)).get(60) == (1,)
