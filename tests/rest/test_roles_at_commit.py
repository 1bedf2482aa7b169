"""Roles are checked at the commit of a transaction, and for repeated requests.

A writer staged the drop of a table, and created a table with an idempotency key. Then the role was withdrawn. The
transaction still committed, and the repeated request still returned the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import ROOT, WALT
from rest.shop import COLUMNS, with_tables

OPEN = "/trinitylake/v1/transactions"
EVERYTHING, SHOP = "writer:*", "writer:shop.* reader:hr.other"


@pytest.fixture
def lakehouse(lake: tl.Lakehouse) -> tl.Lakehouse:
    return with_tables(lake, "shop.orders", "hr.salaries")


@contextmanager
def served(lake: tl.Lakehouse, folder: Path, grants: str) -> Iterator[Client]:
    """Start a server on which Walt has these grants. Yields Walt's client."""
    file = folder / "tokens"
    file.write_text(f"{WALT} walt {grants}\n{ROOT} root admin:*\n")
    file.chmod(0o600)
    with running(lake, token_file=file) as server:
        client = Client(server)
        yield lambda *args, **more: client(*args, token=WALT, **more)  # type: ignore[misc]


def changed(client: Client, what: str) -> None:
    """Stage a change in the transaction `later`."""
    at = "/v1/txn~later/namespaces"
    body: dict[str, Any] | None
    match what:
        case "drop":
            method, path, body = "DELETE", f"{at}/hr/tables/salaries", None
        case "create":
            method, path, body = "POST", f"{at}/hr/tables", {"name": "new", "schema": COLUMNS}
        case "properties":
            update = {"action": "set-properties", "updates": {"a": "b"}}
            method, path, body = "POST", f"{at}/hr/tables/salaries", {"requirements": [], "updates": [update]}
        case _:
            names = [{"namespace": ["hr"], "name": "salaries"}, {"namespace": ["shop"], "name": "mine"}]
            body = dict(zip(("source", "destination"), names, strict=True))
            method, path = "POST", "/v1/txn~later/tables/rename"
    answer = client(method, path, body)
    assert answer.code in (200, 204), answer


@pytest.mark.parametrize("what", ["drop", "create", "properties", "rename"])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_commit_needs_the_roles_at_that_time(
    lakehouse: tl.Lakehouse, tmp_path: Path, what: str, restarts: bool
) -> None:
    with served(lakehouse, tmp_path, EVERYTHING) as client:
        assert client("POST", OPEN, {"id": "later"}).code == 201
        changed(client, what)
        if not restarts:
            assert client("POST", f"{OPEN}/later/commit", {}).code == 200
            return
    with served(lakehouse, tmp_path, SHOP) as client:
        answer = client("POST", f"{OPEN}/later/commit", {})
        assert (answer.code, answer.error) == (403, "ForbiddenException")
        assert "salaries" not in answer.body["error"]["message"]
        assert "new" not in answer.body["error"]["message"]
        assert client("POST", f"{OPEN}/later/rollback", {}).code == 204, "the transaction can be rolled back"
    assert lakehouse.exists("hr.salaries")
    assert not lakehouse.exists("hr.new")


def test_commit_needs_no_role_on_what_others_changed(lakehouse: tl.Lakehouse, tmp_path: Path) -> None:
    with served(lakehouse, tmp_path, SHOP) as client:
        assert client("POST", OPEN, {"id": "mine"}).code == 201
        body = {"name": "new", "schema": COLUMNS}
        assert client("POST", "/v1/txn~mine/namespaces/shop/tables", body).code == 200
        lakehouse.table("hr.salaries").append({"id": [9]})
        assert client("POST", f"{OPEN}/mine/commit", {}).code == 200
    assert lakehouse.exists("shop.new")


#: Requests with names in the body or path, by the action.
KEYED: dict[str, tuple[str, dict[str, Any]]] = {
    "create": ("/v1/namespaces/hr/tables", {"name": "new", "schema": COLUMNS}),
    "rename": (
        "/v1/tables/rename",
        {"source": {"namespace": ["hr"], "name": "salaries"}, "destination": {"namespace": ["shop"], "name": "mine"}},
    ),
    "properties": (
        "/v1/namespaces/hr/tables/salaries",
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
    ),
    "commit": (
        "/v1/transactions/commit",
        {
            "table-changes": [
                {
                    "identifier": {"namespace": ["hr"], "name": "salaries"},
                    "requirements": [],
                    "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
                }
            ]
        },
    ),
}


@pytest.mark.parametrize("what", KEYED)
def test_a_repeated_request_needs_the_roles_at_that_time(lakehouse: tl.Lakehouse, tmp_path: Path, what: str) -> None:
    path, body = KEYED[what]
    key = {"Idempotency-Key": str(uuid.uuid4())}
    with served(lakehouse, tmp_path, EVERYTHING) as client:
        first = client("POST", path, body, headers=key)
        assert first.code in (200, 204), first
        assert client("POST", path, body, headers=key).code == first.code
    with served(lakehouse, tmp_path, SHOP) as client:
        answer = client("POST", path, body, headers=key)
        assert (answer.code, answer.error) == (403, "ForbiddenException")


def test_token_without_grants_has_no_rights(lakehouse: tl.Lakehouse, tmp_path: Path) -> None:
    with served(lakehouse, tmp_path, "") as client:
        assert client("GET", "/v1/namespaces").body["namespaces"] == []
        for method, path in (("GET", "shop/tables/orders"), ("DELETE", "shop/tables/orders"), ("GET", "shop")):
            assert client(method, f"/v1/namespaces/{path}").code == 403, path
        assert client("GET", "/trinitylake/v1/page/latest/search?text=o").code == 403
        assert client("GET", "/v1/config?warehouse=@txn/job").code == 403
        assert client("POST", OPEN, {}).code == 403
