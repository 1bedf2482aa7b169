"""A lakehouse on disk behind a server, and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from rest.client import TOKEN, Client, connect, running
from trinitylake.rest import RestServer


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """An empty lakehouse, where other processes could read its files."""
    return tl.create(str(tmp_path / "lake"), name="served", order=5, durability="none")


@pytest.fixture
def server(lake: tl.Lakehouse) -> Iterator[RestServer]:
    """The lakehouse behind a server with a token."""
    with running(lake, token=TOKEN) as server:
        yield server


@pytest.fixture
def http_client(server: RestServer) -> Client:
    """Plain HTTP, with the right token."""
    return Client(server)


@pytest.fixture
def catalog(server: RestServer) -> RestCatalog:
    """PyIceberg as a client of the latest version."""
    return connect(server)
