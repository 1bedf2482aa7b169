"""Operation of a server: probes, metrics, logs, traces, limits, and shutdown."""

from __future__ import annotations

import gc
import http.client
import io
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import trinitylake as tl
from rest.client import TOKEN, Client, connect, running
from rest.shop import ROWS
from trinitylake.iceberg_storage import metadata
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest import RestServer, ServerOptions, limits
from trinitylake.rest.http.observation import JsonLines
from trinitylake.rest.secret_redaction import Redaction, without_secrets
from waiting import PATIENCE_SECONDS, in_threads

CANARY = "canary-AKIA-0123456789"


def raw(server: RestServer, sent: bytes) -> bytes:
    """Send bytes. Returns everything that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(sent)
        received = b""
        while data := connection.recv(65536):
            received += data
    return received


def get(server: RestServer, path: str) -> tuple[int, str]:
    """Send a GET request without a token. Returns the status and the text of the body."""
    received = raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_probes_need_no_token_and_reveal_nothing(server: RestServer, shop: tl.Lakehouse) -> None:
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (200, "ready\n")
    assert get(server, "/metrics")[0] == 401


def test_paths_without_authentication_support_only_get_and_head(server: RestServer) -> None:
    """Other methods than GET and HEAD on `/healthz` are refused, because they do nothing."""
    for path in ["/healthz", "/readyz", "/"]:
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]:
            text = raw(
                server, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            ).decode()
            assert text.startswith("HTTP/1.1 405 "), text
            assert "allow: get, head\r\n" in text.lower(), text


def test_a_server_without_storage_is_healthy_but_not_ready(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: tl.Lakehouse) -> int:
        raise tl.StorageError("gone")

    monkeypatch.setattr(tl.Lakehouse, "version", property(fails))
    with running(lake) as server:
        assert get(server, "/readyz") == (503, "the storage fails\n")
        assert get(server, "/healthz") == (200, "ok\n")


def test_counters_have_routes_as_labels_and_no_names(shop: tl.Lakehouse) -> None:
    with running(shop) as server:
        client = Client(server)
        client("GET", "/v1/namespaces/shop/tables/orders")
        client("GET", "/v1/namespaces/shop/tables/none")
        client("GET", "/somewhere/else")
        client("POST", "/v1/namespaces", {"namespace": ["a"]})
        code, text = get(server, "/metrics")
    assert code == 200
    route = 'route="/v1/namespaces/{namespace}/tables/{table}"'
    assert f'trinitylake_requests_total{{code="200",method="GET",{route}}} 1.0' in text
    assert f'trinitylake_requests_total{{code="404",method="GET",{route}}} 1.0' in text
    assert 'trinitylake_requests_total{code="404",method="none",route="none"} 1.0' in text
    assert 'trinitylake_commits_total{outcome="committed"} 1.0' in text
    assert "orders" not in text


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of the server, as JSON lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(Redaction())
    logger = logging.getLogger("trinitylake")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_request_is_one_line_of_json(server: RestServer, log: io.StringIO, shop: tl.Lakehouse) -> None:
    Client(server)("GET", "/v1/namespaces/shop/tables/orders?snapshots=refs", headers={"X-Request-Id": "r-1"})
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    [line] = [line for line in lines if line["log"] == "trinitylake.rest.access"]
    assert line["message"] == "GET /v1/namespaces/{namespace}/tables/{table} 200"
    assert line["path"] == "/v1/namespaces/shop/tables/orders"
    assert line["request_id"] == "r-1"
    assert line["who"].startswith("token-")


def test_no_secret_is_in_logs_errors_or_config(
    server: RestServer, log: io.StringIO, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(server)
    answers = [client("GET", f"/v1/config?token={CANARY}", token=CANARY), client("GET", "/v1/config")]
    answers.append(client("GET", "/v1/namespaces", headers={"X-Request-Id": f"bad id {CANARY}"}))

    def fails(*arguments: object, **options: object) -> None:
        raise tl.StorageError(f"PUT https://store/x?X-Amz-Signature={CANARY}&sig={CANARY} secret_access_key={CANARY}")

    monkeypatch.setattr(Transaction, "commit", fails)
    answers.append(client("POST", "/v1/namespaces", {"namespace": ["a"]}))
    monkeypatch.setattr("trinitylake.rest.handlers.namespaces.namespaces_response", fails)
    answers.append(client("GET", "/v1/namespaces"))
    assert [answer.code for answer in answers] == [401, 200, 200, 500, 500]
    assert CANARY not in str(answers)
    assert CANARY not in log.getvalue()
    assert TOKEN not in log.getvalue()
    assert "Signature=***" in log.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"password={CANARY}",
        f"'secret_access_key': '{CANARY}'",
        f"?sv=1&sig={CANARY}&x=1",
        f"AccountKey={CANARY};",
        f"aws_access_key_id={CANARY}",
    ],
)
def test_secrets_are_removed_from_messages(text: str) -> None:
    assert CANARY not in without_secrets(text)


def test_a_silent_connection_is_closed(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SILENT_SECONDS", 0.3)
    with running(shop) as server:
        assert raw(server, b"") == b""
        assert get(server, "/healthz")[0] == 200


def test_an_idle_connection_is_closed_after_the_keep_alive_time(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.KEEP_ALIVE_SECONDS > 60, "most proxies keep connections for 60 seconds"
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 1)
    with running(shop) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.connect()
        connected = connection.sock
        for _ in range(2):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            assert connection.sock is connected, "the connection is kept for the next request"
        assert connected.recv(1) == b"", "it is closed"
        connection.close()


def test_requests_leave_only_caches_in_memory(
    server: RestServer, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata.cache, "_max_tables", 4)
    ask = Client(server)
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}
    rounds = 40

    def work() -> None:
        for number in range(rounds):
            tables = "/namespaces/shop/tables"
            name = f"table_{number}"
            assert ask("POST", f"/v1/latest{tables}", {"name": name, "schema": schema}).code == 200
            assert ask("POST", f"/v1/latest{tables}/{name}", change).code == 200
            begun = ask("POST", "/trinitylake/v1/transactions", {"isolation": "serializable"}).body
            assert ask("GET", f"/v1/txn~{begun['id']}{tables}/{name}").code == 200
            assert ask("DELETE", f"/v1/txn~{begun['id']}{tables}/{name}").code == 204
            assert ask("POST", f"/trinitylake/v1/transactions/{begun['id']}/commit").code == 200

    def kept() -> int:
        gc.collect()
        return len(gc.get_objects())

    work()
    before = kept()
    work()
    # An object that is kept per transaction or request would count many times; another thread adds some dozens.
    assert kept() - before < 3 * rounds


def test_endless_headers_are_refused(server: RestServer) -> None:
    endless = b"GET /v1/config HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2 * limits.MAX_HEADERS_SIZE_BYTES
    try:
        received = raw(server, endless)
    except ConnectionResetError:  # the server closed the connection before everything was sent
        received = b""
    assert received == b"" or received.startswith(b"HTTP/1.1 400")
    assert get(server, "/healthz")[0] == 200


def test_a_body_that_does_not_arrive_in_time_is_408(shop: tl.Lakehouse) -> None:
    with running(shop, options=ServerOptions(body_timeout_seconds=0.3)) as server:
        head = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"
        received = raw(server, head)
    assert received.startswith(b"HTTP/1.1 408")


def test_connections_above_the_limit_get_503(shop: tl.Lakehouse) -> None:
    with running(shop, options=ServerOptions(max_connections=3)) as server:
        idle = []
        for _ in range(2):  # connections without a request are closed instead (`test_connections.py`)
            idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle[-1].recv(65536).startswith(b"HTTP/1.1 200")
        codes = {get(server, "/healthz")[0]}
        for connection in idle:
            connection.close()
    assert codes == {503}


def test_a_request_id_cannot_forge_a_response_header(server: RestServer) -> None:
    for planted in ("r-1\tx", "r 1", "é", "x" * 65):
        answer = Client(server)("GET", "/v1/config", headers={"X-Request-Id": planted})
        assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


def test_a_shutdown_finishes_running_commits(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Transaction.commit
    begun, go_on = threading.Event(), threading.Event()

    def slow(self: Transaction) -> int:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", slow)
    answers = []
    with running(shop) as server:
        client = Client(server)
        asking = threading.Thread(target=lambda: answers.append(client("POST", "/v1/namespaces", {"namespace": ["a"]})))
        asking.start()
        assert begun.wait(PATIENCE_SECONDS)
        ending = threading.Thread(target=server.stop)
        ending.start()
        go_on.set()
        asking.join()
        ending.join()
    assert [answer.code for answer in answers] == [200]
    assert shop.exists("a")


def test_one_principal_cannot_occupy_all_threads(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 long requests of one writer blocked the server for all others."""
    file = tmp_path / "tokens"
    file.write_text("the-token-of-slow-01 slow writer:*\nthe-token-of-quick-1 quick writer:*\n")
    file.chmod(0o600)
    monkeypatch.setattr(limits, "MAX_THREADS_OF_ONE", 3)
    monkeypatch.setattr(limits, "THREAD_WAIT_SECONDS", 1.0)
    commit, go_on = Transaction.commit, threading.Event()

    def slow(self: Transaction) -> int:
        if self.properties.get("rest.principal") == "slow":
            go_on.wait(PATIENCE_SECONDS)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", slow)
    with running(shop, token_file=file) as server, ThreadPoolExecutor(4) as threads:
        client = Client(server)

        def create(who: str, number: int) -> int:
            token = {"slow": "the-token-of-slow-01", "quick": "the-token-of-quick-1"}[who]
            body = {"name": f"{who}{number}", "schema": {"type": "struct", "fields": []}}
            return client("POST", "/v1/namespaces/shop/tables", body, token=token).code

        waiting = [threads.submit(create, "slow", number) for number in range(4)]
        done, _ = wait(waiting, PATIENCE_SECONDS, FIRST_COMPLETED)
        assert [one.result() for one in done] == [503]
        assert create("quick", 0) == 200
        go_on.set()
        assert sorted(one.result() for one in waiting) == [200, 200, 200, 503]
        assert server._app._threads.n_leases == 0


def test_commits_of_several_requests_share_a_version(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, together = Transaction.commit, threading.Barrier(8)

    def at_once(self: Transaction) -> int:
        together.wait(PATIENCE_SECONDS)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", at_once)
    before, codes = shop.version, []
    with running(tl.open(shop.uri)) as server:  # with syncs, so that commits overlap
        client = Client(server)

        def create(number: int) -> None:
            for round in range(4):
                codes.append(client("POST", "/v1/namespaces", {"namespace": [f"n{number}_{round}"]}).code)

        in_threads(create, range(8))
    assert codes == [200] * 32
    assert len(shop.namespaces()) == 33
    assert shop.version - before < 32
    assert any(len(entry.transactions) > 1 for entry in shop.log(None))


def test_a_request_continues_the_trace_of_its_client(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("trinitylake.rest.http.observation.trace.get_tracer", provider.get_tracer)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with running(shop) as server:
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "X-Request-Id": "r-1"}
        Client(server)("GET", "/v1/namespaces/shop/tables/orders", headers=headers)
    [span] = spans.get_finished_spans()
    assert span.name == "GET /v1/namespaces/{namespace}/tables/{table}"
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["trinitylake.request_id"] == "r-1"


def test_two_servers_serve_one_lakehouse(shop: tl.Lakehouse) -> None:
    with running(shop) as one, running(tl.open(shop.uri, durability="none")) as other:
        first, second = connect(one), connect(other)
        for number in range(5):
            first.create_namespace(f"a{number}")
            second.create_namespace(f"b{number}")
            assert second.namespace_exists(f"a{number}")
        first.load_table("shop.orders").append(ROWS)
        assert second.load_table("shop.orders").scan().to_arrow().num_rows == 6
        id = Client(one)("POST", "/trinitylake/v1/transactions", {"id": "t"}).body["id"]
        connect(one, f"@txn/{id}").load_table("shop.orders").append(ROWS)
        assert Client(other)("GET", "/v1/txn~t/namespaces").code == 404  # the transaction was not handed over
    assert len(shop.namespaces()) == 11


def test_the_context_manager_returns_the_url(shop: tl.Lakehouse) -> None:
    with tl.rest.serve(shop) as url:
        assert url.startswith("http://127.0.0.1:")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        pass
