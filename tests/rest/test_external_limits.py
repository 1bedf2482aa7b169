"""Limits on tables outside of the lakehouse: their files, and the responses of their catalogs.

- A file of one megabyte decompressed to a gigabyte when a reader loaded or planned the table.
- The client got an error at the deadline, but the thread continued: it read an endless response until memory was full,
  or waited for a silent catalog for ever. Four such threads blocked the catalog until the server restarted. A catalog
  that sent a byte now and then passed a limit on silence. Now a worker process asks the catalog, and is killed.
- A catalog that redirected got the token or headers of the lakehouse at its new address.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from local_files import local_path
from rest.client import Client, running
from rest.shop import with_tables
from rest.test_silent_peers import federated
from trinitylake.iceberg_storage import metadata
from trinitylake.iceberg_storage.extended_pyiceberg import federated_catalog
from trinitylake.iceberg_storage.federated_tables import federated_properties, open_federated
from trinitylake.rest import limits, metadata_limits
from trinitylake.rest.outbound import MAX_WAITING_FOR_ONE, Outbound
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("reused_workers")
PATH = "/v1/namespaces/shop/tables/outside"


@pytest.fixture
def elsewhere(tmp_path: Path, lake: tl.Lakehouse) -> tl.Table:
    """An external table, whose files are in another lakehouse."""
    other = tl.create(str(tmp_path / "other"), durability="none")
    with_tables(other, "else.where")
    table = other.table("else.where")
    table.append({"id": [7, 8]})
    lake.create_namespace("shop")
    lake.create_table("shop.outside", metadata_location=table.iceberg.metadata_location)
    return table


def planned(client: Client) -> Any:
    return client("POST", f"{PATH}/plan", {})


def test_a_scan_of_an_external_table_is_planned(http_client: Client, elsewhere: tl.Table) -> None:
    files = {task.file.file_path for task in elsewhere.iceberg.scan().plan_files()}
    assert len(files) == 2
    assert {task["data-file"]["file-path"] for task in planned(http_client).body["file-scan-tasks"]} == files


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_ENTRIES", 1), ("MAX_SIZE_BYTES", 100), ("MAX_STORED_SIZE_BYTES", 9)]
)
def test_manifests_of_external_tables_have_limits(
    http_client: Client, elsewhere: tl.Table, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(http_client).code == 200
    monkeypatch.setattr(metadata_limits, limit, value)
    answer = planned(http_client)
    assert answer.code == 406
    assert "exceeds the limit" in answer.body["error"]["message"]


def test_metadata_of_external_tables_has_limits(http_client: Client, elsewhere: tl.Table) -> None:
    file = local_path(elsewhere.iceberg.metadata_location)
    whole = file.read_bytes()
    for bomb in (gzip.compress(b" " * (300 << 20)), b'{"x":[' + b"[]," * 3_000_000 + b"0]}", b" " * (65 << 20)):
        file.write_bytes(bomb)
        metadata.cache.clear()
        tracemalloc.start()
        try:
            answer = http_client("GET", PATH)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (answer.code, answer.error) == (500, "CorruptFileException")
        assert "exceeds the limit" in answer.body["error"]["message"]
        assert most < 150 << 20
    file.write_bytes(whole)
    metadata.cache.clear()
    assert http_client("GET", PATH).body["metadata"]["table-uuid"] == str(elsewhere.iceberg.metadata.table_uuid)


def test_metadata_of_external_tables_is_one_compressed_text(http_client: Client, elsewhere: tl.Table) -> None:
    """Metadata that consists of several gzip members is refused. Decompressing a few megabytes of empty members one by
    one would take an hour."""
    local_path(elsewhere.iceberg.metadata_location).write_bytes(gzip.compress(b"") * 1000)
    metadata.cache.clear()
    answer = http_client("GET", PATH)
    assert (answer.code, answer.error) == (500, "CorruptFileException")
    assert "has data after the end of its compressed text" in answer.body["error"]["message"]


CONFIG = json.dumps({"defaults": {}, "overrides": {}}).encode()


class Odd(http.server.BaseHTTPRequestHandler):
    """A catalog whose responses about tables are invalid in the way that `how` selects."""

    how = ""
    asked = 0

    def do_GET(self) -> None:
        if "config" in self.path:
            self._send(CONFIG)
            return
        type(self).asked += 1
        with suppress(OSError):  # the client has disconnected
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


@pytest.mark.parametrize("how", ["silence", "deeply nested", "a huge number", "no gzip", "nothing", "a list"])
def test_a_response_that_is_no_table_raises_storage_error(peer: Any, how: str, short: None) -> None:
    peer.RequestHandlerClass.how = how
    with pytest.raises(tl.StorageError, match="in time" if how == "silence" else "the catalog"):
        open_federated(federated_properties({"uri": address(peer)}, "sales.orders"))


@pytest.mark.parametrize("how", ["without end", "byte by byte", "headers byte by byte", "gzip bomb", "many values"])
def test_a_catalog_that_answers_slowly_or_too_much_ends_one_worker(
    peer: Any, how: str, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow or endless response of another catalog ends only the worker that reads it, within its limits. Otherwise it
    could occupy a thread for hours, or all memory of the server."""
    monkeypatch.setattr(Outbound.__init__, "__defaults__", (8.0,))
    monkeypatch.setitem(limits.JOBS, "foreign", replace(limits.JOBS["foreign"], memory_size_bytes=200 << 20))
    peer.RequestHandlerClass.how = how
    lake.create_namespace("shop")
    federated(lake, "theirs", address(peer))
    with running(lake) as server:
        tracemalloc.start()
        try:
            answer = Client(server)("GET", "/v1/namespaces/shop/tables/theirs")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.code in (500, 504)
        assert most < 50 << 20
        wait_until(lambda: not server._app.service.workers.n_at_work)


def test_a_catalog_that_was_silent_is_called_again(
    peer: Any, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
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
        wait_until(lambda: client("GET", path).code not in (503, 504))
        assert peer.RequestHandlerClass.asked > asked
        assert client("GET", path).error == "StorageException"


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A catalog that redirects to another one or is the target of a redirect. It records its requests."""

    leads_to = ""
    how = ""
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        if self.how == "redirects" or (self.how == "redirects later" and "config" not in self.path):
            self.send_response(307)
            self.send_header("Location", f"{self.leads_to}{self.path}")
            self.end_headers()
            return
        overrides = {"uri": self.leads_to} if self.how == "says so" else {}
        if self.how == "names code":
            overrides = {"py-io-impl": "evil.Code", "oauth2-server-uri": self.leads_to}
        body = json.dumps({"defaults": {}, "overrides": overrides}).encode()
        self.send_response(200 if "config" in self.path else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    """A catalog, and the catalog to which it redirects."""
    servers = []
    for _ in range(2):
        handler = type("Handler", (Elsewhere,), {"seen": []})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    servers[0].RequestHandlerClass.leads_to = f"http://127.0.0.1:{servers[1].server_port}"
    yield servers[0], servers[1]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("how", ["redirects", "redirects later", "says so"])
def test_a_redirect_of_a_federated_catalog_is_not_followed(pair: tuple[Any, Any], how: str) -> None:
    partner, other = pair
    partner.RequestHandlerClass.how = how
    stored = federated_properties({"uri": f"http://127.0.0.1:{partner.server_port}"}, "sales.orders")
    secrets = {"token": "the-token-of-this-server", "header.x-api-key": "another-secret"}
    with pytest.raises(tl.PermissionDenied):
        open_federated(stored, secrets)
    assert partner.RequestHandlerClass.seen[0]["x-api-key"] == "another-secret"
    assert other.RequestHandlerClass.seen == []


def test_a_federated_catalog_cannot_configure_code_or_endpoints(pair: tuple[Any, Any]) -> None:
    partner, other = pair
    partner.RequestHandlerClass.how = "names code"
    stored = federated_properties({"uri": f"http://127.0.0.1:{partner.server_port}"}, "sales.orders")
    with pytest.raises(tl.ObjectNotFound):
        open_federated(stored, {"token": "the-token-of-this-server"})
    assert other.RequestHandlerClass.seen == []
