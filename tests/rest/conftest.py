"""A lakehouse on disk behind a server, and its clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import uvicorn.server
from pyiceberg.catalog.rest import RestCatalog

import s3_server
import trinitylake as tl
from rest.client import TOKEN, Client, connect, running
from rest.shop import with_tables
from s3_server import S3Server
from trinitylake.rest import RestServer
from trinitylake.rest.workers import pool

RITA, WALT, ROOT = (f"the-token-of-{name}-0123456789" for name in ("rita", "walt", "root"))


@pytest.fixture(scope="session", autouse=True)
def _short_ticks() -> Iterator[None]:
    """Shorten the waits of Uvicorn, which checks every 0.1 s whether to stop. With a thousand servers, this saves
    minutes."""
    with mock.patch.object(uvicorn.server, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": _short_sleep})):
        yield


async def _short_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds / 20)


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """An empty lakehouse, where other processes could read its files."""
    return tl.create(str(tmp_path / "lake"), name="served", order=5, durability="none")


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """The table `shop.orders` with one snapshot of three rows."""
    return with_tables(lake, "shop.orders")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def server(lake: tl.Lakehouse) -> Iterator[RestServer]:
    """The lakehouse behind a server with a token."""
    with running(lake, token=TOKEN) as server:
        yield server


@pytest.fixture
def open_server(shop: tl.Lakehouse) -> Iterator[RestServer]:
    """A server without tokens."""
    with running(shop) as server:
        yield server


@pytest.fixture
def http_client(server: RestServer) -> Client:
    """Plain HTTP, with the right token."""
    return Client(server)


@pytest.fixture
def catalog(server: RestServer) -> RestCatalog:
    """PyIceberg as a client of the latest version."""
    return connect(server)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A store."""
    with s3_server.serve() as server:
        yield server


@pytest.fixture
def lake_on_s3(s3: S3Server) -> tl.Lakehouse:
    """A lakehouse on S3 with the tables `shop.orders` and `payroll.orders`, each with three rows."""
    root = f"s3://{s3.new_bucket()}/the/lake"
    lake = tl.create(root, name="on s3", order=5, storage_options=s3.storage_options)
    return with_tables(lake, "shop.orders", "payroll.orders")


@pytest.fixture(scope="session")
def _idle_workers() -> Iterator[list[Any]]:
    idle: list[Any] = []
    yield idle
    for worker in idle:
        worker.end()


@pytest.fixture
def reused_workers(_idle_workers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle worker processes of a server that ends serve the next one. A start takes a second of processor time."""
    start, close = pool._Worker, pool.WorkerPool.close

    def closed(ended: pool.WorkerPool) -> None:
        with ended._lock:
            _idle_workers.extend(ended._idle)
            ended._workers -= set(ended._idle)
            ended._idle.clear()
        close(ended)

    def taken() -> Any:
        while _idle_workers:
            worker = _idle_workers.pop()
            if worker.is_alive:
                return worker
            worker.end()
        return start()

    monkeypatch.setattr(pool, "_Worker", taken)
    monkeypatch.setattr(pool.WorkerPool, "close", closed)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[dict[str, Path], ssl.SSLContext]:
    """Options of a server on localhost, and a client's context that trusts it."""
    from trustme import CA

    authority, context = CA(), ssl.create_default_context()
    certificate = authority.issue_cert("localhost")
    files = {"certificate_file": tmp_path / "certificate.pem", "key_file": tmp_path / "key.pem"}
    certificate.cert_chain_pems[0].write_to_path(str(files["certificate_file"]))
    certificate.private_key_pem.write_to_path(str(files["key_file"]))
    authority.configure_trust(context)
    return files, context


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Tokens of three principals: Rita is a reader of the shop, Walt a writer of the shop, and Root an admin of
    everything."""
    file = tmp_path / "tokens"
    file.write_text(f"{RITA} rita reader:shop.*\n{WALT} walt writer:shop.*\n{ROOT} root admin:*\n")
    file.chmod(0o600)
    return file
