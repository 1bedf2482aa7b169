"""Tables of format version 3 over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, ROWS

PATH = "/v1/namespaces/shop/tables/orders"
V3 = {"format-version": "3"}


@pytest.fixture(autouse=True)
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A table with a snapshot of three rows, and a branch."""
    lake.create_namespace("shop")
    table = lake.create_table("shop.orders", ROWS, properties=V3)
    table.append(ROWS)
    with lake.transaction() as txn:
        iceberg = txn.table("shop.orders").iceberg
        head = iceberg.current_snapshot()
        assert head is not None
        iceberg.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    return lake


def snapshot_of(http_client: Client, branch: str, **changes: Any) -> dict[str, Any]:
    """A commit of an engine that adds one snapshot to a branch, with the same files as the snapshot before."""
    metadata = http_client.table(PATH)
    head = metadata["refs"][branch]["snapshot-id"]
    (last,) = [one for one in metadata["snapshots"] if one["snapshot-id"] == head]
    snapshot = {
        **last,
        "snapshot-id": 77,
        "parent-snapshot-id": head,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "summary": {"operation": "replace"},
        "first-row-id": metadata["next-row-id"],
        "added-rows": 0,
        **changes,
    }
    move = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": 77}
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": head}],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot}, move],
    }


def test_row_ids_of_a_snapshot_are_counted(http_client: Client) -> None:
    answer = http_client("POST", PATH, snapshot_of(http_client, "main", **{"added-rows": 5}))
    assert answer.code == 200, answer
    assert http_client.table(PATH)["next-row-id"] == 8


@pytest.mark.parametrize(("name", "value", "code"), [("added-rows", 2**63 - 1, 400), ("first-row-id", 2**62, 409)])
def test_a_snapshot_cannot_use_up_the_row_ids(http_client: Client, name: str, value: int, code: int) -> None:
    """A commit cannot assign row ids far above `next-row-id`. Otherwise `next-row-id` could exceed 64 bits, and no
    client could load or write the table, or later rows would get ids that are in use."""
    assert http_client("POST", PATH, snapshot_of(http_client, "main", **{name: value})).code == code
    assert http_client.table(PATH)["next-row-id"] == 3


@pytest.mark.parametrize("stale", [{"first-row-id": 0}, {"sequence-number": 1}])
@pytest.mark.parametrize("several", [False, True])
def test_row_ids_that_another_commit_took_are_a_conflict(
    http_client: Client, lake: tl.Lakehouse, stale: dict[str, int], several: bool
) -> None:
    """If a commit to another branch has used the row ids of a snapshot, the answer is 409, after which an engine makes
    a new snapshot. After 400 it would fail."""
    body = snapshot_of(http_client, "audit", **stale)
    if several:
        lake.create_table("shop.totals", ROWS)
        changes = [
            {"identifier": {"namespace": ["shop"], "name": "orders"}, **body},
            {
                "identifier": {"namespace": ["shop"], "name": "totals"},
                "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
            },
        ]
        answer = http_client("POST", "/v1/transactions/commit", {"table-changes": changes})
    else:
        answer = http_client("POST", PATH, body)
    assert (answer.code, answer.error) == (409, "CommitFailedException")
    assert http_client("POST", PATH, snapshot_of(http_client, "audit")).code == 200


@pytest.mark.parametrize("missing", ["first-row-id", "added-rows"])
def test_a_snapshot_without_row_ids_is_refused(http_client: Client, missing: str) -> None:
    answer = http_client("POST", PATH, snapshot_of(http_client, "main", **{missing: None}))
    assert (answer.code, answer.error) == (400, "BadRequestException")
    assert http_client.table(PATH)["next-row-id"] == 3


def test_a_table_is_staged_with_defaults_and_a_variant(http_client: Client) -> None:
    fields = [
        {"id": 1, "name": "id", "type": "long", "required": True, "initial-default": 4, "write-default": 5},
        {"id": 2, "name": "what", "type": "variant", "required": False},
        {"id": 3, "name": "at", "type": "timestamp_ns", "required": False},
        {
            "id": 4,
            "name": "all",
            "required": False,
            "type": {"type": "list", "element-id": 5, "element": "variant", "element-required": False},
        },
    ]
    body = {"name": "events", "schema": {**COLUMNS, "fields": fields}, "properties": V3}
    for staged in (True, False):
        answer = http_client("POST", "/v1/namespaces/shop/tables", {**body, "stage-create": staged})
        assert answer.code == 200, answer
        metadata = answer.body["metadata"]
        assert (metadata["format-version"], metadata["next-row-id"]) == (3, 0)
        assert [field["type"] for field in metadata["schemas"][0]["fields"][1:3]] == ["variant", "timestamp_ns"]
        assert metadata["schemas"][0]["fields"][0] == fields[0]
    assert http_client.table("/v1/namespaces/shop/tables/events") == metadata
    fields[1:] = []  # a default value alone is refused, too
    for version in ("1", "2"):
        refused = {**body, "name": "old", "properties": {"format-version": version}}
        assert http_client("POST", "/v1/namespaces/shop/tables", refused).code == 400


def test_default_values_need_version_3(http_client: Client, lake: tl.Lakehouse) -> None:
    """A table of format version 2 refuses default values, because readers of that version ignore them."""
    lake.create_table("shop.old", ROWS)
    column = {"id": 2, "name": "size", "type": "int", "required": False, "initial-default": 7, "write-default": 7}
    schema = {"action": "add-schema", "schema": {**COLUMNS, "schema-id": 1, "fields": [*COLUMNS["fields"], column]}}  # type: ignore[misc]
    current = {"action": "set-current-schema", "schema-id": -1}
    for name, code in (("old", 400), ("orders", 200)):
        answer = http_client("POST", f"/v1/namespaces/shop/tables/{name}", {"updates": [schema, current]})
        assert answer.code == code, answer
    lake.table("shop.orders").append(ROWS)
    assert lake.table("shop.orders").scan().to_arrow()["size"].to_pylist() == [7] * 6


def test_a_table_is_upgraded_and_not_downgraded(http_client: Client, lake: tl.Lakehouse) -> None:
    lake.create_table("shop.old", ROWS).append(ROWS)
    path = "/v1/namespaces/shop/tables/old"
    for version, code in ((3, 200), (3, 200), (2, 400), (4, 400)):
        update = {"action": "upgrade-format-version", "format-version": version}
        assert http_client("POST", path, {"updates": [update]}).code == code
    metadata = http_client.table(path)
    assert (metadata["format-version"], metadata["next-row-id"]) == (3, 0)
    assert "first-row-id" not in metadata["snapshots"][0]
    lake.table("shop.old").append(ROWS)
    assert http_client.table(path)["next-row-id"] == 6


def test_an_encrypted_table_is_refused(http_client: Client) -> None:
    """The metadata of an encrypted table is refused. It contains keys, which PyIceberg drops, so the table would become
    unreadable."""
    encrypted = {**V3, "encryption.key-id": "k"}
    answer = http_client(
        "POST", "/v1/namespaces/shop/tables", {"name": "secret", "schema": COLUMNS, "properties": encrypted}
    )
    assert answer.code == 400
    assert "encrypted" in answer.body["error"]["message"]
    key = {"key-id": "k", "encrypted-key-metadata": "aGk=", "encrypted-by-id": "m"}
    for update in (
        {"action": "set-properties", "updates": {"encryption.key-id": "k"}},
        {"action": "add-encryption-key", "encryption-key": key},
    ):
        assert http_client("POST", PATH, {"updates": [update]}).code == 400


def test_a_plan_contains_the_row_ids(http_client: Client, lake: tl.Lakehouse) -> None:
    lake.table("shop.orders").append(ROWS)
    plan = http_client("POST", "/v1/latest/namespaces/shop/tables/orders/plan", {}).body
    assert sorted(one["data-file"]["first-row-id"] for one in plan["file-scan-tasks"]) == [0, 3]
    assert "first-row-id" not in json.dumps(plan_of_version_2(http_client, lake))


def plan_of_version_2(http_client: Client, lake: tl.Lakehouse) -> Any:
    lake.create_table("shop.plain", ROWS).append(ROWS)
    plan = http_client("POST", "/v1/latest/namespaces/shop/tables/plain/plan", {}).body
    assert plan["file-scan-tasks"]
    return plan


def test_the_property_format_version_upgrades(http_client: Client, lake: tl.Lakehouse) -> None:
    lake.create_table("shop.old", ROWS).append(ROWS)
    path = "/v1/namespaces/shop/tables/old"
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b", **V3}}]}
    answer = http_client("POST", path, body)
    assert answer.code == 200, answer
    metadata = http_client.table(path)
    assert (metadata["format-version"], metadata["next-row-id"]) == (3, 0)
    assert metadata["properties"]["a"] == "b"
    assert "format-version" not in metadata["properties"]
    for version in ("2", "4", "newest"):
        body["updates"] = [{"action": "set-properties", "updates": {"format-version": version}}]
        refused = http_client("POST", path, body)
        assert (refused.code, refused.error) == (400, "BadRequestException")
    assert http_client.table(path) == metadata
