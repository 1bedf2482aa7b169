"""`trinitylake token`, and a server that is read-only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from rest.client import Client, running
from trinitylake.cli.app import app
from trinitylake.rest import ServerOptions, serve


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint"})
    lake.create_namespace("secret")
    return lake


def test_a_created_token_has_its_rights_and_a_revoked_one_has_none(shop: tl.Lakehouse, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    ann = json.loads(run("token", "create", "ann", "--read", "shop.*", "--token-file", file, "--json"))["token"]
    nobody = run("token", "create", "nobody", "--token-file", file).splitlines()[0]
    assert file.stat().st_mode & 0o777 == 0o600
    assert ann not in file.read_text()
    run("token", "create", "ann", "--token-file", file, code=1)
    listed = run("token", "ls", "--token-file", file)
    assert "reader:shop.*" in listed
    assert "none" in listed
    with running(shop, token=None, token_file=file) as server:
        client = Client(server)
        assert client("GET", "/v1/latest/namespaces/shop/tables/orders", token=ann).code == 200
        assert client("GET", "/v1/latest/namespaces/secret", token=ann).code == 403
        assert client("DELETE", "/v1/latest/namespaces/shop/tables/orders", token=ann).code == 403
        assert client("GET", "/v1/latest/namespaces/shop/tables/orders", token=nobody).code == 403
    run("token", "revoke", "ann", "--token-file", file)
    run("token", "revoke", "ann", "--token-file", file, code=4)
    with running(shop, token=None, token_file=file) as server:
        assert Client(server)("GET", "/v1/config", token=ann).code == 401


@pytest.mark.parametrize("token", [None, "a-token-with-all-rights"])
def test_a_read_only_server_changes_nothing_by_any_route(shop: tl.Lakehouse, token: str | None) -> None:
    version = shop.version
    with running(shop, token=token, options=ServerOptions(is_read_only=True)) as server:
        client = Client(server)
        assert client("GET", "/v1/latest/namespaces/shop/tables/orders", token=token or "").code == 200
        for endpoint in server._app.endpoints:
            path = (
                endpoint.path.replace("{prefix}", "latest").replace("{namespace}", "shop").replace("{table}", "orders")
            )
            path = path.replace("{view}", "v").replace("{id}", "x")
            if endpoint.method != "GET":
                client(endpoint.method, path, b'{"id": 1}\n' if "ingest" in path else {}, token=token or "")
        for method, path, body in (
            ("POST", "/v1/latest/namespaces", {"namespace": ["new"]}),
            ("DELETE", "/v1/latest/namespaces/shop/tables/orders", None),
            ("POST", "/trinitylake/v1/transactions", {}),
            ("POST", "/ingest/shop/orders", b'{"id": 1}\n'),
        ):
            assert client(method, path, body, token=token or "").code == 403, path
    assert shop.version == version
    assert shop.transactions.list() == []


def test_an_address_of_other_machines_needs_a_token_and_the_error_says_how_to_make_one(shop: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match=r"token create NAME.*--token-file"):
        serve(shop, "0.0.0.0", options=ServerOptions(is_read_only=True))
    with pytest.raises(tl.InvalidArgument, match=r"--certificate.*--behind-proxy"):
        serve(shop, "0.0.0.0", token="a-token-with-all-rights")
