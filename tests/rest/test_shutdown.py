"""A shutdown while requests run: their responses, and what clients may do next."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.rest import limits, serve
from trinitylake.tables.table_locks import table_locks
from waiting import PATIENCE_SECONDS, wait_until

#: Program of a server that handles requests without a response, and gives them one second at a shutdown.
SLOW = """
import sys, time
from trinitylake.cli.app import app
from trinitylake.rest import limits
from trinitylake.rest.http.app import App
limits.GRACE_SECONDS = 1
answer = App._answer
def late(self, endpoint, call):
    response = answer(self, endpoint, call)
    time.sleep(600)
    return response
App._answer = late
app(sys.argv[1:])
"""
TABLE = "/v1/namespaces/shop/tables/orders"
COLOR = '{"updates": [{"action": "set-properties", "updates": {"color": "red"}}]}'
POST_COLOR = f"POST {TABLE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(COLOR)}\r\n\r\n{COLOR}".encode()


@contextmanager
def slow_server(lake: tl.Lakehouse) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process, and its address."""
    command = [sys.executable, "-c", SLOW, "serve", "--root", lake.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                text += process.stdout.readline()
            yield process, urlsplit(json.loads(text)["url"]).netloc
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(text or "null")
    finally:
        connection.close()


def change(value: str) -> Any:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"owner": value}}]}


def commits(lake: tl.Lakehouse) -> int:
    """The number of committed transactions. Concurrent ones may share a version."""
    return sum(len(entry.transactions) for entry in lake.log(limit=None))


def test_a_shutdown_answers_requests_that_it_cannot_finish(lake: tl.Lakehouse) -> None:
    """After the grace period of a shutdown, each running request gets an answer: readers learn that they can repeat it,
    and writers that the outcome of their commit is unknown."""
    with_tables(lake, "shop.orders", "shop.keyed")
    before = commits(lake)
    key = str(uuid.uuid4())
    keyed = "/v1/namespaces/shop/tables/keyed"
    with slow_server(lake) as (process, address), ThreadPoolExecutor(4) as threads:
        reading = threads.submit(ask, address, "GET", TABLE)
        writing = threads.submit(ask, address, "POST", TABLE, change("walt"))
        with_key = threads.submit(ask, address, "POST", keyed, change("walt"), **{"Idempotency-Key": key})
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))) as half:
            half.sendall(f"POST {TABLE} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 99\r\n\r\n".encode() + b'{"up')
            wait_until(lambda: commits(lake) == before + 2)
            process.send_signal(signal.SIGTERM)
            not_begun = half.makefile("rb").read()

        code, headers, body = reading.result()
        assert (code, body["error"]["type"]) == (503, "ServiceUnavailableException")
        assert int(headers["retry-after"]) > 0

        code, headers, body = writing.result()
        assert (code, body["error"]["type"]) == (500, "CommitStateUnknownException")  # never a certain failure
        assert "check whether" in body["error"]["message"]

        code, headers, body = with_key.result()
        assert (code, body["error"]["type"]) == (503, "ServiceUnavailableException")
        assert int(headers["retry-after"]) > 0

        assert not_begun.startswith(b"HTTP/1.1 503 "), not_begun  # the request has not begun
        assert b"retry-after" in not_begun.lower()
    assert commits(lake) == before + 2
    assert lake.table("shop.orders").properties["owner"] == "walt"
    with running(lake) as server:  # the next server knows the outcome, and does not commit again
        again = Client(server)("POST", keyed, change("walt"), headers={"Idempotency-Key": key})
    assert again.code == 200
    assert commits(lake) == before + 2


def test_idle_tls_connections_do_not_delay_a_shutdown(
    lake: tl.Lakehouse, tls: tuple[dict[str, Path], ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shutdown does not wait for clients that do not answer the end of TLS, or that stopped in the handshake. Each
    would delay a restart by thirty seconds."""
    files, context = tls
    monkeypatch.setattr(limits, "GRACE_SECONDS", 3600)
    server = serve(lake, **files).start()
    with ExitStack() as connections:
        idle, silent, half = (
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS))
            for _ in range(3)
        )
        asked = connections.enter_context(context.wrap_socket(idle, server_hostname="localhost"))
        asked.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.recv(65536).startswith(b"HTTP/1.1 200")
        connections.enter_context(context.wrap_socket(silent, server_hostname="localhost"))
        half.sendall(b"\x16\x03\x01")
        server.stop()


@pytest.mark.parametrize("is_slow", [False, True], ids=["at work", "not yet taken"])
def test_a_shutdown_sends_complete_responses_over_tls(
    lake: tl.Lakehouse, tls: tuple[dict[str, Path], ssl.SSLContext], is_slow: bool
) -> None:
    """A shutdown does not wait for the client's TLS close, but must not drop data that the client has not read yet."""
    files, context = tls
    with_tables(lake, "shop.orders")
    lake.alter_table("shop.orders", {f"p{n}": "v" * 1000 for n in range(4000)})
    server = serve(lake, **files).start()
    with ExitStack() as ends, ThreadPoolExecutor(1) as threads:
        raw = ends.enter_context(socket.socket())
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        raw.settimeout(PATIENCE_SECONDS)
        raw.connect(("127.0.0.1", server.port))
        connection = ends.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
        with table_locks.held([lake.table("shop.orders").id]):
            connection.sendall(f"GET {TABLE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() if is_slow else POST_COLOR)
            received = connection.recv(100) if is_slow else b""
            wait_until(lambda: is_slow or bool(server._app._threads.n_leases))
            ending = threads.submit(server.stop)
            wait_until(lambda: server._server.should_exit)
            time.sleep(2)
            assert not ending.done()
        while data := connection.recv(1 << 16):
            received += data
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert len(json.loads(body)["metadata"]["properties"]) >= 4000
        ending.result(PATIENCE_SECONDS)
