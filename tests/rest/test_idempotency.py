"""A request with an `Idempotency-Key` commits once, however often and to whichever server it is sent."""

from __future__ import annotations

import threading
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.shop import COLUMNS, ROWS, VIEW_VERSION
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest import RestServer
from trinitylake.rest.request import idempotency
from trinitylake.rest.request.call import Call
from waiting import in_threads

RED = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """One table."""
    lake.create_namespace("shop", {"old": "yes"})
    lake.create_table("shop.orders", ROWS).append(ROWS)
    return lake


def send(client: Client, method: str, path: str, body: Any, key: str, token: str | None = None) -> Answer:
    return client(method, path, body, headers={"Idempotency-Key": key}, token=token)


def without_request_headers(answer: Answer) -> Answer:
    kept = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
    return answer._replace(headers=kept)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/namespaces", {"namespace": ["new"], "properties": {"a": "b"}}),
        ("POST", "/v1/namespaces/shop/properties", {"updates": {"a": "b"}, "removals": ["old", "none"]}),
        ("POST", "/v1/namespaces/shop/tables", {"name": "fresh", "schema": COLUMNS}),
        ("POST", "/v1/namespaces/shop/tables/orders", RED),
        ("DELETE", "/v1/namespaces/shop/tables/orders", None),
        ("POST", "/v1/namespaces/shop/views", {"name": "v", "schema": COLUMNS, "view-version": VIEW_VERSION}),
        (
            "POST",
            "/v1/tables/rename",
            {
                "source": {"namespace": ["shop"], "name": "orders"},
                "destination": {"namespace": ["shop"], "name": "sales"},
            },
        ),
        (
            "POST",
            "/v1/transactions/commit",
            {"table-changes": [{"identifier": {"namespace": ["shop"], "name": "orders"}, **RED}]},
        ),
    ],
)
def test_repeated_request_gets_the_first_response_without_a_commit(
    server: RestServer, http_client: Client, shop: tl.Lakehouse, method: str, path: str, body: Any
) -> None:
    key = str(uuid.uuid4())
    first = send(http_client, method, path, body, key)
    assert first.code in (200, 204), first
    version = shop.version
    shop.create_namespace("later")  # later commits do not change the answer
    with running(shop, token=server.token) as other:
        for client in (http_client, Client(other)):
            again = send(client, method, path, body, key)
            assert without_request_headers(again) == without_request_headers(first)
    assert shop.version == version + 1


def test_a_repeated_request_after_a_rollback_gets_the_first_answer(http_client: Client, shop: tl.Lakehouse) -> None:
    key, path, before = str(uuid.uuid4()), "/v1/namespaces/shop/tables/orders", shop.version
    first = send(http_client, "POST", path, RED, key)
    shop.rollback(before)
    again = send(http_client, "POST", path, RED, key)
    assert without_request_headers(again) == without_request_headers(first)
    assert shop.version == before + 2
    assert "color" not in shop.table("shop.orders").properties
    assert send(http_client, "POST", path, RED, str(uuid.uuid4())).code == 200  # another key is another request
    assert shop.table("shop.orders").properties["color"] == "red"


def test_a_request_whose_reply_was_lost_gets_it_when_repeated(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Transaction.commit

    def loses_the_reply(self: Transaction) -> int:
        commit(self)
        raise tl.CommitStateUnknown("the reply was lost")

    key, path = str(uuid.uuid4()), "/v1/namespaces/shop/tables/orders"
    before = shop.version
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", loses_the_reply)
        assert http_client("POST", path, RED).code == 500
        answered = send(http_client, "POST", path, {**RED, "requirements": []}, key)
    assert answered.code == 200  # the server has determined the outcome
    assert answered.body["metadata"]["properties"]["color"] == "red"
    assert send(http_client, "POST", path, RED, key).body == answered.body
    assert shop.version == before + 2


def test_the_same_request_sent_concurrently_is_committed_once(http_client: Client, shop: tl.Lakehouse) -> None:
    key, before = str(uuid.uuid4()), shop.version
    answers: list[Answer] = []
    barrier = threading.Barrier(6)

    def create() -> None:
        barrier.wait()
        body = {"name": "fresh", "schema": COLUMNS}
        answers.append(send(http_client, "POST", "/v1/namespaces/shop/tables", body, key))

    in_threads(lambda _: create(), range(6))
    assert [answer.code for answer in answers] == [200] * 6, answers
    assert len({answer.body["metadata-location"] for answer in answers}) == 1
    assert shop.version == before + 1


def test_a_key_belongs_to_one_request(http_client: Client, shop: tl.Lakehouse) -> None:
    key = str(uuid.uuid4())
    assert send(http_client, "POST", "/v1/namespaces", {"namespace": ["a"]}, key).code == 200
    other = send(http_client, "POST", "/v1/namespaces", {"namespace": ["b"]}, key)
    assert (other.code, other.error) == (422, "UnprocessableEntityException")
    assert send(http_client, "DELETE", "/v1/namespaces/a", None, key).code == 422
    assert shop.namespaces() == ["a", "shop"]
    assert send(http_client, "POST", "/v1/namespaces", {"namespace": ["c"]}, "not-a-uuid").code == 400


def test_a_request_that_failed_may_be_sent_again(http_client: Client, shop: tl.Lakehouse) -> None:
    key, body = str(uuid.uuid4()), {"name": "fresh", "schema": COLUMNS}
    assert send(http_client, "POST", "/v1/namespaces/mall/tables", body, key).code == 404
    shop.create_namespace("mall")
    assert send(http_client, "POST", "/v1/namespaces/mall/tables", body, key).code == 200


def test_equal_keys_of_two_principals_are_different_keys(shop: tl.Lakehouse, tmp_path: Path) -> None:
    ana, bob = "the-token-of-ana-01", "the-token-of-bob-01"
    file = tmp_path / "tokens"
    file.write_text(f"{ana} ana admin:*\n{bob} bob admin:shop.*\n")
    file.chmod(0o600)
    key, body = str(uuid.uuid4()), {"namespace": ["secret"], "properties": {"a": "b"}}
    with running(shop, token_file=file) as server:
        client = Client(server)
        assert send(client, "POST", "/v1/namespaces", body, key, ana).code == 200
        assert send(client, "POST", "/v1/namespaces", body, key, bob).code == 403
        drop = send(client, "DELETE", "/v1/namespaces/shop/tables/orders", None, key, bob)
        assert drop.code == 204
        assert send(client, "POST", "/v1/namespaces", body, key, ana).code == 200


def test_the_config_contains_the_lifetime_of_keys(http_client: Client, shop: tl.Lakehouse) -> None:
    assert http_client("GET", "/v1/config").body["idempotency-key-lifetime"] == "PT604800S"
    assert "idempotency-key-lifetime" not in http_client("GET", "/v1/config?warehouse=@version/1").body


@pytest.mark.parametrize("namespace", ["shop", "latest"])
def test_a_request_is_the_same_with_and_without_the_prefix(
    http_client: Client, shop: tl.Lakehouse, namespace: str
) -> None:
    """A repeated request is recognised with and without the prefix in its path, also if a namespace is called `latest`
    like the prefix."""
    key = str(uuid.uuid4())
    shop.create_namespace("latest")
    path = f"/namespaces/{namespace}/tables"
    assert send(http_client, "POST", f"/v1{path}", {"name": "fresh", "schema": COLUMNS}, key).code == 200
    version = shop.version
    assert send(http_client, "POST", f"/v1/latest{path}", {"name": "fresh", "schema": COLUMNS}, key).code == 200
    assert shop.version == version


def test_recognizing_a_large_repeated_request_takes_little_memory(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a body, by which a repeated request is recognised, is computed without copies. In hexadecimal a
    body of 16 MB would take 96 MB, for each concurrent request."""
    calls: list[Call] = []
    fingerprint = idempotency._fingerprint

    def noted(call: Call) -> str:
        calls.append(call)
        return fingerprint(call)

    monkeypatch.setattr(idempotency, "_fingerprint", noted)
    key, path = str(uuid.uuid4()), "/v1/namespaces/shop/properties"
    body = {"updates": {"text": "x" * (4 << 20)}, "removals": []}
    other = {"updates": {"text": "x" * ((4 << 20) - 1) + "y"}, "removals": []}
    assert [send(http_client, "POST", path, one, key).code for one in (body, body, other)] == [200, 200, 422]
    tracemalloc.start()
    try:
        assert len({fingerprint(call) for call in calls}) == 2
        assert tracemalloc.get_traced_memory()[1] < len(calls[0].body) * 1.5
    finally:
        tracemalloc.stop()
