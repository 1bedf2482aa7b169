"""Valid JSON with invalid content is 400 on every route, never 500."""

from __future__ import annotations

from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from trinitylake.rest.http.routes import CATALOG, OTHERS, PAGE, Endpoint

STRUCT = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}]}
FIELD = {"source-id": 77, "field-id": 1000, "name": "p", "transform": "identity"}
ORDER = {"source-id": 77, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
VERSION = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {}, "representations": []}
STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "/etc/passwd",
    "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [],
}
UPDATES: list[dict[str, Any]] = [
    {},
    {"action": "x"},
    {"action": "set-properties", "updates": None},
    {"action": "add-schema", "schema": {}},
    {"action": "add-schema", "schema": {**STRUCT, "fields": [{**STRUCT["fields"][0], "type": "x"}]}},  # type: ignore[dict-item]
    {"action": "add-spec", "spec": {"spec-id": 1, "fields": [{**FIELD, "transform": "bucket[0]"}]}},
    {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [ORDER]}},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "set-default-spec", "spec-id": 9},
    {"action": "set-default-sort-order", "sort-order-id": 9},
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77},
    {"action": "upgrade-format-version", "format-version": 1},
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "assign-uuid", "uuid": "x"},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "remove-partition-specs", "spec-ids": [0]},
    {"action": "set-statistics", "snapshot-id": 1, "statistics": STATISTICS},
    {"action": "set-current-view-version", "view-version-id": -1},
    {"action": "add-view-version", "view-version": VERSION},
]
BODIES: list[Any] = [
    *({"updates": [update]} for update in UPDATES),
    *({"name": name, "schema": STRUCT} for name in ("", ".", "..", "a\0b", "x" * 9999, "\ud800")),
    {"name": "q", "schema": {**STRUCT, "fields": STRUCT["fields"] * 2}},
    {"name": "q", "schema": STRUCT, "partition-spec": {"spec-id": 0, "fields": [FIELD]}},
    {"name": "q", "schema": STRUCT, "write-order": {"order-id": 1, "fields": [ORDER]}},
    *({"name": "q", "schema": STRUCT, "properties": {"format-version": text}} for text in ("99", "x", "")),
    {"name": "w", "schema": STRUCT, "view-version": VERSION},
    {"name": "w", "schema": STRUCT, "view-version": {**VERSION, "default-namespace": ["a.b", ""]}},
    {"requirements": [{"type": "x"}], "updates": []},
    {"requirements": [{"type": "assert-create"}], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
    {"table-changes": [{}]},
    {"source": {}, "destination": {}},
    {"namespace": ["a"] * 5000},
    {"properties": {"a": 1}},
    {"removals": ["a"] * 10, "updates": {"b": "\ud800"}},
    {"metadata-location": "x", "name": "r"},
    {"id": "bad id!"},
    {"isolation": "x"},
    {"report-type": 1},
    {"plan-task": 1},
]


@pytest.mark.parametrize(
    "endpoint", [one for one in (*CATALOG, *OTHERS, *PAGE) if one.method == "POST"], ids=lambda endpoint: endpoint.path
)
def test_an_invalid_body_is_400_on_every_route(http_client: Client, lake: tl.Lakehouse, endpoint: Endpoint) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("n")
        txn.create_table("n.t", {"a": "bigint"})
        txn.create_view("n.v", "SELECT 1")
    path = endpoint.path.replace("{prefix}", "latest").replace("{namespace}", "n")
    path = path.replace("{table}", "t").replace("{view}", "v").replace("{id}", "i")
    for body in BODIES:
        answer = http_client("POST", path, body)
        assert answer.code < 500, (path, body, answer)
    assert lake.table("n.t").schema.columns[0].name == "a"
    assert lake.view("n.v").sql == "SELECT 1"


def test_clients_cannot_set_the_librarys_own_properties(http_client: Client, lake: tl.Lakehouse) -> None:
    """A stream's sink finds in its table which batch was the last. Whoever could set that made the sink leave out the
    next batches without a word. Clients that replace a table send its properties again, and may."""
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint"})
    own = "trinitylake.spark.last-batch.q"
    path = "/v1/namespaces/shop/tables/orders"

    def commit(*updates: dict[str, Any]) -> int:
        return http_client("POST", path, {"requirements": [], "updates": list(updates)}).code

    def set_to(value: str) -> dict[str, Any]:
        return {"action": "set-properties", "updates": {own: value, "color": value}}

    assert commit(set_to("99")) == 400
    assert commit({"action": "set-properties", "updates": {"color": "red"}}) == 200
    assert commit({"action": "remove-properties", "removals": [own]}) == 400
    change = {"identifier": {"namespace": ["shop"], "name": "orders"}, "requirements": [], "updates": [set_to("1")]}
    assert http_client("POST", "/v1/transactions/commit", {"table-changes": [change]}).code == 400
    body = {"name": "new", "schema": {**STRUCT, "schema-id": 0}, "properties": {own: "1"}}
    assert http_client("POST", "/v1/namespaces/shop/tables", body).code == 400
    assert http_client("POST", "/v1/namespaces/shop/tables", {**body, "stage-create": True}).code == 400
    assert lake.table("shop.orders").properties.get("color") == "red"


def test_a_huge_content_length_is_refused(http_client: Client, lake: tl.Lakehouse) -> None:
    """`fixed[999…]` was an error of the server, with a traceback in its log."""
    lake.create_namespace("shop")
    for digits in (10, 19, 300):
        schema = {**STRUCT, "schema-id": 0, "fields": [{**STRUCT["fields"][0], "type": f"fixed[{'9' * digits}]"}]}  # type: ignore[dict-item]
        assert http_client("POST", "/v1/namespaces/shop/tables", {"name": "t", "schema": schema}).code == 400, digits


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "utf-8-sig"])
def test_a_body_that_is_not_utf_8_is_400(http_client: Client, encoding: str) -> None:
    """JSON in bytes was read in whatever encoding it looked like, so a proxy in front, and the count of values before
    the parser, could see another document than the handler."""
    body = '{"namespace": ["shop"]}'.encode(encoding)
    assert http_client("POST", "/v1/namespaces", body).code == 400
    assert http_client("POST", "/v1/namespaces", '{"namespace": ["é"]}'.encode()).code == 200
