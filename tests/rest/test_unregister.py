"""`unregister`, and the endpoints of the specification that this server does not implement."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import ROWS, with_tables

PATH = "/v1/namespaces/shop/tables/{}/unregister"


@pytest.fixture(autouse=True)
def shop(lake: tl.Lakehouse, tmp_path: Path) -> tl.Lakehouse:
    """A managed table, and an external one in another lakehouse."""
    with_tables(lake, "shop.orders")
    other = with_tables(tl.create(str(tmp_path / "other"), durability="none"), "else.where")
    lake.create_table("shop.outside", metadata_location=other.table("else.where").iceberg.metadata_location)
    return lake


def test_unregistering_an_external_table_returns_its_metadata(http_client: Client, lake: tl.Lakehouse) -> None:
    loaded = http_client("GET", "/v1/namespaces/shop/tables/outside").body
    for _ in range(2):  # the request is sent twice
        answer = http_client("POST", PATH.format("outside"), headers={"Idempotency-Key": str(uuid.UUID(int=7))})
        assert answer.code == 200, answer
        assert answer.body["metadata-location"] == loaded["metadata-location"]
        assert answer.body["metadata"] == loaded["metadata"]
    assert lake.tables("shop") == ["shop.orders"]
    assert http_client("POST", PATH.format("outside")).error == "NoSuchTableException"
    lake.create_table("shop.again", metadata_location=answer.body["metadata-location"])
    assert lake.table("shop.again").scan().to_arrow().num_rows == ROWS.num_rows


def test_a_managed_table_is_not_unregistered(http_client: Client, lake: tl.Lakehouse) -> None:
    """A managed table cannot be unregistered: the specification requires that the files stay, but files of a managed
    table are deleted with its last version."""
    before = lake.version
    answer = http_client("POST", PATH.format("orders"))
    assert answer.code == 400
    assert "belong to this lakehouse" in answer.body["error"]["message"]
    assert lake.version == before
    assert http_client("POST", PATH.format("nothing")).error == "NoSuchTableException"


def test_the_config_lists_the_implemented_endpoints(http_client: Client) -> None:
    """The configuration lists only implemented endpoints. A client that respects it does not request functions, which a
    lakehouse lacks."""
    endpoints = http_client("GET", "/v1/config").body["endpoints"]
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister" in endpoints
    assert not [one for one in endpoints if "functions" in one]
    for path in ("functions", "functions/f"):
        assert http_client("GET", f"/v1/namespaces/shop/{path}").code == 404
    past = http_client("GET", "/v1/config?warehouse=@version/1").body["endpoints"]
    assert not [one for one in past if "unregister" in one]
