"""Work that occupies Python for a second is done one at a time, and its memory is freed afterwards.

Twelve concurrent creations of tables with 20,000 columns stopped `/healthz` for three seconds. Python runs one thread
at a time, and its garbage collector visits the objects of all twelve, half a second each time. Small commits to twelve
such tables had the same effect, because their metadata were parsed concurrently.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_metadata_size import SHAPES

import trinitylake as tl
from rest.client import Client, running
from rest.shop import ROWS, with_tables
from trinitylake.iceberg_storage import metadata
from trinitylake.rest import RestServer
from trinitylake.rest.request.body import HEAVY_VALUES, check_values
from waiting import PATIENCE_SECONDS, wait_until

TABLES = "/v1/namespaces/shop/tables"


def table(name: str, n_columns: int) -> dict[str, Any]:
    fields = [{"id": id, "name": f"c{id}", "type": "int", "required": False} for id in range(1, n_columns + 1)]
    return {"name": name, "schema": {"type": "struct", "schema-id": 0, "fields": fields}}


class Meeting:
    """A block in which each thread waits until `expected` threads are in the block. Counts the threads that are in it
    at the same time."""

    def __init__(self, expected: int = 1) -> None:
        self.lock, self.expected = threading.Lock(), expected
        self.now = self.most = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            time.sleep(0.05)
            wait_until(lambda: self.most >= self.expected)
            yield
        finally:
            with self.lock:
                self.now -= 1


def at_once(work: Any, n: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_heavy_bodies_are_processed_one_at_a_time(
    http_client: Client, server: RestServer, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_namespace("shop")
    app, heavy, light = server._app, Meeting(), Meeting(expected=2)
    answer = type(app)._answer

    def counted(self: Any, endpoint: Any, call: Any) -> Any:
        with (heavy if check_values(call.body) >= HEAVY_VALUES else light)():
            return answer(self, endpoint, call)

    monkeypatch.setattr(type(app), "_answer", counted)
    codes: list[int] = []

    def ask(number: int) -> None:
        columns = 2500 if number % 2 else 3
        codes.append(http_client("POST", TABLES, table(f"t{number}", columns)).code)

    at_once(ask, 12)
    assert codes == [200] * 12
    assert heavy.most == 1


def test_large_metadata_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = Meeting(), Meeting(expected=2)
    text = SHAPES["columns"]
    monkeypatch.setattr(metadata, "LARGE_SIZE_BYTES", len(text) - 1)
    parse = metadata.TableMetadataUtil.parse_raw

    def counted(data: str) -> Any:
        with (large if len(data) > metadata.LARGE_SIZE_BYTES else small)():
            return parse(data)

    monkeypatch.setattr(metadata.TableMetadataUtil, "parse_raw", counted)
    little = json.loads(text)
    del little["schemas"][0]["fields"][3:]
    texts = (text, json.dumps(little).encode())
    at_once(lambda number: metadata.parsed(texts[number % 2]), 8)
    assert large.most == 1


def test_a_child_forked_during_a_parse_can_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is forked during a parse can parse. The thread that holds the lock in the parent does not exist in
    the child, so the child must not wait for it."""
    text = SHAPES["columns"]
    monkeypatch.setattr(metadata, "LARGE_SIZE_BYTES", 1)
    metadata.parsed(text)
    with metadata._parsing.lock:
        if (child := os.fork()) == 0:
            is_free = metadata._parsing.lock.acquire(timeout=PATIENCE_SECONDS)
            os._exit(0 if is_free else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_tiny_commits_to_wide_tables_wait_for_each_other(
    http_client: Client, server: RestServer, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS)
    for number in range(4):
        assert http_client("POST", TABLES, table(f"t{number}", 4000)).code == 200
    metadata.cache.clear()
    monkeypatch.setattr(metadata, "LARGE_SIZE_BYTES", 100_000)
    meeting, parse = Meeting(), metadata.TableMetadataUtil.parse_raw

    def counted(data: str) -> Any:
        with meeting():
            return parse(data)

    monkeypatch.setattr(metadata.TableMetadataUtil, "parse_raw", counted)
    # A change for which the core does not write the metadata, so that PyIceberg parses it.
    properties = {"write.metadata.delete-after-commit.enabled": "false"}
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}
    codes: list[int] = []
    at_once(lambda number: codes.append(http_client("POST", f"{TABLES}/t{number}", change).code), 4)
    assert codes == [200] * 4
    assert meeting.most == 1


class Left:
    """Objects in a reference cycle that requests leave behind."""

    def __init__(self) -> None:
        self.itself = self


def test_memory_of_large_bodies_is_freed(http_client: Client) -> None:
    """The memory of large commits is freed at once. Python's collector counts objects, not bytes, so reference cycles
    would keep hundreds of megabytes in memory until it runs."""
    gc.collect()
    gc.disable()
    try:
        left = weakref.ref(Left())
        assert http_client("POST", "/v1/namespaces", b" " * (1 << 20)).code == 400
        assert left() is not None
        for _ in range(3):
            assert http_client("POST", "/v1/namespaces", b" " * (12 << 20)).code == 400
        wait_until(lambda: left() is None)
    finally:
        gc.enable()


def test_a_commit_leaves_no_reference_cycle(lake: tl.Lakehouse) -> None:
    """A commit leaves no object to Python's garbage collector. With forty objects in a cycle for each commit, the
    collector would stop all threads for an eighth of the time of all commits."""
    with_tables(lake, "shop.orders")
    left: list[object] = []

    def change(color: str) -> int:
        body = {"updates": [{"action": "set-properties", "updates": {"color": color}}]}
        return client("POST", "/v1/namespaces/shop/tables/orders", body).code

    with running(lake) as server:
        client = Client(server)
        change("red")
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(10):
                assert change(str(number)) == 200
            gc.collect()
            # Connections are not measured: clients keep theirs, and this client does not.
            left = [
                one
                for one in gc.garbage
                if type(one).__module__.startswith("trinitylake")
                and not type(one).__module__.startswith("trinitylake.rest.http")
            ]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left
