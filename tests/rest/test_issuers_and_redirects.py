"""JSON Web Tokens, key sets, ambiguous requests, and redirects of federated catalogs.

- Short keys, keys for other operations, and grants that were an object were accepted.
- The subject of a token could be empty, or the name of a principal with another kind of token.
- A federated catalog that redirected got the token or headers at its new address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import WALT
from trinitylake.iceberg_storage.federated_tables import federated_properties, open_federated
from trinitylake.rest import JwtSettings
from trinitylake.rest.security.key_set import _keys_of

KEY, SHORT_KEY = (rsa.generate_private_key(public_exponent=65537, key_size=size) for size in (2048, 1024))
SECRET = b"s" * 32
PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public(key: rsa.RSAPrivateKey, kid: str, **more: Any) -> dict[str, Any]:
    return {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


KEYS = [
    public(KEY, "good", use="sig"),
    public(SHORT_KEY, "short"),
    public(KEY, "encrypts", use="enc"),
    public(KEY, "wraps", key_ops=["wrapKey"]),
    {"kty": "oct", "k": text(SECRET), "kid": "shared"},
    {"kty": "unheard of", "kid": "new"},
    *[public(KEY, "twice")] * 2,
]


def claims(**more: Any) -> dict[str, Any]:
    known = {"iss": "https://issuer.example", "aud": "lake", "sub": "ana", "exp": int(time.time()) + 600}
    return {**known, "trinitylake": "admin:*", **more}


def signed(key: Any = KEY, kid: str = "good", header: dict[str, Any] | None = None, **more: Any) -> str:
    return jwt.api_jws.encode(json.dumps(claims(**more)).encode(), key, "RS256", {"kid": kid, **(header or {})})


def by_hand(header: bytes | dict[str, Any], secret: bytes = SECRET, payload: bytes | None = None) -> str:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = f"{text(data)}.{text(payload or json.dumps(claims()).encode())}"
    return f"{start}.{text(hmac.new(secret, start.encode(), hashlib.sha256).digest())}"


TOKENS = {
    "no signature": lambda: by_hand({"alg": "none"})[:-43],
    "the public key as a secret": lambda: by_hand({"alg": "HS256", "kid": "good"}, PEM),
    "a secret among the keys": lambda: by_hand({"alg": "HS256", "kid": "shared"}),
    "a secret under another name": lambda: by_hand({"alg": "RS256", "kid": "shared"}),
    "a short key": lambda: signed(SHORT_KEY, "short"),
    "a key for encryption": lambda: signed(kid="encrypts"),
    "a key for other operations": lambda: signed(kid="wraps"),
    "two keys of one name": lambda: signed(kid="twice"),
    "a path for a key": lambda: signed(kid="../../../etc/passwd"),
    "an address of keys": lambda: signed(kid="evil", header={"jku": "https://evil.example/keys"}),
    "a key in the token": lambda: signed(SHORT_KEY, "none", {"jwk": public(SHORT_KEY, "none")}),
    "a key that is an object": lambda: by_hand({"alg": "RS256", "kid": {"a": 1}}),
    "something critical": lambda: signed(header={"crit": ["x"], "x": 1}),
    "a header without end": lambda: by_hand(b"[" * 11_000),
    "a header that is a number": lambda: by_hand(b"1"),
    "claims without end": lambda: by_hand({"alg": "RS256", "kid": "good"}, payload=b"[" * 11_000),
    "expired": lambda: signed(exp=int(time.time()) - 100),
    "an endless one": lambda: signed(exp=float("inf")),
    "an end in words": lambda: signed(exp="tomorrow"),
    "not valid yet": lambda: signed(nbf=int(time.time()) + 300),
    "made in the future": lambda: signed(iat=int(time.time()) + 3000),
    "another audience": lambda: signed(aud="lake2"),
    "an issuer that begins so": lambda: signed(iss="https://issuer.example.evil"),
    "a list of issuers": lambda: signed(iss=["https://issuer.example"]),
    "nobody": lambda: signed(sub=""),
    "blanks": lambda: signed(sub=" "),
    "a name in two lines": lambda: signed(sub="ana\nbob"),
    "a name with an end in it": lambda: signed(sub="ana\0"),
    "a name without end": lambda: signed(sub="x" * 5000),
    "a number for a name": lambda: signed(sub=1),
    "somebody with a token of their own": lambda: signed(sub="walt"),
    "grants in an object": lambda: signed(trinitylake={"admin:*": 1}),
    "grants that are numbers": lambda: signed(trinitylake=[1]),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("second")
    keys, tokens = folder / "keys.json", folder / "tokens"
    keys.write_text(json.dumps({"keys": KEYS}))
    tokens.write_text(f"{WALT} walt reader:shop.*\n")
    tokens.chmod(0o600)
    lake = tl.create(str(folder / "lake"), durability="none")
    settings = JwtSettings("https://issuer.example", "lake", str(keys))
    with running(lake, token_file=tokens, jwt=settings) as server:
        yield Client(server)


@pytest.mark.parametrize("kind", TOKENS)
def test_an_invalid_token_is_refused(client: Client, kind: str) -> None:
    assert client("GET", "/v1/namespaces", token=TOKENS[kind]()).code == 401


@pytest.mark.parametrize("right", [{}, {"aud": ["other", "lake"]}, {"sub": "ana maria|1@example"}], ids=str)
def test_a_valid_token_is_accepted(client: Client, right: dict[str, Any]) -> None:
    assert client("GET", "/v1/namespaces", token=signed(**right)).code == 200


def test_an_expired_token_is_accepted_within_the_leeway(client: Client) -> None:
    assert client("GET", "/v1/namespaces", token=signed(exp=int(time.time()) - 5)).code == 200


@pytest.mark.parametrize("document", [b"[" * 100_000, b"{}", b'{"keys": []}', b'{"keys": [1]}', b"[]", b'{"keys": 1}'])
def test_a_document_without_keys_is_no_key_set(document: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError)):
        _keys_of(document)


ODD = {
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    "chunks that are none": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": b"X-Request-Id : a\r\n\r\n",
    "the end of a text": b"X: a\0b\r\n\r\n",
}


@pytest.mark.parametrize("kind", ODD)
def test_an_ambiguous_request_is_refused(client: Client, kind: str) -> None:
    with socket.create_connection(("127.0.0.1", client._server.port), timeout=10) as connection:
        start = f"POST /v1/namespaces HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {signed()}\r\n".encode()
        connection.sendall(start + ODD[kind])
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


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


def test_a_redirect_from_https_to_http_is_not_followed(
    lake: tl.Lakehouse, tls: tuple[dict[str, Path], ssl.SSLContext]
) -> None:
    """Neither to plain HTTP nor to an old version."""
    files, context = tls
    context.minimum_version = ssl.TLSVersion.TLSv1
    with running(lake, token=WALT, **files) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/" not in plain.recv(1000)
        for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context.maximum_version = version
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                if works:
                    context.wrap_socket(connection, server_hostname="localhost").close()
                else:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        context.wrap_socket(connection, server_hostname="localhost")
