"""Requests that commit together on a few threads: what one of them waits for holds up no other."""

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
from trinitylake.iceberg_storage.federated import federated_properties
from trinitylake.iceberg_storage.metadata import cache
from trinitylake.rest.resources.table_changes import stage

ORDERS = "/v1/namespaces/shop/tables/orders"
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
    """A client of a server over two tables."""
    with_tables(lake, "shop.orders", "shop.small")
    with running(lake) as server:
        yield Client(server)


def change(**properties: str) -> dict[str, Any]:
    """A body that sets properties."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


def test_a_table_elsewhere_that_does_not_answer_holds_up_no_commit(lake: tl.Lakehouse) -> None:
    """A commit to a federated table is refused with the place where it lives, which only its catalog knows. That was
    asked by the one thread that begins all commits: while the catalog did not answer, no client could commit anything.
    """
    with_tables(lake, "shop.orders")
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as ends:
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        definition = new_table_def(table_type="federated", format_properties=federated_properties(catalog, "a.b"))
        with lake.transaction() as txn:
            txn.state().create("table", "shop", "elsewhere", serialize(definition))
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


@pytest.mark.parametrize("is_known", [True, False])
def test_a_change_of_a_large_table_has_a_thread_of_its_own(
    http_client: Client, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Each commit to a table with metadata of some megabytes held up all other commits for as long as it computes."""
    names = []

    def noted(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return stage(*arguments)

    assert http_client("POST", ORDERS, change(**{f"p{n}": "v" * 1000 for n in range(300)})).code == 200
    if not is_known:
        cache.clear()
    monkeypatch.setattr("trinitylake.rest.resources.tables.stage", noted)
    assert http_client("POST", ORDERS, change(color="red")).code == 200
    assert http_client("POST", "/v1/namespaces/shop/tables/small", change(color="red")).code == 200
    large, small = names
    assert "commits" not in large
    assert "commits" in small


def test_a_refused_prefix_is_in_the_audit_log(http_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Whether a request may join others was asked before anything is audited: a write with a prefix that is no UTF-8
    was refused, and the audit log did not tell who had sent it.
    """
    with caplog.at_level(logging.INFO, "trinitylake.rest.audit"):
        assert http_client("POST", "/v1/%FF/namespaces/shop/tables/orders", change(color="red")).code == 400
    assert [record.name for record in caplog.records if "audit" in record.name]
