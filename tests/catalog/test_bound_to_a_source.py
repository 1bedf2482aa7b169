"""A catalog bound to the latest version, to one version, and to an open transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.types import LongType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, load

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


# The latest version


def test_each_write_is_one_version(shop: tl.Lakehouse) -> None:
    catalog, before = load(shop), shop.version
    catalog.create_namespace("archive")
    catalog.rename_table("shop.items", "archive.items")
    catalog.load_table("shop.orders").append(ROWS)
    catalog.drop_table("archive.items")
    assert shop.version == before + 4


def test_a_catalog_sees_what_others_commit(shop: tl.Lakehouse) -> None:
    catalog = load(shop)
    table = catalog.load_table("shop.orders")
    shop.table("shop.orders").append(ROWS)
    assert table.scan().count() == 0
    assert table.refresh().scan().count() == 3
    assert count(catalog, "shop.orders") == 3


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
    with pytest.raises(ValueError, match="UUID does not match"):  # PyIceberg's word for it when it tries again
        table.append(ROWS)
    assert shop.table("shop.orders").scan().count() == 0


def run_together(actions: list[Callable[[], object]]) -> list[BaseException]:
    """Start every action at once; returns what they raised."""
    start = threading.Barrier(len(actions))
    errors: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        start.wait()
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_that_race_for_one_table_lose_no_row(shop: tl.Lakehouse) -> None:
    catalog = load(shop)

    def append_three_times(number: int) -> None:
        table = catalog.load_table("shop.orders")
        for turn in range(3):
            table.append(pa.table({"id": [number * 3 + turn]}))

    errors = run_together([partial(append_three_times, number) for number in range(6)])
    assert errors == []
    found = catalog.load_table("shop.orders").scan().to_arrow().column("id").to_pylist()
    assert sorted(found) == list(range(18))


def test_of_threads_that_race_for_one_schema_one_wins(shop: tl.Lakehouse) -> None:
    catalog = load(shop)
    handles = [catalog.load_table("shop.orders") for _ in range(4)]

    def add(number: int) -> None:
        with handles[number].update_schema() as update:
            update.add_column(f"column_{number}", LongType())

    errors = run_together([partial(add, number) for number in range(4)])
    assert [type(error) for error in errors] == [CommitFailedException] * 3
    assert len(catalog.load_table("shop.orders").schema().fields) == 2


def test_dropped_and_purged_tables_stay_in_older_versions(shop: tl.Lakehouse) -> None:
    catalog = load(shop)
    for name in ("shop.orders", "shop.items"):
        catalog.load_table(name).append(ROWS)
    before = shop.version
    catalog.drop_table("shop.orders")
    catalog.purge_table("shop.items")
    past = load(shop, version=before)
    assert count(past, "shop.orders") == count(past, "shop.items") == 3


# One version


def test_a_version_is_shown_as_it_was(shop: tl.Lakehouse) -> None:
    catalog, before = load(shop), shop.version
    catalog.load_table("shop.orders").append(ROWS)
    moment = datetime.now(UTC)
    time.sleep(0.01)  # versions are dated in milliseconds
    catalog.drop_table("shop.orders")
    by_number, by_time = load(shop, version=before), load(shop, timestamp=moment)
    assert count(by_number, "shop.orders") == 0
    assert count(by_time, "shop.orders") == 3
    assert by_number.list_tables("shop") == by_time.list_tables("shop") == [("shop", "items"), ("shop", "orders")]
    with pytest.raises(NoSuchTableError):
        catalog.load_table("shop.orders")


VIEW = ViewVersion.model_validate(
    {
        "version-id": 1,
        "schema-id": 0,
        "representations": [ViewRepresentation(SQLViewRepresentation(type="sql", sql="SELECT 1", dialect="spark"))],
        "default-namespace": ("shop",),
    }
)
WRITES: dict[str, Callable[[TrinityLakeCatalog], object]] = {
    "create_namespace": lambda catalog: catalog.create_namespace("other"),
    "drop_namespace": lambda catalog: catalog.drop_namespace("shop"),
    "update_namespace_properties": lambda catalog: catalog.update_namespace_properties("shop", None, {"a": "b"}),
    "create_table": lambda catalog: catalog.create_table("shop.new", ROWS.schema),
    "create_table_transaction": lambda catalog: catalog.create_table_transaction("shop.new", ROWS.schema),
    "register_table": lambda catalog: catalog.register_table(
        "shop.new", catalog.load_table("shop.orders").metadata_location
    ),
    "rename_table": lambda catalog: catalog.rename_table("shop.orders", "shop.new"),
    "drop_table": lambda catalog: catalog.drop_table("shop.orders"),
    "purge_table": lambda catalog: catalog.purge_table("shop.orders"),
    "append": lambda catalog: catalog.load_table("shop.orders").append(ROWS),
    "commit_table": lambda catalog: catalog.commit_table(
        catalog.load_table("shop.orders"), (), (SetPropertiesUpdate(updates={"a": "b"}),)
    ),
    "create_view": lambda catalog: catalog.create_view("shop.busy", ROWS.schema, VIEW),
    "drop_view": lambda catalog: catalog.drop_view("shop.busy"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_version_cannot_be_written_to(shop: tl.Lakehouse, name: str) -> None:
    with pytest.raises(tl.InvalidArgument, match=r"read-only.*version"):
        WRITES[name](load(shop, version=shop.version))


# A transaction


def test_two_tables_change_together(shop: tl.Lakehouse) -> None:
    outside = load(shop)
    before = shop.version
    with shop.transaction() as transaction:
        catalog = load(transaction=transaction)
        catalog.load_table("shop.orders").append(ROWS)
        catalog.load_table("shop.items").append(ROWS)
        catalog.create_namespace("archive")
        catalog.create_table("archive.old", ROWS.schema).append(ROWS)
        assert [count(catalog, name) for name in ("shop.orders", "shop.items", "archive.old")] == [3, 3, 3]
        assert [count(outside, name) for name in ("shop.orders", "shop.items")] == [0, 0]
        assert not outside.namespace_exists("archive")
    assert shop.version == before + 1
    assert [count(outside, name) for name in ("shop.orders", "shop.items", "archive.old")] == [3, 3, 3]


def test_a_rollback_leaves_nothing(shop: tl.Lakehouse) -> None:
    folder = Path(shop.uri.removeprefix("file://"))
    before = {file for file in folder.rglob("*.parquet")}
    transaction = shop.begin()
    catalog = load(transaction=transaction)
    catalog.load_table("shop.orders").append(ROWS)
    catalog.create_table("shop.new", ROWS.schema).append(ROWS)
    assert {file for file in folder.rglob("*.parquet")} != before
    transaction.rollback()
    assert {file for file in folder.rglob("*.parquet")} == before
    assert count(load(shop), "shop.orders") == 0
    with pytest.raises(tl.TransactionClosed):
        catalog.list_tables("shop")


def test_a_transaction_and_the_catalog_see_each_other(shop: tl.Lakehouse) -> None:
    with shop.transaction() as transaction:
        catalog = load(transaction=transaction)
        transaction.table("shop.orders").append(ROWS)
        assert count(catalog, "shop.orders") == 3
        catalog.load_table("shop.orders").append(ROWS)
        assert transaction.table("shop.orders").scan().count() == 6
    assert shop.table("shop.orders").scan().count() == 6


def test_a_transaction_fits_its_appends_on_a_foreign_commit(shop: tl.Lakehouse) -> None:
    with shop.transaction() as transaction:
        load(transaction=transaction).load_table("shop.orders").append(ROWS)
        shop.table("shop.orders").append(ROWS)
    assert shop.table("shop.orders").scan().count() == 6


def test_a_saved_transaction_is_resumed_by_its_id(shop: tl.Lakehouse) -> None:
    transaction = shop.begin(id="handed-over")
    load(transaction=transaction).load_table("shop.orders").append(ROWS)
    transaction.save()
    catalog = load(shop.uri, transaction="handed-over")
    assert count(catalog, "shop.orders") == 3
    assert isinstance(catalog.source, tl.Transaction)
    catalog.source.commit()
    assert shop.table("shop.orders").scan().count() == 3
