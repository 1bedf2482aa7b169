"""Responses of federated catalogs have limits in bytes, values and time.

The client got an error at the deadline, but the thread continued: it read an endless response until memory was full,
decompressed a megabyte to a gigabyte, or waited for a silent catalog for ever. Four such threads blocked the catalog
until the server restarted. A catalog that sent a byte now and then passed a limit on silence.
"""

from __future__ import annotations

import gzip
import http.server
import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.test_silent_peers import federated
from trinitylake.base import header_timeouts
from trinitylake.iceberg_storage.extended_pyiceberg import federated_catalog
from trinitylake.iceberg_storage.federated_tables import federated_properties, open_federated
from trinitylake.rest.outbound import MAX_WAITING_FOR_ONE, Outbound

SLOW = ("byte by byte", "headers byte by byte", "silence")
CONFIG = json.dumps({"defaults": {}, "overrides": {}}).encode()


class Odd(http.server.BaseHTTPRequestHandler):
    """A catalog whose answers about tables are what `how` says."""

    how = ""
    asked = 0
    #: Nobody has cut it off.
    has_ended = False

    def do_GET(self) -> None:
        if "config" in self.path:
            self._send(CONFIG)
            return
        type(self).asked += 1
        with suppress(OSError):  # who asked has gone
            getattr(self, self.how.replace(" ", "_"))()

    def _send(self, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def without_end(self) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b" " * (1 << 20))

    def byte_by_byte(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        for _ in range(600):
            self.wfile.write(b" ")
            time.sleep(0.1)

    def headers_byte_by_byte(self) -> None:
        self.send_response(200)
        self.flush_headers()
        self.wfile.write(b"X-Padding: ")
        for _ in range(600):
            self.wfile.write(b"x")
            time.sleep(0.1)
        type(self).has_ended = True

    def silence(self) -> None:
        time.sleep(30)

    def gzip_bomb(self) -> None:
        self._send(gzip.compress(b" " * (1 << 20)) * 300, ("Content-Encoding", "gzip"))

    def many_values(self) -> None:
        self._send(b"[" + b"[]," * 3_000_000 + b"[]]")

    def deeply_nested(self) -> None:
        self._send(b'{"metadata":' * 100_000)

    def a_huge_number(self) -> None:
        self._send(b'{"metadata": {"format-version": ' + b"9" * 1_000_000 + b"}}")

    def no_gzip(self) -> None:
        self._send(b"this is none", ("Content-Encoding", "gzip"))

    def nothing(self) -> None:
        self._send(b"")

    def a_list(self) -> None:
        self._send(b"[1, 2]")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def peer() -> Iterator[Any]:
    handler = type("Handler", (Odd,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def address(peer: Any) -> str:
    return f"http://127.0.0.1:{peer.server_port}"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated_catalog, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(federated_catalog, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(header_timeouts, "HEADERS_SECONDS", 1.0)


@pytest.mark.parametrize(
    "how",
    [
        "without end",
        "byte by byte",
        "headers byte by byte",
        "silence",
        "gzip bomb",
        "many values",
        "deeply nested",
        "a huge number",
        "no gzip",
        "nothing",
        "a list",
    ],
)
def test_a_response_of_a_catalog_has_limits(peer: Any, how: str, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated_catalog, "MAX_ANSWER_SIZE_BYTES", 16 << 20)
    peer.RequestHandlerClass.how = how
    stored = federated_properties({"uri": address(peer)}, "sales.orders")
    tracemalloc.start()
    try:
        with pytest.raises(tl.StorageError, match="in time" if how in SLOW else "the catalog"):
            open_federated(stored)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 150 << 20
    assert not peer.RequestHandlerClass.has_ended, "it was waited for"


def test_a_catalog_that_was_silent_is_called_again(
    peer: Any, lake: tl.Lakehouse, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbound.__init__, "__defaults__", (0.2,))
    peer.RequestHandlerClass.how = "silence"
    lake.create_namespace("shop")
    federated(lake, "theirs", address(peer))
    with running(lake) as server:
        client = Client(server)
        path = "/v1/namespaces/shop/tables/theirs"
        codes = [client("GET", path).code for _ in range(MAX_WAITING_FOR_ONE + 1)]
        assert codes == [504] * MAX_WAITING_FOR_ONE + [503]
        asked = peer.RequestHandlerClass.asked
        peer.RequestHandlerClass.how = "a list"
        end = time.monotonic() + 20
        while client("GET", path).code in (503, 504) and time.monotonic() < end:
            time.sleep(0.1)
        assert peer.RequestHandlerClass.asked > asked
        assert client("GET", path).error == "StorageException"
