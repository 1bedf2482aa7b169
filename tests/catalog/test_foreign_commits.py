"""A catalog and commits that did not go through it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.types import LongType

import trinitylake as tl
from trinitylake.iceberg import load

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse with two tables of one column, empty."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    with lake.transaction() as transaction:
        transaction.create_namespace("shop")
        transaction.create_table("shop.orders", ROWS.schema)
        transaction.create_table("shop.items", ROWS.schema)
    return lake


def count(catalog: Catalog, identifier: str) -> int:
    return catalog.load_table(identifier).scan().count()


def test_an_append_is_put_on_top_of_a_foreign_commit(shop: tl.Lakehouse) -> None:
    table = load(shop).load_table("shop.orders")
    shop.table("shop.orders").append(ROWS)
    shop.table("shop.orders").set_properties({"colour": "red"})
    table.append(ROWS)
    assert table.scan().count() == 6
    assert table.properties["colour"] == "red"
    assert shop.table("shop.orders").scan().count() == 6
    first, second = shop.table("shop.orders").snapshots()
    assert second.parent_snapshot_id == first.snapshot_id


def test_a_commit_meets_requirements_on_the_foreign_metadata(shop: tl.Lakehouse) -> None:
    catalog = load(shop)
    old = catalog.load_table("shop.orders")
    with shop.table("shop.orders").update_schema() as update:
        update.add_column("price", LongType())
    same = (AssertTableUUID(uuid=old.metadata.table_uuid),)
    answer = catalog.commit_table(old, same, (SetPropertiesUpdate(updates={"colour": "red"}),))
    assert answer.metadata.schema().column_names == ["id", "price"]
    assert answer.metadata_location == shop.table("shop.orders").metadata_location
    with pytest.raises(CommitFailedException), old.update_schema() as update:
        update.add_column("weight", LongType())


def test_a_commit_to_a_table_that_was_recreated_fails(shop: tl.Lakehouse) -> None:
    table = load(shop).load_table("shop.orders")
    shop.drop_table("shop.orders")
    shop.create_table("shop.orders", ROWS.schema)
    with pytest.raises(CommitFailedException, match="UUID does not match"):
        table.append(ROWS)
    assert shop.table("shop.orders").scan().count() == 0


def test_dropped_and_purged_tables_stay_in_older_versions(shop: tl.Lakehouse) -> None:
    catalog = load(shop)
    for name in ("shop.orders", "shop.items"):
        catalog.load_table(name).append(ROWS)
    before = shop.version
    catalog.drop_table("shop.orders")
    catalog.purge_table("shop.items")
    past = load(shop, version=before)
    assert count(past, "shop.orders") == count(past, "shop.items") == 3
