"""Calls to a store that sends a byte now and then end at their deadline and release their slots.

The libraries that read external metadata and manifests limit silence, and not the whole duration: eight slow stores
blocked all external tables. A federated catalog on a database that hung had the same effect. C++ code cannot be
interrupted, so these reads run in worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io

import trinitylake as tl
from rest.client import Answer, Client, in_the_end, running
from rest.shop import ROWS
from slow_s3 import SlowS3, slow_s3
from trinitylake.definitions import METADATA_LOCATION, new_table_def, serialize
from trinitylake.iceberg_storage import metadata
from trinitylake.iceberg_storage.federated_tables import federated_properties
from trinitylake.rest import RestServer, limits
from trinitylake.rest.catalog.served_catalog import ServedCatalog
from trinitylake.rest.outbound import MAX_WAITING_FOR_ONE, Outbound
from trinitylake.rest.workers import foreign_files
from trinitylake.rest.workers.foreign_files import FileJob
from trinitylake.rest.workers.pool import WorkerPool
from waiting import wait_until

OUTSIDE = "/v1/namespaces/shop/tables/outside"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowS3]:
    """An S3 store without delay. Servers have its settings."""
    with slow_s3(0.0, 0.0) as s3:
        monkeypatch.setattr(ServedCatalog, "_file_io_properties", lambda _: s3.pyiceberg_properties)
        yield s3


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time limit of calls. A worker that starts on a loaded machine may exceed this limit, see
    `in_the_end`."""
    monkeypatch.setattr(Outbound.__init__, "__defaults__", (6.0,))
    monkeypatch.setattr(foreign_files, "_GRACE_SECONDS", 0.2)


@pytest.fixture
def server(lake: tl.Lakehouse, store: SlowS3, reused_workers: None) -> Iterator[RestServer]:
    """A server with the tables `shop.outside`, whose files are in another lakehouse on the slow store, and
    `shop.orders`."""
    other = tl.create(store.uri("other"), storage_options=store.options)
    other.create_namespace("else")
    other.create_table("else.where", ROWS).append(ROWS)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS).append(ROWS)
    place = {METADATA_LOCATION: other.table("else.where").iceberg.metadata_location}
    define(lake, "outside", "external", place)
    with running(lake) as server:
        yield server


def define(lake: tl.Lakehouse, name: str, kind: str, properties: dict[str, str]) -> None:
    """Register an external table without reading it."""
    definition = new_table_def(table_type=kind, format_properties=properties)
    with lake.transaction() as txn:
        txn._state().create("table", "shop", name, serialize(definition))


def workers(server: RestServer) -> WorkerPool:
    return server._app.service.workers


def assert_free(server: RestServer) -> None:
    """Wait until no worker is busy, and no slot for calls is in use."""
    outbound = server._app.service.outbound
    wait_until(lambda: not workers(server).n_at_work and not outbound.limit.n_leases)


def test_external_files_are_read_with_the_settings_of_the_server(server: RestServer) -> None:
    client = Client(server)
    assert in_the_end(lambda: client("GET", OUTSIDE)).body["metadata"]["current-snapshot-id"] > 0
    assert len(client("POST", f"{OUTSIDE}/plan", {}).body["file-scan-tasks"]) == 1
    assert len(workers(server)._workers) == 1, "both requests use the same worker"


@pytest.mark.sample(2)
@pytest.mark.parametrize("in_headers", [False, True], ids=["body", "headers"])
@pytest.mark.parametrize(("part", "suffix"), [(".metadata.json", ""), (".avro", "/plan")])
def test_a_slow_store_releases_its_calls_at_the_deadline(
    short: None, server: RestServer, store: SlowS3, part: str, suffix: str, in_headers: bool
) -> None:
    client = Client(server)
    store.dripping, store.in_headers = {part}, in_headers

    def ask() -> Answer:
        metadata.cache.clear()
        return client("POST", f"{OUTSIDE}/plan", {}) if suffix else client("GET", OUTSIDE)

    assert ask().code == 504
    assert_free(server)
    assert client("GET", "/v1/namespaces/shop/tables/orders").code == 200
    store.dripping = set()
    assert in_the_end(ask).code == 200


def federated(lake: tl.Lakehouse, name: str, uri: str) -> None:
    """Register a federated table of an SQL catalog without a request to this catalog."""
    stored = federated_properties({"type": "sql", "uri": uri}, "else.where", name)
    define(lake, name, "federated", stored)


def test_a_table_of_another_kind_of_catalog_is_loaded_and_planned(lake: tl.Lakehouse, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("theirs", uri=uri, warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("else")
    table = catalog.create_table("else.where", ROWS.schema)
    table.append(ROWS)
    lake.create_namespace("shop")
    federated(lake, "theirs", uri)
    federated(lake, "nowhere", f"sqlite:///{tmp_path}/none.db")
    path = "/v1/namespaces/shop/tables/theirs"
    with running(lake) as server:
        client = Client(server)
        loaded = in_the_end(lambda: client("GET", path))
        assert loaded.body["metadata"]["table-uuid"] == str(table.metadata.table_uuid)
        [task] = client("POST", f"{path}/plan", {}).body["file-scan-tasks"]
        assert task["data-file"]["record-count"] == len(ROWS)
        assert client("GET", "/v1/namespaces/shop/tables/nowhere").code == 404


def test_a_sql_or_glue_catalog_that_hangs_releases_its_calls(
    lake: tl.Lakehouse, silent: str, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call to a federated catalog that hangs ends at its deadline. The client library for Glue would wait a minute,
    and repeat the request."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-nobody")
    lake.create_namespace("shop")
    stored = {"type": "glue", "glue.region": "us-east-1", "glue.endpoint": silent}
    define(lake, "theirs", "federated", federated_properties(stored, "else.where", "theirs"))
    with running(lake) as server:
        client = Client(server)
        assert client("GET", "/v1/namespaces/shop/tables/theirs").code == 504
        assert_free(server)


def test_killing_a_worker_affects_no_other_job(store: SlowS3) -> None:
    """Two files of one store: one that the store sends very slowly, and one at normal speed."""
    pool = WorkerPool()
    io = load_file_io(store.pyiceberg_properties, "s3://slow/a")
    store.files = {"drips": (b"x" * 100_000, 0.0), "well": (b"well", 0.0)}
    store.dripping = {"drips"}

    def content(name: str, seconds: float = 60) -> Any:
        job = FileJob((type(io), dict(io.properties)), f"s3://slow/{name}", "content", 1 << 20)
        return pool.run(job, "it", seconds=seconds, wait_seconds=seconds)

    try:
        assert content("well") == b"well"
        with pytest.raises(TimeoutError):
            content("drips", 0.5)
        assert not pool._workers
        assert content("well") == b"well"
        with pytest.raises(FileNotFoundError):
            content("none")
    finally:
        pool.close()


def test_plans_of_external_tables_take_no_threads_from_those_of_the_lakehouse(
    short: None, server: RestServer, store: SlowS3
) -> None:
    """Scans of external tables on a slow store do not delay scans of the lakehouse's own tables. PyIceberg has six
    threads per process for manifests, which a few such scans would occupy."""
    client = Client(server)
    other = tl.open(store.uri("other"), storage_options=store.options).table("else.where")
    for _ in range(7):
        other.append(ROWS)
    define(server._app.service.lake, "more", "external", {METADATA_LOCATION: other.iceberg.metadata_location})
    path = "/v1/namespaces/shop/tables/more/plan"
    assert len(in_the_end(lambda: client("POST", path, {})).body["file-scan-tasks"]) == 8
    assert_free(server)
    store.dripping = {"-m0.avro"}
    for _ in range(3):  # on a loaded machine the plans may reach their deadline before the other one is made
        with ThreadPoolExecutor(MAX_WAITING_FOR_ONE) as threads:
            plans = [threads.submit(client, "POST", path, {}) for _ in range(MAX_WAITING_FOR_ONE)]
            while not any(one.done() for one in plans) and workers(server).n_at_work < limits.JOBS["foreign"].of_owner:
                time.sleep(0.01)
            assert client("POST", "/v1/namespaces/shop/tables/orders/plan", {}).code == 200
            all_wait = not any(one.done() for one in plans)
        assert [one.result().code for one in plans] == [504] * MAX_WAITING_FOR_ONE
        assert_free(server)
        if all_wait:
            return
    pytest.fail("no plan was made while all others waited")
