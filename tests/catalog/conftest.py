"""Fixtures of the behaviour tests: the catalogs (`catalogs.py`), each of them empty, and a schema with rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from catalogs import CATALOGS
from orders import ROWS, SCHEMA
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema

import trinitylake as tl
from trinitylake.iceberg import load


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The folder of the tables in the tested catalog: for a lakehouse, its root."""
    return tmp_path / "warehouse"


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest, tmp_path: Path, warehouse: Path) -> Iterator[Catalog]:
    """Each tested catalog, empty: a lakehouse on its latest version, a lakehouse in a transaction, and PyIceberg's
    catalogs."""
    kind: str = request.param
    empty: Catalog
    if kind == "sql":
        empty = SqlCatalog(kind, uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}")
    elif kind == "in-memory":
        empty = InMemoryCatalog(kind, warehouse=f"file://{warehouse}")
    else:
        lake = tl.create(str(warehouse), durability="none")
        empty = load(lake, transaction=lake.begin() if kind == "transaction" else None)
    with empty:
        yield empty


@pytest.fixture
def schema() -> Schema:
    """Three columns. The second one is the identifier."""
    return SCHEMA


@pytest.fixture
def rows() -> pa.Table:
    """Two rows that fit `schema`."""
    return ROWS
