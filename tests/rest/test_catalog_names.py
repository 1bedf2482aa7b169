"""Stored texts with names of the client's catalog: the SQL of views, and the new name of a table."""

from __future__ import annotations

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, VIEW_VERSION

SPARK_CATALOG = "lake_txn_46ac0123beef"


def version(text: str, catalog: str | None) -> dict[str, object]:
    default = {} if catalog is None else {"default-catalog": catalog}
    return {**VIEW_VERSION, **default, "representations": [{"type": "sql", "sql": text, "dialect": "spark"}]}


@pytest.mark.parametrize(
    ("catalog", "headers"), [(SPARK_CATALOG, {}), ("their_name", {"X-TrinityLake-Catalog": "their_name"})]
)
def test_views_made_in_a_transaction_do_not_name_its_catalog(
    http_client: Client, shop: tl.Lakehouse, catalog: str, headers: dict[str, str]
) -> None:
    """A view that is created in a transaction is stored without the name of the transaction's catalog, in every
    spelling. Otherwise the view could not be read after the commit."""
    id = http_client("POST", "/trinitylake/v1/transactions", {}).body["id"]
    texts = {
        "plain": "SELECT * FROM shop.orders",
        "words": f"SELECT a.id, 'see {catalog}.shop' FROM {catalog}.shop.orders a -- {catalog}.shop",
        "quoted": f"SELECT `{catalog}`.shop.orders.id FROM `{catalog}`.`shop`.orders",
        "other": "SELECT * FROM elsewhere.shop.orders",
    }
    for name, text in texts.items():
        body = {"name": name, "schema": COLUMNS, "view-version": version(text, catalog), "properties": {}}
        made = http_client("POST", f"/v1/txn~{id}/namespaces/shop/views", body, headers=headers)
        assert made.code == 200, made
        assert "default-catalog" not in made.body["metadata"]["versions"][0]
    change = {
        "requirements": [],
        "updates": [
            {
                "action": "add-view-version",
                "view-version": {**version(f"SELECT 1 FROM {catalog}.shop.orders", catalog), "version-id": 2},
            },
            {"action": "set-current-view-version", "view-version-id": -1},
        ],
    }
    assert http_client("POST", f"/v1/txn~{id}/namespaces/shop/views/plain", change, headers=headers).code == 200
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    assert {name: shop.view(f"shop.{name}").sql for name in texts} == {
        "plain": "SELECT 1 FROM shop.orders",
        "words": f"SELECT a.id, 'see {catalog}.shop' FROM shop.orders a -- {catalog}.shop",
        "quoted": "SELECT shop.orders.id FROM `shop`.orders",
        "other": "SELECT * FROM elsewhere.shop.orders",
    }


def test_a_view_with_another_default_catalog_names_the_catalog_of_the_lakehouse(
    http_client: Client, shop: tl.Lakehouse
) -> None:
    """If Spark's current catalog is `spark_catalog`, the view names the catalog of the lakehouse. Otherwise names
    without a catalog would be resolved in `spark_catalog`."""
    id = http_client("POST", "/trinitylake/v1/transactions", {}).body["id"]

    def create(name: str, catalog: str) -> int:
        made = version(f"SELECT * FROM {catalog}.shop.orders", "spark_catalog")
        body = {"name": name, "schema": COLUMNS, "view-version": made, "properties": {}}
        headers = {"X-TrinityLake-Catalog": catalog}
        return http_client("POST", f"/v1/txn~{id}/namespaces/shop/views", body, headers=headers).code

    assert create("ours", SPARK_CATALOG) == 200
    assert create("theirs", "their_name") == 400
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    assert shop.view("shop.ours").sql == "SELECT * FROM lake.shop.orders"


def test_a_view_made_outside_of_a_transaction_keeps_the_name_of_its_catalog(
    http_client: Client, shop: tl.Lakehouse
) -> None:
    body = {"name": "v", "schema": COLUMNS, "view-version": version("SELECT * FROM lake.shop.orders", "lake")}
    made = http_client("POST", "/v1/namespaces/shop/views", body, headers={"X-TrinityLake-Catalog": "lake"})
    assert made.body["metadata"]["versions"][0]["default-catalog"] == "lake"
    assert shop.view("shop.v").sql == "SELECT * FROM lake.shop.orders"


def test_a_new_name_may_begin_with_the_name_of_the_catalog(http_client: Client, shop: tl.Lakehouse) -> None:
    """`ALTER TABLE … RENAME TO lake.shop.bills` renames the table, although Spark sends a name in the namespace
    `lake.shop`."""
    body = {
        "source": {"namespace": ["shop"], "name": "orders"},
        "destination": {"namespace": ["lake", "shop"], "name": "bills"},
    }
    assert http_client("POST", "/v1/tables/rename", body).code == 404
    assert http_client("POST", "/v1/tables/rename", body, headers={"X-TrinityLake-Catalog": "lake"}).code == 204
    assert "shop.bills" in shop.tables("shop")
