"""Clients that place new tables below the location of their namespace, as Trino does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS

RANDOM_DIGITS = "0123456789abcdef" * 2


@pytest.fixture
def location(http_client: Client, lake: tl.Lakehouse) -> str:
    """The location of the namespace `shop` in the server's response."""
    lake.create_namespace("shop", {"owner": "ana"})
    properties = http_client("GET", "/v1/namespaces/shop").body["properties"]
    assert properties["owner"] == "ana"
    return str(properties["location"])


def created(http_client: Client, name: str, location: str, **more: Any) -> str:
    """Create a table at a location. Returns the location of the new table."""
    body = {"name": name, "schema": COLUMNS, "location": location, **more}
    answer = http_client("POST", "/v1/namespaces/shop/tables", body)
    assert answer.code == 200, answer
    return str(answer.body["metadata"]["location"])


def test_tables_are_below_the_configured_location(http_client: Client, lake: tl.Lakehouse, location: str) -> None:
    lake.create_table("shop.orders", pa.table({"id": [1]}))
    assert lake.table("shop.orders").location.startswith(f"{location}/orders-")
    lake.create_namespace("shop.till")
    lake.create_table("shop.till.orders", pa.table({"id": [1]}))
    below = http_client("GET", "/v1/namespaces/shop%1Ftill").body["properties"]["location"]
    assert lake.table("shop.till.orders").location.startswith(f"{below}/orders-")


@pytest.mark.parametrize("staged", [False, True])
def test_lakehouse_chooses_a_location_if_the_client_has_no_preference(
    http_client: Client, location: str, staged: bool
) -> None:
    wish = f"{location}/orders-{RANDOM_DIGITS}"
    chosen = created(http_client, "orders", wish, **{"stage-create": staged})
    assert chosen.startswith(f"{location}/orders-")
    assert len(chosen) == len(f"{location}/orders-01234567")
    assert created(http_client, "items", f"{location}/items-{RANDOM_DIGITS}/") != f"{location}/items-{RANDOM_DIGITS}"


@pytest.mark.parametrize("place", ["orders", "orders-1", f"items-{RANDOM_DIGITS}", f"orders-{RANDOM_DIGITS}/more"])
def test_chosen_location_is_kept(http_client: Client, location: str, place: str) -> None:
    assert created(http_client, "orders", f"{location}/{place}") == f"{location}/{place}"


def test_configured_location_is_returned(http_client: Client, lake: tl.Lakehouse, location: str) -> None:
    path, elsewhere = "/v1/namespaces/shop", f"{lake.uri}elsewhere"
    assert http_client("POST", f"{path}/properties", {"updates": {"location": elsewhere}}).code == 200
    assert http_client("GET", path).body["properties"]["location"] == elsewhere
    assert http_client("POST", f"{path}/properties", {"removals": ["location"]}).code == 200
    assert http_client("GET", path).body["properties"]["location"] == location
    assert lake.namespace("shop").properties == {"owner": "ana"}
