"""Roles on patterns of names, and their audit log."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from manifests_by_hand import list_for
from rest.client import Answer, Client, running
from rest.shop import COLUMNS, ROWS, VIEW_VERSION, new_table, with_tables
from trinitylake.rest import RestServer
from trinitylake.rest.security.authorization import Grant, Principal, Role

READER, WRITER, ADMIN, ROOT = (f"the-token-of-{role}-0123456789" for role in ("reader", "writer", "admin", "root"))
RED = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Tables in two namespaces, and one in a nested namespace."""
    with_tables(lake, "shop.orders", "shop.till.orders", "payroll.orders").create_view("payroll.top", "SELECT 1")
    return lake


@pytest.fixture
def roles_server(shop: tl.Lakehouse, tmp_path: Path) -> Iterator[RestServer]:
    """A server with a reader, a writer and an admin of `shop`, and an admin of everything."""
    file = tmp_path / "tokens"
    file.write_text(
        f"{READER} rita reader:shop.*\n{WRITER} walt writer:shop.*\n"
        f"{ADMIN} ada admin:shop.* reader:payroll.orders\n{ROOT} root admin:*\n"
    )
    file.chmod(0o600)
    with running(shop, token_file=file) as server:
        yield server


class Asker:
    """Sends requests, each with the token of a given principal."""

    def __init__(self, server: RestServer) -> None:
        self._client = Client(server)

    def __call__(self, token: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client(method, path, body, token=token, headers=sent)


@pytest.fixture
def ask(roles_server: RestServer) -> Asker:
    return Asker(roles_server)


def rename_parts(source: tuple[str, ...], destination: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: {"namespace": list(name[:-1]), "name": name[-1]}
        for key, name in (("source", source), ("destination", destination))
    }


def rename(source: str, destination: str) -> dict[str, Any]:
    return {
        key: {"namespace": name.split(".")[:-1], "name": name.split(".")[-1]}
        for key, name in (("source", source), ("destination", destination))
    }


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*", ["a", "a/b"], []),
        ("shop.*", ["shop", "shop/orders", "shop/till/orders", "shop/x.y"], ["shopping", "shopping/a", "a/shop"]),
        ("shop.orders", ["shop/orders"], ["shop", "shop/orders2", "shop/orders/x", "shopxorders", "shop.orders"]),
        ("shop.tmp_*", ["shop/tmp_", "shop/tmp_a", "shop/tmp_a/t", "shop/tmp_.x"], ["shop/tmp", "shop/a"]),
        ("shop.x.*", ["shop/x", "shop/x/evil"], ["shop/x.evil", "shop/x.secret", "shop", "x/evil"]),
        ("shop.x.evil", ["shop/x/evil"], ["shop/x.evil"]),
        ("shop.x\\.evil", ["shop/x.evil"], ["shop/x/evil"]),
        ("*.orders", ["shop/orders"], ["shop/till/orders", "shop/x.orders/y", "orders"]),
        ("a*b*c.t", ["abc/t", "a-b-b-c/t", "abcbc/t"], ["ab/t", "acb/t", "abc", "abc/t/u", "a/bc/t"]),
    ],
)
def test_a_pattern_matches_part_by_part(pattern: str, fits: list[str], does_not: list[str]) -> None:
    """Patterns are compared part by part. If names were joined with dots before, a writer of `shop.x.*` could create,
    read and drop the table `x.evil` of `shop`."""
    grant = Grant(Role.READER, pattern)
    assert [name for name in fits if not grant.fits(tuple(name.split("/")))] == []
    assert [name for name in does_not if grant.fits(tuple(name.split("/")))] == []


def test_a_pattern_of_many_stars_reads_a_name_once() -> None:
    """The time to match a pattern is linear. With a regular expression it would grow with a power of the number of
    stars."""
    name = ("a" * 100_000,)
    assert not Grant(Role.READER, "*a*a*a*a*a*a*a*a*a*a*a*a*b").fits(name)


def test_a_writer_of_a_nested_namespace_reaches_no_table_with_a_dot_in_its_name(
    shop: tl.Lakehouse, tmp_path: Path
) -> None:
    shop.create_namespace("shop.x")
    for name in ("x.secret", "x.evil"):
        shop.create_table(("shop", name), ROWS)
    file = tmp_path / "tokens"
    file.write_text(f"{WRITER} walt writer:shop.x.*\n")
    file.chmod(0o600)
    view = {"name": "x.v", "schema": COLUMNS, "view-version": {"version-id": 1}}
    change = {"identifier": {"namespace": ["shop"], "name": "x.evil"}, **RED}
    before = shop.version
    with running(shop, token_file=file) as server:
        client = functools.partial(Client(server), token=WRITER)
        for method, path, body in [
            ("GET", "/v1/namespaces/shop/tables/x.secret", None),
            ("HEAD", "/v1/namespaces/shop/tables/x.secret", None),
            ("POST", "/v1/namespaces/shop/tables/x.evil", RED),
            ("DELETE", "/v1/namespaces/shop/tables/x.evil", None),
            ("POST", "/v1/namespaces/shop/tables", {"name": "x.new", "schema": COLUMNS}),
            ("POST", "/v1/transactions/commit", {"table-changes": [change]}),
            ("POST", "/v1/tables/rename", rename_parts(("shop", "x.evil"), ("shop", "x", "mine"))),
            ("POST", "/v1/tables/rename", rename_parts(("shop", "x", "mine"), ("shop", "x.mine"))),
            ("POST", "/v1/namespaces/shop/tables/x.secret/plan", {}),
            ("GET", "/v1/namespaces/shop/tables/x.secret/credentials", None),
        ]:
            assert client(method, path, body).code == 403, (method, path)
        assert client("POST", "/v1/namespaces/shop/views", view).code in (400, 403)
        assert client("GET", "/v1/namespaces/shop/tables").body["identifiers"] == []
        assert client("POST", "/v1/namespaces/shop%1Fx/tables", {"name": "evil", "schema": COLUMNS}).code == 200
    assert shop.version == before + 1


def test_the_existence_of_a_hidden_namespace_is_not_revealed(ask: Asker, shop: tl.Lakehouse) -> None:
    """The answer to `GET /v1/namespaces?parent=payroll` is the same whether or not the hidden namespace `payroll`
    exists."""
    for parent in ("payroll", "none", "payroll%1Fmore", "sys"):
        answer = ask(READER, "GET", f"/v1/namespaces?parent={parent}")
        assert (answer.code, answer.error) == (403, "ForbiddenException"), parent
    assert ask(READER, "GET", "/v1/namespaces?parent=shop").body["namespaces"] == [["shop", "till"]]
    assert ask(ADMIN, "GET", "/v1/namespaces?parent=payroll").body["namespaces"] == []
    assert ask(ROOT, "GET", "/v1/namespaces?parent=none").code == 404


def test_a_namespace_is_visible_to_readers_of_its_content() -> None:
    principal = Principal.of("p", ["reader:a.b.orders", "reader:x*"])
    names = ("a", "a.b", "a.b.c", "a.bc", "b", "x", "xy.z")
    assert [principal.sees(tuple(name.split("."))) for name in names] == [True, True, False, False, False, True, True]


def test_lists_show_readable_objects_only(ask: Asker) -> None:
    assert ask(READER, "GET", "/v1/namespaces").body["namespaces"] == [["shop"]]
    assert ask(ROOT, "GET", "/v1/namespaces").body["namespaces"] == [["payroll"], ["shop"]]
    assert ask(ADMIN, "GET", "/v1/namespaces").body["namespaces"] == [["payroll"], ["shop"]]
    assert [one["name"] for one in ask(ADMIN, "GET", "/v1/namespaces/payroll/tables").body["identifiers"]] == ["orders"]
    assert ask(ADMIN, "GET", "/v1/namespaces/payroll/views").body["identifiers"] == []
    assert ask(READER, "GET", "/v1/namespaces/payroll/tables").code == 403
    assert ask(READER, "GET", "/v1/namespaces/payroll").code == 403


def test_an_unreadable_object_is_403_whether_it_exists_or_not(ask: Asker) -> None:
    for name in ("orders", "none"):
        answer = ask(READER, "GET", f"/v1/namespaces/payroll/tables/{name}")
        assert (answer.code, answer.error) == (403, "ForbiddenException")
        assert ask(READER, "HEAD", f"/v1/namespaces/payroll/tables/{name}").code == 403
        assert ask(READER, "GET", f"/v1/version~1/namespaces/payroll/tables/{name}").code == 403
    assert ask(READER, "GET", "/v1/namespaces/shop.till/tables/orders").code == 400
    assert ask(READER, "GET", "/v1/namespaces/shop%1Ftill/tables/orders").code == 200


def test_a_reader_changes_nothing(ask: Asker, shop: tl.Lakehouse) -> None:
    before = shop.version
    location = shop.table("shop.orders").iceberg.metadata_location
    for method, path, body in [
        ("POST", "/v1/namespaces", {"namespace": ["shop", "new"]}),
        ("DELETE", "/v1/namespaces/shop", None),
        ("POST", "/v1/namespaces/shop/properties", {"updates": {"a": "b"}}),
        ("POST", "/v1/namespaces/shop/tables", {"name": "new", "schema": COLUMNS}),
        ("POST", "/v1/namespaces/shop/tables", {"name": "new", "schema": COLUMNS, "stage-create": True}),
        ("POST", "/v1/namespaces/shop/tables/orders", RED),
        ("DELETE", "/v1/namespaces/shop/tables/orders", None),
        ("POST", "/v1/tables/rename", rename("shop.orders", "shop.new")),
        ("POST", "/v1/namespaces/shop/register", {"name": "new", "metadata-location": location}),
        ("POST", "/v1/namespaces/shop/views", {"name": "v", "schema": COLUMNS, "view-version": VIEW_VERSION}),
        ("POST", "/trinitylake/v1/transactions", {}),
        ("POST", "/v1/namespaces", {"namespace": ["sys", "transactions", "t"]}),
        (
            "POST",
            "/v1/transactions/commit",
            {"table-changes": [{"identifier": {"namespace": ["shop"], "name": "orders"}, **RED}]},
        ),
    ]:
        assert ask(READER, method, path, body).code == 403, (method, path)
    assert shop.version == before
    assert shop.transactions.list() == []


def test_a_writer_writes_tables_and_makes_no_namespaces(ask: Asker, shop: tl.Lakehouse) -> None:
    assert ask(WRITER, "POST", "/v1/namespaces/shop/tables", {"name": "new", "schema": COLUMNS}).code == 200
    assert ask(WRITER, "POST", "/v1/namespaces/shop/tables/new", RED).code == 200
    assert ask(WRITER, "POST", "/v1/tables/rename", rename("shop.new", "shop.till.newer")).code == 204
    assert ask(WRITER, "DELETE", "/v1/namespaces/shop%1Ftill/tables/newer").code == 204
    for method, path, body in [
        ("POST", "/v1/namespaces", {"namespace": ["shop", "new"]}),
        ("DELETE", "/v1/namespaces/shop%1Ftill", None),
        ("POST", "/v1/namespaces/shop/properties", {"updates": {"a": "b"}}),
    ]:
        assert ask(WRITER, method, path, body).code == 403, (method, path)
    assert ask(ADMIN, "POST", "/v1/namespaces", {"namespace": ["shop", "new"]}).code == 200
    assert ask(ADMIN, "POST", "/v1/namespaces", {"namespace": ["new"]}).code == 403


def test_names_in_the_body_need_the_role_too(ask: Asker, shop: tl.Lakehouse) -> None:
    before = shop.version
    theirs = {"identifier": {"namespace": ["payroll"], "name": "orders"}, **RED}
    mine = {"identifier": {"namespace": ["shop"], "name": "orders"}, **RED}
    location = shop.table("payroll.orders").iceberg.metadata_location
    for path, body in [
        ("/v1/tables/rename", rename("payroll.orders", "shop.stolen")),
        ("/v1/tables/rename", rename("shop.orders", "payroll.planted")),
        ("/v1/views/rename", rename("payroll.top", "shop.stolen")),
        ("/v1/transactions/commit", {"table-changes": [mine, theirs]}),
        ("/v1/namespaces/shop/register", {"name": "stolen", "metadata-location": location}),
        ("/v1/namespaces/shop/register-view", {"name": "stolen", "metadata-location": location}),
    ]:
        for token in (WRITER, ADMIN):
            answer = ask(token, "POST", path, body)
            assert (answer.code, answer.error) == (403, "ForbiddenException"), path
    assert ask(WRITER, "POST", "/v1/namespaces/shop/tables/orders", theirs).code == 400
    assert shop.version == before


def test_an_open_transaction_is_ended_by_its_owner_only(ask: Asker, shop: tl.Lakehouse) -> None:
    id = ask(WRITER, "POST", "/trinitylake/v1/transactions", {"id": "walts"}).body["id"]
    path = f"/trinitylake/v1/transactions/{id}"
    assert ask(WRITER, "POST", f"/v1/txn~{id}/namespaces/shop/tables/orders", RED).code == 200
    assert ask(WRITER, "POST", f"/v1/txn~{id}/namespaces/payroll/tables/orders", RED).code == 403
    for token in (READER, ADMIN):
        assert ask(token, "POST", f"{path}/commit").code == 403
        assert ask(token, "POST", f"{path}/rollback").code == 403
        assert ask(token, "GET", path).code == 403
        assert ask(token, "DELETE", f"/v1/namespaces/sys%1Ftransactions%1F{id}").code == 403
        assert ask(token, "GET", "/trinitylake/v1/transactions").body == {"open": [], "saved": []}
        assert ask(token, "GET", "/v1/namespaces?parent=sys%1Ftransactions").body["namespaces"] == []
    assert [one["id"] for one in ask(ROOT, "GET", "/trinitylake/v1/transactions").body["open"]] == [id]
    assert ask(WRITER, "POST", f"{path}/commit").code == 200
    assert ask(ADMIN, "POST", f"{path}/commit").code == 403
    assert shop.table("shop.orders").properties["color"] == "red"


def test_a_commit_contains_its_principal(ask: Asker, shop: tl.Lakehouse, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trinitylake.rest.audit"):
        assert ask(WRITER, "POST", "/v1/namespaces/shop/tables/orders", RED, X_Request_Id="r-1").code == 200
        assert ask(READER, "POST", "/v1/namespaces/shop/tables/orders", RED, X_Request_Id="r-2").code == 403
    [committed] = shop.log(1)[0].transactions
    assert (committed.author, committed.message) == ("walt", "")
    assert committed.summary == "properties shop.orders"
    assert committed.properties == {
        "rest.principal": "walt",
        "rest.request-id": "r-1",
        "rest.route": "POST /v1/namespaces/shop/tables/orders",
    }
    fields = [vars(record)["fields"] for record in caplog.records if record.name == "trinitylake.rest.audit"]
    assert [(one["who"], one["code"], one["version"], one["request_id"]) for one in fields] == [
        ("walt", 200, shop.version, "r-1"),
        ("rita", 403, None, "r-2"),
    ]
    assert fields[0]["names"] == ["shop", "orders"]
    planted = ask(WRITER, "POST", "/trinitylake/v1/transactions", {"properties": {"rest.principal": "root"}})
    assert planted.code == 400


@pytest.mark.parametrize("line", ["{0} name owner:shop", "{0} name reader", "{0} na/me", "{0} name reader:"])
def test_an_invalid_token_file_is_refused(lake: tl.Lakehouse, tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(line.format(READER))
    file.chmod(0o600)
    with pytest.raises(tl.InvalidArgument), running(lake, token_file=file):
        pass


def stolen_snapshot(ask: Asker, path: str = "/v1/namespaces/shop/tables/orders") -> dict[str, Any]:
    """A commit to a table with a snapshot of another table, which the committing writer may not read."""
    stolen = ask(ROOT, "GET", "/v1/namespaces/payroll/tables/orders").body["metadata"]["snapshots"][0]
    mine = ask(ROOT, "GET", path).body["metadata"]
    parent, number = mine["current-snapshot-id"], mine["last-sequence-number"] + 1
    snapshot = {**stolen, "snapshot-id": 7, "parent-snapshot-id": parent, "sequence-number": number}
    snapshot["timestamp-ms"] = mine["last-updated-ms"] + 1
    snapshot["manifest-list"] = list_for(stolen["manifest-list"], 7)
    return {
        "requirements": [],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "x", "type": "branch", "snapshot-id": 7},
        ],
    }


def test_a_commit_names_no_file_of_another_table(ask: Asker, shop: tl.Lakehouse) -> None:
    """A commit cannot add a file of another table. Otherwise a writer could add a file that it may not read to its own
    table, and have other readers return the rows."""
    path, before = "/v1/namespaces/shop/tables/orders", shop.version
    change = stolen_snapshot(ask)
    listed = change["updates"][0]["snapshot"]["manifest-list"]
    own = shop.table("shop.orders").location
    statistics = {"snapshot-id": 7, "statistics-path": listed, "file-size-in-bytes": 1, "blob-metadata": []}
    statistics["file-footer-size-in-bytes"] = 1
    partition_statistics = {"snapshot-id": 7, "statistics-path": listed, "file-size-in-bytes": 1}
    for update in (
        change["updates"][0],
        {"action": "add-snapshot", "snapshot": {**change["updates"][0]["snapshot"], "manifest-list": f"{own}2/a.avro"}},
        {"action": "set-statistics", "snapshot-id": 7, "statistics": statistics},
        {"action": "set-partition-statistics", "partition-statistics": partition_statistics},
    ):
        bad = {"requirements": [], "updates": [update]}
        identified = {**bad, "identifier": {"namespace": ["shop"], "name": "orders"}}
        assert ask(WRITER, "POST", path, bad).code == 403, update
        assert ask(WRITER, "POST", "/v1/transactions/commit", {"table-changes": [identified]}).code == 403
    prefix = ask(WRITER, "POST", "/trinitylake/v1/transactions", {}).body["prefix"]
    assert ask(WRITER, "POST", path.replace("/v1", f"/v1/{prefix}"), change).code == 403
    assert ask(WRITER, "GET", path.replace("/v1", f"/v1/{prefix}")).body["metadata"]["refs"].keys() == {"main"}
    assert shop.version == before
    assert ask(ROOT, "POST", path, change).code == 200


def test_a_table_cannot_contain_the_folder_of_another(ask: Asker, shop: tl.Lakehouse) -> None:
    victim = shop.table("payroll.orders")
    tables = "/v1/namespaces/shop/tables"
    for location in (f"{shop.uri}payroll", victim.location, f"{shop.uri}shop/trap", f"{shop.uri}shop/trap-00000000"):
        for staged in (False, True):
            body = {"name": "trap", "schema": COLUMNS, "location": location, "stage-create": staged}
            assert ask(WRITER, "POST", tables, body).code == 403, location
    staged = ask(WRITER, "POST", tables, {"name": "trap", "schema": COLUMNS, "stage-create": True}).body["metadata"]
    updates = new_table(staged["table-uuid"])

    def creation(location: str, *more: dict[str, Any]) -> dict[str, Any]:
        updated = [*updates, {"action": "set-location", "location": location}, *more]
        return {"requirements": [{"type": "assert-create"}], "updates": updated}

    stolen = stolen_snapshot(ask)["updates"]
    assert ask(WRITER, "POST", f"{tables}/trap", creation(victim.location)).code == 403
    assert ask(WRITER, "POST", f"{tables}/trap", creation(staged["location"], *stolen)).code == 403
    assert ask(WRITER, "POST", f"{tables}/trap", creation(staged["location"])).code == 200


def test_a_renamed_table_keeps_its_location_for_its_writer(
    roles_server: RestServer, ask: Asker, shop: tl.Lakehouse
) -> None:
    assert ask(WRITER, "POST", "/v1/tables/rename", rename("shop.orders", "shop.sold")).code == 204
    RestCatalog("walt", uri=roles_server.url, token=WRITER).load_table("shop.sold").append(ROWS)
    assert len(shop.table("shop.sold").scan().to_arrow()) == 6


def test_scan_plan_with_manifests_of_another_table_is_refused(ask: Asker, shop: tl.Lakehouse) -> None:
    """A scan of a snapshot with manifests of another table is refused. Otherwise a writer could learn files and
    partitions of a table that it may not read."""
    path = "/v1/namespaces/shop/tables/orders"
    assert len(ask(WRITER, "POST", f"{path}/plan", {}).body["file-scan-tasks"]) == 1
    assert ask(ROOT, "POST", path, stolen_snapshot(ask)).code == 200
    assert ask(WRITER, "POST", f"{path}/plan", {"snapshot-id": 7}).code == 400
    assert ask(ROOT, "POST", f"{path}/plan", {"snapshot-id": 7}).code == 200
    body = {"name": "trap", "schema": COLUMNS, "location": f"{shop.uri}payroll"}
    assert ask(ROOT, "POST", "/v1/namespaces/shop/tables", body).code == 200
    assert ask(WRITER, "POST", "/v1/namespaces/shop/tables/trap/plan", {}).code == 406
    assert ask(ROOT, "POST", "/v1/namespaces/shop/tables/trap/plan", {}).code == 200
