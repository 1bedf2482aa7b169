"""The memory of open transactions is limited.

What a writer staged stayed in memory until the transaction ended, without a limit: bodies of 16 MB filled the memory.
And each commit left metadata of the table in a cache whose limit counted tables and snapshots, but not columns.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import TOKEN, Client, running
from rest.conftest import ROOT, WALT
from rest.shop import COLUMNS
from trinitylake.base.json_memory_size import count_values, parsed_size_bytes
from trinitylake.iceberg_storage import metadata
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import sized
from trinitylake.iceberg_storage.metadata import MetadataCache, read_metadata
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest import ServerOptions
from trinitylake.rest.handlers.table_changes import TableChange

OPEN = "/trinitylake/v1/transactions"
MEGABYTE = 1 << 20


def fields(n: int) -> list[dict[str, Any]]:
    return [{"id": id, "name": f"c{id}", "type": "long", "required": False} for id in range(1, n + 1)]


def setting(name: str, size: int) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {name: "x" * size}}]}


def updates(*updates: dict[str, Any]) -> dict[str, Any]:
    return {"requirements": [], "updates": list(updates)}


def snapshot(id: int) -> dict[str, Any]:
    summary = {"operation": "append", "added-data-files": "1", "added-records": "10", "total-records": "100"}
    place = f"file:///x/y/metadata/snap-{id}.avro"
    one = {"snapshot-id": id, "sequence-number": id, "timestamp-ms": 1, "manifest-list": place, "schema-id": 0}
    return {"action": "add-snapshot", "snapshot": {**one, "summary": summary}}


LIST = {"type": "list", "element-id": 9, "element": "long", "element-required": False}
MAP = {"type": "map", "key": "int", "value": "int"}
SCHEMA = {"type": "struct", "schema-id": 1}
REF = {"action": "set-snapshot-ref", "type": "branch", "snapshot-id": 1}
BODIES = {
    "columns": updates({"action": "add-schema", "schema": {**SCHEMA, "fields": fields(3000)}}),
    "lists": updates(
        {
            "action": "add-schema",
            "schema": {
                **SCHEMA,
                "fields": [{**one, "type": {**LIST, "element-id": 10_000 + one["id"]}} for one in fields(2000)],
            },
        }
    ),
    "maps": updates(
        {
            "action": "add-schema",
            "schema": {
                **SCHEMA,
                "fields": [
                    {"id": id, "name": f"c{id}", "type": {**MAP, "key-id": 10_000 + id, "value-id": 20_000 + id}}
                    for id in range(1, 2000)
                ],
            },
        }
    ),
    "many properties": updates({"action": "set-properties", "updates": {f"k{n}": "v" for n in range(10_000)}}),
    "large properties": setting("note", MEGABYTE),
    "snapshots": updates(*(snapshot(id) for id in range(1, 1000))),
    "branches": updates(*({**REF, "ref-name": f"b{n}"} for n in range(1000))),
    "requirements": {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": f"b{n}", "snapshot-id": 1} for n in range(3000)],
        "updates": [],
    },
    "updates without content": updates(*({"action": "remove-properties", "removals": []} for _ in range(1000))),
    "removals": updates({"action": "remove-properties", "removals": ["a"] * 20_000}),
}


@pytest.mark.parametrize("kind", BODIES)
def test_the_counted_size_of_a_body_is_an_upper_bound(kind: str) -> None:
    body = json.dumps(BODIES[kind]).encode()
    TableChange.model_validate(json.loads(body))  # fills caches
    gc.collect()
    tracemalloc.start()
    try:
        kept = TableChange.model_validate(json.loads(body))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.requirements or kept.updates
    assert taken <= parsed_size_bytes(body), (taken, parsed_size_bytes(body))


def begin(client: Client, id: str, token: str = TOKEN) -> Callable[[Any], int]:
    """Begin a transaction. Returns a function that makes a change in it and returns the status."""
    assert client("POST", OPEN, {"id": id}, token=token).code == 201
    path = f"/v1/txn~{id}/namespaces/shop/tables/orders"
    return lambda body: client("POST", path, body, token=token).code


def test_idle_transactions_are_saved_above_the_memory_limit(shop: tl.Lakehouse) -> None:
    """Above the memory limit idle transactions are saved. Memory stays within the limit for any number of changes, and
    every change is committed."""
    limit = 3 * MEGABYTE
    options = ServerOptions(max_transactions_size_bytes_per_principal=limit, max_transactions_size_bytes=2 * limit)
    with running(shop, token=TOKEN, options=options) as server:
        client = Client(server)
        changes = {f"t{n}": begin(client, f"t{n}") for n in range(8)}
        sizes, saved = [], 0
        for round in range(4):
            for id, change in changes.items():
                assert change(setting(f"{id}-{round}", 300_000)) == 200
                sizes.append(server.transactions.memory.size_bytes)
        saved = len(shop.transactions.list())
        assert max(sizes) <= limit, max(sizes)
        assert saved >= 5
        assert client("POST", f"{OPEN}/t3/commit").code == 200
    assert {f"t3-{round}" for round in range(4)} <= set(shop.table("shop.orders").properties)


def test_memory_does_not_grow_with_staged_changes(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many staged changes take no more memory, by Python's allocations and not by the server's own count."""
    monkeypatch.setattr(metadata.cache, "_max_size_bytes", MEGABYTE)  # the cache has its own limit of 64 MiB
    limit = 2 * MEGABYTE
    options = ServerOptions(max_transactions_size_bytes=limit, max_transactions_size_bytes_per_principal=limit)
    with running(shop, token=TOKEN, options=options) as server:
        client = Client(server)

        def stage(first: int, n: int) -> int:
            for number in range(first, first + n):
                change = begin(client, f"t{number}")
                assert change(setting("note", MEGABYTE)) == 200
                assert change(updates({"action": "remove-properties", "removals": ["note"]})) == 200
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        stage(0, 2)
        tracemalloc.start()
        try:
            once, twice = stage(2, 12), stage(14, 24)
        finally:
            tracemalloc.stop()
    assert twice <= once + 4 * MEGABYTE, (once, twice)


def test_one_transaction_has_a_limit_of_its_own(shop: tl.Lakehouse) -> None:
    """The size of one transaction is limited, in memory and saved, because a client that continues a saved transaction
    needs all of it in memory."""
    options = ServerOptions(max_transaction_size_bytes=MEGABYTE)
    with running(shop, token=TOKEN, options=options) as server:
        client, codes = Client(server), []
        change = begin(client, "large")
        for number in range(4):
            codes.append(change(setting(f"a{number}", 300_000)))
        assert codes == [200, 200, 200, 413]
        assert change(setting("small", 10)) == 200
        server.transactions.memory.hand_over_all()
        assert [one.id for one in shop.transactions.list()] == ["large"]
        assert change(setting("again", 300_000)) == 413
        answer = client("POST", "/v1/txn~large/namespaces/shop/tables/orders", setting("again", 900_000))
        assert (answer.code, answer.error) == (413, "RequestTooLargeException")
        assert "commit it" in answer.body["error"]["message"]
        assert client("POST", f"{OPEN}/large/commit").code == 200
    assert {"a0", "a1", "a2", "small"} <= set(shop.table("shop.orders").properties)
    assert "a3" not in shop.table("shop.orders").properties


def test_one_principal_does_not_evict_changes_of_others(shop: tl.Lakehouse, tokens: Path) -> None:
    options = ServerOptions(max_transactions_size_bytes_per_principal=MEGABYTE)
    with running(shop, token_file=tokens, options=options) as server:
        client = Client(server)
        calm = begin(client, "calm", ROOT)
        assert calm(setting("calm", 100_000)) == 200
        for number in range(5):
            assert begin(client, f"greedy-{number}", WALT)(setting("greedy", 480_000)) == 200
        assert [one.id for one in shop.transactions.list()] == [f"greedy-{number}" for number in range(4)]


def test_nothing_is_staged_while_saving_fails(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Transaction) -> None:
        raise tl.StorageError("the store is away")

    options = ServerOptions(max_transactions_size_bytes=MEGABYTE)
    with running(shop, token=TOKEN, options=options) as server:
        client = Client(server)
        change = begin(client, "first")
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "save", fails)
            assert change(setting("a", MEGABYTE)) == 200
            assert [change(setting("b", 10)) for _ in range(3)] == [503] * 3
            assert client("GET", "/v1/txn~first/namespaces/shop/tables/orders").code == 200
        assert change(setting("c", 10)) == 200
        assert client("POST", f"{OPEN}/first/commit").code == 200
    assert {"a", "c"} <= set(shop.table("shop.orders").properties)
    assert "b" not in shop.table("shop.orders").properties


def test_tables_that_are_only_read_count(shop: tl.Lakehouse) -> None:
    """Tables that a transaction only reads count towards the memory limit, because it keeps their metadata."""
    limit = 4 * MEGABYTE
    options = ServerOptions(max_transactions_size_bytes=limit)
    with running(shop, token=TOKEN, options=options) as server:
        client = Client(server)
        for number in range(6):
            wide = {"name": f"wide{number}", "schema": {**COLUMNS, "fields": fields(1000)}}
            assert client("POST", "/v1/namespaces/shop/tables", wide).code == 200
        assert client("POST", OPEN, {"id": "looking"}).code == 201
        sizes = []
        for number in range(6):
            assert client("GET", f"/v1/txn~looking/namespaces/shop/tables/wide{number}").code == 200
            sizes.append(server.transactions.memory.size_bytes)
        assert sizes[0] > 50_000 * 18
        assert max(sizes) <= limit
        text = client("GET", "/v1/txn~looking/namespaces/shop/tables/wide0")
        assert len(text.body["metadata"]["schemas"][0]["fields"]) == 1000


def test_the_cache_of_metadata_counts_bytes(shop: tl.Lakehouse) -> None:
    table = shop.table("shop.orders").iceberg
    one = read_metadata(table.io, table.metadata_location)
    cache = MetadataCache(max_size_bytes=MEGABYTE)
    for number in range(100):
        cache.put((f"file:///{number:05}-{uuid.uuid4()}.metadata.json", 0), sized(one.model_copy(), b" " * 100_000))
    assert len(cache._entries) == 10
    assert cache._size_bytes == 10 * 100_000


def test_the_size_of_metadata_is_exact(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        table = txn.table("shop.orders")
        table.iceberg.scan().to_arrow()
        before = txn._base_size_bytes
        with table.iceberg.io.new_input(table.iceberg.metadata_location).open() as file:
            text = file.read()
        assert before == len(text) + 350 * count_values(text)
        txn.alter_table(table.name, {"note": "x" * 100_000})
        _, text = txn._staged_tables.open("shop", "orders", b"")._open_staged().finish()
        assert txn._base_size_bytes == before + len(text)
