"""SQL queries in the static page, by a DuckDB next to it."""

from __future__ import annotations

import decimal
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import trinitylake as tl
from page.driver import Browser
from page.test_page import opened
from page.test_page_of_files import serving
from page.test_rows_of_files import ROWS, serving_ranges
from trinitylake.page import write_files

pytestmark = pytest.mark.lane("browser")

ASK = """
    const [at, query, milliseconds] = arguments;
    return import(new URL("ui/files/source.js", document.baseURI)).then(async ({ FilesSource }) => {
        const source = new FilesSource(new URL("../lake/", document.baseURI), true);
        await source.lakehouse();
        try {
            return await source.sql(at, query, milliseconds ? AbortSignal.timeout(milliseconds) : undefined);
        } catch (error) {
            return { refused: error.message, code: error.code ?? null, name: error.name };
        }
    });
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The static page with DuckDB's npm package. It is built once, because the build compresses 34 MB."""
    folder = tmp_path_factory.mktemp("page") / "site"
    write_files(folder, "../lake", Path(__file__).parents[2] / "page")
    return folder


@pytest.fixture
def lake(tmp_path: Path, site: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), name="The shop", durability="none")
    with lake.transaction() as txn:
        for name in ("shop", "shop.old", "raw", "odd"):
            txn.create_namespace(name)
        txn.create_table("shop.orders", {"id": "bigint", "item": "varchar(9)", "amount": "double"}).append(
            {"id": [1, 2, 3, 4], "item": ["pen", "ink", "pen", None], "amount": [10.0, 25.5, 7.25, 1.0]}
        )
        txn.create_table("raw.items", {"item": "varchar(9)", "price": "decimal(9,2)"}).append(
            {"item": ["pen", "ink"], "price": [decimal.Decimal("1.50"), decimal.Decimal("4.00")]}
        )
        txn.create_table("shop.old.orders", {"id": "bigint"}).append({"id": [9]})
        txn.create_view("shop.totals", "SELECT item, sum(amount) AS total FROM orders GROUP BY item;", dialect="duckdb")
        txn.create_view("raw.top", "SELECT * FROM shop.totals WHERE total > 10", dialect="duckdb")
    shutil.copytree(site, tmp_path / "site", copy_function=os.link)
    return lake


def rows(browser: Browser, query: str, at: str = "latest") -> list[list[str | None]]:
    found = browser.run(ASK, at, query)
    assert "rows" in found, found
    return found["rows"]


def test_queries_join_what_tables_and_views_hold(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    lake.table("shop.orders").append({"id": [5], "item": ["ink"], "amount": [100.0]})
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        assert not any("duckdb" in path or "/sql/" in path for _, path in server.asked)
        query = "SELECT o.id, price * 2 FROM shop.orders AS o JOIN raw.items USING (item) WHERE amount > 8 ORDER BY id;"
        assert rows(browser, query) == [["1", "3.00"], ["2", "8.00"], ["5", "8.00"]]
        assert rows(browser, query, "version~1") == [["1", "3.00"], ["2", "8.00"]]
        assert rows(browser, "FROM raw.top ORDER BY total") == [["pen", "17.25"], ["ink", "125.5"]]
        # A nested namespace, a count, which reads no column, and a row with all columns.
        assert rows(browser, "SELECT count(*), (SELECT id FROM shop.old.orders) FROM shop.orders") == [["5", "9"]]
        assert rows(browser, "SELECT o FROM raw.items o ORDER BY price LIMIT 1") == [["{'item': pen, 'price': 1.50}"]]
        assert rows(browser, "SELECT shop.orders.id FROM shop.orders WHERE item IS NULL -- FROM shop.none") == [["4"]]
        assert rows(browser, "DESCRIBE raw.items")[1][:2] == ["price", "DECIMAL(9,2)"]
        assert {path for _, path in server.asked if "/duckdb/" in path} == {
            "/site/duckdb/duckdb-eh.bin",
            "/site/duckdb/duckdb-browser-eh.worker.js",
        }


def test_values_have_their_types(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    lake.create_table("odd.all", ROWS).append(ROWS)
    text = pa.table({"text": ["", None, '"\\N"', "a,\n'b'\r\n", "\\N", "x" * 5000]})
    lake.create_table("odd.texts", text).append(text)
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        query = """SELECT "id" + 1, small * 2, price + 1, huge - 7, ratio / 2, NOT is_open, "on" + 1, "at", year(seen),
            clock, bytes, tags, "at" - INTERVAL 1 DAY, isnan(ratio) FROM odd.all ORDER BY id NULLS LAST"""
        first = [str(1 - (1 << 62)), None, "0.95", str(int(ROWS["huge"][1].as_py()) - 7), "-1.5", "true", "1970-01-01"]
        first += ["1969-12-31 23:59:59", None, None, "", "[]", "1969-12-30 23:59:59", "false"]
        second = [
            "2",
            "14",
            "2.50",
            str(int(ROWS["huge"][0].as_py()) - 7),
            "0.05",
            "false",
            "2024-03-01",
            "2024-02-29 12:30:00.123456",
            "2024",
        ]
        second += ["01:02:03.000004", "\\x00\\xFF", '["a", null]', "2024-02-28 12:30:00.123456", "false"]
        found = rows(browser, query)
        assert found[:2] == [first, second]
        assert found[2][4] == "nan"
        found = rows(browser, "SELECT text, length(text) FROM odd.texts")
        assert [row[0] for row in found] == text["text"].to_pylist()
        assert found[-1][1] == "5000"


def test_only_the_columns_of_a_query_are_read(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """If the page read whole tables, a query would take a minute instead of a second."""
    table = lake.create_table("shop.wide", {"id": "bigint", "text": "varchar(600)", "other": "bigint"})
    table.append({"id": range(20_000), "text": [os.urandom(150).hex() for _ in range(20_000)], "other": [7] * 20_000})
    [size] = [size for path, size, _ in lake._storage.list("") if path.endswith(".parquet") and size > 1_000_000]
    with serving_ranges(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        assert rows(browser, "SELECT sum(other), count(*) FROM shop.wide WHERE id < 10") == [["70", "10"]]
        assert 0 < sum(server.ranges) < size / 2, (server.ranges, size)
        assert len(rows(browser, "FROM shop.wide LIMIT 5000")) == 1000


def test_a_query_reaches_nothing_but_the_lakehouse(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """Any client may write the SQL of a view. A view that read from another address revealed its readers to that
    host."""
    with serving(tmp_path) as elsewhere, serving(tmp_path) as server:
        (tmp_path / "stolen.csv").write_text("a,b\n1,2\n")
        lake.create_view("shop.spy", f"SELECT * FROM read_csv('{elsewhere.url}/stolen.csv')", dialect="duckdb")
        opened(browser, f"{server.url}/site")
        for query in (
            "FROM shop.spy",
            f"FROM '{elsewhere.url}/stolen.csv'",
            f"FROM read_csv('{elsewhere.url}/stolen.csv')",
            f"FROM read_text('{elsewhere.url}/stolen.csv')",
            f"FROM glob('{elsewhere.url}/*')",
            f"FROM read_parquet('{elsewhere.url}/stolen.csv')",
            "FROM read_csv('rows.csv')",
            f"ATTACH '{elsewhere.url}/a.db' AS a",
            f"COPY (SELECT 1) TO '{elsewhere.url}/a.csv'",
            "INSTALL parquet",
            "SET enable_external_access = true",
            "SELECT 1; SET enable_external_access = true",
            "SELECT 1) TO 'x'; COPY (SELECT 2",
            "DROP TABLE shop.orders",
            "INSERT INTO shop.orders VALUES (1, 'x', 2)",
            "FROM shop.none",
            "SELEC 1",
            "",
        ):
            found = browser.run(ASK, "latest", query)
            assert found.get("code") in (400, 404), (query, found)
        assert elsewhere.asked == []
        assert rows(browser, "SELECT count(*) FROM shop.orders") == [["4"]]
        script = 'return import(new URL("ui/files/sql/duckdb.js", document.baseURI)).then(() => 1)'
        assert browser.run(script) == 1
        with pytest.raises(Exception, match=r"TrustedScriptURL|Trusted Type"):
            browser.run('new Worker("ui/worker.js")')
        # The browser logs what the content security policy blocked.
        assert any("TrustedScriptURL" in line or "Trusted" in line for line in browser.log())


def test_query_ends_when_its_client_disconnects(browser: Browser, lake: tl.Lakehouse, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/site")
        assert rows(browser, "SELECT 1") == [["1"]]
        endless = "SELECT count(*) FROM range(100000000000) a, range(1000000) b WHERE a.range * b.range = 7"
        found = browser.run(ASK, "latest", endless, 2000)
        assert found["name"] == "TimeoutError"
        assert rows(browser, "SELECT 2") == [["2"]]
        large = browser.run(ASK, "latest", "SELECT length(string_agg(repeat('x', 1000000), '')) FROM range(100000)")
        assert "refused" in large
        assert rows(browser, "SELECT 3") == [["3"]]


def test_the_view_of_queries_is_there_with_duckdb_alone(
    browser: Browser, lake: tl.Lakehouse, tmp_path: Path, axe: str
) -> None:
    write_files(tmp_path / "plain", "../lake")
    with serving(tmp_path) as server:
        opened(browser, f"{server.url}/plain")
        assert "SQL" not in browser.text("nav.places")
        query = quote("SELECT item, 'a<b>' FROM shop.orders WHERE id = 2")
        opened(browser, f"{server.url}/site", f"#/latest/sql?q={query}")
        assert "SQL" in browser.text("nav.places")
        browser.click("button.main")
        assert browser.wait_for_text("a<b>")
        browser.run(f"{axe}; return 1")
        findings: Any = browser.run("return axe.run().then((found) => found.violations.map((one) => one.id))")
        assert findings == []
