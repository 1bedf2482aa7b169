"""Authentication, and containment of locations and properties in requests."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import TOKEN, Client, running
from trinitylake.errors import InvalidArgument
from trinitylake.rest import RestServer, ServerOptions, serve
from trinitylake.rest.security.tokens import Tokens


def test_every_route_needs_the_token(server: RestServer, http_client: Client, shop: tl.Lakehouse) -> None:
    before = shop.version
    tried = 0
    for endpoint in server._app.endpoints:
        path = endpoint.path.replace("{prefix}", "latest").replace("{namespace}", "shop").replace("{table}", "orders")
        path = path.replace("{view}", "v").replace("{id}", "x")
        for method in (endpoint.method, "HEAD") if endpoint.method == "GET" else (endpoint.method,):
            for token in ("", "wrong", server.token[:-1], server.token + "x"):
                answer = http_client(method, path, {}, token=token)
                assert answer.code == 401, (method, path, token)
                assert answer.headers["www-authenticate"] == "Bearer"
                tried += 1
    assert tried > 200
    assert http_client("GET", "/nowhere", token="").code == 401
    assert shop.version == before


def test_two_authorization_headers_are_refused(server: RestServer, http_client: Client) -> None:
    def ask(headers: dict[str, str]) -> int:
        return http_client("GET", "/v1/config", headers=headers, token="").code

    assert ask({"Authorization": f"bearer {server.token}"}) == 200
    assert ask({"Authorization": f"Basic {server.token}"}) == 401
    assert ask({"Authorization": server.token}) == 401
    assert ask({"Authorization": f"Bearer {server.token}, Bearer x"}) == 401
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        lines = ["GET /v1/config HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"Authorization: Bearer {server.token}", "Authorization: Bearer wrong", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_without_a_token_only_local_programs_have_access(open_server: RestServer) -> None:
    client = Client(open_server)
    assert client("GET", "/v1/config").code == 200
    assert client("GET", "/v1/config", headers={"Host": "localhost:99"}).code == 200
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Origin": "http://evil.example"}):
        assert client("POST", "/v1/namespaces", {"namespace": ["x"]}, headers=headers).code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "some-name"])
def test_another_address_needs_a_token_and_tls(lake: tl.Lakehouse, host: str) -> None:
    for options in ({}, {"behind_proxy": True}):
        with pytest.raises(tl.InvalidArgument, match="other machines"):
            serve(lake, host, **options)
    with pytest.raises(tl.InvalidArgument, match="certificate"):
        serve(lake, host, token=TOKEN)


def test_behind_a_proxy_tls_is_optional(lake: tl.Lakehouse) -> None:
    with running(lake, "0.0.0.0", token=TOKEN, behind_proxy=True) as server:
        assert Client(server)("GET", "/v1/config").code == 200
        assert Client(server)("GET", "/v1/config", token="wrong").code == 401


def test_a_token_file_that_others_can_read_is_refused(
    lake: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# etl\n{TOKEN}\n\nsha256:{hashlib.sha256(b'second').hexdigest()}\n")
    file.chmod(0o640)
    with pytest.raises(tl.InvalidArgument, match="chmod 600"):
        serve(lake, token_file=file)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    serve(lake, token_file=file).stop()  # systemd's own copy for the service
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    file.chmod(0o600)
    with running(lake, token_file=str(file)) as server:  # a string raised an AttributeError
        assert server.token == ""
        assert [Client(server)("GET", "/v1/config", token=one).code for one in (TOKEN, "second", "third")] == [
            200,
            200,
            401,
        ]
    for text in ("short", "", "# nothing", "sha256:abc"):
        file.write_text(text)
        with pytest.raises(tl.InvalidArgument):
            serve(lake, token_file=file)
    with pytest.raises(tl.InvalidArgument):
        serve(lake, token_file=tmp_path / "none")


def test_only_hashes_of_tokens_are_kept() -> None:
    tokens = Tokens([TOKEN], grants=["admin:*"])
    assert TOKEN not in repr(vars(tokens))
    assert tokens.principal(TOKEN.encode()) is not None
    assert tokens.principal(b"") is None


def test_an_invalid_namespace_is_neither_found_nor_created(http_client: Client, shop: tl.Lakehouse) -> None:
    for name in [
        *("..", ".", "%2e%2e", "%2E%2E%2Fetc", "%00", "%ff", "%1F", "a%1F", "%1Fa", "a%1F%1Fb", "a.b", "x" * 5000),
        *("shop%20", "+shop", "shop%0D%0A", "%C2%A0shop", "shop%E2%80%83"),  # PyIceberg strips these characters
    ]:
        for path in (f"/v1/namespaces/{name}", f"/v1/namespaces/{name}/tables", f"/v1/namespaces/{name}/tables/t"):
            assert http_client("GET", path).code in (400, 404), path
        assert http_client("GET", f"/v1/namespaces/shop/tables/{name}").code in (400, 404), name
        assert http_client("GET", f"/v1/{name}/namespaces").code in (400, 404), name
        assert http_client("DELETE", f"/v1/namespaces/{name}").code in (400, 404), name
        assert shop.namespaces() == ["shop"], name


def test_a_namespace_that_the_lakehouse_cannot_store_is_refused(http_client: Client, lake: tl.Lakehouse) -> None:
    for parts in [
        [],
        [""],
        ["a", ""],
        ["a.b"],
        [".."],
        ["a\x00"],
        ["a\x1fb"],
        ["x" * 5000],
        ["a "],
        ["\u00a0a"],
        ["a", "b\r\n"],
    ]:
        answer = http_client("POST", "/v1/namespaces", {"namespace": parts})
        assert (answer.code, answer.error) == (400, "BadRequestException"), parts
        assert lake.namespaces() == [], parts


def test_a_body_that_is_too_large_is_not_read(shop: tl.Lakehouse) -> None:
    with running(shop, options=ServerOptions(max_body_size_bytes=1000)) as server:
        client = Client(server)
        body = {"namespace": ["a"], "properties": {"text": "x" * 1000}}
        assert client("POST", "/v1/namespaces", body).code == 413
        chunks = b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
        assert client("POST", "/v1/namespaces", chunks, headers={"Transfer-Encoding": "chunked"}).code == 413
        assert client("POST", "/v1/namespaces", {"namespace": ["a"]}).code == 200


def test_an_unexpected_error_is_logged_and_not_sent(
    http_client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("trinitylake.rest.handlers.namespaces.namespaces_response", fails)
    answer = http_client("GET", "/v1/namespaces")
    assert (answer.code, answer.error) == (500, "InternalServerError")
    assert "secret" not in str(answer.body)
    assert "a secret" in caplog.text


def test_client_properties_are_sent_to_admins_of_everything(shop: tl.Lakehouse, tmp_path: Path) -> None:
    """Only admins of `*` get the properties for clients, in which the server of Spark's driver sends the keys of the
    store. Otherwise a reader of one table would get these keys with its first request."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{'a' * 32} ana admin:*\n{'b' * 32} bob reader:*\n{'c' * 32} cid admin:shop.*\n")
    tokens.chmod(0o600)
    options = ServerOptions(client_properties={"s3.secret-access-key": "CANARY"})
    with running(shop, token_file=tokens, options=options) as server:
        answers = {who: Client(server)("GET", "/v1/config", token=who * 32) for who in "abc"}
        refused = Client(server)("GET", "/v1/config", token="d" * 32)
    assert answers["a"].body["defaults"] == {"s3.secret-access-key": "CANARY"}
    assert answers["a"].headers["cache-control"] == "no-store"
    assert answers["b"].body["defaults"] == answers["c"].body["defaults"] == {}
    assert "CANARY" not in str(refused.body)


@pytest.mark.parametrize("choice", [{"host": "127.0.0.1"}, {"host": "0.0.0.0", "token": TOKEN, "behind_proxy": True}])
def test_client_properties_need_loopback_and_a_token(shop: tl.Lakehouse, choice: dict[str, Any]) -> None:
    """A server with properties for clients requires a token. Otherwise every program of every user of the machine would
    get the keys of the store."""
    options = ServerOptions(client_properties={"s3.secret-access-key": "CANARY"})
    with pytest.raises(InvalidArgument, match="loopback with a token"):
        serve(shop, options=options, **choice)
