"""Connections of strangers take neither memory without end nor a place for ever.

Before the server knew whose a request was, somebody without a token had grown it by 100 MB for every 70 MB of trailers,
which come after the body and were kept like headers, without a limit. And after any answer two bytes of a blank line,
or one byte of a body that was refused already, switched off the last timer of a connection: a thousand such
connections, kept for nothing, left no place for others.
"""

from __future__ import annotations

import gc
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import trinitylake as tl
from rest.client import TOKEN, running, wait_for
from rest.shop import with_tables
from trinitylake.rest import RestServer
from trinitylake.rest.http.app import App
from trinitylake.rest.http.protocol import MAX_HEADERS_SIZE_BYTES, BoundedProtocol
from trinitylake.rest.http.routes import Endpoint
from trinitylake.rest.request.call import Call
from trinitylake.tables.table_turns import turns

CHUNKED = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n".encode()
COLOR = b'{"updates": [{"action": "set-properties", "updates": {"color": "red"}}]}'
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def server(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestServer]:
    """One that gives up soon on who is slow, but not on who is idle."""
    monkeypatch.setattr(BoundedProtocol, "headers_timeout_seconds", 0.5)
    with running(lake, token=TOKEN) as server:
        yield server


def connected(server: RestServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def send_often(connection: socket.socket, sent: bytes) -> None:
    """Far more than fits into the buffers on the way."""
    for _ in range(300 * MAX_HEADERS_SIZE_BYTES // len(sent)):
        connection.sendall(sent)


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection; `TimeoutError` if it does not."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:  # closed before all was read that was sent
        pass
    return received


@pytest.mark.parametrize("head", [CHUNKED, CHUNKED + AUTHORIZATION], ids=["a stranger", "a principal"])
@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many trailers", "one of them"])
def test_trailers_without_end_end_the_connection(server: RestServer, head: bytes, line: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(head + b"\r\n0\r\nz:")
        with pytest.raises(ConnectionError):
            send_often(connection, line)


def test_a_chunk_with_decoration_without_end_ends_the_connection(server: RestServer) -> None:
    with connected(server) as connection:
        connection.sendall(CHUNKED + AUTHORIZATION + b"\r\n1;")
        with pytest.raises(ConnectionError):
            send_often(connection, b"a" * 1000)


def test_a_body_in_small_chunks_is_one(server: RestServer) -> None:
    body = b'{"namespace": ["n"], "properties": {"text": "' + b"x" * 3 * MAX_HEADERS_SIZE_BYTES + b'"}}'
    chunks = b"".join(b"8\r\n" + body[start : start + 8].ljust(8) + b"\r\n" for start in range(0, len(body), 8))
    with connected(server) as connection:
        connection.sendall(CHUNKED + AUTHORIZATION + b"Connection: close\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("headers", "trailers", "code"), [(b"", AUTHORIZATION, b"401"), (AUTHORIZATION, AUTHORIZATION, b"200")]
)
def test_a_trailer_is_no_header(server: RestServer, headers: bytes, trailers: bytes, code: bytes) -> None:
    chunk = b'14\r\n{"namespace": ["n"]}\r\n0\r\n'
    with connected(server) as connection:
        connection.sendall(CHUNKED + headers + b"Connection: close\r\n\r\n" + chunk + trailers + b"\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 " + code)


def test_headers_that_stop_while_another_request_is_at_work_end_the_connection(
    server: RestServer, lake: tl.Lakehouse
) -> None:
    """The time for headers is measured from what comes last, and not for each request that comes in one piece."""
    with_tables(lake, "shop.orders")
    body = b'{"updates": [{"action": "set-properties", "updates": {"a": "b"}}]}'
    length = b"Content-Length: %d\r\n" % len(body)
    head = b"POST /v1/namespaces/shop/tables/orders HTTP/1.1\r\nHost: localhost\r\n" + AUTHORIZATION + length
    with turns.taken([lake.table("shop.orders").id]), connected(server) as connection:
        connection.sendall(head + b"\r\n" + body + HEALTHZ)
        until_closed(connection)


@pytest.mark.parametrize("n_requests", [1, 2])
def test_who_has_ended_sending_is_answered(server: RestServer, lake: tl.Lakehouse, n_requests: int) -> None:
    """Some clients end their side of a connection with their last request. It was closed without an answer, and whether
    the commit had been made they could not know.
    """
    with_tables(lake, "shop.orders")
    length = b"Content-Length: %d\r\n\r\n" % len(COLOR)
    head = b"POST /v1/namespaces/shop/tables/orders HTTP/1.1\r\nHost: localhost\r\n" + AUTHORIZATION + length
    with connected(server) as connection:
        with turns.taken([lake.table("shop.orders").id]):
            connection.sendall(n_requests * (head + COLOR))
            wait_for(lambda: bool(server._app._turns._shares))
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.2)
        received = until_closed(connection)
    assert received.count(b"HTTP/1.1 200") == n_requests
    assert b"connection: close" in received
    assert lake.table("shop.orders").properties["color"] == "red"


def test_who_has_ended_sending_is_given_the_rest_of_an_answer(server: RestServer, lake: tl.Lakehouse) -> None:
    """A large answer waits until its client takes it, and was lost where the connection ended meanwhile."""
    with_tables(lake, "shop.orders")
    lake.table("shop.orders").set_properties({f"p{n}": "v" * 3000 for n in range(4000)})
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(
            b"GET /v1/namespaces/shop/tables/orders HTTP/1.1\r\nHost: localhost\r\n" + AUTHORIZATION + b"\r\n"
        )
        received = connection.recv(100)
        wait_for(lambda: server._app.service.meters.running == 0)
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        received += until_closed(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (HEALTHZ, b""),
        (HEALTHZ + b"\r\n", b"HTTP/1.1 200"),
        (CHUNKED + AUTHORIZATION + b"\r\n4\r\n", b""),
    ],
    ids=["nothing", "headers", "a request", "a part of a body"],
)
def test_who_has_ended_sending_keeps_no_connection(server: RestServer, sent: bytes, answered: bytes) -> None:
    """Nor is it waited for what cannot come."""
    with connected(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection)[:12] == answered


def test_what_is_done_for_a_browser_ends_with_it(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has gone away looks the same as who has ended sending and waits for an answer, as no browser does."""
    is_asked, is_told = threading.Event(), threading.Event()

    def waits(app: App, endpoint: Endpoint, call: Call) -> Response:
        is_asked.set()
        wait_for(lambda: not call.is_wanted())
        is_told.set()
        return Response()

    monkeypatch.setattr(App, "_answer", waits)
    with connected(server) as connection:
        connection.sendall(b"GET /trinitylake/v1/page/log HTTP/1.1\r\nHost: localhost\r\n" + AUTHORIZATION + b"\r\n")
        assert is_asked.wait(30)
    assert is_told.wait(30)


@pytest.mark.parametrize(
    ("request_head", "then"),
    [
        (HEALTHZ, b"\r\n"),
        (HEALTHZ + b"Content-Length: 1000\r\n", b"a"),
        (CHUNKED, b"1"),
        (CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 1000"), b"a"),
    ],
    ids=["a blank line", "a body that nobody reads", "a chunk", "a body that was refused"],
)
def test_whoever_begins_again_after_an_answer_and_stops_is_cut_off(
    server: RestServer, request_head: bytes, then: bytes
) -> None:
    with connected(server) as connection:
        connection.sendall(request_head + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        connection.sendall(then)
        until_closed(connection)


def test_a_connection_is_kept_if_the_body_comes_after_the_answer(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinitylake.rest.http.server.KEEP_ALIVE_SECONDS", 1)
    with running(lake, token=TOKEN) as server, connected(server) as connection:
        connection.sendall(CHUNKED + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        connection.sendall(b"0\r\n\r\n")
        connection.sendall(HEALTHZ + b"\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 200"), "and it is closed when it is idle"


def test_a_connection_that_is_kept_keeps_no_requests(server: RestServer) -> None:
    """Whose answer waits was looked up in a list of the connection's requests, which was cut only when an answer did
    wait: a client that took its answers at once left all of its requests in memory, some 4 KB each, for as long as it
    kept the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        for _ in range(50):
            connection.request("GET", "/v1/config")
            connection.getresponse().read()
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, RequestResponseCycle)]
        assert len(kept) < 10
    finally:
        connection.close()
