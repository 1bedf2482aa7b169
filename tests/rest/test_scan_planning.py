"""Scans that the server plans: a client reads the files it is told to read, and gets the rows it would have found."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from rest.client import Client
from trinitylake.rest import RestServer

PATH = "/v1/latest/namespaces/shop/tables/orders"


def nested(depth: int) -> dict[str, Any]:
    """A filter in filters."""
    filter: dict[str, Any] = {"type": "eq", "term": "id", "value": 3}
    for _ in range(depth):
        filter = {"type": "not", "child": filter}
    return filter


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A table of four partitions, a file each."""
    rows = pa.table(
        {
            "id": pa.array(range(8), pa.int64()),
            "day": [datetime.date(2026, 1, 1 + number // 2) for number in range(8)],
        }
    )
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", rows, partition_spec="day").append(rows)
    return lake


@pytest.fixture
def planned(server: RestServer, shop: tl.Lakehouse) -> RestCatalog:
    """PyIceberg that leaves planning to the server."""
    catalog = RestCatalog("test", uri=server.url, token=server.token, **{"scan-planning-mode": "server"})
    assert catalog.supports_server_side_planning()
    return catalog


@pytest.mark.parametrize("row_filter", ["id >= 0", "id < 3", "day = '2026-01-02'", "id = 99", "day > '2026-01-02'"])
def test_a_planned_scan_finds_the_rows(planned: RestCatalog, shop: tl.Lakehouse, row_filter: str) -> None:
    scan = planned.load_table("shop.orders").scan(row_filter=row_filter)
    expected = shop.table("shop.orders").scan(filter=row_filter).to_arrow().sort_by("id")
    assert scan.to_arrow().sort_by("id").to_pylist() == expected.to_pylist()
    assert scan.count() == expected.num_rows


def test_a_plan_names_only_the_files_that_may_match(http_client: Client, shop: tl.Lakehouse) -> None:
    filter = {"type": "eq", "term": "id", "value": 3}
    plan = http_client("POST", f"{PATH}/plan", {"filter": filter}).body
    assert plan["status"] == "completed"
    [task] = plan["file-scan-tasks"]
    assert task["data-file"]["partition"] == ["2026-01-02"]
    assert task["data-file"]["record-count"] == 2
    assert task["data-file"]["file-path"].startswith(shop.uri)
    assert len(http_client("POST", f"{PATH}/plan", {}).body["file-scan-tasks"]) == 4


def test_a_plan_is_of_the_snapshot_that_is_asked_for(http_client: Client, shop: tl.Lakehouse) -> None:
    first = http_client.table(PATH)["current-snapshot-id"]
    shop.table("shop.orders").append(pa.table({"id": [9], "day": [datetime.date(2026, 2, 1)]}))
    assert len(http_client("POST", f"{PATH}/plan", {"snapshot-id": first}).body["file-scan-tasks"]) == 4
    assert len(http_client("POST", f"{PATH}/plan", {}).body["file-scan-tasks"]) == 5


def test_a_long_plan_goes_on_in_tasks(
    http_client: Client, planned: RestCatalog, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinitylake.rest.scan_planning.MAX_FILES", 3)
    assert planned.load_table("shop.orders").scan().to_arrow().num_rows == 8
    plan = http_client("POST", f"{PATH}/plan", {}).body
    assert len(plan["file-scan-tasks"]) == 3
    [token] = plan["plan-tasks"]
    shop.table("shop.orders").append(pa.table({"id": [9], "day": [datetime.date(2026, 2, 1)]}))
    rest = http_client("POST", f"{PATH}/tasks", {"plan-task": token}).body
    assert (len(rest["file-scan-tasks"]), rest["plan-tasks"]) == (1, [])  # of the snapshot that was planned


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("plan", {"filter": {"type": "eq", "term": "none", "value": 3}}, 400),
        ("plan", {"filter": {"type": "eq", "term": "id", "value": "x"}}, 400),
        ("plan", {"filter": {"type": "nonsense"}}, 400),
        ("plan", {"filter": nested(300)}, 400),
        ("plan", {"snapshot-id": 1}, 400),
        ("plan", {"start-snapshot-id": 1, "end-snapshot-id": 2}, 406),
        ("tasks", {"plan-task": "nonsense"}, 404),
        ("tasks", {"plan-task": "e30="}, 404),
        ("tasks", {}, 400),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    http_client: Client, shop: tl.Lakehouse, path: str, body: dict[str, Any], code: int
) -> None:
    assert http_client("POST", f"{PATH}/{path}", body).code == code


def test_deleted_rows_are_not_read(planned: RestCatalog, shop: tl.Lakehouse) -> None:
    shop.table("shop.orders").delete("id = 3")
    ids = planned.load_table("shop.orders").scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == [0, 1, 2, 4, 5, 6, 7]
