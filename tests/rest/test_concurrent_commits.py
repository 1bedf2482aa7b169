"""Concurrent commits: a request that waits or is refused does not delay or fail other requests."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.definitions import new_table_def, serialize
from trinitylake.iceberg_storage.federated_tables import federated_properties

ORDERS, SMALL = "/v1/namespaces/shop/tables/orders", "/v1/namespaces/shop/tables/small"
SNAPSHOT = {
    "snapshot-id": 1,
    "timestamp-ms": 1,
    "manifest-list": "file:///elsewhere/list.avro",
    "summary": {"operation": "append"},
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """On a disk, and empty."""
    return tl.create(str(tmp_path / "lake"), name="served", durability="none")


@pytest.fixture
def http_client(lake: tl.Lakehouse) -> Iterator[Client]:
    """A client of a server with two tables."""
    with_tables(lake, "shop.orders", "shop.small")
    with running(lake) as server:
        yield Client(server)


def change(**properties: str) -> dict[str, Any]:
    """A request body that sets properties."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


def test_concurrent_changes_of_one_property_all_commit(http_client: Client) -> None:
    """Requests that set the same property wait for the table lock before they begin again. Otherwise their state would
    be outdated again: with 8 clients, one request in 20 would get 409 after ten attempts."""

    def work(number: int) -> set[int]:
        return {http_client("POST", ORDERS, change(color=f"{number} {again}")).code for again in range(12)}

    with ThreadPoolExecutor(8) as threads:
        assert set().union(*threads.map(work, range(8))) == {200}


def test_an_external_table_that_hangs_delays_no_commit(lake: tl.Lakehouse) -> None:
    """The refusal of a commit to a federated table names its location, which only its catalog knows.

    While that catalog does not answer, other clients commit.
    """
    with_tables(lake, "shop.orders")
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as ends:
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        definition = new_table_def(table_type="federated", format_properties=federated_properties(catalog, "a.b"))
        with lake.transaction() as txn:
            txn._state().create("table", "shop", "elsewhere", serialize(definition))
        server = ends.enter_context(running(lake))
        client = Client(server)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(client, "POST", "/v1/namespaces/shop/tables/elsewhere", change(color="red"))
            connection, _ = silent.accept()
            assert client("POST", ORDERS, change(color="red")).code == 200
            assert not asked.done()
            connection.close()
            silent.close()
            assert asked.result().code >= 400


def test_a_request_without_a_thread_is_refused_and_the_next_one_succeeds(
    http_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name.startswith("AnyIO"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert http_client("POST", ORDERS, change(color="green")).code == 503
    assert http_client("POST", ORDERS, change(color="blue")).code == 200
    assert http_client.table(ORDERS)["properties"]["color"] == "blue"


@pytest.mark.parametrize(
    "path", [ORDERS.replace("orders", "%FF"), ORDERS.replace("shop", "%FF"), f"/v1/%FF{ORDERS[3:]}"]
)
def test_a_refused_name_is_in_the_audit_log(http_client: Client, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """The audit log has the name of a refused write. Decoding the name a second time would fail, and no line would be
    written."""
    with caplog.at_level(logging.INFO, "trinitylake.rest.audit"):
        assert http_client("POST", path, change(a="b")).code == 400
    [names] = [vars(one)["fields"]["names"] for one in caplog.records if one.name == "trinitylake.rest.audit"]
    assert "%FF" in names or path.startswith("/v1/%FF")
