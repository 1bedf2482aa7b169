"""Status codes, pages, entity tags and commits to several tables, by the specification, in plain HTTP."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

import trinitylake as tl
from rest.client import Client, running
from rest.shop import COLUMNS, VIEW_VERSION, with_tables
from trinitylake.rest import RestServer
from waiting import in_threads

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Two tables with one snapshot each."""
    return with_tables(lake, "shop.orders", "shop.totals", rows=ROWS)


def set_property(name: str, value: str, **requirement: Any) -> dict[str, Any]:
    """A commit that sets the property `color` of a table in `shop`."""
    return {
        "identifier": {"namespace": ["shop"], "name": name},
        "requirements": [requirement] if requirement else [],
        "updates": [{"action": "set-properties", "updates": {"color": value}}],
    }


def test_config_has_the_prefix_and_all_endpoints(http_client: Client, server: RestServer) -> None:
    config = http_client("GET", "/v1/config").body
    assert config["overrides"] == {"prefix": "latest"}
    assert "POST /v1/{prefix}/transactions/commit" in config["endpoints"]
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert len(config["endpoints"]) == len(set(config["endpoints"])) == len(server._app.service.endpoints)
    assert http_client("GET", "/v1/config?warehouse=served").body["overrides"] == {"prefix": "latest"}
    assert http_client("GET", "/v1/config?warehouse=other").error == "NotFoundException"


def test_a_missing_object_is_404_with_its_error_type(http_client: Client, shop: tl.Lakehouse) -> None:
    for path, type in {
        "/v1/namespaces/none": "NoSuchNamespaceException",
        "/v1/namespaces/none/tables": "NoSuchNamespaceException",
        "/v1/namespaces/shop/tables/none": "NoSuchTableException",
        "/v1/namespaces/none/tables/none": "NoSuchTableException",
        "/v1/namespaces/shop/views/none": "NoSuchViewException",
        "/v1/elsewhere/namespaces": "NotFoundException",
        "/v2/config": "NotFoundException",
    }.items():
        answer = http_client("GET", path)
        assert (answer.code, answer.error) == (404, type), path
    for path in ("namespaces/none", "namespaces/shop/tables/none", "namespaces/shop/views/none"):
        answer = http_client("HEAD", f"/v1/{path}")
        assert (answer.code, answer.body) == (404, None)
        assert http_client("DELETE", f"/v1/{path}").code == 404
    assert http_client("HEAD", "/v1/namespaces/shop/tables/orders").code == 204
    assert http_client("PUT", "/v1/namespaces").error == "UnsupportedOperationException"


def test_a_taken_name_is_409_and_a_contradiction_422(http_client: Client, shop: tl.Lakehouse) -> None:
    assert http_client("POST", "/v1/namespaces", {"namespace": ["shop"]}).error == "AlreadyExistsException"
    created = http_client("POST", "/v1/namespaces/shop/tables", {"name": "orders", "schema": COLUMNS})
    assert (created.code, created.error) == (409, "AlreadyExistsException")
    dropped = http_client("DELETE", "/v1/namespaces/shop")
    assert (dropped.code, dropped.error) == (409, "NamespaceNotEmptyException")
    both = http_client("POST", "/v1/namespaces/shop/properties", {"removals": ["a"], "updates": {"a": "b"}})
    assert (both.code, both.error) == (422, "UnprocessableEntityException")


def test_a_commit_returns_the_metadata_that_a_load_returns(http_client: Client, shop: tl.Lakehouse) -> None:
    path = "/v1/namespaces/shop/tables/orders"
    committed = http_client("POST", path, set_property("orders", "red"))
    loaded = http_client("GET", path)
    assert committed.code == loaded.code == 200
    assert committed.body == loaded.body
    assert committed.body["metadata"]["properties"]["color"] == "red"
    assert committed.headers["etag"] == loaded.headers["etag"]
    assert loaded.body["metadata-location"] == shop.table("shop.orders").iceberg.metadata_location


def test_a_requirement_that_does_not_hold_is_409(http_client: Client, shop: tl.Lakehouse) -> None:
    before = shop.version
    change = set_property("orders", "red", type="assert-ref-snapshot-id", ref="main", **{"snapshot-id": 1})
    answer = http_client("POST", "/v1/namespaces/shop/tables/orders", change)
    assert (answer.code, answer.error) == (409, "CommitFailedException")
    create = set_property("orders", "red", type="assert-create")
    assert http_client("POST", "/v1/namespaces/shop/tables/orders", create).error == "CommitFailedException"
    assert shop.version == before


def test_a_commit_over_two_tables_is_one_version(http_client: Client, shop: tl.Lakehouse) -> None:
    before = shop.version
    changes = [set_property("orders", "red"), set_property("totals", "blue")]
    assert http_client("POST", "/v1/latest/transactions/commit", {"table-changes": changes}).code == 204
    assert shop.version == before + 1
    assert shop.table("shop.orders").properties["color"] == "red"
    assert shop.table("shop.totals").properties["color"] == "blue"


def test_a_commit_over_two_tables_is_all_or_nothing(http_client: Client, shop: tl.Lakehouse) -> None:
    before = shop.version
    bad = set_property("totals", "blue", type="assert-table-uuid", uuid="00000000-0000-0000-0000-000000000000")
    answer = http_client("POST", "/v1/transactions/commit", {"table-changes": [set_property("orders", "red"), bad]})
    assert (answer.code, answer.error) == (409, "CommitFailedException")
    missing = set_property("none", "blue")
    answer = http_client("POST", "/v1/transactions/commit", {"table-changes": [set_property("orders", "red"), missing]})
    assert (answer.code, answer.error) == (404, "NoSuchTableException")
    twice = [set_property("orders", "red"), set_property("orders", "blue")]
    assert http_client("POST", "/v1/transactions/commit", {"table-changes": twice}).code == 400
    assert shop.version == before


def test_one_of_two_racing_creations_wins(http_client: Client, shop: tl.Lakehouse) -> None:
    codes: list[int] = []
    barrier = threading.Barrier(4)

    def create() -> None:
        barrier.wait()
        body = {"name": "fresh", "schema": COLUMNS}
        codes.append(http_client("POST", "/v1/namespaces/shop/tables", body).code)

    in_threads(lambda _: create(), range(4))
    assert sorted(codes) == [200, 409, 409, 409]


def test_concurrent_appends_of_several_clients_all_commit(catalog: RestCatalog, shop: tl.Lakehouse) -> None:
    def append(id: int) -> None:
        while True:
            try:
                catalog.load_table("shop.orders").append(pa.table({"id": pa.array([id], pa.int64()), "name": ["x"]}))
            except CommitFailedException:
                continue
            return

    in_threads(append, range(10, 14))
    ids = shop.table("shop.orders").scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == [1, 2, 3, 10, 11, 12, 13]


def test_an_entity_tag_is_valid_until_the_table_changes(http_client: Client, shop: tl.Lakehouse) -> None:
    path = "/v1/namespaces/shop/tables/orders"
    tag = http_client("GET", path).headers["etag"]
    again = http_client("GET", path, headers={"If-None-Match": tag})
    assert (again.code, again.body) == (304, None)
    assert http_client("GET", f"{path}?snapshots=refs", headers={"If-None-Match": tag}).code == 200
    shop.table("shop.orders").append(ROWS)
    changed = http_client("GET", path, headers={"If-None-Match": tag})
    assert changed.code == 200
    assert changed.headers["etag"] != tag


def test_a_missing_metadata_file_differs_from_a_missing_table(shop: tl.Lakehouse) -> None:
    path = "/v1/namespaces/shop/tables/orders"
    location = shop.table("shop.orders").iceberg.metadata_location
    with running(shop) as server:
        tag = Client(server)("GET", path).headers["etag"]
    Path(location.removeprefix("file://")).unlink()
    with running(tl.open(shop.uri)) as server:
        client = Client(server)
        answer = client("GET", path)
        assert (answer.code, answer.error) == (404, "NotFoundException")
        assert location in answer.body["error"]["message"]
        assert client("HEAD", path).code == 204
        assert client("GET", path, headers={"If-None-Match": tag}).code == 304, "the cached response is still valid"


def test_only_referenced_snapshots_are_sent_on_request(http_client: Client, shop: tl.Lakehouse) -> None:
    shop.table("shop.orders").append(ROWS)
    path = "/v1/namespaces/shop/tables/orders"
    every, referenced = http_client.table(path), http_client.table(f"{path}?snapshots=refs")
    assert len(every["snapshots"]) == 2
    assert [one["snapshot-id"] for one in referenced["snapshots"]] == [every["current-snapshot-id"]]
    assert http_client("GET", f"{path}?snapshots=some").code == 400


@pytest.mark.parametrize("kind", ["namespaces", "tables", "views"])
def test_all_pages_are_the_whole_list(http_client: Client, lake: tl.Lakehouse, kind: str) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        for number in range(7):
            match kind:
                case "namespaces":
                    txn.create_namespace(f"shop.n{number}")
                case "tables":
                    txn.create_table(f"shop.n{number}", {"id": "bigint"})
                case "views":
                    txn.create_view(f"shop.n{number}", "SELECT 1")
    path = "/v1/namespaces?parent=shop&" if kind == "namespaces" else f"/v1/namespaces/shop/{kind}?"
    field = "namespaces" if kind == "namespaces" else "identifiers"
    found: list[Any] = []
    token: str | None = ""
    sizes = []
    while token is not None:
        page = http_client("GET", f"{path}pageSize=3&pageToken={token}").body
        found += page[field]
        sizes.append(len(page[field]))
        token = page["next-page-token"]
    assert sizes == [3, 3, 1]
    assert found == http_client("GET", path).body[field]
    assert len(found) == 7
    assert http_client("GET", f"{path}pageSize=0").code == 400
    assert http_client("GET", f"{path}pageToken=%25").code == 400


def test_a_name_with_special_characters_is_one_segment(http_client: Client, shop: tl.Lakehouse) -> None:
    created = http_client("POST", "/v1/namespaces/shop/tables", {"name": "a/c+d%é", "schema": COLUMNS})
    assert created.code == 200, created
    assert http_client("GET", "/v1/namespaces/shop/tables/a%2Fc%2Bd%25%C3%A9").code == 200
    assert http_client("GET", "/v1/namespaces/shop/tables/a%2fc%2bd%25%c3%a9").code == 200
    assert http_client("GET", "/v1/namespaces/shop/tables/a/c+d%25%C3%A9").code == 404
    assert shop.tables("shop") == ["shop.a/c+d%é", "shop.orders", "shop.totals"]


def test_a_plus_in_a_path_is_a_space(http_client: Client, shop: tl.Lakehouse) -> None:
    """A plus in a path is a space, because Iceberg's Java client encodes names as in forms. Otherwise it could create
    `late flights`, but not load it."""
    shop.create_namespace("in space")
    for name in ("late flights", "late+flights"):
        body = {"name": name, "schema": COLUMNS}
        assert http_client("POST", "/v1/namespaces/in+space/tables", body).code == 200
    assert shop.tables("in space") == ["in space.late flights", "in space.late+flights"]
    names = ("late flights", "late+flights")
    ids = {name: str(shop.table(f"in space.{name}").iceberg.metadata.table_uuid) for name in names}
    for path, name in (
        ("late+flights", "late flights"),
        ("late%20flights", "late flights"),
        ("late%2Bflights", "late+flights"),
    ):
        for namespace in ("in+space", "in%20space"):
            found = http_client("GET", f"/v1/namespaces/{namespace}/tables/{path}").body
            assert found["metadata"]["table-uuid"] == ids[name], path


def test_metrics_reports_are_stored(http_client: Client, shop: tl.Lakehouse) -> None:
    path = "/v1/latest/namespaces/shop/tables/orders/metrics"
    report = {"report-type": "scan-report", "table-name": "orders", "snapshot-id": 1}
    assert http_client("POST", path, report).code == 204
    assert http_client("GET", "/trinitylake/v1/metrics").body == {
        "reports": [{"table": ["shop", "orders"], "report": report}]
    }
    assert http_client("POST", path, {"no": "type"}).code == 400
    assert http_client("POST", path.replace("orders", "none"), report).code == 404
    assert http_client("POST", path, {"report-type": "x", "text": "y" * 70_000}).code == 413


def test_a_view_outside_of_the_lakehouse_is_not_registered(http_client: Client, shop: tl.Lakehouse) -> None:
    body = {"name": "busy", "schema": COLUMNS, "view-version": VIEW_VERSION, "properties": {}}
    view = http_client("POST", "/v1/namespaces/shop/views", body).body
    file = Path(view["metadata-location"].removeprefix("file://"))

    def register(name: str, **changes: Any) -> int:
        copy = file.with_name(f"{name}.metadata.json")
        copy.write_text(json.dumps({**view["metadata"], **changes}))
        registered = {"name": name, "metadata-location": f"file://{copy}"}
        return http_client("POST", "/v1/namespaces/shop/register-view", registered).code

    assert register("good") == 200
    assert register("elsewhere", location="s3://elsewhere/view") == 400
    assert register("writing", properties={"write.metadata.path": "file:///elsewhere"}) == 400
    assert shop.views("shop") == ["shop.busy", "shop.good"]


def test_a_view_is_replaced_and_renamed(http_client: Client, shop: tl.Lakehouse) -> None:
    body = {"name": "busy", "schema": COLUMNS, "view-version": VIEW_VERSION, "properties": {}}
    view = http_client("POST", "/v1/namespaces/shop/views", body).body
    representations = [{"type": "sql", "sql": "SELECT 2", "dialect": "spark"}]
    second = {**VIEW_VERSION, "version-id": 2, "schema-id": -1, "representations": representations}
    added = {**COLUMNS, "fields": [{"id": 1, "name": "two", "type": "int", "required": False}]}
    change = {
        "requirements": [{"type": "assert-view-uuid", "uuid": view["metadata"]["view-uuid"]}],
        "updates": [
            {"action": "add-schema", "schema": added},
            {"action": "add-view-version", "view-version": second},
            {"action": "set-current-view-version", "view-version-id": -1},
            {"action": "set-properties", "updates": {"owner": "ana"}},
        ],
    }
    replaced = http_client("POST", "/v1/namespaces/shop/views/busy", change)
    assert replaced.code == 200, replaced
    assert replaced.body["metadata"]["current-version-id"] == 2
    assert replaced.body["metadata-location"] != view["metadata-location"]
    assert [one["version-id"] for one in replaced.body["metadata"]["versions"]] == [1, 2]
    assert shop.view("shop.busy").sql == "SELECT 2"
    assert shop.view("shop.busy").properties == {"owner": "ana"}
    change["requirements"] = [{"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}]
    refused = http_client("POST", "/v1/namespaces/shop/views/busy", change)
    assert (refused.code, refused.error) == (409, "CommitFailedException")

    def rename(name: str) -> int:
        source, destination = {"namespace": ["shop"], "name": "busy"}, {"namespace": ["shop"], "name": name}
        return http_client("POST", "/v1/views/rename", {"source": source, "destination": destination}).code

    assert rename("orders") == 409
    assert rename("calm") == 204
    assert rename("again") == 404
    assert http_client("GET", "/v1/namespaces/shop/views/calm").body["metadata"] == replaced.body["metadata"]
