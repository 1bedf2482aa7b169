"""Reads of a client in a serializable transaction: the tables that it loads, or the scans that the server plans for
it.
"""

from __future__ import annotations

from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import ROWS
from trinitylake.rest import RestServer

#: Headers of Spark in catalogs of `trinitylake.spark.connect`.
SPARK = {"X-TrinityLake-Scan-Planning": "server", "X-Client-Version": "Apache Iceberg 1.11.0 (commit 6976e020)"}
ORDERS = "namespaces/shop/tables/orders"
CHANGE = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        for name in ("orders", "totals"):
            txn.create_table(f"shop.{name}", ROWS).append(ROWS)
        txn.create_table("shop.empty", ROWS)
    return lake


def begin(ask: Client, isolation: str = "serializable") -> str:
    return str(ask("POST", "/trinitylake/v1/transactions", {"isolation": isolation}).body["id"])


def is_committed(ask: Client, shop: tl.Lakehouse, id: str) -> bool:
    """Whether the transaction commits a change of another table after a row was appended to the orders."""
    assert ask("POST", f"/v1/txn~{id}/namespaces/shop/tables/totals", CHANGE).code == 200
    shop.table("shop.orders").append(ROWS.slice(0, 1))
    return ask("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200


def plan(ask: Client, id: str, filter: Any = None) -> None:
    body = {"case-sensitive": True, **({} if filter is None else {"filter": filter})}
    assert ask("POST", f"/v1/txn~{id}/{ORDERS}/plan", body, headers=SPARK).code == 200


def test_a_client_that_declares_it_is_asked_to_plan_by_the_server(http_client: Client, shop: tl.Lakehouse) -> None:
    ask = http_client

    def config(id: str, headers: dict[str, str], table: str = "orders") -> Any:
        return ask("GET", f"/v1/txn~{id}/namespaces/shop/tables/{table}", headers=headers).body["config"]

    id = begin(ask)
    assert config(id, SPARK) == {"scan-planning-mode": "server"}
    assert config(id, {}) == config(id, {**SPARK, "X-Client-Version": "Apache Iceberg 1.12.0"}) == {}
    assert config(id, SPARK, "empty") == config(begin(ask, "snapshot"), SPARK) == {}
    assert ask("GET", f"/v1/latest/{ORDERS}", headers=SPARK).body["config"] == {}


def test_a_load_reads_the_table_unless_the_client_plans_by_the_server(http_client: Client, shop: tl.Lakehouse) -> None:
    ask = http_client
    for headers, expected in ((SPARK, True), ({}, False)):
        id = begin(ask)
        assert ask("GET", f"/v1/txn~{id}/{ORDERS}", headers=headers).code == 200
        assert is_committed(ask, shop, id) is expected


def test_a_plan_reads_the_rows_of_its_filter(http_client: Client, shop: tl.Lakehouse) -> None:
    """A plan reads only the rows that match its filter. The concurrent append has a row with the id 1."""
    ask = http_client
    for value, expected in ((1, False), (500, True)):
        id = begin(ask)
        plan(ask, id, {"type": "eq", "term": "id", "value": value})
        assert is_committed(ask, shop, id) is expected
    id = begin(ask)
    plan(ask, id)
    assert not is_committed(ask, shop, id)


def test_a_name_below_a_table_reads_the_whole_table(http_client: Client, shop: tl.Lakehouse) -> None:
    """A request for a name below a table counts as a read of the whole table. Iceberg's clients request the table
    `shop.orders.snapshots`, and then read the metadata of `shop.orders`."""
    id = begin(http_client)
    assert http_client("GET", f"/v1/txn~{id}/namespaces/shop%1Forders/tables/files", headers=SPARK).code == 404
    assert not is_committed(http_client, shop, id)


def test_a_saved_transaction_keeps_what_requests_read(server: RestServer, shop: tl.Lakehouse) -> None:
    ask = Client(server)
    for headers, expected in ((SPARK, True), ({}, False)):
        txn = shop.begin(isolation="serializable", id=f"saved-{expected}")
        txn.table("shop.totals").append(ROWS)
        txn.save()
        assert ask("GET", f"/v1/txn~{txn.id}/{ORDERS}", headers=headers).code == 200
        shop.table("shop.orders").append(ROWS.slice(0, 1))
        assert (ask("POST", f"/trinitylake/v1/transactions/{txn.id}/commit").code == 200) is expected
