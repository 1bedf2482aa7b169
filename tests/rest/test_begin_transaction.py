"""The request that begins a transaction: its size and its id.

Up to 250 transactions of one writer, each begun with 12 MB of properties, stayed in memory. Another writer began a
transaction with the id that an `Idempotency-Key` becomes, and committed it: the first request with that key was then
answered as a repeated one, and its write was lost.
"""

from __future__ import annotations

import hashlib

import pytest

import trinitylake as tl
from rest.client import Client
from trinitylake.rest.handlers.transactions import MAX_BEGIN_SIZE_BYTES

OPEN = "/trinitylake/v1/transactions"


def test_a_large_request_to_begin_a_transaction_is_refused(http_client: Client) -> None:
    large = {"k": "x" * MAX_BEGIN_SIZE_BYTES}
    assert http_client("POST", OPEN, {"properties": large}).code == 413
    in_sql = {"namespace": ["sys", "transactions", "nightly"], "properties": large}
    assert http_client("POST", "/v1/namespaces", in_sql).code == 413
    assert http_client("GET", OPEN).body == {"open": [], "saved": []}
    assert http_client("POST", OPEN, {"properties": {"k": "x" * 1000}}).code == 201


@pytest.mark.parametrize("who", ["walt", "somebody else"])
def test_the_id_of_an_idempotent_request_is_reserved(http_client: Client, lake: tl.Lakehouse, who: str) -> None:
    key = "0f8fad5b-d9cb-469f-a165-70867728950e"
    digest = hashlib.sha256("\0".join((who, key)).encode()).hexdigest()
    id = f"rest-{digest[:40]}"
    assert http_client("POST", OPEN, {"id": id}).code == 400
    assert http_client("POST", "/v1/namespaces", {"namespace": ["sys", "transactions", id]}).code == 400
    assert lake.transactions.list() == []


def test_ids_in_the_form_of_the_library_are_reserved(http_client: Client, lake: tl.Lakehouse) -> None:
    """Of an id that nobody chose, nothing but the log knows whether it is used: a client began with the one of somebody
    else's commit, and from then on the outcome of that one was the client's."""
    with lake.transaction() as txn:
        txn.create_namespace("shop")
    assert http_client("POST", OPEN, {"id": txn.id}).code == 400
    assert http_client("POST", "/v1/namespaces", {"namespace": ["sys", "transactions", txn.id]}).code == 400
    assert lake.transactions.outcome(txn.id).version == 1
    assert http_client("POST", OPEN, {"id": txn.id.replace("-", "")}).code == 201
