"""SQL queries over a lakehouse: the rows that they return, and the files that they read."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import tempfile
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic_core import SchemaValidator
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType, TimestamptzNanoType

import trinitylake as tl
from trinitylake.iceberg_storage.errors import translated
from trinitylake.tables.queries import source
from trinitylake.tables.queries.prepared import PreparedQuery, QueryLimits, QueryOptions
from trinitylake.tables.queries.query import Query
from trinitylake.tables.queries.running import interruptible
from trinitylake.tables.queries.source import PlannedRows, TableSource
from waiting import PATIENCE_SECONDS


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_namespace("shop.old")
        orders = txn.create_table(
            "shop.orders", {"id": "bigint", "day": "date", "item": "text", "price": "double"}, partition_spec="day"
        )
        for number in range(4):
            orders.append(
                {"id": [number], "day": [dt.date(2026, 1, 1 + number)], "item": [f"i{number}"], "price": [1.5 * number]}
            )
        txn.create_table("shop.items", {"item": "text", "name": "text"}).append(
            [{"item": "i1", "name": "one"}, {"item": "i2", "name": "two"}]
        )
        txn.create_table("shop.old.orders", {"id": "bigint"}).append({"id": [10, 11]})
    return lake


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[PlannedRows]:
    """The planned reads of all queries in a test."""
    seen = []
    plan = TableSource.planned

    def watched(self: TableSource, filter: Any) -> PlannedRows:
        seen.append(plan(self, filter))
        return seen[-1]

    monkeypatch.setattr(TableSource, "planned", watched)
    return seen


def n_files(rows: PlannedRows) -> int:
    return len(rows.files) + len(rows.scanned_files)


def test_query_results_have_every_output_form(shop: tl.Lakehouse) -> None:
    query = shop.sql("SELECT id, name FROM shop.orders JOIN shop.items USING (item) ORDER BY id")
    rows = [(1, "one"), (2, "two")]
    assert query.fetchall() == rows
    assert query.fetchone() == rows[0]
    assert query.columns == ["id", "name"]
    assert query.types == ["BIGINT", "VARCHAR"]
    texts = pa.array(["one", "two"], pa.large_string())  # as scans have them
    assert query.to_arrow() == pa.table({"id": [1, 2], "name": texts})
    assert query.to_arrow_batch_reader().read_all() == query.to_arrow()
    assert query.to_polars().rows() == rows
    assert [tuple(row) for row in query.to_pandas().itertuples(index=False)] == rows
    assert pl.DataFrame(query).rows() == rows
    assert pa.table(query) == query.to_arrow()
    assert duckdb.sql("SELECT id FROM query WHERE name = 'two'").fetchall() == [(2,)]
    assert query.to_duckdb("q").execute("SELECT count(*) FROM q").fetchone() == (2,)
    shop.create_table("shop.named", query.to_arrow()).append(query)
    assert shop.sql("FROM shop.named").fetchall() == rows


def test_a_query_is_shown_as_a_table(shop: tl.Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    shop.table("shop.items").append([{"item": "\x1b[31mred\n", "name": "<b>日本</b>"}])
    query = shop.sql("SELECT item, name, length(name) AS n FROM shop.items ORDER BY item")
    shown = repr(query).splitlines()
    assert shown[0].split() == ["item", "name", "n"]
    assert shown[2].startswith("\\u{1b}[31mred\\u{a}")
    assert shown[-1] == "(3 rows)"
    query.show(limit=1)
    assert capsys.readouterr().out.splitlines()[-1] == "(the first 1 rows)"
    html = query._repr_html_()
    assert "&lt;b&gt;日本&lt;/b&gt;" in html
    assert "<b>" not in html


def test_query_reads_the_version_on_which_it_was_prepared(shop: tl.Lakehouse) -> None:
    query = shop.sql("SELECT count(*) FROM shop.items")
    shop.table("shop.items").append([{"item": "i3", "name": "three"}])
    assert query.fetchone() == (2,)
    assert shop.sql("SELECT count(*) FROM shop.items").fetchone() == (3,)
    assert shop.at(1).sql("SELECT count(*) FROM shop.items").fetchone() == (2,)


def test_a_query_reads_one_version(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables of a query are read in one version, so that it never sees half of a concurrent transaction."""
    look_up = TableSource.__init__

    def watched(self: TableSource, table: Any) -> None:
        look_up(self, table)
        monkeypatch.setattr(TableSource, "__init__", look_up)
        with shop.transaction() as other:
            for name in ("shop.items", "shop.old.orders"):
                other.table(name).delete(AlwaysTrue())

    monkeypatch.setattr(TableSource, "__init__", watched)
    sql = "SELECT (SELECT count(*) FROM shop.items), (SELECT count(*) FROM shop.old.orders)"
    assert shop.sql(sql).fetchone() == (2, 2)
    assert shop.sql(sql).fetchone() == (0, 0)


def test_a_query_in_a_transaction_sees_its_writes(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        before = txn.sql("SELECT count(*) FROM shop.items")
        txn.table("shop.items").append([{"item": "i3", "name": "three"}])
        txn.create_table("shop.new", {"x": "bigint"}).append({"x": [7]})
        txn.create_view("shop.both", "SELECT x, name FROM new, items WHERE item = 'i3'")
        assert before.fetchone() == (2,)
        assert txn.sql("SELECT * FROM shop.both").fetchall() == [(7, "three")]
        assert shop.sql("SELECT count(*) FROM shop.items").fetchone() == (2,)
        txn.table("shop.items").delete("item = 'i1'")
        assert txn.sql("SELECT item FROM shop.items ORDER BY 1").fetchall() == [("i2",), ("i3",)]


@pytest.mark.parametrize("read", ["scan", "sql"])
def test_reads_of_a_query_are_tracked_as_those_of_a_scan(shop: tl.Lakehouse, read: str) -> None:
    """The rows that a query reads count as reads of a serializable transaction. Otherwise a total could be committed
    although its source rows have changed."""
    with shop.transaction() as txn:
        txn.create_table("shop.totals", {"n": "bigint"})

    def total(txn: tl.Transaction) -> int:
        if read == "scan":
            return txn.table("shop.items").scan().count()
        return int(txn.sql("SELECT count(*) FROM shop.items").fetchall()[0][0])

    for isolation, is_refused in (("serializable", True), ("snapshot", False)):
        txn = shop.begin(isolation=isolation)  # type: ignore[arg-type]
        txn.table("shop.totals").append({"n": [total(txn)]})
        shop.table("shop.items").append([{"item": "i9", "name": "nine"}])
        if is_refused:
            with pytest.raises(tl.CommitConflict, match=r"shop\.items"):
                txn.commit()
        else:
            txn.commit()
        other = shop.begin(isolation=isolation)  # type: ignore[arg-type]
        other.table("shop.totals").append({"n": [total(other)]})
        shop.table("shop.old.orders").append({"id": [1]})
        other.commit()


def test_reads_of_views_and_absent_names_are_tracked(shop: tl.Lakehouse) -> None:
    shop.create_view("shop.view", "SELECT count(*) AS n FROM items")
    shop.create_table("shop.totals", {"n": "bigint"})
    for write in (
        lambda: shop.replace_view("shop.view", "SELECT 0 AS n"),
        lambda: shop.table("shop.items").append([{"item": "i9", "name": "nine"}]),
    ):
        txn = shop.begin(isolation="serializable")
        txn.table("shop.totals").append(txn.sql("SELECT n FROM shop.view"))
        if shop.view("shop.view").sql != "SELECT 0 AS n":
            write()
            with pytest.raises(tl.CommitConflict):
                txn.commit()
    txn = shop.begin(isolation="serializable")
    with pytest.raises(tl.ObjectNotFound):
        txn.sql("SELECT * FROM shop.late")
    txn.table("shop.totals").append({"n": [0]})
    shop.create_table("shop.late", {"n": "bigint"})
    with pytest.raises(tl.CommitConflict, match=r"shop\.late"):
        txn.commit()


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("day = DATE '2026-01-02'", 1),
        ("day >= DATE '2026-01-03'", 2),
        ("day IN (DATE '2026-01-01', DATE '2026-01-04')", 2),
        ("id = 3", 1),
        ("item LIKE 'i2%'", 1),
        ("id > 1 AND price < 4", 1),
        ("id IS NULL", 0),
        ("id = ?", 1),
        ("price < -1000", 0),
        ("price > 1000", 4),
        ("true", 4),
        ("length(item) = 1", 4),
        ("day > current_date", 4),
        ("id = 1 OR id = 3", 2),
    ],
)
def test_only_files_that_can_hold_matching_rows_are_read(
    shop: tl.Lakehouse, planned: list[PlannedRows], where: str, files: int
) -> None:
    parameters = [2] if "?" in where else None
    shop.sql(f"SELECT * FROM shop.orders WHERE {where}", parameters).fetchall()
    assert [n_files(one) for one in planned] == [files]


def test_a_filter_on_a_view_and_one_from_each_use_of_a_table_count(
    shop: tl.Lakehouse, planned: list[PlannedRows]
) -> None:
    shop.create_view("shop.cheap", "SELECT * FROM orders WHERE price < 100")
    assert shop.sql("SELECT item FROM shop.cheap WHERE id = 2").fetchall() == [("i2",)]
    sql = "SELECT a.id, b.id FROM shop.orders AS a, shop.orders AS b WHERE a.id = 1 AND b.id = 3"
    assert shop.sql(sql).fetchall() == [(1, 3)]
    assert [n_files(one) for one in planned] == [1, 2]


def test_queries_find_nan(shop: tl.Lakehouse) -> None:
    """`price > 1000` finds NaN, which is greater than all numbers but not included in the bounds of files and row
    groups."""
    shop.create_table("shop.prices", {"price": "double", "low": "float"}).append(
        {"price": [1.0, float("nan")], "low": [float("nan"), 2.0]}
    )
    for column in ("price", "low"):
        conditions = ("isnan({})", "{} = 'nan'", "{} IN ('nan', 7)", "NOT {} < 100", "{} > 1000", "{} <> 2 AND {} <> 1")
        for where in (condition.replace("{}", column) for condition in conditions):
            assert shop.sql(f"SELECT count(*) FROM shop.prices WHERE {where}").fetchone() == (1,), where


def test_columns_are_found_by_id_after_evolution(tmp_path: Path) -> None:
    """Queries find columns by id. By name, a column that was dropped and added again would have its former values."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"x": "int", "y": "text", "z": "bigint"})
    table.append(pa.table({"x": pa.array([1], pa.int32()), "y": ["a"], "z": [1]}))
    with table.update_schema() as update:
        update.delete_column("y")
        update.rename_column("z", "w")
        update.update_column("x", LongType())
        update.add_column("n", StringType())
    with table.update_schema() as update:
        update.add_column("y", StringType())
    table.append({"x": [1 << 40], "w": [2], "n": ["b"], "y": ["c"]})
    sql = "SELECT x, w, n, y FROM a.t ORDER BY w"
    assert lake.sql(sql).fetchall() == [(1, 1, None, None), (1 << 40, 2, "b", "c")]
    assert lake.sql("SELECT count(*) FROM a.t WHERE y = 'a'").fetchone() == (0,)


def test_types_are_those_of_a_scan(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    columns = {
        "b": (pa.bool_(), [True, None]),
        "i": (pa.int32(), [1, None]),
        "l": (pa.int64(), [-(1 << 60), None]),
        "f": (pa.float32(), [1.5, None]),
        "d": (pa.float64(), [1.25, None]),
        "m": (pa.decimal128(20, 3), [Decimal("12345678901234567.125"), None]),
        "t": (pa.date32(), [dt.date(1, 1, 1), None]),
        "c": (pa.time64("us"), [dt.time(1, 2, 3, 4), None]),
        "s": (pa.timestamp("us"), [dt.datetime(2026, 1, 1, 1, 2, 3, 4), None]),
        "z": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, 1, 2, 3, 4, dt.UTC), None]),
        "v": (pa.string(), ["é'\"", None]),
        "y": (pa.binary(), [b"\0\xff", None]),
        "o": (pa.struct([("p", pa.int32()), ("q", pa.list_(pa.string()))]), [{"p": 1, "q": ["a", None]}, None]),
        "k": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    }
    rows = pa.table({name: pa.array(values, type) for name, (type, values) in columns.items()})
    lake.create_table("a.t", rows).append(rows)
    found = lake.sql("SELECT * FROM a.t").to_arrow()
    scanned = lake.table("a.t").scan().to_arrow()
    assert found.to_pylist() == scanned.to_pylist()


@pytest.mark.sample(18)
@pytest.mark.parametrize("namespace", ["a.b", "a.b.c", 'say "hi"', "x;y", "memory", "temp", "main", "system", "sélect"])
@pytest.mark.parametrize("name", ["select", 'q"uote', "it's", "semi;colon", "--", "日本", "a b"])
def test_odd_names(lake: tl.Lakehouse, namespace: str, name: str) -> None:
    column = f"{name} of"
    with lake.transaction() as txn:
        txn.create_namespace(namespace)
        txn.create_table((namespace, name), {column: "bigint"}).append({column: [1]})
        txn.create_view((namespace, "view"), f"SELECT * FROM {in_sql(name)}")

    table, quoted = f"{in_sql(namespace)}.{in_sql(name)}", in_sql(column)
    assert lake.sql(f"SELECT {quoted} FROM {table} WHERE {quoted} = 1").fetchall() == [(1,)]
    assert lake.sql(f"SELECT {table}.{quoted} FROM {table}").fetchall() == [(1,)]
    if duckdb.__version__ < "2" or namespace not in ("memory", "temp", "system"):
        # DuckDB 2.0 cannot create a view over a schema that has the name of a database.
        assert lake.sql(f"SELECT * FROM {in_sql(namespace)}.view").fetchall() == [(1,)]


def in_sql(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_a_nested_namespace_may_be_written_without_quotes(shop: tl.Lakehouse) -> None:
    sql = "SELECT shop.old.orders.id FROM shop.old.orders, shop.items WHERE shop.old.orders.id > 10 AND item = 'i1'"
    assert shop.sql(sql).fetchall() == [(11,)]
    sql = 'SELECT o.id FROM "shop.old".orders AS o, shop.orders WHERE shop.orders.id = 0 ORDER BY 1'
    assert shop.sql(sql).fetchall() == [(10,), (11,)]
    with pytest.raises(tl.InvalidArgument, match=r'"a\.b\.c"\.t'):
        shop.sql("SELECT * FROM a.b.c.t")


def test_an_unknown_name_suggests_similar_names(shop: tl.Lakehouse) -> None:
    for sql, words in [
        ("SELECT * FROM shop.order", r"no table or view shop\.order in version 1; did you mean shop\.orders"),
        ("SELECT * FROM shop.ORDERS", r"did you mean shop\.orders"),
        ("SELECT * FROM shp.orders", r"shp\.orders in version 1; did you mean shop\.orders"),
        ("SELECT * FROM orders", r"without a namespace.*shop\.orders"),
        ("SELECT * FROM shop.old", r"no table or view shop\.old"),
        ("SELECT * FROM nothing.at_all", r"no table or view nothing\.at_all in version 1$"),
    ]:
        with pytest.raises(tl.ObjectNotFound, match=words):
            shop.sql(sql)


def test_errors_are_raised_when_the_query_is_made(shop: tl.Lakehouse) -> None:
    for sql, words in [
        ("SELECT nope FROM shop.orders", '"nope" not found'),
        ("SELECT FROM WHERE", r"(?s)syntax error.*\^"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("", "one statement"),
        ("SELECT * FROM shop.orders AT (VERSION => '2026-11-24')", "a number or 'tag:NAME'"),
        ("SELECT * FROM shop.orders AT (TIMESTAMP => 3)", "a number or 'tag:NAME'"),
        ("SELECT * FROM shop.orders AT (VERSION => id)", "not a constant"),
        ("SELECT * FROM shop.orders AT (VERSION => 1) AS x", "An alias stands before AT"),
        ("SELECT * FROM shop.orders AT (VERSION => getenv('HOME'))", "getenv is not allowed"),
        ("SELECT id + item FROM shop.orders WHERE id = 'x'", "x"),
        ("SELECT " + "abs(" * 3000 + "1" + ")" * 3000, "depth|deep"),
        ("SELECT ?", "arameter"),
    ]:
        with pytest.raises(tl.InvalidArgument, match=words):
            shop.sql(sql).fetchall()


def test_error_shows_the_position_in_the_query(shop: tl.Lakehouse) -> None:
    """Errors quote the line of the user's query. They quoted a line with DESCRIBE, which this library adds to find the
    columns of a query."""
    with pytest.raises(tl.InvalidArgument) as caught:
        shop.sql("SELECT nothing FROM shop.orders")
    *_, line, pointer = caught.value.message.splitlines()
    assert line == "LINE 1: SELECT nothing FROM shop.orders"
    assert pointer.index("^") == line.index("nothing")


def test_errors_of_rows_name_the_column(shop: tl.Lakehouse) -> None:
    query = shop.sql("SELECT item::INTEGER FROM shop.items")
    for read in (query.fetchall, query.to_arrow, lambda: query.to_arrow_batch_reader().read_all(), query.__repr__):
        with pytest.raises(tl.InvalidArgument, match=r"i[12]"):
            read()


def test_views_may_refer_to_views_but_not_to_themselves(shop: tl.Lakehouse) -> None:
    shop.create_view("shop.a", "SELECT id, item FROM orders", dialect="duckdb")
    shop.create_view("shop.old.b", "SELECT * FROM shop.a JOIN orders USING (id)")
    shop.create_view(
        "shop.c", {"spark": "SELECT nonsense(", "duckdb": "SELECT id FROM orders;  "}, default_namespace="shop.old"
    )
    assert shop.sql("SELECT count(*) FROM shop.old.b").fetchone() == (0,)
    assert shop.sql("SELECT id FROM shop.c ORDER BY 1").fetchall() == [(10,), (11,)]
    version = shop.version
    shop.replace_view("shop.a", 'SELECT * FROM "shop.old".b')
    with pytest.raises(tl.InvalidArgument, match=r"view shop\.a refers to itself"):
        shop.sql("SELECT * FROM shop.a")
    assert shop.at(version).sql("SELECT count(*) FROM shop.a").fetchone() == (4,)
    shop.replace_view("shop.a", "SELECT * FROM nowhere")
    with pytest.raises(tl.ObjectNotFound, match=r"view shop\.a: .*shop\.nowhere"):
        shop.sql("SELECT * FROM shop.a")


def test_parameters_and_rows_are_given_by_name(shop: tl.Lakehouse) -> None:
    assert shop.sql("SELECT id FROM shop.orders WHERE id = ? AND item = ?", [1, "i1"]).fetchall() == [(1,)]
    assert shop.sql("SELECT id FROM shop.orders WHERE id = $id", {"id": 1}).fetchall() == [(1,)]
    assert shop.sql("SELECT $it", {"it": "'; DROP TABLE x; --"}).fetchall() == [("'; DROP TABLE x; --",)]
    new = [{"id": 3, "note": "n"}]
    sql = "SELECT note, item FROM new JOIN shop.orders USING (id)"
    assert shop.sql(sql, data={"new": new}).fetchall() == [("n", "i3")]
    assert shop.sql(sql, data={"new": pl.LazyFrame(new)}).fetchall() == [("n", "i3")]
    assert shop.sql(
        "SELECT note FROM new JOIN orders USING (id)", data={"new": new}, default_namespace="shop"
    ).fetchall() == [("n",)]
    with pytest.raises(tl.ObjectNotFound, match="new"):
        shop.sql(sql)


@pytest.mark.parametrize("value", [pd.Timestamp(7200000000001), [pd.Timestamp(1, tz="UTC")], pd.Timedelta(1001)])
def test_a_parameter_with_nanoseconds_is_refused(shop: tl.Lakehouse, value: object) -> None:
    """An update with a timestamp of pandas stored it without its nanoseconds, because DuckDB cut them."""
    with pytest.raises(tl.InvalidArgument, match="nanoseconds"):
        shop.sql("SELECT ?", [value])
    micros = pd.Timestamp(7200000001000)
    assert shop.sql("SELECT ?", [micros]).fetchall() == [(micros.to_pydatetime(),)]


def test_names_that_differ_only_in_case_are_distinguished_or_refused(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    lake.create_table("a.t", {"x": "bigint", "X": "bigint"}).append({"x": [1], "X": [2]})
    lake.create_table("a.T", {"x": "bigint"}).append({"x": [3]})
    assert lake.sql("SELECT * FROM a.t").fetchall() == [(1, 2)]
    assert lake.sql("SELECT X_1 FROM a.t WHERE X_1 = 2").fetchall() == [(2,)]
    assert lake.sql("SELECT x FROM a.T").fetchall() == [(3,)]
    with pytest.raises(tl.InvalidArgument, match=r"a\.t and a\.T are one name"):
        lake.sql("SELECT * FROM a.t, a.T")


def test_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"x": "bigint"})
    table.append({"x": list(range(100))})
    table.delete("x >= 50")
    assert lake.sql("SELECT count(*), max(x) FROM a.t").fetchone() == (50, 49)


def test_a_missing_data_file_raises_corrupt_file(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"x": "bigint"}).append({"x": [1]})
    query = lake.sql("SELECT * FROM a.t")
    (file,) = (tmp_path / "lake").rglob("*.parquet")
    file.unlink()
    with pytest.raises(tl.CorruptFile, match=r"a\.t in version 3: .*does not exist") as caught:
        query.fetchall()
    assert caught.value.path == str(file.relative_to(tmp_path / "lake"))


@pytest.mark.parametrize("is_direct", [True, False])
def test_duckdb_reader_and_own_scan_give_equal_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool, planned: list[PlannedRows]
) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    rows = pa.table({"x": list(range(1000)), "s": [str(number % 7) for number in range(1000)]})
    lake.create_table("a.t", rows).append(rows)
    if not is_direct:
        monkeypatch.setattr(source, "are_read_alike", lambda metadata: False)
    sql = "SELECT u.s, sum(x) FROM a.t JOIN a.t AS u USING (x) WHERE x > 10 AND t.s <> '3' GROUP BY 1 ORDER BY 1"
    plain = sql.replace("a.t AS u", "rows AS u").replace("a.t", "rows AS t")
    assert lake.sql(sql).fetchall() == duckdb.sql(plain).fetchall()
    assert (planned[0].scanned is None) is is_direct


def test_large_queries_spill_to_disk_and_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query above its memory limit spills to a folder, which is removed afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"id": "bigint"}).append({"id": [1]})
    options = QueryOptions(limits=QueryLimits(64 << 20))
    sql = "SELECT md5((x + id)::VARCHAR) AS word FROM a.t, range(1_600_000) AS r(x) ORDER BY word"
    batches = Query(PreparedQuery(sql, lake.at(), options)).to_arrow_batch_reader()
    first = batches.read_next_batch()
    assert [one for one in tmp_path.glob("trinitylake-sql-*/spilled/*") if one.stat().st_size]
    words = pa.chunked_array([batch.column(0) for batch in [first, *batches]])
    assert len(words) == 1_600_000
    assert pc.all(pc.less_equal(words[:-1], words[1:])).as_py()
    assert not list(tmp_path.glob("trinitylake-sql-*"))


def test_reading_takes_no_more_memory_than_a_stream_needs(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    stream = lake.sql("SELECT range AS x FROM range(10_000_000_000)").to_arrow_batch_reader()
    assert stream.read_next_batch().num_rows > 0


def test_a_recursive_query_begins_with_what_has_its_name(lake: tl.Lakehouse) -> None:
    """In the first half of a recursive query, the name of the query means the table with this name, not the query's own
    rows."""
    lake.create_namespace("a")
    lake.create_table("a.parts", {"id": "bigint"}).append({"id": [1]})
    lake.create_view(
        "a.v", "WITH RECURSIVE parts AS (FROM parts UNION ALL SELECT id + 1 FROM parts WHERE id < 3) FROM parts"
    )
    assert lake.sql("SELECT id FROM a.v ORDER BY id").fetchall() == [(1,), (2,), (3,)]


def test_letters_beyond_ascii_are_case_sensitive(lake: tl.Lakehouse) -> None:
    """Names with "é" and "É" are different, as in DuckDB. Otherwise a column would have a wrong name, or rows would be
    missing."""
    lake.create_namespace("a")
    lake.create_table("a.é", {"é": "bigint", "É": "bigint"}).append({"é": [1], "É": [2]})
    lake.create_table("a.É", {"x": "bigint"}).append({"x": [3]})
    assert lake.sql("SELECT é, É, x FROM a.é, a.É").fetchall() == [(1, 2, 3)]
    assert lake.sql("SELECT É.z FROM É", data={"É": [{"z": 1}]}).fetchall() == [(1,)]


def test_decimal_parameters_are_exact(shop: tl.Lakehouse) -> None:
    """Decimal parameters keep their value. DuckDB interprets Decimal("1E+3") as 1.000 and -Infinity as Infinity."""
    for number in ["1E+3", "-2.5E+4", "0E+2", "1E-30", "-0.10", "Infinity", "-Infinity", "1E+37"]:
        value = Decimal(number)
        row = shop.sql("SELECT ?, ?, ?", [value, [value], {"x": value}]).fetchone()
        assert row == (value, [value], {"x": value}), number


def test_a_parameter_may_hold_any_letter(shop: tl.Lakehouse) -> None:
    """A parameter may contain every character, also a zero byte, which SQL cannot express."""
    assert shop.sql("SELECT id, ? FROM shop.orders WHERE item <> $1 ORDER BY id LIMIT 1", ["a\0b"]).fetchone() == (
        0,
        "a\0b",
    )
    assert shop.sql("SELECT ?", [Decimal("sNaN")]).fetchone() != (0,)


def test_query_runs_without_a_serialized_plan(shop: tl.Lakehouse) -> None:
    """A query with a plan that DuckDB cannot serialize, such as one with a constant of type BIT, is run without pushed
    filters."""
    assert shop.sql("SELECT id FROM shop.orders WHERE '101'::BIT = '101'::BIT AND id = 1").fetchall() == [(1,)]
    assert shop.sql("SELECT '101'::BIT").fetchall() == [("101",)]


def test_no_value_changes_on_its_way_from_duckdb_to_arrow(shop: tl.Lakehouse) -> None:
    """DuckDB exports integers from 2^127 to Arrow as negative numbers, such as half of all MD5 numbers, bits with its
    inner encoding, and times without their zone. `to_arrow` returned, and tables stored, these other values."""
    largest = f"{2**127}::UHUGEINT"
    two_hours = dt.timezone(dt.timedelta(hours=2))
    for sql, value in [
        (largest, 2**127),
        (f"[{largest}]", [2**127]),
        ("'101'::BIT", "101"),
        ("'12:00:00+02'::TIMETZ", dt.time(12, tzinfo=two_hours)),
    ]:
        query = shop.sql(f"SELECT 1 AS number, {sql} AS value")
        assert query.fetchall() == [(1, value)]
        with pytest.raises(tl.InvalidArgument, match=r"DECIMAL\(38,0\)|cast it"):
            query.to_arrow()
        with pytest.raises(tl.InvalidArgument, match=r"DECIMAL\(38,0\)|cast it"):
            shop.create_table("shop.values", query).append(query)
    small = shop.sql(f"SELECT {{'UHUGEINT': 5::UHUGEINT, 'a BIT,': [{10**37}::UHUGEINT]}} AS value").to_arrow()
    assert small.to_pylist() == [{"value": {"UHUGEINT": 5, "a BIT,": [10**37]}}]


@pytest.mark.parametrize("column", ["l", "m", "s"])
def test_is_null_of_nested_columns(lake: tl.Lakehouse, column: str) -> None:
    """Queries can filter by `IS NULL` of lists and maps, also for files that the library's own scan reads."""
    lake.create_namespace("a")
    types = {"l": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.int64()), "s": pa.struct([("x", pa.int64())])}
    values = {"l": [1], "m": [("k", 1)], "s": {"x": 1}}
    rows = pa.table({name: pa.array([values[name], None], type) for name, type in types.items()})
    lake.create_table("a.t", rows.schema).append(rows)
    assert lake.sql(f"SELECT count(*) FROM a.t WHERE {column} IS NOT NULL").fetchall() == [(1,)]
    assert lake.sql(f"SELECT count(*) FROM a.t WHERE {column} IS NULL").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "names", [["A b", "c"], ["x.y", "c"], ["0", "c"], ["a'b", 'q"q'], ["%s", "{x}"], ["a,b", "日本"]]
)
def test_parts_of_structures_have_any_name(lake: tl.Lakehouse, names: list[str]) -> None:
    """Fields of structs can have any name. Files contain `A_x20b` for `A b`, and DuckDB, which finds fields by name,
    read NULL, so an UPDATE changed wrong rows."""
    lake.create_namespace("a")
    kind = pa.struct([(name, pa.int64()) for name in names])
    row = dict(zip(names, (4, 1), strict=True))
    values = {"s": (kind, row), "l": (pa.list_(kind), [row]), "m": (pa.map_(kind, kind), [(row, row)])}
    columns = {name: pa.array([value, None], type) for name, (type, value) in values.items()}
    rows = pa.table({"k": [1, 2], **columns})
    table = lake.create_table("a.t", rows.schema)
    table.append(rows)
    part = f"""s."{names[0].replace('"', '""')}\""""
    assert lake.sql("FROM a.t ORDER BY k").to_arrow().to_pylist() == rows.to_pylist()
    assert lake.sql(f"SELECT k FROM a.t WHERE {part} = 4").fetchall() == [(1,)]
    lake.sql(f"UPDATE a.t SET k = 3 WHERE {part} = 4")
    lake.sql("CREATE TABLE a.u AS FROM a.t")
    for name in ("a.t", "a.u"):
        found = lake.table(name).scan().to_arrow().sort_by("k")
        assert found["k"].to_pylist() == [2, 3]
        assert found["s"].to_pylist() == [None, row]


def test_times_with_zones_and_nanoseconds_are_refused_not_cut(lake: tl.Lakehouse) -> None:
    """A query refuses times with a zone and nanoseconds, which DuckDB lacks, instead of truncating them. Otherwise a
    DELETE could remove a row with another time."""
    lake.create_namespace("a")
    whole, finer = 1_234_567_000, 1_234_567_891
    for kind in ("x", "s"):  # nested, too
        type = TimestamptzNanoType() if kind == "x" else StructType(NestedField(3, "x", TimestamptzNanoType()))
        schema = Schema(NestedField(1, "i", LongType()), NestedField(2, kind, type))
        table = lake.create_table(f"a.{kind}", schema, properties={"format-version": "3"})
        column = "x" if kind == "x" else "s.x"
        where = f"WHERE {column} = '1970-01-01 00:00:01.234567+00'"

        def append(i: int, nanos: int, kind: str = kind, table: tl.Table = table) -> None:
            times = pa.array([nanos], pa.timestamp("ns", "UTC"))
            values = times if kind == "x" else pa.StructArray.from_arrays([times], ["x"])
            table.append(pa.table({"i": [i], kind: values}))

        append(1, whole)
        assert lake.sql(f"SELECT i FROM a.{kind} {where}").fetchall() == [(1,)]
        append(2, finer)
        for statement in ("SELECT i FROM", "DELETE FROM"):
            with pytest.raises(tl.InvalidArgument, match="has times with a zone and nanoseconds"):
                lake.sql(f"{statement} a.{kind} {where}").fetchall()
        assert lake.sql(f"SELECT sum(i) FROM a.{kind}").fetchone() == (3,)
        assert sorted(table.scan().to_arrow()["i"].to_pylist()) == [1, 2]


ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(100000) b WHERE a.range * b.range = 7"
INTERRUPTED = """
import os, signal, sys, threading, time
import trinitylake as tl

lake = tl.open(sys.argv[1])
for statement in ("INSERT INTO n.t VALUES (1)", "UPDATE n.t SET k = 2 WHERE k = 1", "DELETE FROM n.t WHERE k = 2"):
    lake.sql(statement)  # imports first: pydantic makes an error of its own of a Ctrl-C while it builds a class
query = lake.sql(sys.argv[2])
takings = [query.fetchall, query.fetchone, query.to_arrow, query.show, query._repr_html_]
takings.append(lambda: list(query.to_arrow_batch_reader()))
for statement in ("INSERT INTO n.t ({})", "DELETE FROM n.t WHERE k IN ({})", "UPDATE n.t SET k = ({})"):
    takings.append(lambda text=statement.format(sys.argv[2]): lake.sql(text))
for taken in takings:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        taken()
        raise SystemExit("it had an end")
    except KeyboardInterrupt:
        pass
assert threading.active_count() == 1, threading.enumerate()
assert lake.sql("SELECT k FROM n.t").fetchall() == [(42,)]
print("went on")
"""


def test_ctrl_c_ends_a_query(tmp_path: Path) -> None:
    """Ctrl-C ends a long query, so that the process and its open transaction can continue."""
    lake = tl.create(str(tmp_path / "lake"))
    lake.create_namespace("n")
    lake.create_table("n.t", {"k": "bigint"}).append([{"k": 42}])
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "lake"), ENDLESS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "went on\n", result.stderr


class _Connection:
    """A connection whose computation ends when it is interrupted. The first call of `interrupt` raises
    KeyboardInterrupt, as after another Ctrl-C."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()

    def compute(self) -> None:
        self.has_ended.wait(PATIENCE_SECONDS)

    def interrupt(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self.has_ended.set()


def test_ctrl_c_while_a_query_starts_or_ends_leaves_no_running_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the thread of a query started, or a second Ctrl-C, left the thread running, with no thread to
    interrupt it. The shell then waited for an endless query when it closed the connection, and never answered again."""
    connection, start = _Connection(), threading.Thread.start

    def start_and_interrupt(self: threading.Thread) -> None:
        start(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(connection, connection.compute)
        has_ended = connection.has_ended.is_set()
    finally:
        connection.has_ended.set()
    assert has_ended
    assert signal.getsignal(signal.SIGINT) is handler


class _Interrupted(type):
    """A class whose attributes raise KeyboardInterrupt, as if Ctrl-C were pressed while pydantic builds a schema."""

    def __getattribute__(cls, name: str) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_during_an_import_is_no_error_of_the_statement() -> None:
    """Ctrl-C while the first statement imports PyIceberg raises KeyboardInterrupt, although pydantic converts it to a
    `SchemaError` and Python to a `RuntimeError`."""
    schema: Any = {"type": "model", "cls": _Interrupted("Table", (), {}), "schema": {"type": "int"}}
    with pytest.raises(KeyboardInterrupt), translated("query"):
        SchemaValidator(schema)
    with pytest.raises(KeyboardInterrupt), translated("query"):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()
    with pytest.raises(tl.InvalidArgument, match="no column"), translated("query"):
        raise pa.ArrowInvalid("KeyboardInterrupt: no column")
