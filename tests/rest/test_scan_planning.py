"""Scan planning by the server: the planned files contain all matching rows, and tokens of a plan have limits.

A token is the request of the plan in base64, so that any server can continue it. A forged token of 16 MB with six
million values occupied a thread for twelve seconds and memory outside of all limits. Invalid values were 500.
"""

from __future__ import annotations

import base64
import datetime
import json
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo, In, Not, NotEqualTo

import trinitylake as tl
from position_deletes import delete_values
from rest.client import Client
from rest.shop import with_tables
from trinitylake.definitions import METADATA_LOCATION, new_table_def, serialize
from trinitylake.rest import RestServer, metadata_limits
from trinitylake.rest.request.body import MAX_VALUES

PATH = "/v1/latest/namespaces/shop/tables/orders"


def nested(depth: int) -> dict[str, Any]:
    """A filter in filters."""
    filter: dict[str, Any] = {"type": "eq", "term": "id", "value": 3}
    for _ in range(depth):
        filter = {"type": "not", "child": filter}
    return filter


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A table with four partitions, each with one file."""
    rows = pa.table(
        {"id": pa.array(range(8), pa.int64()), "day": [datetime.date(2026, 1, 1 + number // 2) for number in range(8)]}
    )
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", rows, partition_spec="day").append(rows)
    return lake


@pytest.fixture
def planned(server: RestServer, shop: tl.Lakehouse) -> RestCatalog:
    """PyIceberg with scan planning by the server."""
    catalog = RestCatalog("test", uri=server.url, token=server.token, **{"scan-planning-mode": "server"})
    assert catalog.supports_server_side_planning()
    return catalog


def test_a_planned_scan_finds_the_rows(planned: RestCatalog, shop: tl.Lakehouse) -> None:
    for row_filter in ["id >= 0", "id < 3", "day = '2026-01-02'", "id = 99", "day > '2026-01-02'"]:
        scan = planned.load_table("shop.orders").scan(row_filter=row_filter)
        expected = shop.table("shop.orders").scan(filter=row_filter).to_arrow().sort_by("id")
        assert scan.to_arrow().sort_by("id").to_pylist() == expected.to_pylist(), row_filter
        assert scan.count() == expected.num_rows, row_filter


ID = {"type": "reference", "name": "id"}


def test_both_forms_of_the_specification_filter_files(http_client: Client, shop: tl.Lakehouse) -> None:
    for filter, n_files in [
        (True, 4),
        ({"type": "false"}, 0),
        ({"type": "eq", "left": ID, "right": 3}, 1),
        ({"type": "eq", "left": ID, "right": {"type": "literal", "value": 3, "data-type": "long"}}, 1),
        ({"type": "in", "child": ID, "values": [0, {"type": "literal", "value": 7}]}, 2),
        ({"type": "in", "child": ID, "values": {"type": "literals", "values": [0, 7], "data-type": "long"}}, 2),
        ({"type": "is-null", "child": ID}, 0),
        ({"type": "not", "child": {"type": "lt", "left": ID, "right": 6}}, 1),
        ({"type": "and", "left": {"type": "true"}, "right": {"type": "gt-eq", "term": "id", "value": 6}}, 1),
    ]:
        answer = http_client("POST", f"{PATH}/plan", {"filter": filter})
        assert answer.code == 200, answer
        assert len(answer.body["file-scan-tasks"]) == n_files, filter
        assert answer.body["status"] == "completed", filter
        assert uuid.UUID(answer.body["plan-id"]), filter


@pytest.mark.parametrize(
    "operand",
    [
        {"type": "reference", "id": 1},
        {"type": "apply", "function": "day", "arguments": [ID]},
        {"type": "transform", "transform": "bucket[4]", "term": "id"},
    ],
)
def test_a_filter_on_functions_or_field_ids_is_406(http_client: Client, shop: tl.Lakehouse, operand: Any) -> None:
    for name in ("left", "term"):
        answer = http_client("POST", f"{PATH}/plan", {"filter": {"type": "eq", name: operand, "value": 3}})
        assert (answer.code, answer.error) == (406, "UnsupportedOperationException")


def test_a_filter_on_binary_values_finds_the_rows(planned: RestCatalog, lake: tl.Lakehouse) -> None:
    """Binary values in the JSON of a filter are hexadecimal. If they were read as text, the plan would exclude files
    with matching rows."""
    rows = pa.table({"b": pa.array([b"xyz", b"\x00\xff"], pa.binary()), "f": pa.array([b"ab", b"cd"], pa.binary(2))})
    lake.create_table("shop.bytes", rows)
    lake.table("shop.bytes").append(rows)
    table = planned.load_table("shop.bytes")
    for filter in (EqualTo("b", b"xyz"), In("b", [b"xyz", b"q"]), EqualTo("f", b"ab"), Not(NotEqualTo("b", b"xyz"))):
        assert table.scan(row_filter=filter).to_arrow()["b"].to_pylist() == [b"xyz"], filter


def test_a_plan_names_only_the_files_that_may_match(http_client: Client, shop: tl.Lakehouse) -> None:
    filter = {"type": "eq", "term": "id", "value": 3}
    plan = http_client("POST", f"{PATH}/plan", {"filter": filter}).body
    assert plan["status"] == "completed"
    [task] = plan["file-scan-tasks"]
    assert task["data-file"]["partition"] == ["2026-01-02"]
    assert task["data-file"]["record-count"] == 2
    assert task["data-file"]["file-path"].startswith(shop.uri)
    assert len(http_client("POST", f"{PATH}/plan", {}).body["file-scan-tasks"]) == 4


def test_plan_is_for_the_requested_snapshot(http_client: Client, shop: tl.Lakehouse) -> None:
    first = http_client.table(PATH)["current-snapshot-id"]
    shop.table("shop.orders").append(pa.table({"id": [9], "day": [datetime.date(2026, 2, 1)]}))
    assert len(http_client("POST", f"{PATH}/plan", {"snapshot-id": first}).body["file-scan-tasks"]) == 4
    assert len(http_client("POST", f"{PATH}/plan", {}).body["file-scan-tasks"]) == 5


def test_long_plan_continues_in_tasks(
    http_client: Client, planned: RestCatalog, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinitylake.rest.handlers.scan_planning.MAX_FILES", 3)
    assert planned.load_table("shop.orders").scan().to_arrow().num_rows == 8
    plan = http_client("POST", f"{PATH}/plan", {}).body
    assert len(plan["file-scan-tasks"]) == 3
    [token] = plan["plan-tasks"]
    shop.table("shop.orders").append(pa.table({"id": [9], "day": [datetime.date(2026, 2, 1)]}))
    rest = http_client("POST", f"{PATH}/tasks", {"plan-task": token}).body
    assert (len(rest["file-scan-tasks"]), rest["plan-tasks"]) == (1, [])  # the file is of the planned snapshot


def test_an_invalid_plan_is_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    for path, body, code in [
        ("plan", {"filter": {"type": "eq", "term": "none", "value": 3}}, 400),
        ("plan", {"filter": {"type": "eq", "term": "id", "value": "x"}}, 400),
        ("plan", {"filter": {"type": "nonsense"}}, 400),
        ("plan", {"filter": {"type": "eq", "left": 1, "right": 2}}, 400),
        ("plan", {"filter": {"type": "eq", "left": {"type": "reference", "name": "id"}}}, 400),
        ("plan", {"filter": nested(300)}, 400),
        ("plan", {"snapshot-id": 1}, 400),
        ("plan", {"start-snapshot-id": 1, "end-snapshot-id": 2}, 400),
        ("plan", {"start-snapshot-id": 1}, 400),
        ("plan", {"end-snapshot-id": 1}, 400),
        ("plan", {"start-snapshot-id": 1, "end-snapshot-id": 2, "snapshot-id": 3}, 400),
        ("tasks", {"plan-task": "nonsense"}, 404),
        ("tasks", {"plan-task": "e30="}, 404),
        ("tasks", {}, 400),
    ]:
        assert http_client("POST", f"{PATH}/{path}", body).code == code, body


def test_deleted_rows_are_not_read(planned: RestCatalog, shop: tl.Lakehouse) -> None:
    shop.table("shop.orders").delete("id = 3")
    ids = planned.load_table("shop.orders").scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == [0, 1, 2, 4, 5, 6, 7]


def test_scans_that_only_clients_plan_are_406(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan with too many or too large manifests is refused with 406, after which clients plan it themselves. A small
    manifest with very many entries exhausted the memory of the server."""
    assert http_client("POST", f"{PATH}/plan", {}).code == 200
    monkeypatch.setattr(metadata_limits, "MAX_ENTRIES", 1)
    answer = http_client("POST", f"{PATH}/plan", {})
    assert (answer.code, answer.error) == (406, "UnsupportedOperationException")
    monkeypatch.setattr(metadata_limits, "MAX_ENTRIES", 1000)
    monkeypatch.setattr(metadata_limits, "MAX_STORED_SIZE_BYTES", 100)
    assert http_client("POST", f"{PATH}/plan", {}).code == 406


def test_a_plan_has_equality_deletes_with_the_files_that_they_apply_to(http_client: Client, shop: tl.Lakehouse) -> None:
    """A plan of a table with upserts of Flink contains the equality deletes, each with the data files to which it
    applies."""
    table = shop.table("shop.orders")
    before = {task.file.file_path for task in table.scan().iceberg.plan_files()}
    task = next(iter(table.scan().iceberg.plan_files()))
    delete_values(table, pa.table({"id": pa.array([1], pa.int64())}), task)
    table.append(pa.table({"id": [1], "day": [datetime.date(2026, 1, 1)]}))
    plan = http_client("POST", f"{PATH}/plan", {}).body
    assert [(one["content"], one["equality-ids"]) for one in plan["delete-files"]] == [("equality-deletes", [1])]
    deleted_from = [one["data-file"]["file-path"] for one in plan["file-scan-tasks"] if "delete-file-references" in one]
    assert deleted_from == [task.file.file_path]
    assert len(before) + 1 == len(plan["file-scan-tasks"])


def snapshots(shop: tl.Lakehouse) -> list[int]:
    """The ids of the table's snapshots, the oldest first."""
    return [one.snapshot_id for one in shop.table("shop.orders").iceberg.metadata.snapshots]


def appended(http_client: Client, start: int, end: int, **more: Any) -> list[str]:
    """The partitions of the files that were appended after `start`, up to `end`."""
    body = {"start-snapshot-id": start, "end-snapshot-id": end, **more}
    plan = http_client("POST", f"{PATH}/plan", body).body
    assert plan["delete-files"] == []
    return [task["data-file"]["partition"][0] for task in plan["file-scan-tasks"]]


def test_plan_between_two_snapshots_has_the_appended_files(http_client: Client, shop: tl.Lakehouse) -> None:
    table = shop.table("shop.orders")
    for month in (2, 3, 4):
        table.append(pa.table({"id": [month], "day": [datetime.date(2026, month, 1)]}))
    first, february, march, april = snapshots(shop)
    assert appended(http_client, first, april) == appended(http_client, first, april, select=["id"])
    assert sorted(appended(http_client, first, april)) == ["2026-02-01", "2026-03-01", "2026-04-01"]
    assert appended(http_client, february, march) == ["2026-03-01"]
    filter = {"type": "gt", "term": "day", "value": "2026-03-01"}
    assert appended(http_client, first, april, filter=filter) == ["2026-04-01"]
    for start, end in ((march, february), (march, march)):
        body = {"start-snapshot-id": start, "end-snapshot-id": end}
        assert http_client("POST", f"{PATH}/plan", body).code == 400


def test_plan_between_two_snapshots_excludes_rewritten_rows(http_client: Client, shop: tl.Lakehouse) -> None:
    table = shop.table("shop.orders")
    first = snapshots(shop)[0]
    table.append(pa.table({"id": [9], "day": [datetime.date(2026, 2, 1)]}))
    table.delete("id = 0")  # rewrites the other row of this file
    assert appended(http_client, first, snapshots(shop)[-1]) == ["2026-02-01"]


def test_long_plan_between_two_snapshots_continues_in_tasks(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinitylake.rest.handlers.scan_planning.MAX_FILES", 2)
    table = shop.table("shop.orders")
    for month in (2, 3, 4):
        table.append(pa.table({"id": [month], "day": [datetime.date(2026, month, 1)]}))
    ids = snapshots(shop)
    plan = http_client("POST", f"{PATH}/plan", {"start-snapshot-id": ids[0], "end-snapshot-id": ids[-1]}).body
    rest = http_client("POST", f"{PATH}/tasks", {"plan-task": plan["plan-tasks"][0]}).body
    paths = [task["data-file"]["file-path"] for task in (*plan["file-scan-tasks"], *rest["file-scan-tasks"])]
    assert (len(plan["file-scan-tasks"]), len(set(paths)), rest["plan-tasks"]) == (2, 3, [])


def test_a_plan_that_takes_too_long_is_406(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_limits, "MAX_PLAN_SECONDS", -1)
    answer = http_client("POST", f"{PATH}/plan", {})
    assert (answer.code, answer.error) == (406, "UnsupportedOperationException")
    assert "planning the scan takes more than" in answer.body["error"]["message"]


def test_a_snapshot_of_an_external_table_that_is_its_own_ancestor_is_refused(
    http_client: Client, shop: tl.Lakehouse, tmp_path: Path
) -> None:
    """A snapshot that is its own ancestor is refused. Otherwise the walk over the parents would never end."""
    shop.table("shop.orders").append(shop.table("shop.orders").scan().to_arrow())
    document = json.loads(shop.table("shop.orders").iceberg.metadata.model_dump_json())
    first, second = document["snapshots"]
    first["parent-snapshot-id"] = second["snapshot-id"]
    file = tmp_path / "elsewhere" / "00001-loop.metadata.json"
    file.parent.mkdir()
    file.write_text(json.dumps({**document, "location": str(tmp_path / "elsewhere")}))
    definition = new_table_def(table_type="external", format_properties={METADATA_LOCATION: file.as_uri()})
    with shop.transaction() as txn:
        txn._state().create("table", "shop", "loop", serialize(definition))
    between = {"start-snapshot-id": 1, "end-snapshot-id": second["snapshot-id"]}
    for body in (between, {}):
        answer = http_client("POST", f"{PATH.replace('orders', 'loop')}/plan", body)
        assert (answer.code, answer.error) == (400, "BadRequestException"), answer


TASKS = "/v1/namespaces/shop/tables/orders/tasks"


@pytest.fixture
def orders(lake: tl.Lakehouse) -> tl.Lakehouse:
    """The table `shop.orders`."""
    return with_tables(lake, "shop.orders")


def token(values: str) -> str:
    """A forged token of a plan whose filter has these values."""
    text = f'{{"request":{{"filter":{{"type":"in","term":"id","values":[{values}]}}}},"start":0,"plan":"x"}}'
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_plan_token_has_the_value_limit_of_a_body(http_client: Client, orders: tl.Lakehouse) -> None:
    body = json.dumps({"plan-task": token(",".join(map(str, range(2 * MAX_VALUES))))}).encode()
    tracemalloc.start()
    try:
        answer = http_client("POST", TASKS, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.code, answer.error) == (404, "NoSuchPlanTaskException")
    assert most < 10 * len(body)


def test_an_invalid_plan_token_is_404(http_client: Client, orders: tl.Lakehouse) -> None:
    for values in ["[]", "[" * 5000, "{}", "1e999", "99999999999999999999", '"\\ud800"', "NaN", "null", '1, "a"']:
        answer = http_client("POST", TASKS, {"plan-task": token(values)})
        assert answer.code in (400, 404), answer


def test_a_valid_token_of_another_server_is_accepted(http_client: Client, orders: tl.Lakehouse) -> None:
    answer = http_client("POST", TASKS, {"plan-task": token("1, 2, 3")})
    assert answer.code == 200
    found: list[Any] = answer.body["file-scan-tasks"]
    assert len(found) == 1
    assert len(http_client("POST", TASKS, {"plan-task": token(",".join(map(str, range(15_000))))}).body) == 3
