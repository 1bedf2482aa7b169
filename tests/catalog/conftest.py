"""Catalogs for the tests: ours, bound to the latest version and to a transaction, and PyIceberg's own two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from catalogs import CATALOGS
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, IntegerType, NestedField, StringType

import trinitylake as tl


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The folder that holds everything that a catalog writes: the root of the lakehouse."""
    return tmp_path / "warehouse"


@pytest.fixture
def lakehouse(warehouse: Path) -> tl.Lakehouse:
    """An empty lakehouse on disk, with a tree small enough to split."""
    return tl.create(str(warehouse), order=5, durability="none")


@pytest.fixture(params=CATALOGS)
def catalog(request: pytest.FixtureRequest, warehouse: Path, tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog."""
    if request.param == "trinitylake":
        yield tl.iceberg.load(request.getfixturevalue("lakehouse"), name="test")
    elif request.param == "transaction":
        with request.getfixturevalue("lakehouse").begin() as transaction:
            yield tl.iceberg.load(transaction=transaction, name="test")
            transaction.rollback()
    elif request.param == "sql":
        with SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}") as catalog:
            yield catalog
    else:
        with InMemoryCatalog("test", warehouse=f"file://{warehouse}") as catalog:
            yield catalog


@pytest.fixture
def schema() -> Schema:
    """A flat schema with an identifier field."""
    return Schema(
        NestedField(1, "name", StringType(), required=False),
        NestedField(2, "number", IntegerType(), required=True),
        NestedField(3, "flag", BooleanType(), required=False),
        identifier_field_ids=[2],
    )


@pytest.fixture
def rows() -> pa.Table:
    """Two rows of `schema`."""
    return pa.table(
        {"name": ["a", "b"], "number": [1, 2], "flag": [True, None]},
        schema=pa.schema(
            [
                pa.field("name", pa.large_string()),
                pa.field("number", pa.int32(), nullable=False),
                pa.field("flag", pa.bool_()),
            ]
        ),
    )
