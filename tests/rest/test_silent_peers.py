"""A peer that accepts connections and never answers delays only the requests that need it.

- Loads of federated tables ran in the event loop without a timeout, so a catalog that hung stopped `/healthz` too.
- Invalid tokens delayed valid ones for five of ten seconds while the keys of the issuer could not be fetched.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import trinitylake as tl
from rest.client import Answer, Client, running
from trinitylake.rest import JwtSettings, RestServer
from trinitylake.rest.errors import RestError
from trinitylake.rest.outbound import MAX_WAITING_FOR_ONE, Outbound
from waiting import PATIENCE_SECONDS, wait_until

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ISSUER = "https://issuer.example"


def federated(lake: tl.Lakehouse, name: str, uri: str) -> None:
    """Register a federated table without a request to its catalog."""
    from trinitylake.definitions import new_table_def, serialize
    from trinitylake.iceberg_storage.federated_tables import federated_properties

    definition = new_table_def(
        table_type="federated", format_properties=federated_properties({"type": "rest", "uri": uri}, "a.b", name)
    )
    with lake.transaction() as txn:
        txn._state().create("table", "shop", name, serialize(definition))


def test_a_catalog_that_hangs_delays_no_other_request(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbound.__init__, "__defaults__", (3600.0,))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, running(shop) as server:
        federated(shop, "theirs", f"http://127.0.0.1:{silent.getsockname()[1]}")
        client = Client(server)
        answers: list[Answer] = []

        def ask(method: str, path: str) -> None:
            answers.append(client(method, path))

        paths = [("GET", "/v1/namespaces/shop/tables/theirs"), ("POST", "/v1/namespaces/shop/tables/theirs/plan")]
        threads = [threading.Thread(target=ask, args=paths[number % 2]) for number in range(30)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answers) == 30 - MAX_WAITING_FOR_ONE)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert _code(server, path) == 200
        assert client("GET", "/v1/namespaces/shop/tables/orders").code == 200
        assert Counter(answer.code for answer in answers) == {400: 15, 503: 15 - MAX_WAITING_FOR_ONE}
        silent.close()
        for thread in threads:
            thread.join()
    assert [answer.code for answer in answers[-MAX_WAITING_FOR_ONE:]] == [500] * MAX_WAITING_FOR_ONE


def _code(server: RestServer, path: str) -> int:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return int(connection.recv(100).split()[1])


def test_one_peer_occupies_only_its_own_calls() -> None:
    """A slow peer delays only calls to itself. The peer of this test does answer, so that the test notices if it blocks
    others."""
    hang = threading.Event()
    calls = Outbound(seconds=0.1)
    for number in range(MAX_WAITING_FOR_ONE):
        with pytest.raises(RestError, match="did not answer") as caught:
            calls.run("bad", lambda: hang.wait(PATIENCE_SECONDS))  # an answer, but after the deadline
        assert caught.value.code == 504, number
    with pytest.raises(RestError, match="does not answer") as caught:
        calls.run("bad", hang.wait)
    assert caught.value.code == 503
    assert calls.run("good", lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        calls.run("good", lambda: 1 // 0)
    hang.set()
    wait_until(lambda: not calls.limit.n_leases)
    assert calls.run("bad", lambda: 43) == 43


def token_of(key: rsa.RSAPrivateKey, id: str, who: str) -> str:
    claims = {"iss": ISSUER, "aud": "lake", "sub": who, "exp": int(time.time()) + 600, "trinitylake": "reader:*"}
    return jwt.encode(claims, key, "RS256", headers={"kid": id})


def test_invalid_tokens_do_not_delay_valid_ones_while_the_issuer_hangs(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "good", "use": "sig"}
    hangs, has_asked, hang = threading.Event(), threading.Event(), threading.Event()

    def read(self: jwt.PyJWKClient) -> Any:
        if hangs.is_set():
            has_asked.set()
            hang.wait(PATIENCE_SECONDS)
            raise OSError("it hung")
        return {"keys": [document]}

    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", read)
    monkeypatch.setattr("trinitylake.rest.security.key_set.MIN_SECONDS_BETWEEN_FETCHES", 0.0)
    settings = JwtSettings(ISSUER, "lake", "https://issuer.example/keys")
    with running(shop, jwt=settings) as server:
        client = Client(server)
        path = "/v1/namespaces/shop/tables/orders"
        assert client("GET", path, token=token_of(KEY, "good", "first")).code == 200
        hangs.set()
        junk = [
            threading.Thread(target=client, args=("GET", path), kwargs={"token": token_of(KEY, f"junk{n}", "x")})
            for n in range(60)
        ]
        for thread in junk:
            thread.start()
        assert has_asked.wait(PATIENCE_SECONDS)
        for number in range(5):
            assert client("GET", path, token=token_of(KEY, "good", f"valid{number}")).code == 200
        hang.set()
        for thread in junk:
            thread.join()


def test_invalid_tokens_above_the_limit_are_refused_at_once(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()

    def read(self: jwt.PyJWKClient) -> Any:
        hang.wait(PATIENCE_SECONDS)
        raise OSError("it hung")

    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", read)
    monkeypatch.setattr("trinitylake.rest.security.guard.MAX_WAITING", 3)
    settings = JwtSettings(ISSUER, "lake", "https://issuer.example/keys")
    with running(shop, jwt=settings) as server:
        client = Client(server)
        codes: list[int] = []

        def ask(number: int) -> None:
            codes.append(client("GET", "/v1/config", token=token_of(KEY, f"junk{number}", "x")).code)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(codes) >= 9)
        assert codes == [503] * 9
        hang.set()
        for thread in threads:
            thread.join()
        assert codes[9:] == [401] * 3
