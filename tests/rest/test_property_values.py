"""Invalid property values are refused, and missing properties can be removed.

- A value of `write.metadata.previous-versions-max` that was not a number made each later commit a 500.
- The removal of a missing property, or of one property twice, was refused. Other servers accept it.
"""

from __future__ import annotations

from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client

ORDERS = "/v1/namespaces/shop/tables/orders"
LOGGED = "write.metadata.previous-versions-max"


def setting(**properties: str) -> dict[str, Any]:
    return {"action": "set-properties", "updates": properties}


def removing(*names: str) -> dict[str, Any]:
    return {"action": "remove-properties", "removals": names}


def change(client: Client, *updates: dict[str, Any]) -> Any:
    return client("POST", ORDERS, {"requirements": [], "updates": updates})


def test_an_invalid_number_property_is_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    for value in ["x", "1e5", "9" * 5000, "None", "-5", "2147483648"]:
        answer = change(http_client, setting(**{LOGGED: value}))
        assert (answer.code, answer.error) == (400, "BadRequestException"), value
        assert LOGGED in answer.body["error"]["message"], value
        assert "a whole number" in answer.body["error"]["message"], value
        body = {"name": "new", "schema": {"type": "struct", "fields": []}, "properties": {LOGGED: value}}
        assert http_client("POST", "/v1/namespaces/shop/tables", body).code == 400, value
        with pytest.raises(tl.InvalidArgument, match="whole number"):
            shop.alter_table("shop.orders", {LOGGED: value})


@pytest.mark.parametrize(("value", "n"), [("3", 3), ("0", 1), ("2147483647", 5)])
def test_metadata_names_the_configured_number_of_previous_files(
    http_client: Client, shop: tl.Lakehouse, value: str, n: int
) -> None:
    assert change(http_client, setting(**{LOGGED: value})).code == 200
    for number in range(5):
        assert change(http_client, setting(note=str(number))).code == 200
    assert len(http_client.table(ORDERS)["metadata-log"]) >= n
    assert value == "2147483647" or len(http_client.table(ORDERS)["metadata-log"]) == n


def test_a_missing_property_can_be_removed(http_client: Client, shop: tl.Lakehouse) -> None:
    assert change(http_client, setting(a="1", b="2")).code == 200
    assert change(http_client, removing("a", "a", "never was")).code == 200
    properties = http_client.table(ORDERS)["properties"]
    assert "a" not in properties
    assert properties["b"] == "2"
    version = shop.version
    assert change(http_client, removing("a")).code == 200
    assert http_client.table(ORDERS)["properties"] == properties
    assert shop.version <= version + 1
