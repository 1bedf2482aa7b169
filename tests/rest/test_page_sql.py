"""SQL queries of the web page: rights, limits and cancellation."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import with_tables
from trinitylake.rest import RestServer, ServerOptions
from trinitylake.rest.page import answers, rows
from waiting import wait_until

SQL = "/trinitylake/v1/page/latest/sql"
ENDLESS = "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b WHERE a.range * b.range = 7"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path_factory.mktemp("queries") / "lake"), name="served", order=5, durability="none")
    with_tables(lake, "shop.orders", "payroll.wages")
    lake.create_view("shop.ids", "SELECT id FROM orders WHERE id > 1", dialect="duckdb")
    return lake


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(f"{RITA} rita reader:shop.*\n{WALT} walt writer:shop.*\n{ROOT} root admin:*\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def page_server(shop: tl.Lakehouse, token_file: Path) -> Iterator[RestServer]:
    """A server whose page shows rows."""
    with running(shop, token_file=token_file, options=ServerOptions(page_shows_rows=True)) as server:
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


def test_a_worker_loads_no_pandas(page_server: RestServer) -> None:
    """A worker for queries does not import pandas, which Arrow imports for its first value if it can. The import would
    delay the first query by a second."""
    assert ask(page_server, "SELECT id FROM shop.orders WHERE id = 1").body["rows"] == [["1"]]
    [process] = processes(page_server)
    libraries = Path(f"/proc/{process}/maps").read_text()
    assert "/pyarrow/" in libraries
    assert "/pandas/" not in libraries


def test_queries_are_for_readers_of_everything_where_rows_are_shown(
    page_server: RestServer, shop: tl.Lakehouse, token_file: Path
) -> None:
    """Only readers of `*` can use SQL, and only if the server shows rows. A query can name any table, and a view in it
    can read any table that its author chose."""
    for token in (RITA, WALT):
        for query in ("SELECT 1", "SELECT * FROM payroll.wages", "SELECT * FROM shop.orders"):
            assert ask(page_server, query, token).code == 403
        assert Client(page_server)("GET", "/trinitylake/v1/page/lakehouse", token=token).body["may"]["sql"] is False
    with running(shop, token_file=token_file) as server:
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
        "EXPLAIN ANALYZE SELECT * FROM shop.orders",
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


def test_query_stays_within_its_memory_limit(page_server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query over all rows stays within its limit of memory, so that a user cannot occupy the memory of the server."""
    many = ask(page_server, "SELECT range FROM range(5000)").body
    assert (len(many["rows"]), many["problem"]) == (1000, "only the first 1000 are shown")
    long = ask(page_server, "SELECT repeat('x', 100000) AS x FROM range(900)").body
    assert len(json.dumps(long)) < 3_000_000
    wide = ", ".join(f"1 AS c{number}" for number in range(201))
    assert ask(page_server, f"SELECT {wide}").code == 400
    monkeypatch.setattr(rows, "MEMORY_SIZE_BYTES", 20 << 20)
    large = "SELECT sum(hash(s)) FROM (SELECT list(range::VARCHAR || repeat('x', 100)) AS s FROM range(3000000))"
    answer = ask(page_server, large)
    assert (answer.code, "failed" in str(answer.body)) == (400, True), answer


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "SELECT (repeat('9', 400000)::BIGNUM)::VARCHAR",  # computed while it is planned, in one call
        "SELECT max((repeat('9', 400000 + id)::BIGNUM)::VARCHAR) FROM shop.orders",
    ],
)
def test_a_query_ends_when_its_time_is_over(
    page_server: RestServer, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """A query ends at its time limit. DuckDB evaluates constants while it plans, and some functions ignore interrupts.
    Such queries ran for minutes after their response 504, and four of them blocked all others."""
    assert ask(page_server, "SELECT 1").code == 200
    [worker] = page_server._app.service.workers._idle
    monkeypatch.setattr(answers, "WORK_SECONDS", 1.0)
    answer = ask(page_server, query)
    assert (answer.code, "exceeds the time limit" in str(answer.body)) == (400, True), answer
    assert processes(page_server) == []
    assert worker.process.returncode in (-signal.SIGALRM, -signal.SIGKILL)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT length(repeat('a', 2000000000))",  # computed while it is planned, where no limit was set
        "SELECT list_sum(range(400000000))",
        "SELECT length(format('{:>2000000000}', 'a'))",  # DuckDB counts only what its own buffers hold
        "SELECT repeat('x', 100000000) AS x FROM range(900)",
    ],
)
def test_a_query_takes_no_memory_that_duckdb_does_not_count(page_server: RestServer, query: str) -> None:
    """The worker limits memory that DuckDB itself does not count. Without this limit each of these queries takes one to
    four gigabytes."""
    before = resident_size_bytes()
    answer = ask(page_server, query)
    assert (answer.code, "failed" in str(answer.body)) == (400, True), answer
    assert resident_size_bytes() - before < 200 << 20
    assert ask(page_server, "SELECT 1").code == 200


def test_a_query_that_makes_duckdb_fail_ends_nothing_but_its_process(page_server: RestServer) -> None:
    """A query that crashes DuckDB ends only its worker. DuckDB reads nested JSON recursively, so 120 characters of SQL,
    or a view with them, can crash a process."""
    answer = ask(page_server, "SELECT json_structure(repeat('[', 100000) || repeat(']', 100000))")
    assert (answer.code, "was stopped" in str(answer.body)) == (400, True), answer
    assert processes(page_server) == []
    assert ask(page_server, "SELECT 1").code == 200


def test_one_principal_does_not_take_all_processes(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of one principal cannot occupy all workers. Four long queries of one reader blocked SQL for all
    others."""
    file = tmp_path / "tokens"
    file.write_text(f"{ROOT} root admin:*\n{RITA} rita reader:*\n")
    file.chmod(0o600)
    monkeypatch.setattr(answers, "WORK_SECONDS", 1000.0)
    with running(shop, token_file=file, options=ServerOptions(page_shows_rows=True)) as server:
        at_work = server._app.service.workers
        with asking(server, ENDLESS, RITA), asking(server, ENDLESS, RITA):
            wait_until(lambda: at_work.n_at_work == 2)
            assert ask(server, "SELECT 1", RITA).code == 429
            assert ask(server, "SELECT 1").code == 200
        wait_until(lambda: at_work.n_at_work == 0)
    assert at_work.n_at_work == 0


def test_query_ends_when_its_client_disconnects(page_server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends if its client disconnects. Queries of closed pages continued, and a few of them occupied all
    workers."""
    monkeypatch.setattr(answers, "WORK_SECONDS", 1000.0)
    at_work = page_server._app.service.workers
    with asking(page_server, ENDLESS, ROOT):
        wait_until(lambda: at_work.n_at_work == 1)
    wait_until(lambda: at_work.n_at_work == 0)
    assert processes(page_server) == []
    assert ask(page_server, "SELECT 1").code == 200


def test_a_server_leaves_no_process_and_no_folder(
    shop: tl.Lakehouse, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped server leaves no process and no spilled file. The files of a query stayed on disk, and a process waited
    for queries of a stopped server."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with running(shop, token_file=token_file, options=ServerOptions(page_shows_rows=True)) as server:
        assert ask(server, "SELECT 1").code == 200
        [folder] = tmp_path.glob("trinitylake-worker-*")
        [process] = processes(server)
        assert ask(server, "SELECT 2").code == 200
        assert processes(server) == [process]  # the same process is used again, because a start takes a second
        monkeypatch.setattr(answers, "WORK_SECONDS", 1.0)
        assert ask(server, ENDLESS).code == 400
        assert not folder.exists()
        monkeypatch.setattr(answers, "WORK_SECONDS", 12.0)
        assert ask(server, "SELECT 3").code == 200
    assert list(tmp_path.glob("trinitylake-worker-*")) == []
    assert processes(server) == []


def test_a_lakehouse_in_memory_has_no_queries() -> None:
    """A lakehouse in memory has no SQL: it is in the memory of the server, and queries run in another process."""
    with running(tl.create("memory://no-queries", durability="none")) as server:
        assert Client(server)("GET", "/trinitylake/v1/page/lakehouse").body["may"]["sql"] is False
        assert Client(server)("POST", SQL, {"query": "SELECT 1"}).code == 403


@contextmanager
def asking(server: RestServer, query: str, token: str) -> Iterator[None]:
    """A client that sends a query and disconnects at the end of the block."""
    body = json.dumps({"query": query}).encode()
    head = f"POST {SQL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        yield


def processes(server: RestServer) -> list[int]:
    """Ids of the idle worker processes."""
    return [worker.process.pid for worker in server._app.service.workers._idle]


def resident_size_bytes() -> int:
    """Memory of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) << 10
