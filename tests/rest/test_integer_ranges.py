"""Integers in commits are checked against the types of Iceberg.

Iceberg's ids, widths and lengths have 32 bits, Python's integers have no limit. The server accepted a column id of
2147483648, zero buckets, and a view version of 33 bits. Then engines on Java could no longer load the table or view.
"""

from __future__ import annotations

from typing import Any

import trinitylake as tl
from rest.client import Client

ORDERS = "/v1/namespaces/shop/tables/orders"
TABLES, VIEWS = "/v1/namespaces/shop/tables", "/v1/namespaces/shop/views"
TOO_LARGE = 2**31


def column(type: Any = "int", id: int = 7, name: str = "a") -> dict[str, Any]:
    return {"id": id, "name": name, "type": type, "required": False}


def schema(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"action": "add-schema", "schema": {"type": "struct", "fields": list(columns), **more}}


def spec(transform: str, field_id: int = 1000, spec_id: int = 9) -> dict[str, Any]:
    fields = [{"source-id": 1, "field-id": field_id, "name": "p", "transform": transform}]
    return {"action": "add-spec", "spec": {"spec-id": spec_id, "fields": fields}}


def order(transform: str, id: int = 9) -> dict[str, Any]:
    fields = [{"source-id": 1, "transform": transform, "direction": "asc", "null-order": "nulls-first"}]
    return {"action": "add-sort-order", "sort-order": {"order-id": id, "fields": fields}}


def ref(name: str, type: str, **keeps: int) -> dict[str, Any]:
    more = {key.replace("_", "-"): value for key, value in keeps.items()}
    return {"action": "set-snapshot-ref", "ref-name": name, "type": type, "snapshot-id": 0, **more}


LIST = {"type": "list", "element": "int", "element-required": False}
MAP = {"type": "map", "key-id": 8, "key": "int", "value": "int", "value-required": False}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a column": (schema(column(id=TOO_LARGE)), "column 'a' must be a number from 0 to 2147483447"),
    "a column with a reserved id": (schema(column(id=2147483546)), "2147483447"),
    "a column below nothing": (schema(column(id=-1)), "not -1"),
    "an element": (schema(column({**LIST, "element-id": TOO_LARGE})), "column 'element'"),
    "a value": (schema(column({**MAP, "value-id": TOO_LARGE})), "column 'value'"),
    "a column in a struct": (schema(column({"type": "struct", "fields": [column(id=TOO_LARGE)]})), "not 2147483648"),
    "two columns": (schema(column(), column(name="b")), "two columns have the id 7"),
    "an element like its column": (schema(column({**LIST, "element-id": 7})), "two columns have the id 7"),
    "a schema": (schema(column(), **{"schema-id": TOO_LARGE}), "id of a schema"),
    "a length": (schema(column("fixed[99999999999999999999]")), "the length of column 'a'"),
    "buckets": (spec("bucket[2147483648]"), "the number of buckets"),
    "no buckets": (spec("bucket[0]"), "from 1 to 2147483647, not 0"),
    "a width": (spec("truncate[0]"), "a width to truncate to"),
    "a partition field": (spec("identity", field_id=TOO_LARGE), "partition field 'p'"),
    "a partition spec": (spec("identity", spec_id=TOO_LARGE), "id of a partition spec"),
    "buckets in an order": (order("bucket[0]"), "the number of buckets"),
    "a sort order": (order("identity", TOO_LARGE), "id of a sort order"),
    "a main that stands still": (ref("main", "tag"), "main must be a branch"),
    "a tag that keeps snapshots": (ref("t", "tag", min_snapshots_to_keep=1), "a tag keeps one snapshot"),
    "a branch that keeps nothing": (ref("b", "branch", min_snapshots_to_keep=0), "from 1 to 2147483647, not 0"),
    "a branch that keeps too many": (ref("b", "branch", min_snapshots_to_keep=TOO_LARGE), "min-snapshots-to-keep"),
    "a branch of no age": (ref("b", "branch", max_ref_age_ms=-1), "not -1 ms"),
    "snapshots of no age": (ref("b", "branch", max_snapshot_age_ms=0), "not 0 ms"),
}


def test_integers_out_of_range_are_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    for what in REFUSED:
        update, message = REFUSED[what]
        before = http_client.table(ORDERS)
        if update["action"] == "set-snapshot-ref":
            update = {**update, "snapshot-id": before["current-snapshot-id"]}
        assert message in http_client("POST", ORDERS, {"requirements": [], "updates": [update]}).bad_request, what
        assert http_client.table(ORDERS) == before, what


def test_integers_in_range_are_accepted(http_client: Client, shop: tl.Lakehouse) -> None:
    head = http_client.table(ORDERS)["current-snapshot-id"]
    updates = [
        schema(column(id=2147483447), column("fixed[16]", 8, "b")),
        spec("bucket[2147483647]"),
        order("truncate[1]"),
        {**ref("b", "branch", min_snapshots_to_keep=1, max_snapshot_age_ms=1, max_ref_age_ms=1), "snapshot-id": head},
        {**ref("t", "tag", max_ref_age_ms=1), "snapshot-id": head},
    ]
    for update in updates:
        assert http_client("POST", ORDERS, {"requirements": [], "updates": [update]}).code == 200, update


def test_integers_of_new_tables_are_checked(http_client: Client, shop: tl.Lakehouse) -> None:
    for staged in [False, True]:
        for type, transform, message in [
            ("fixed[99999999999]", "identity", "the length of column"),
            (f"fixed[{'9' * 300}]", "identity", "the length of column"),
            ("int", "bucket[0]", "the number of buckets"),
            ("int", "truncate[99999999999]", "a width"),
        ]:
            fields = [{"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}]
            body = {
                "name": "new",
                "schema": {"type": "struct", "fields": [column(type, 1)]},
                "partition-spec": {"spec-id": 0, "fields": fields},
                "stage-create": staged,
            }
            answer = http_client("POST", TABLES, body)
            assert answer.code == 400, (type, transform)
            assert message in answer.body["error"]["message"], (type, transform)
            assert http_client("GET", f"{TABLES}/new").code == 404, (type, transform)


def view(id: int, field_id: int = 1) -> dict[str, Any]:
    version = {
        "version-id": id,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "default-namespace": ["shop"],
        "representations": [{"type": "sql", "sql": f"SELECT {id}", "dialect": "spark"}],
    }
    fields = [column(id=field_id)]
    return {"name": "v", "schema": {"type": "struct", "fields": fields}, "view-version": version, "properties": {}}


def test_integers_of_views_are_checked(http_client: Client, shop: tl.Lakehouse) -> None:
    for body in (view(TOO_LARGE), view(-7), view(0), view(1, TOO_LARGE)):
        assert http_client("POST", VIEWS, body).code == 400
    assert http_client("POST", VIEWS, view(1)).code == 200
    before = http_client("GET", f"{VIEWS}/v").body["metadata"]
    for update in (
        {"action": "add-view-version", "view-version": view(TOO_LARGE)["view-version"]},
        schema(column(id=TOO_LARGE)),
    ):
        assert http_client("POST", f"{VIEWS}/v", {"updates": [update]}).code == 400
    assert http_client("GET", f"{VIEWS}/v").body["metadata"] == before
