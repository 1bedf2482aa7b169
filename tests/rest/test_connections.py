"""Connections of unauthenticated clients have limits on memory and number.

An unauthenticated client grew the server by 100 MB per 70 MB of HTTP trailers, which were kept without a limit. Silent
connections used up the file descriptors of the process. One header of 100 kB was accepted if it arrived at once, and
bytes that are not HTTP got an answer in plain text.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from starlette.responses import Response

import trinitylake as tl
from rest.client import TOKEN, running
from trinitylake.rest import RestServer, ServerOptions, limits
from trinitylake.rest.http.app import App
from trinitylake.rest.http.routes import Endpoint
from trinitylake.rest.limits import MAX_HEADERS_SIZE_BYTES
from trinitylake.rest.request.call import Call
from waiting import PATIENCE_SECONDS, wait_until

CHUNKED = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n".encode()
COLOR = b'{"updates": [{"action": "set-properties", "updates": {"color": "red"}}]}'
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def server(lake: tl.Lakehouse) -> Iterator[RestServer]:
    with running(lake, token=TOKEN) as server:
        yield server


def connected(server: RestServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)


def send_often(connection: socket.socket, sent: bytes) -> None:
    """Send bytes, many more than fit into the buffers of the connection."""
    for _ in range(300 * MAX_HEADERS_SIZE_BYTES // len(sent)):
        connection.sendall(sent)


def until_closed(connection: socket.socket) -> bytes:
    """Receive bytes until the server closes the connection. Raises `TimeoutError` if it does not."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:  # the server closed the connection before it read everything
        pass
    return received


@pytest.mark.parametrize("head", [CHUNKED, CHUNKED + AUTHORIZATION], ids=["a stranger", "a principal"])
@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many trailers", "one of them"])
def test_trailers_without_end_end_the_connection(server: RestServer, head: bytes, line: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(head + b"\r\n0\r\nz:")
        with pytest.raises(ConnectionError):
            send_often(connection, line)


LARGE_HEADS = {
    "one header": b"x: " + b"y" * MAX_HEADERS_SIZE_BYTES + b"\r\n",
    "many headers": b"".join(b"x%d: %s\r\n" % (number, b"y" * 50) for number in range(2000)),
}


def test_headers_above_the_limit_are_refused(server: RestServer) -> None:
    for headers in LARGE_HEADS:
        for path in [b"/healthz", b"/v1/namespaces"]:
            with connected(server) as connection:
                connection.sendall(
                    b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + LARGE_HEADS[headers] + b"\r\n"
                )
                assert_error(until_closed(connection), (400, 431))


def test_a_path_above_the_limit_is_refused(server: RestServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /" + b"a" * MAX_HEADERS_SIZE_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert_error(until_closed(connection), (400, 431))


NOT_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00" * 40 + b"\r\n\r\n",
    "a negative length": b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "no host": b"GET /v1/namespaces HTTP/1.1\r\n\r\n",
    "an invalid chunk": CHUNKED + AUTHORIZATION + b"\r\nxyz\r\n",
}


def test_invalid_http_gets_the_error_model(server: RestServer) -> None:
    for request_text in NOT_HTTP:
        with connected(server) as connection:
            connection.sendall(NOT_HTTP[request_text])
            assert_error(until_closed(connection), (400,))


def assert_error(received: bytes, codes: tuple[int, ...]) -> None:
    """The response is an error of the specification, with one of the codes."""
    head, _, body = received.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert error["code"] in codes
    assert head.startswith(f"HTTP/1.1 {error['code']} ".encode())
    assert error["type"] == "BadRequestException"
    assert error["message"]


AMBIGUOUS = {
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    "chunks that are none": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": b"X-Request-Id : a\r\n\r\n",
    "the end of a text": b"X: a\0b\r\n\r\n",
}


def test_an_ambiguous_request_is_refused(server: RestServer) -> None:
    for kind in AMBIGUOUS:
        with connected(server) as connection:
            connection.sendall(b"POST /v1/namespaces HTTP/1.1\r\nHost: a\r\n" + AUTHORIZATION + AMBIGUOUS[kind])
            answer = until_closed(connection)
        assert_error(answer, (400,))
        assert answer.count(b"HTTP/1.1 ") == 1


def test_a_head_without_end_closes_the_connection(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit for a silent connection lasts until the whole head has arrived, also for the second request, not
    only until its first byte."""
    monkeypatch.setattr(limits, "SILENT_SECONDS", 0.5)
    for before in (b"", HEALTHZ + b"\r\n"):
        with connected(server) as connection:
            connection.sendall(before)
            if before:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET ")
            with suppress(ConnectionError):
                while connection.recv(1):
                    connection.sendall(b"x")


def test_a_chunk_with_decoration_without_end_ends_the_connection(server: RestServer) -> None:
    with connected(server) as connection:
        connection.sendall(CHUNKED + AUTHORIZATION + b"\r\n1;")
        with pytest.raises(ConnectionError):
            send_often(connection, b"a" * 1000)


def test_a_body_in_small_chunks_is_accepted(server: RestServer) -> None:
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


def test_a_request_of_the_page_is_cancelled_when_the_browser_disconnects(
    server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, has_noticed = threading.Event(), threading.Event()

    def waits(app: App, endpoint: Endpoint, call: Call) -> Response:
        is_asked.set()
        wait_until(lambda: not call.is_wanted())
        has_noticed.set()
        return Response()

    monkeypatch.setattr(App, "_answer", waits)
    with connected(server) as connection:
        connection.sendall(b"GET /trinitylake/v1/page/log HTTP/1.1\r\nHost: localhost\r\n" + AUTHORIZATION + b"\r\n")
        assert is_asked.wait(PATIENCE_SECONDS)
    assert has_noticed.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n"], ids=["silent", "half a head"])
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
def test_silent_connections_do_not_keep_others_out(
    lake: tl.Lakehouse,
    tls: tuple[dict[str, Path], ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    with_tls: bool,
    sent: bytes,
) -> None:
    """1,040 connections that never sent a request, or never began their TLS handshake, used up the file descriptors."""
    files, context = tls
    monkeypatch.setattr(limits, "SILENT_SECONDS", 3600)  # they must not be closed because of their age
    options = ServerOptions(max_connections=20)
    with running(lake, token=TOKEN, options=options, **(files if with_tls else {})) as server, ExitStack() as stack:
        for _ in range(100):
            silent = stack.enter_context(connected(server))
            with suppress(ConnectionError):  # the server may have ended it
                silent.sendall(sent)

        def is_served() -> bool:
            with connected(server) as connection, ExitStack() as own:
                if with_tls:
                    connection = own.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
                connection.sendall(HEALTHZ + b"Connection: close\r\n\r\n")
                return until_closed(connection).startswith(b"HTTP/1.1 200")

        wait_until(is_served)


def test_a_server_with_tls_answers_neither_plain_http_nor_old_versions(
    lake: tl.Lakehouse, tls: tuple[dict[str, Path], ssl.SSLContext]
) -> None:
    files, context = tls
    context.minimum_version = ssl.TLSVersion.TLSv1
    with running(lake, token=TOKEN, **files) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/" not in plain.recv(1000)
        for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context.maximum_version = version
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
                if works:
                    context.wrap_socket(connection, server_hostname="localhost").close()
                else:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        context.wrap_socket(connection, server_hostname="localhost")
