"""Redirects of federated catalogs are not followed, and their configuration names no code and no other address.

A catalog that redirected got the token or headers of the lakehouse at its new address.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import trinitylake as tl
from trinitylake.iceberg_storage.federated_tables import federated_properties, open_federated


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A catalog that leads to another one, or is that other one; it remembers what it was sent."""

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
    """A catalog, and the one that it leads to."""
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
