"""An open transaction belongs to the principal that began it.

A principal that knew its id could read its staged changes, and write rows that the owner then committed.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import ROOT, WALT
from rest.shop import COLUMNS, ROWS, VIEW_VERSION
from trinitylake.rest import RestServer, S3Access, ServerOptions
from trinitylake.rest.http.routes import CATALOG, OTHERS, SIGN
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.transactions.ownership import Ownership

#: A principal with Walt's rights in the shop, which can also create namespaces there.
WANDA = "the-token-of-wanda-0123456789"
OPEN = "/trinitylake/v1/transactions"
TABLE = {"namespace": ["shop"], "name": "orders"}
CHANGE = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS).append(ROWS)
    lake.create_view("shop.view", "SELECT 1")
    return lake


@pytest.fixture
def server(shop: tl.Lakehouse, tokens: Path) -> Iterator[RestServer]:
    tokens.write_text(f"{WALT} walt admin:shop.*\n{WANDA} wanda admin:shop.*\n{ROOT} root admin:*\n")
    with running(shop, token_file=tokens) as server:
        yield server


def bodies(shop: tl.Lakehouse) -> dict[str, Any]:
    """Valid bodies of routes, by method and end of the path."""
    location = shop.table("shop.orders").iceberg.metadata_location
    return {
        "POST /tables/{table}": CHANGE,
        "POST /tables/{table}/metrics": {"report-type": "scan-report"},
        "POST /tables/{table}/plan": {},
        "POST /tables/{table}/tasks": {"plan-task": base64.urlsafe_b64encode(b'{"request": {}, "start": 0}').decode()},
        "POST /tables": {"name": "new", "schema": COLUMNS},
        "POST /register": {"name": "registered", "metadata-location": location},
        "POST /tables/rename": {"source": TABLE, "destination": {**TABLE, "name": "other"}},
        "POST /transactions/commit": {"table-changes": [{**CHANGE, "identifier": TABLE}]},
        "POST /namespaces": {"namespace": ["shop", "inner"]},
        "POST /namespaces/{namespace}/properties": {"updates": {"a": "b"}},
        "POST /views": {"name": "v2", "schema": COLUMNS, "view-version": VIEW_VERSION, "properties": {}},
        "POST /register-view": {"name": "v3", "metadata-location": location},
        "POST /views/{view}": {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
        "POST /views/rename": {"source": {**TABLE, "name": "view"}, "destination": {**TABLE, "name": "other"}},
    }


def requests(shop: tl.Lakehouse, id: str) -> Iterator[tuple[str, str, Any]]:
    """All routes into a transaction, with arguments for their paths. They come from the routes of the server, so a new
    route is included."""
    sent = bodies(shop)
    missing = set(sent)
    for endpoint in CATALOG:
        if endpoint is SIGN:
            continue  # this server lacks the route
        path = endpoint.path.replace("{prefix}", f"txn~{id}").replace("{namespace}", "shop")
        path = path.replace("{table}", "orders").replace("{view}", "view")
        body = None
        if endpoint.method == "POST" and not endpoint.path.endswith("/unregister"):
            ending = f"{endpoint.method} {re.sub('^.*{namespace}(?!/properties)|^/v1/{prefix}', '', endpoint.path)}"
            missing.discard(ending)
            body = sent[ending]
        yield endpoint.method, path, body
    assert not missing, missing
    for endpoint in OTHERS:
        if "{id}" in endpoint.path:
            yield endpoint.method, endpoint.path.replace("{id}", id), None
    yield "GET", f"/v1/config?warehouse=@txn/{id}", None
    yield "GET", f"/v1/namespaces/sys%1Ftransactions%1F{id}", None
    yield "DELETE", f"/v1/namespaces/sys%1Ftransactions%1F{id}", None
    yield "POST", f"/v1/namespaces/sys%1Ftransactions%1F{id}/properties", {"updates": {"commit": "true"}}


def begun(client: Client, id: str, **body: Any) -> None:
    assert client("POST", OPEN, {"id": id, **body}, token=WALT).code == 201
    made = client("POST", f"/v1/txn~{id}/namespaces/shop/tables", {"name": "staged", "schema": COLUMNS}, token=WALT)
    assert made.code == 200, made


@pytest.mark.parametrize("kind", ["open", "saved", "absent", "committed", "rolled back"])
def test_no_route_reaches_a_transaction_of_another_principal(
    server: RestServer, http_client: Client, shop: tl.Lakehouse, kind: str
) -> None:
    """The response is the same whether the transaction exists or not, and the attempt has no effect."""
    if kind != "absent":
        begun(http_client, "walts")
    if kind == "saved":
        server.transactions.memory.hand_over_all()
        assert [one.id for one in shop.transactions.list()] == ["walts"]
    if kind in ("committed", "rolled back"):
        verb = "commit" if kind == "committed" else "rollback"
        assert http_client("POST", f"{OPEN}/walts/{verb}", token=WALT).code in (200, 204)
    before, seen = shop.version, set()
    for method, path, body in requests(shop, "walts"):
        answer = http_client(method, path, body, token=WANDA)
        assert answer.code == 403, (method, path, answer)
        if method != "HEAD":
            seen.add(answer.body["error"]["message"])
    assert seen == {"transaction walts was neither begun by wanda nor shared with it"}
    assert shop.version == before
    if kind in ("open", "saved"):
        answer = http_client("POST", f"{OPEN}/walts/commit", token=WALT)
        assert answer.code == 200, answer
        assert "color" not in shop.table("shop.orders").properties
        assert "shop.staged" in shop.tables("shop")


def test_owner_and_admin_of_everything_pass_every_route(http_client: Client, shop: tl.Lakehouse) -> None:
    """The owner, and an admin of everything, reach every route. So the other principals are refused because of their
    rights."""
    for token in (WALT, ROOT):
        for number, (method, path, body) in enumerate(requests(shop, "mine")):
            id = f"id-{number}-{uuid.uuid4().hex[:6]}"
            begun(http_client, id)
            answer = http_client(method, path.replace("mine", id), body, token=token)
            # A managed table cannot be unregistered, a namespace with tables cannot be dropped, and Walt may not
            # register files.
            refused = (403,) if token == WALT and path.endswith(("/register", "/register-view")) else (400, 409)
            assert answer.code in (200, 204, *refused), (method, path, answer)
            http_client("POST", f"{OPEN}/{id}/rollback", token=ROOT)
            if "shop.staged" in shop.tables("shop"):  # the route has committed the transaction
                shop.drop_table("shop.staged")


def test_owner_can_hand_a_transaction_over_to_named_principals(
    server: RestServer, http_client: Client, shop: tl.Lakehouse
) -> None:
    begun(http_client, "shared", **{"shared-with": ["wanda"]})
    path = "/v1/txn~shared/namespaces/shop/tables"
    for is_saved in (False, True):
        if is_saved:
            server.transactions.memory.hand_over_all()
        assert http_client("GET", f"{path}/staged", token=WANDA).code == 200
        assert http_client("POST", f"{path}/orders", CHANGE, token=WANDA).code == 200
        assert http_client("POST", f"{OPEN}/shared/commit", token=WANDA).code == 403
        assert http_client("POST", f"{OPEN}/shared/rollback", token=WANDA).code == 403
        listed = http_client("GET", OPEN, token=WANDA).body
        assert [one["id"] for one in listed["saved" if is_saved else "open"]] == ["shared"]
    assert http_client("POST", f"{OPEN}/shared/commit", token=WALT).code == 200
    assert shop.table("shop.orders").properties["color"] == "red"
    entry = shop.log(limit=1)[0].transactions[0]
    assert (entry.properties["rest.principal"], json.loads(entry.properties["rest.shared-with"])) == ("walt", ["wanda"])


def test_requests_in_a_transaction_of_another_principal_are_not_signed(
    lake_on_s3: tl.Lakehouse, s3: Any, tokens: Path
) -> None:
    tokens.write_text(f"{WALT} walt admin:shop.*\n{WANDA} wanda admin:shop.*\n{ROOT} root admin:*\n")
    access = S3Access(signs_requests=True, storage_options=s3.storage_options)
    file = lake_on_s3.table("shop.orders").iceberg.scan().plan_files()
    uri = f"{s3.endpoint}/{next(iter(file)).file.file_path.removeprefix('s3://')}"
    body = {"method": "GET", "region": "us-east-1", "uri": uri, "headers": {}}
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        client = Client(server)
        begun(client, "walts")
        path = "/v1/txn~walts/namespaces/shop/tables/{}/sign"
        for table in ("orders", "staged", "absent"):
            assert client("POST", path.format(table), body, token=WANDA).code == 403
        assert client("POST", path.format("orders"), body, token=WALT).code == 200


def test_sql_hands_a_transaction_over_too(http_client: Client, shop: tl.Lakehouse) -> None:
    body = {"namespace": ["sys", "transactions", "nightly"], "properties": {"shared-with": "ana, wanda"}}
    assert http_client("POST", "/v1/namespaces", body, token=WALT).code == 200
    assert http_client("GET", "/v1/txn~nightly/namespaces/shop/tables", token=WANDA).code == 200


def test_only_the_owner_can_hand_a_transaction_over(http_client: Client, shop: tl.Lakehouse) -> None:
    for name in ("rest.principal", "rest.shared-with"):
        answer = http_client("POST", OPEN, {"id": "forged", "properties": {name: "wanda"}}, token=WALT)
        assert answer.code == 400, answer
    assert http_client("GET", "/v1/txn~forged/namespaces", token=WANDA).code == 403


def test_transaction_saved_without_an_owner_is_for_admins_only(http_client: Client, shop: tl.Lakehouse) -> None:
    def saved(id: str, **properties: str) -> None:
        transaction = shop.begin(id=id, properties=properties)
        transaction.create_namespace(f"shop.{id}")
        transaction.save()

    def code(id: str, token: str) -> int:
        answer: Answer = http_client("GET", f"/v1/txn~{id}/namespaces/shop%1F{id}", token=token)
        return answer.code

    saved("nobodys")
    saved("walts", **{"rest.principal": "walt"})
    assert [code("nobodys", token) for token in (WALT, WANDA, ROOT)] == [403, 403, 200]
    assert [code("walts", token) for token in (WALT, WANDA, ROOT)] == [200, 403, 200]


@pytest.mark.parametrize("shared", ["", "[", "wanda", '{"wanda": 1}', "[1, null]", '["wand"]', '[""]'])
def test_unreadable_ownership_hands_nothing_over(shared: str) -> None:
    ownership = Ownership.of({"rest.principal": "walt", "rest.shared-with": shared})
    assert not ownership.may_work(Principal.of("wanda", ["admin:shop.*"]))
    assert not Ownership.of({"rest.shared-with": shared}).may_work(Principal.of("", ["admin:shop.*"]))
