"""The namespace `sys.transactions`: transactions for clients that only have SQL."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, NamespaceAlreadyExistsError, RESTError

import trinitylake as tl
from rest.client import Client, connect
from rest.shop import ROWS
from trinitylake.rest import RestServer


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Two empty tables."""
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", ROWS)
        txn.create_table("shop.totals", ROWS)
    return lake


def test_create_begins_and_the_property_commits(server: RestServer, catalog: RestCatalog, shop: tl.Lakehouse) -> None:
    catalog.create_namespace("sys.transactions.nightly", {"message": "load", "isolation": "serializable", "owner": "x"})
    inside = connect(server, "@txn/nightly")
    inside.load_table("shop.orders").append(ROWS)
    inside.load_table("shop.totals").append(ROWS)
    assert shop.table("shop.orders").scan().to_arrow().num_rows == 0
    assert catalog.list_namespaces("sys.transactions") == [("sys", "transactions", "nightly")]
    described = catalog.load_namespace_properties("sys.transactions.nightly")
    assert (described["isolation"], described["warehouse"]) == ("serializable", "@txn/nightly")
    before = shop.version
    summary = catalog.update_namespace_properties("sys.transactions.nightly", updates={"commit": "true"})
    assert summary.updated == ["commit"]
    assert shop.version == before + 1
    assert shop.log(1)[0].message == "load"
    assert [shop.table(f"shop.{name}").scan().to_arrow().num_rows for name in ("orders", "totals")] == [3, 3]
    assert catalog.list_namespaces("sys.transactions") == []


def test_drop_rolls_back(server: RestServer, catalog: RestCatalog, shop: tl.Lakehouse) -> None:
    catalog.create_namespace("sys.transactions.try")
    assert catalog.namespace_exists("sys.transactions.try")
    connect(server, "@txn/try").load_table("shop.orders").append(ROWS)
    before = shop.version
    catalog.drop_namespace("sys.transactions.try")
    assert not catalog.namespace_exists("sys.transactions.try")
    with pytest.raises(RESTError):
        connect(server, "@txn/try")
    assert shop.version == before


def test_the_namespace_does_not_exist_in_the_lakehouse(
    catalog: RestCatalog, http_client: Client, shop: tl.Lakehouse
) -> None:
    assert catalog.list_namespaces() == [("shop",)]
    assert catalog.namespace_exists("sys.transactions")
    assert shop.namespaces() == ["shop"]
    catalog.create_namespace("sys.transactions.one")
    assert shop.namespaces() == ["shop"]
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("sys.transactions.one")
    for name in ("sys.transactions", "sys.transactions.one.more"):
        with pytest.raises(BadRequestError):
            catalog.create_namespace(name)
    with pytest.raises(BadRequestError):
        catalog.update_namespace_properties("sys.transactions.one", updates={"commit": "perhaps"})
    columns = {"type": "struct", "schema-id": 0, "fields": []}
    created = http_client("POST", "/v1/namespaces/sys%1Ftransactions%1Fone/tables", {"name": "t", "schema": columns})
    assert created.code == 404
