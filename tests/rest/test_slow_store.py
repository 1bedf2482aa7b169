"""With a store that sends a byte now and then, requests end by a deadline and `/healthz` responds.

`timeout` limits a whole response, `retry_timeout` all attempts of a request. A limit on silence would never be reached:
sixty-four requests would block the server.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.shop import ROWS
from slow_s3 import SlowS3, slow_s3
from trinitylake.iceberg_storage import metadata
from trinitylake.rest import RestServer
from trinitylake.rest.limits import MAX_THREADS_OF_ONE
from waiting import wait_until

ORDERS = "/v1/namespaces/shop/tables/orders"
#: Seconds for one request to the store, and for a request with its repetitions.
REQUEST, ALL = "0.5", "1"


@pytest.fixture
def store() -> Iterator[SlowS3]:
    """An S3 store without delay."""
    with slow_s3(0.0, 0.0) as s3:
        yield s3


@pytest.fixture
def server(store: SlowS3) -> Iterator[RestServer]:
    """A server of a lakehouse on this store, with the table `shop.orders`."""
    made = tl.create(store.uri("lake"), storage_options=store.options)
    made.create_namespace("shop")
    made.create_table("shop.orders", ROWS).append(ROWS)
    lake = tl.open(store.uri("lake"), storage_options={**store.options, "timeout": REQUEST, "retry_timeout": ALL})
    with running(lake) as server:
        yield server


def code_of(server: RestServer, path: str) -> int:
    """The answer to a probe."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return int(connection.recv(100).split()[1])


def asked(client: Client, number: int, answers: list[tuple[str, Answer]]) -> threading.Thread:
    """Send one of several kinds of requests in a thread."""
    requests: tuple[tuple[str, str, Any], ...] = (
        ("GET", ORDERS, None),
        ("POST", f"{ORDERS}/plan", {}),
        ("GET", "/v1/namespaces", None),
        ("POST", "/v1/namespaces", {"namespace": [f"new{number}"]}),
        (
            "POST",
            ORDERS,
            {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": str(number)}}]},
        ),
        ("POST", "/trinitylake/v1/transactions", {}),
    )
    method, path, body = requests[number % len(requests)]
    thread = threading.Thread(target=lambda: answers.append((f"{method} {path}", client(method, path, body))))
    thread.start()
    return thread


@pytest.mark.parametrize("in_headers", [False, True], ids=["bodies", "headers"])
def test_requests_end_and_probes_respond(server: RestServer, store: SlowS3, in_headers: bool) -> None:
    client = Client(server)
    assert client("GET", ORDERS).code == 200
    metadata.cache.clear()
    store.dripping, store.in_headers = {"/slow/"}, in_headers
    answers: list[tuple[str, Answer]] = []
    threads = [asked(client, number, answers) for number in range(MAX_THREADS_OF_ONE + 6)]
    probed = 0
    while any(thread.is_alive() for thread in threads):
        assert code_of(server, "/healthz") == 200
        probed += 1
        time.sleep(0.05)
    assert probed, "no probe was sent while the requests waited"
    assert code_of(server, "/readyz") == 503
    for what, answer in answers:
        assert answer.code in (200, 500, 503), (what, answer)
        if answer.code != 200:
            assert answer.error in ("ServiceUnavailableException", "CommitStateUnknownException"), (what, answer)
    errors = {answer.error for _, answer in answers if answer.code != 200}
    assert "ServiceUnavailableException" in errors
    store.dripping = set()
    wait_until(lambda: client("GET", ORDERS).code == 200)
    assert client("POST", "/v1/namespaces", {"namespace": ["well"]}).code == 200
    wait_until(lambda: code_of(server, "/readyz") == 200)
