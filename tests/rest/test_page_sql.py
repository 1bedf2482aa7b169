"""Queries in SQL over the page's data: for whom, within what, and until when."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import with_tables
from trinitylake.rest import RestServer, ServerOptions
from trinitylake.rest.page import queries

SQL = "/trinitylake/v1/page/latest/sql"
ENDLESS = "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b WHERE a.range * b.range = 7"


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with_tables(lake, "shop.orders", "payroll.wages")
    lake.create_view("shop.ids", "SELECT id FROM orders WHERE id > 1", dialect="duckdb")
    return lake


@pytest.fixture
def page_server(shop: tl.Lakehouse, tokens: Path) -> Iterator[RestServer]:
    """It shows rows."""
    with running(shop, token_file=tokens, options=ServerOptions(page_shows_rows=True)) as server:
        yield server


def ask(server: RestServer, query: Any, token: str = ROOT, path: str = SQL) -> Answer:
    return Client(server)("POST", path, {"query": query}, token=token)


def test_a_query_reads_tables_and_views_of_a_version(page_server: RestServer, shop: tl.Lakehouse) -> None:
    answer = ask(page_server, "SELECT o.id, 'x' AS id FROM shop.orders o JOIN shop.ids i USING (id) ORDER BY 1")
    assert answer.code == 200, answer
    assert answer.body["rows"] == [["2", "x"], ["3", "x"]]
    assert [one["type"] for one in answer.body["columns"]] == ["BIGINT", "VARCHAR"]
    before = shop.version
    shop.table("shop.orders").delete("id > 1")
    counted = "SELECT count(*) FROM shop.orders"
    assert ask(page_server, counted).body["rows"] == [["1"]]
    assert ask(page_server, counted, path=SQL.replace("latest", f"version~{before}")).body["rows"] == [["3"]]


def test_queries_are_for_readers_of_everything_where_rows_are_shown(
    page_server: RestServer, shop: tl.Lakehouse, tokens: Path
) -> None:
    """A query names what it likes, and a view in it what its author liked."""
    for token in (RITA, WALT):
        for query in ("SELECT 1", "SELECT * FROM payroll.wages", "SELECT * FROM shop.orders"):
            assert ask(page_server, query, token).code == 403
        assert Client(page_server)("GET", "/trinitylake/v1/page/lakehouse", token=token).body["may"]["sql"] is False
    with running(shop, token_file=tokens) as server:
        assert ask(server, "SELECT 1").code == 403


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO shop.orders VALUES (9)",
        "CREATE TABLE t AS SELECT 1",
        "DROP TABLE shop.orders",
        "COPY (SELECT 1) TO '/tmp/out.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "SET memory_limit = '100GB'",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_settings()",
        "nonsense",
        "",
        7,
        None,
    ],
)
def test_a_query_reads_and_nothing_else(page_server: RestServer, shop: tl.Lakehouse, query: Any) -> None:
    before = shop.version
    answer = ask(page_server, query)
    assert answer.code in (400, 404), answer
    assert "root:" not in json.dumps(answer.body)
    assert shop.version == before


def test_a_query_takes_what_it_may_and_no_more(page_server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's query over everything took the memory and the processors of the server, for as long as it liked."""
    many = ask(page_server, "SELECT range FROM range(5000)").body
    assert (len(many["rows"]), many["problem"]) == (1000, "only the first 1000 are shown")
    long = ask(page_server, "SELECT repeat('x', 100000) AS x FROM range(900)").body
    assert len(json.dumps(long)) < 3_000_000
    wide = ", ".join(f"1 AS c{number}" for number in range(201))
    assert ask(page_server, f"SELECT {wide}").code == 400
    monkeypatch.setattr(queries, "SECONDS", 0.5)
    began = time.monotonic()
    assert ask(page_server, ENDLESS).code == 400
    assert time.monotonic() - began < 30
    monkeypatch.setattr(queries, "SECONDS", 12.0)
    monkeypatch.setattr(queries, "MEMORY_SIZE_BYTES", 20 << 20)
    large = "SELECT sum(hash(s)) FROM (SELECT list(range::VARCHAR || repeat('x', 100)) AS s FROM range(3000000))"
    answer = ask(page_server, large)
    assert (answer.code, "broke off" in str(answer.body)) == (400, True), answer


def test_a_query_ends_when_nobody_waits_for_it(page_server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closed the page left a query behind that ran on, and after a few of them nobody got in."""
    monkeypatch.setattr(queries, "SECONDS", 1000.0)
    body = json.dumps({"query": ENDLESS}).encode()
    head = f"POST {SQL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ROOT}\r\nContent-Length: {len(body)}\r\n\r\n"
    waiting = page_server._app.service.outbound._waiting
    with socket.create_connection(("127.0.0.1", page_server.port)) as connection:
        connection.sendall(head.encode() + body)
        assert until(lambda: waiting["a query"] == 1)
    assert until(lambda: "a query" not in waiting)
    assert ask(page_server, "SELECT 1").code == 200


def until(is_so: Any) -> bool:
    deadline = time.monotonic() + 14  # less than calls to others may take
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(is_so())
