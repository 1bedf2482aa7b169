"""A commit takes linear time in its updates, whose number is limited.

A view of 8,500 versions in one request of 2 MB took minutes: each version was serialized and compared with all others.
Sort orders of a table did the same, and twenty thousand texts of one version.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.view.metadata import ViewVersion

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, VIEW_VERSION, with_tables
from rest.test_request_costs import steps
from trinitylake.iceberg_storage.extended_pyiceberg import metadata_updates
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.view_metadata import new_view_metadata
from trinitylake.rest.handlers import view_changes
from trinitylake.rest.handlers.body_parts import MAX_UPDATES
from trinitylake.rest.handlers.table_changes import TableChange
from trinitylake.rest.handlers.view_changes import MAX_TEXTS, ViewChange, changed

SCHEMA = Schema.model_validate(COLUMNS)


def version(number: int) -> dict[str, Any]:
    text = {"type": "sql", "sql": f"SELECT {number} AS id", "dialect": "spark"}
    return {**VIEW_VERSION, "version-id": number, "representations": [text]}


def schema(number: int) -> dict[str, Any]:
    return {**COLUMNS, "fields": [{"id": 1, "name": f"c{number}", "type": "long", "required": False}]}


def updates(kind: str, count: int) -> list[dict[str, Any]]:
    """`count` updates of one kind, and the updates that they need: a version must exist before it becomes the current
    one."""
    versions = [{"action": "add-view-version", "view-version": version(number + 2)} for number in range(count)]
    match kind:
        case "add-view-version":
            return versions
        case "set-current-view-version":
            chosen = [{"action": kind, "view-version-id": number + 2} for number in range(count)]
            return [*versions, *chosen]
        case "add-schema":
            return [{"action": kind, "schema": schema(number)} for number in range(count)]
        case "set-properties":
            return [{"action": kind, "updates": {f"p{number}": "x"}} for number in range(count)]
        case "remove-properties":
            return [{"action": kind, "removals": [f"p{number}"]} for number in range(count)]
    return [{"action": "set-location", "location": f"x{number}"} for number in range(count)]


KINDS = [
    "add-view-version",
    "set-current-view-version",
    "add-schema",
    "set-properties",
    "remove-properties",
    "location",
]


@pytest.mark.parametrize("kind", KINDS)
def test_updates_of_a_view_take_linear_time(kind: str) -> None:
    first = ViewVersion.model_validate(version(1))
    metadata = new_view_metadata("6e7a8a0e-0000-4000-8000-000000000000", "x", SCHEMA, first, {})

    def work(count: int) -> int:
        change = ViewChange.model_construct(
            requirements=[], updates=ViewChange.model_validate({"updates": updates(kind, count)}).updates
        )
        return steps(lambda: changed(metadata, change), view_changes.__file__)

    assert work(200) < 2.2 * work(100)


def test_sort_orders_take_linear_time(lake: tl.Lakehouse) -> None:
    with_tables(lake, "shop.orders")
    metadata = lake.table("shop.orders").iceberg.metadata

    def order(number: int) -> dict[str, Any]:
        direction = {"direction": "asc", "null-order": "nulls-first", "source-id": 1}
        fields = [{**direction, "transform": f"bucket[{number + 1}]"}]
        return {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": fields}}

    def work(count: int) -> int:
        sent = TableChange.model_validate({"updates": [order(number) for number in range(count)]}).updates
        assert len(apply_updates(metadata, [*sent, *sent]).sort_orders) == 1 + count, (
            "equal sort orders are stored once"
        )
        return steps(lambda: apply_updates(metadata, sent), metadata_updates.__file__)

    assert work(200) < 2.2 * work(100)


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with_tables(lake, "shop.orders", "shop.items").create_view("shop.top", "SELECT 1")
    return lake


def test_equal_versions_and_schemas_of_a_view_are_reused(shop: tl.Lakehouse, http_client: Client) -> None:
    path = "/v1/namespaces/shop/views/top"
    sent = [
        {"action": "add-schema", "schema": COLUMNS},
        {
            "action": "add-view-version",
            "view-version": {**version(7), "schema-id": -1, "summary": {"a": "1", "b": "2"}},
        },
        {"action": "add-schema", "schema": {**COLUMNS, "schema-id": 9}},
        {
            "action": "add-view-version",
            "view-version": {**version(7), "schema-id": -1, "summary": {"b": "2", "a": "1"}},
        },
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    answers = [http_client("POST", path, {"updates": sent}) for _ in range(2)]
    assert [answer.code for answer in answers] == [200, 200], answers
    metadata = answers[1].body["metadata"]
    assert len(metadata["schemas"]) == 2
    assert len(metadata["versions"]) == 2


@pytest.mark.usefixtures("shop")
def test_the_number_of_updates_of_a_commit_is_limited(http_client: Client) -> None:
    many = [{"action": "set-properties", "updates": {"n": str(number)}} for number in range(MAX_UPDATES + 1)]
    for path in ("views/top", "tables/orders"):
        answer = http_client("POST", f"/v1/namespaces/shop/{path}", {"requirements": [], "updates": many})
        assert (answer.code, answer.error) == (400, "BadRequestException"), path
        assert str(MAX_UPDATES) in answer.body["error"]["message"]
        answer = http_client("POST", f"/v1/namespaces/shop/{path}", {"requirements": [], "updates": many[1:]})
        assert answer.code == 200, answer


@pytest.mark.usefixtures("shop")
def test_the_tables_of_one_commit_share_the_limit_of_updates(http_client: Client) -> None:
    many = [{"action": "set-properties", "updates": {"n": str(number)}} for number in range(MAX_UPDATES // 2 + 1)]
    changes = [
        {"identifier": {"namespace": ["shop"], "name": name}, "requirements": [], "updates": many}
        for name in ("orders", "items")
    ]
    answer = http_client("POST", "/v1/transactions/commit", {"table-changes": changes})
    assert (answer.code, answer.error) == (400, "BadRequestException")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("count", "code"), [(MAX_TEXTS, 200), (MAX_TEXTS + 1, 400)])
def test_the_number_of_texts_of_a_view_version_is_limited(http_client: Client, count: int, code: int) -> None:
    texts = [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": f"d{number}"} for number in range(count)]
    new = {**VIEW_VERSION, "representations": texts}
    created = {"name": "many", "schema": COLUMNS, "view-version": new, "properties": {}}
    assert http_client("POST", "/v1/namespaces/shop/views", created).code == code
    replaced = {"updates": [{"action": "add-view-version", "view-version": {**new, "version-id": 2}}]}
    assert http_client("POST", "/v1/namespaces/shop/views/top", replaced).code == code
