"""Registering, loading and writing managed, external and federated tables in a catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orders import ROWS, SCHEMA
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.table.update import AssertCreate, SetLocationUpdate, SetPropertiesUpdate
from pyiceberg.types import StringType

import trinitylake as tl
from local_files import local_path
from trinitylake.iceberg import TrinityLakeCatalog, load

TABLE = ("sales", "orders")


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    return tl.create(str(tmp_path / "lake"), order=5, durability="none")


@pytest.fixture
def catalog(lake: tl.Lakehouse) -> TrinityLakeCatalog:
    catalog = load(lake)
    catalog.create_namespace("sales")
    return catalog


@pytest.fixture
def elsewhere(tmp_path: Path) -> SqlCatalog:
    """Another catalog with a table of two rows."""
    other = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/other.db", warehouse=f"file://{tmp_path}/other")
    other.create_namespace("shop")
    other.create_table("shop.orders", SCHEMA).append(ROWS)
    return other


def count(table: Table) -> int:
    return len(table.scan().to_arrow())


# Registering


def test_metadata_in_the_lakehouse_becomes_a_managed_table(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    table = catalog.create_table(TABLE, SCHEMA)
    table.append(ROWS)
    catalog.drop_table(TABLE)
    registered = catalog.register_table("sales.again", table.metadata_location)
    assert registered.name() == ("sales", "again")
    assert registered.metadata == table.metadata
    assert registered.metadata_location == table.metadata_location
    assert lake.table("sales.again").type == "managed"
    assert lake.table("sales.again").schema.names == ("name", "id", "paid")
    assert lake.table("sales.again").primary_key == ["id"]
    registered.append(ROWS)
    assert count(catalog.load_table("sales.again")) == 4


def test_metadata_elsewhere_becomes_an_external_table(
    catalog: TrinityLakeCatalog, lake: tl.Lakehouse, elsewhere: SqlCatalog
) -> None:
    source = elsewhere.load_table("shop.orders")
    table = catalog.register_table(TABLE, source.metadata_location)
    assert lake.table("sales.orders").type == "external"
    assert table.name() == TABLE
    assert table.metadata_location == source.metadata_location
    kept = source.metadata.model_dump() | {"properties": {"gc.enabled": "false"}}  # another catalog owns the files
    assert table.metadata.model_dump() == kept
    assert count(table) == 2


def test_registering_needs_a_free_name_and_a_namespace(catalog: TrinityLakeCatalog) -> None:
    uri = catalog.create_table(TABLE, SCHEMA).metadata_location
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table(TABLE, uri)
    with pytest.raises(NoSuchNamespaceError):
        catalog.register_table("nowhere.orders", uri)


def test_overwriting_takes_a_table_back_to_older_metadata(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    table = catalog.create_table(TABLE, SCHEMA)
    table.append(ROWS)
    older = table.metadata_location
    table.append(ROWS)
    before = lake.version
    assert count(catalog.register_table(TABLE, older, overwrite=True)) == 2
    assert lake.version == before + 1
    assert count(load(lake, version=before).load_table(TABLE)) == 4
    catalog.load_table(TABLE).append(ROWS)
    assert count(catalog.load_table(TABLE)) == 4


@pytest.mark.parametrize("name", ["last-sequence-number", "last-updated-ms"])
def test_metadata_that_other_engines_do_not_load_is_not_registered(catalog: TrinityLakeCatalog, name: str) -> None:
    """Metadata whose last numbers are lower than those of its snapshots is not registered, because other engines do not
    load it."""
    table = catalog.create_table(TABLE, SCHEMA)
    table.append(ROWS)
    path = local_path(table.metadata_location)
    wrong = path.with_name("00009-00000000-0000-4000-8000-000000000000.metadata.json")
    wrong.write_text(json.dumps(json.loads(path.read_text()) | {name: 0}))
    catalog.drop_table(TABLE)
    with pytest.raises(tl.InvalidArgument):
        catalog.register_table(TABLE, f"file://{wrong}")


def test_a_file_that_is_no_metadata_is_not_registered(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    for folder in ("lake/sales", "other"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        file = tmp_path / folder / "bad.metadata.json"
        file.write_text("{}")
        with pytest.raises(tl.CorruptFile):
            catalog.register_table(TABLE, f"file://{file}")
        with pytest.raises((FileNotFoundError, tl.InvalidLocation)):
            catalog.register_table(TABLE, f"file://{tmp_path}/{folder}/missing.metadata.json")
    assert not catalog.table_exists(TABLE)


def test_metadata_in_the_lakehouse_with_data_outside_is_not_registered(
    catalog: TrinityLakeCatalog, elsewhere: SqlCatalog, tmp_path: Path
) -> None:
    source = elsewhere.load_table("shop.orders")
    smuggled = tmp_path / "lake" / "sales" / "smuggled.metadata.json"
    smuggled.parent.mkdir(parents=True, exist_ok=True)
    smuggled.write_bytes(local_path(source.metadata_location).read_bytes())
    with pytest.raises(tl.InvalidLocation, match="outside of the lakehouse"):
        catalog.register_table(TABLE, f"file://{smuggled}")
    assert not catalog.table_exists(TABLE)


# External tables


def test_an_external_table_refuses_writes(
    catalog: TrinityLakeCatalog, lake: tl.Lakehouse, elsewhere: SqlCatalog
) -> None:
    table = catalog.register_table(TABLE, elsewhere.load_table("shop.orders").metadata_location)
    before = lake.version
    for write in (
        lambda: table.append(ROWS),
        lambda: table.update_schema().add_column("more", StringType()).commit(),
        lambda: catalog.commit_table(table, (), (SetPropertiesUpdate(updates={"a": "b"}),)),
    ):
        with pytest.raises(tl.InvalidArgument, match="external"):
            write()
    assert lake.version == before


def test_purging_an_external_table_leaves_its_files(catalog: TrinityLakeCatalog, elsewhere: SqlCatalog) -> None:
    catalog.register_table(TABLE, elsewhere.load_table("shop.orders").metadata_location)
    catalog.purge_table(TABLE)
    assert not catalog.table_exists(TABLE)
    assert count(elsewhere.load_table("shop.orders")) == 2


def test_an_external_table_is_frozen_in_every_binding(
    catalog: TrinityLakeCatalog, lake: tl.Lakehouse, elsewhere: SqlCatalog
) -> None:
    source = elsewhere.load_table("shop.orders")
    catalog.register_table(TABLE, source.metadata_location)
    source.append(ROWS)
    with lake.begin() as transaction:
        for bound in (catalog, load(lake, version=lake.version), load(transaction=transaction)):
            assert count(bound.load_table(TABLE)) == 2
        transaction.rollback()


# Federated tables


@pytest.fixture
def federated(lake: tl.Lakehouse, catalog: TrinityLakeCatalog, elsewhere: SqlCatalog) -> TrinityLakeCatalog:
    properties = {"type": "sql", "name": "other", **elsewhere.properties}
    lake.create_table(TABLE, catalog=properties, catalog_table="shop.orders")
    return catalog


def test_a_federated_table_is_the_other_catalogs_own(federated: TrinityLakeCatalog, elsewhere: SqlCatalog) -> None:
    table = federated.load_table(TABLE)
    table.append(ROWS)
    assert count(elsewhere.load_table("shop.orders")) == 4
    assert count(federated.load_table(TABLE)) == 4


def test_a_federated_table_cannot_be_written_through_a_version(
    federated: TrinityLakeCatalog, lake: tl.Lakehouse, elsewhere: SqlCatalog
) -> None:
    table = load(lake, version=lake.version).load_table(TABLE)
    assert table.name() == TABLE
    assert count(table) == 2
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        table.append(ROWS)
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        table.update_schema().add_column("more", StringType()).commit()
    assert count(elsewhere.load_table("shop.orders")) == 2


def test_dropping_a_federated_table_leaves_it_in_the_other_catalog(
    federated: TrinityLakeCatalog, elsewhere: SqlCatalog
) -> None:
    federated.purge_table(TABLE)
    assert not federated.table_exists(TABLE)
    assert count(elsewhere.load_table("shop.orders")) == 2


def test_a_commit_to_a_federated_table_creates_no_version(federated: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    before, table = lake.version, federated.load_table(TABLE)
    table._identifier = TABLE
    with pytest.raises(tl.InvalidArgument, match="federated"):
        federated.commit_table(table, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert lake.version == before


# Rules of managed tables


def test_a_managed_table_stays_in_its_part_of_the_lakehouse(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    for location in ["", "/", "/_txn/x", "/_expired/x", "/a/../../x", "/a//b", "/a/./b", "-sibling/x"]:
        uri = lake.uri.rstrip("/") + location
        with pytest.raises(tl.InvalidLocation):
            catalog.create_table(TABLE, SCHEMA, location=uri)
        assert not catalog.table_exists(TABLE), location


def test_a_table_cannot_move(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    table = catalog.create_table(TABLE, SCHEMA)
    for location in (f"{lake.uri}other", "file:///elsewhere"):
        with pytest.raises(tl.InvalidLocation):
            catalog.commit_table(table, (), (SetLocationUpdate(location=location),))
    assert catalog.load_table(TABLE) == table


@pytest.mark.parametrize("name", ["py-io-impl", "write.py-location-provider.impl"])
def test_properties_that_name_code_are_refused(catalog: TrinityLakeCatalog, name: str) -> None:
    with pytest.raises(tl.InvalidArgument, match="load code"):
        catalog.create_table(TABLE, SCHEMA, properties={name: "os.system"})
    creation = catalog.create_table_transaction(TABLE, SCHEMA)
    creation.set_properties({name: "os.system"})
    with pytest.raises(tl.InvalidArgument, match="load code"):
        creation.commit_transaction()
    assert not catalog.table_exists(TABLE)


def test_a_table_of_format_version_3_is_made_at_once_or_from_updates(
    catalog: TrinityLakeCatalog, lake: tl.Lakehouse
) -> None:
    """A new table of format version 3 has the counter of row ids, which PyIceberg leaves out, so that engines can read
    the table."""
    properties = {"format-version": "3"}
    catalog.create_table(TABLE, SCHEMA, properties=properties)
    catalog.create_table_transaction(("sales", "second"), SCHEMA, properties=properties).commit_transaction()
    with catalog.create_table_transaction(("sales", "third"), SCHEMA, properties=properties) as creation:
        rows = SCHEMA.as_arrow().empty_table()
        creation.append(rows)
        with pytest.raises(tl.InvalidArgument, match="format version 3"):
            creation.update_snapshot()
    assert [one.first_row_id for one in lake.table("sales.third").iceberg.metadata.snapshots] == [0]
    for name in ("orders", "second", "third"):
        metadata = lake.table(f"sales.{name}").iceberg.metadata
        assert (metadata.format_version, metadata.next_row_id) == (3, 0)


def test_a_creation_from_updates_alone_gets_an_id_and_a_location(
    catalog: TrinityLakeCatalog, lake: tl.Lakehouse
) -> None:
    """A new table whose updates contain neither an id nor a location gets both from the catalog, as for an engine
    behind a server."""
    creation = catalog.create_table_transaction(TABLE, SCHEMA)
    kept = tuple(one for one in creation._updates if one.action not in ("assign-uuid", "set-location"))
    catalog.commit_table(creation._table, (AssertCreate(),), kept)
    table = catalog.load_table(TABLE)
    assert str(table.metadata.table_uuid) == lake.table("sales.orders").id
    assert table.location().startswith(f"{lake.uri}sales/orders-")
    assert table.schema().column_names == SCHEMA.column_names


# Damage


def test_a_missing_metadata_file_is_named(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    from trinitylake.iceberg_storage.metadata import cache

    table = catalog.create_table(TABLE, SCHEMA)
    local_path(table.metadata_location).unlink()
    cache.clear()
    with pytest.raises(tl.CorruptFile, match="missing") as failure:
        catalog.load_table(TABLE)
    assert failure.value.path == table.metadata_location.removeprefix(lake.uri)
    assert catalog.table_exists(TABLE)


def test_a_damaged_definition_is_named(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_table(TABLE, SCHEMA)
    path = lake._state().locate("table", "sales", "orders")
    assert path is not None
    (local_path(lake.uri) / path).write_bytes(b"\xff\xff")
    for one in (catalog, load(tl.open(lake.uri))):
        with pytest.raises(tl.CorruptFile) as failure:
            one.load_table(TABLE)
        assert failure.value.path == path


def test_a_view_is_no_table(catalog: TrinityLakeCatalog, lake: tl.Lakehouse) -> None:
    lake.create_view("sales.view", "SELECT 1")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("sales.view")
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("sales.view")
