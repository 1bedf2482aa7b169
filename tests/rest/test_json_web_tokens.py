"""JSON Web Tokens: which are accepted, and what their principals may do.

- Short keys, keys for other operations, and grants that were an object were accepted.
- The subject of a token could be empty, or the name of a principal with another kind of token.
- A token that expired in 10^400 seconds was a 500 with a traceback in the log.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import WALT
from rest.shop import with_tables
from trinitylake.rest import JwtSettings
from trinitylake.rest.http.routes import CATALOG, OTHERS, PAGE
from trinitylake.rest.security.key_set import FileKeySet

ISSUER = "https://issuer.example"
KEY, OTHER_KEY, SHORT_KEY = (
    rsa.generate_private_key(public_exponent=65537, key_size=size) for size in (2048, 2048, 1024)
)
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
    """The claims of a valid token. A claim of None is left out."""
    known = {"iss": ISSUER, "aud": "lake", "sub": "ana", "exp": int(time.time()) + 600, "trinitylake": "admin:*"}
    return {name: value for name, value in {**known, **more}.items() if value is not None}


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
    "an issuer that begins so": lambda: signed(iss=f"{ISSUER}.evil"),
    "a list of issuers": lambda: signed(iss=[ISSUER]),
    "an empty subject": lambda: signed(sub=""),
    "a subject of spaces": lambda: signed(sub=" "),
    "a name in two lines": lambda: signed(sub="ana\nbob"),
    "a name with an end in it": lambda: signed(sub="ana\0"),
    "a name without end": lambda: signed(sub="x" * 5000),
    "a number for a name": lambda: signed(sub=1),
    "the name of a principal with another token": lambda: signed(sub="walt"),
    "grants in an object": lambda: signed(trinitylake={"admin:*": 1}),
    "grants that are numbers": lambda: signed(trinitylake=[1]),
    "an unknown role": lambda: signed(trinitylake=["owner:*"]),
    "another key": lambda: signed(OTHER_KEY),
    "an unknown key": lambda: signed(kid="k2"),
    **{f"without {name}": functools.partial(signed, **{name: None}) for name in ("aud", "iss", "exp", "sub")},
    "another signature": lambda: signed()[:-4] + "AAAA",
    "four parts": lambda: signed() + "." + "A" * 20_000,
    "no JSON": lambda: "a.b.c",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("tokens")
    keys, tokens = folder / "keys.json", folder / "tokens"
    keys.write_text(json.dumps({"keys": KEYS}))
    tokens.write_text(f"{WALT} walt reader:shop.*\n")
    tokens.chmod(0o600)
    lake = tl.create(str(folder / "lake"), durability="none")
    with_tables(lake, "shop.orders", "payroll.orders").create_view("payroll.top", "SELECT 1")
    settings = JwtSettings(ISSUER, "lake", str(keys))
    with running(lake, token_file=tokens, jwt=settings) as server:
        yield Client(server)


def test_an_invalid_token_is_refused(client: Client) -> None:
    for kind in TOKENS:
        assert client("GET", "/v1/namespaces", token=TOKENS[kind]()).code == 401, kind


@pytest.mark.parametrize("right", [{}, {"aud": ["other", "lake"]}, {"sub": "ana maria|1@example"}], ids=str)
def test_a_valid_token_is_accepted(client: Client, right: dict[str, Any]) -> None:
    assert client("GET", "/v1/namespaces", token=signed(**right)).code == 200


def test_an_expired_token_is_accepted_within_the_leeway(client: Client) -> None:
    assert client("GET", "/v1/namespaces", token=signed(exp=int(time.time()) - 5)).code == 200


@pytest.mark.parametrize("document", [b"[" * 100_000, b"{}", b'{"keys": []}', b'{"keys": [1]}', b"[]", b'{"keys": 1}'])
def test_a_document_without_keys_is_no_key_set(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "keys").write_bytes(document)
    with pytest.raises(tl.InvalidArgument, match="cannot be read"):
        FileKeySet(tmp_path / "keys")


def test_a_token_with_an_odd_time_is_no_error_of_the_server(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for claim in ["exp", "nbf", "iat"]:
        for value in [10**400, -(10**400), "x", [], {}, 1e308]:
            with caplog.at_level(logging.WARNING):
                answer = client("GET", "/v1/namespaces", token=signed(**{claim: value}))
            assert answer.code == 401 or (answer.code == 200 and (claim != "exp" or value in (1e308, 10**400)))
            assert not [record for record in caplog.records if record.exc_info]


def test_a_token_has_the_rights_of_its_grants(client: Client) -> None:
    red = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}
    orders, wages = (f"/v1/namespaces/{name}/tables/orders" for name in ("shop", "payroll"))
    writer = signed(trinitylake=["writer:shop.*"])
    assert client("POST", orders, red, token=writer).code == 200
    assert client._server._app.service.lake.log(1)[0].author == "ana"
    assert client("GET", wages, token=writer).code == 403
    both = signed(trinitylake="reader:shop.* reader:payroll.*")
    assert [client("GET", path, token=both).code for path in (orders, wages)] == [200, 200]
    assert client("GET", orders, token=signed(trinitylake=None)).code == 403


def test_every_route_refuses_invalid_tokens(client: Client) -> None:
    server = client._server
    before = server._app.service.lake.version
    for endpoint in server._app.endpoints:
        path = re.sub(r"\{\w+\}", "shop", endpoint.path.replace("{prefix}", "latest"))
        for token in (signed(exp=int(time.time()) - 600), signed(aud="other"), signed(OTHER_KEY)):
            assert client(endpoint.method, path, {}, token=token).code == 401, (endpoint.method, path)
    assert len(server._app.endpoints) > 50
    assert server._app.service.lake.version == before


def test_a_principal_without_grants_gets_nothing_from_any_route(client: Client) -> None:
    lake, token = client._server._app.service.lake, signed(trinitylake=None)
    before = lake.version
    names = {"prefix": "latest", "namespace": "shop", "table": "orders", "view": "top", "id": "none"}
    for endpoint in (*CATALOG, *OTHERS, *PAGE):
        if endpoint.path == "/metrics":
            continue  # counters, without names
        path = re.sub(r"\{(\w+)\}", lambda found: names[found[1]], endpoint.path)
        answer = client(endpoint.method, path, {}, token=token)
        assert endpoint.method == "HEAD" or "payroll" not in str(answer.body)
        if "{namespace}" in endpoint.path:
            assert answer.code == 403, (endpoint.method, path)
    assert client("GET", "/v1/namespaces", token=token).body["namespaces"] == []
    assert lake.version == before


def test_a_token_is_refused_after_its_expiry(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    token = signed(exp=int(time.time()) + 60)
    assert client("GET", "/v1/config", token=token).code == 200

    class Later:
        """A clock that is ahead, for the library that checks tokens."""

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=160)

    monkeypatch.setattr("jwt.api_jwt.datetime", Later)
    assert client("GET", "/v1/config", token=token).code == 401


@pytest.mark.parametrize("keys", ["http://issuer.example/keys", "/none/keys.json"])
def test_keys_come_from_a_file_or_over_tls(lake: tl.Lakehouse, keys: str) -> None:
    with pytest.raises(tl.InvalidArgument), running(lake, jwt=JwtSettings(ISSUER, "lake", keys)):
        pass
