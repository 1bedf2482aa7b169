"""A transaction that begins again under its id: the attempt that was not committed is discarded."""

from __future__ import annotations

import pytest

import trinitylake as tl
from rest.client import Client

TRANSACTIONS = "/trinitylake/v1/transactions"


def begin(client: Client, restart: bool = True) -> int:
    return client("POST", TRANSACTIONS, {"id": "job", "restart": restart}).code


def create(client: Client, namespace: str) -> int:
    return client("POST", "/v1/txn~job/namespaces", {"namespace": [namespace], "properties": {}}).code


def commit(client: Client) -> int:
    return int(client("POST", f"{TRANSACTIONS}/job/commit").body["version"])


@pytest.mark.parametrize("end", ["open", "rolled back", "saved and rolled back"])
def test_an_attempt_that_was_not_committed_is_discarded(http_client: Client, lake: tl.Lakehouse, end: str) -> None:
    if end == "saved and rolled back":
        saved = lake.begin(id="job")
        saved.create_namespace("old")
        saved.save()
        saved.rollback()
    else:
        assert begin(http_client, restart=False) == 201
        assert create(http_client, "old") == 200
    if end == "rolled back":
        http_client("POST", f"{TRANSACTIONS}/job/rollback")
    assert begin(http_client) == 201
    assert create(http_client, "new") == 200
    version = commit(http_client)
    assert lake.namespaces() == ["new"]
    assert begin(http_client) == 201  # its commit answers with the version that the id has
    assert commit(http_client) == version


def test_an_attempt_of_somebody_else_is_not_discarded(http_client: Client, lake: tl.Lakehouse) -> None:
    saved = lake.begin(id="job")
    saved.create_namespace("old")
    saved.save()
    assert begin(http_client) == 409
    saved.commit()
    assert lake.namespaces() == ["old"]
