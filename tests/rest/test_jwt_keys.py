"""Keys of JSON Web Tokens behind an `https://` URL: rotation, failures of the issuer, and TLS."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa

import trinitylake as tl
from rest.client import Client, running
from trinitylake.rest import JwtSettings, RestServer
from trinitylake.rest.security import key_set
from trinitylake.rest.security.jwt_bearer import JwtBearers
from waiting import in_threads

KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("k1", "k2", "k3")}
ISSUER = "https://issuer.example"


def token(key: str, **claims: Any) -> str:
    """A valid token that is signed with the key of this name."""
    known = {"iss": ISSUER, "aud": "lake", "sub": "ana", "exp": int(time.time()) + 600, "trinitylake": "reader:*"}
    return jwt.encode({**known, **claims}, KEYS[key], "RS256", headers={"kid": key})


class Issuer:
    """A server of keys, with or without TLS. It counts its requests."""

    def __init__(self, certificate: trustme.LeafCert | None) -> None:
        self.keys = ["k1"]
        self.asked = 0
        self.code = 200
        self.leads_to = ""
        self.body: bytes | None = None
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                body = issuer.body if issuer.body is not None else issuer.document()
                self.send_response(302 if issuer.leads_to else issuer.code)
                if issuer.leads_to:
                    self.send_header("Location", issuer.leads_to)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = self.url.replace("http://", "https://")
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def document(self) -> bytes:
        """The document with the present keys."""
        public = {name: jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True) for name in self.keys}
        return json.dumps({"keys": [{**public[name], "kid": name, "use": "sig"} for name in self.keys]}).encode()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """A certificate authority that this process trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return authority


@pytest.fixture
def issuer(authority: trustme.CA) -> Iterator[Issuer]:
    issuer = Issuer(authority.issue_cert("127.0.0.1"))
    yield issuer
    issuer.stop()


@pytest.fixture
def bearers(issuer: Issuer) -> JwtBearers:
    return JwtBearers(JwtSettings(ISSUER, "lake", issuer.url))


def counts(bearers: JwtBearers, text: str) -> bool:
    return bearers.principal(text.encode()) is not None


@pytest.fixture
def waiting_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the minimum time between two requests for keys."""
    monkeypatch.setattr(key_set, "MIN_SECONDS_BETWEEN_FETCHES", 0)


def test_a_server_accepts_tokens_of_the_issuer(issuer: Issuer, lake: tl.Lakehouse) -> None:
    def code(server: RestServer, text: str) -> int:
        return Client(server)("GET", "/v1/namespaces", token=text).code

    with running(lake, jwt=JwtSettings(ISSUER, "lake", issuer.url)) as server:
        assert [code(server, token("k1")) for _ in range(3)] == [200] * 3
        assert code(server, token("k2")) == 401
        assert issuer.asked == 1


def test_a_new_key_is_found_and_a_removed_key_is_refused(
    issuer: Issuer, bearers: JwtBearers, waiting_is_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counts(bearers, token("k1"))
    issuer.keys = ["k1", "k2"]
    assert counts(bearers, token("k2"))
    assert issuer.asked == 2
    assert counts(bearers, token("k1", jti="another"))
    assert issuer.asked == 2, "known keys are not fetched again"
    issuer.keys = ["k2"]
    monkeypatch.setattr(key_set, "MAX_AGE_SECONDS", 0)
    assert not counts(bearers, token("k1", jti="a third"))


def test_unknown_keys_cause_few_fetches(issuer: Issuer, bearers: JwtBearers) -> None:
    issuer.keys = ["k1"]
    in_threads(lambda one: counts(bearers, token("k3", jti=str(one))), range(20))
    assert issuer.asked == 1
    assert counts(bearers, token("k1"))


@pytest.mark.parametrize("failure", ["down", "error", "nonsense", "empty"])
def test_known_keys_stay_valid_while_the_issuer_fails(
    issuer: Issuer, bearers: JwtBearers, waiting_is_over: None, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    assert counts(bearers, token("k1"))
    match failure:
        case "down":
            issuer.stop()
        case "error":
            issuer.code = 500
        case "nonsense":
            issuer.body = b"<html>"
        case "empty":
            issuer.body = b'{"keys": []}'
    assert not counts(bearers, token("k2"))
    monkeypatch.setattr(key_set, "MAX_AGE_SECONDS", 0)
    assert counts(bearers, token("k1", jti="another"))


def test_a_server_starts_before_its_issuer(authority: trustme.CA, issuer: Issuer, waiting_is_over: None) -> None:
    issuer.code = 503
    bearers = JwtBearers(JwtSettings(ISSUER, "lake", issuer.url))
    assert not counts(bearers, token("k1"))
    issuer.code = 200
    assert counts(bearers, token("k1"))


def test_keys_of_another_server_are_refused(issuer: Issuer) -> None:
    impostor = Issuer(trustme.CA().issue_cert("127.0.0.1"))
    try:
        bearers = JwtBearers(JwtSettings(ISSUER, "lake", impostor.url))
        assert not counts(bearers, token("k1"))
        assert impostor.asked == 0, "the connection must end before the request"
    finally:
        impostor.stop()


def test_keys_of_a_host_with_the_certificate_of_another_are_refused(issuer: Issuer) -> None:
    """Keys are not fetched from a host whose certificate belongs to another host. The token of the test is valid, so
    that the server tries to fetch a key."""
    elsewhere = issuer.url.replace("127.0.0.1", "localhost")
    assert not counts(JwtBearers(JwtSettings(ISSUER, "lake", elsewhere)), token("k1"))
    assert issuer.asked == 0, "the connection must end before the request"
    assert counts(JwtBearers(JwtSettings(ISSUER, "lake", issuer.url)), token("k1"))


def test_keys_are_not_fetched_without_tls(issuer: Issuer, bearers: JwtBearers, waiting_is_over: None) -> None:
    """Redirects to an address without TLS are not followed. A server listens at that address, so that the test notices
    a request."""
    plain = Issuer(None)
    try:
        for leads_to in (plain.url, "ftp://127.0.0.1/keys", "file:///etc/hostname"):
            issuer.leads_to = leads_to
            assert not counts(bearers, token("k1"))
        assert plain.asked == 0
        with urllib.request.urlopen(plain.url) as answer:
            assert answer.read() == issuer.document(), "the plain server has valid keys"
    finally:
        plain.stop()
    issuer.leads_to = ""
    assert counts(bearers, token("k1"))
    for url in ("http://127.0.0.1/keys", "http://issuer.example/keys", "ftp://issuer.example/keys"):
        with pytest.raises(tl.InvalidArgument, match="https"):
            JwtBearers(JwtSettings(ISSUER, "lake", url))
