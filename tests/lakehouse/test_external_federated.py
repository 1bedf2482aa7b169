"""External tables (a metadata file) and federated tables (another catalog)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import trinitylake as tl
from local_files import local_path
from trinitylake.iceberg import TrinityLakeCatalog

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """Another catalog with the table `sales.orders`, which has three rows."""
    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", ROWS.schema).append(ROWS)
    yield catalog
    catalog.close()


@pytest.fixture
def nyc(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A lakehouse with the namespace `nyc`."""
    lake.create_namespace("nyc")
    return lake


def test_an_external_table_reads_its_files_in_place(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    location = catalog.load_table("sales.orders").metadata_location
    nyc.create_table("nyc.orders", metadata_location=location, properties={"owner": "ops"})
    table = nyc.table("nyc.orders")
    assert (table.type, table.iceberg.metadata_location, table.properties["owner"]) == ("external", location, "ops")
    assert table.schema.names == ("id",)
    assert sorted(table.scan(filter="id > 1").to_arrow()["id"].to_pylist()) == [2, 3]


def test_external_table_reads_one_metadata_file_until_it_is_altered(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    orders = catalog.load_table("sales.orders")
    nyc.create_table("nyc.orders", metadata_location=orders.metadata_location)
    before = nyc.version
    orders.append(ROWS)
    assert nyc.table("nyc.orders").scan().count() == 3
    nyc.alter_table("nyc.orders", metadata_location=orders.metadata_location)
    assert nyc.table("nyc.orders").scan().count() == 6
    assert nyc.at(before).table("nyc.orders").scan().count() == 3


def test_an_external_table_that_lists_no_sort_order_is_unsorted(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    """An external table whose metadata lists no sort order is unsorted. Metadata need not list order 0, and
    `table.sort_order` raised StopIteration."""
    given = local_path(catalog.load_table("sales.orders").metadata_location)
    odd = given.with_name("00009-odd.metadata.json")
    odd.write_text(json.dumps(json.loads(given.read_text()) | {"default-sort-order-id": 0, "sort-orders": []}))
    table = nyc.create_table("nyc.orders", metadata_location=odd.as_uri())
    assert table.sort_order.is_unsorted


def test_an_external_table_refuses_writes(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    location = catalog.load_table("sales.orders").metadata_location
    nyc.create_table("nyc.orders", metadata_location=location)
    with nyc.transaction() as txn:
        for write in (
            lambda: txn.table("nyc.orders").append(ROWS),
            lambda: txn.table("nyc.orders").delete("id = 1"),
            lambda: nyc.table("nyc.orders").append(ROWS),
        ):
            with pytest.raises(tl.InvalidArgument, match="external"):
                write()
    assert catalog.load_table("sales.orders").scan().count() == 3


def test_properties_of_an_external_table_belong_to_the_lakehouse(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    location = catalog.load_table("sales.orders").metadata_location
    nyc.create_table("nyc.orders", metadata_location=location, properties={"owner": "ops", "tier": "1"})
    nyc.alter_table("nyc.orders", {"tier": "2"}, remove_properties=["owner"])
    properties = nyc.table("nyc.orders").properties
    assert (properties.get("tier"), properties.get("owner")) == ("2", None)
    assert nyc.table("nyc.orders").iceberg.metadata_location == location


def test_metadata_location_can_be_altered_for_external_tables_only(nyc: tl.Lakehouse) -> None:
    nyc.create_table("nyc.t", ROWS)
    with pytest.raises(tl.InvalidArgument, match="external"):
        nyc.alter_table("nyc.t", metadata_location="file:///x/y.metadata.json")


def properties_of(catalog: SqlCatalog) -> dict[str, str]:
    return {
        "name": "other",
        "type": "sql",
        "uri": catalog.properties["uri"],
        "warehouse": catalog.properties["warehouse"],
    }


def test_a_federated_table_reads_and_writes_through_the_other_catalog(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    nyc.create_table("nyc.orders", catalog=properties_of(catalog), catalog_table="sales.orders")
    table = nyc.table("nyc.orders")
    assert (table.type, table.scan().count()) == ("federated", 3)
    version = nyc.version
    with nyc.transaction() as txn:
        txn.table("nyc.orders").append({"id": [4]})
    assert catalog.load_table("sales.orders").scan().count() == 4
    assert nyc.version == version, "the lakehouse itself has not changed"
    catalog.load_table("sales.orders").append(pa.table({"id": [5]}))
    assert nyc.table("nyc.orders").scan().count() == 5


@pytest.mark.filterwarnings("error")
def test_columns_of_a_federated_table_are_added_with_sql_types(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    """`add_column("delay", "double")` accepts SQL types for federated tables as for managed tables."""
    nyc.create_table("nyc.f", catalog=properties_of(catalog), catalog_table="sales.orders")
    with nyc.table("nyc.f").update_schema() as update:
        update.add_column("delay", "double").add_column("tags", "varchar[]")  # type: ignore[arg-type]
    assert [str(one.type) for one in nyc.table("nyc.f").schema.columns][-2:] == ["DOUBLE", "VARCHAR[]"]


def test_a_delete_without_a_match_does_not_warn(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    """PyIceberg's warning that a delete matched no records does not reach users of federated tables."""
    catalog.create_table("sales.empty", ROWS.schema)
    for name in ("orders", "empty"):
        nyc.create_table(f"nyc.{name}", catalog=properties_of(catalog), catalog_table=f"sales.{name}")
        table = nyc.table(f"nyc.{name}")
        rows = table.count()
        table.delete("id = 100")
        table.overwrite({"id": [200]}, "id = 100")
        assert nyc.table(f"nyc.{name}").count() == rows + 1


def test_a_federated_table_of_a_frozen_version_refuses_writes(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    nyc.create_table("nyc.orders", catalog=properties_of(catalog), catalog_table="sales.orders")
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        nyc.at().table("nyc.orders").append(ROWS)


def test_registering_an_unknown_federated_table_fails(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    with pytest.raises(tl.ObjectNotFound):
        nyc.create_table("nyc.orders", catalog=properties_of(catalog), catalog_table="sales.missing")
    assert nyc.tables() == []


def test_renames_and_drops_of_foreign_tables_stay_in_the_lakehouse(nyc: tl.Lakehouse, catalog: SqlCatalog) -> None:
    location = catalog.load_table("sales.orders").metadata_location
    nyc.create_table("nyc.e", metadata_location=location)
    nyc.create_table("nyc.f", catalog=properties_of(catalog), catalog_table="sales.orders")
    nyc.rename_table("nyc.e", "nyc.e2")
    nyc.rename_table("nyc.f", "nyc.f2")
    assert [nyc.table(name).scan().count() for name in nyc.tables("nyc")] == [3, 3]
    nyc.drop_namespace("nyc", cascade=True)
    assert catalog.load_table("sales.orders").scan().count() == 3


@pytest.fixture
def disk(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on a disk, with a table `ns.t`."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("ns")
    lake.create_table("ns.t", ROWS)
    return lake


def plain_file(lake: tl.Lakehouse) -> str:
    """Write a Parquet file to the folder of `ns.t`. Returns its location."""
    path = f"{lake.table('ns.t').location}/data/plain.parquet"
    local_path(path).parent.mkdir(exist_ok=True)
    pq.write_table(ROWS, str(local_path(path)))
    return path


def test_external_metadata_with_files_of_the_lakehouse_is_refused(
    disk: tl.Lakehouse, catalog: SqlCatalog, tmp_path: Path
) -> None:
    """An external table must not name files of the lakehouse, such as a copied metadata file. Vacuum, which cannot read
    metadata outside of the root, would delete the files after the original table is dropped."""
    metadata = local_path(disk.table("ns.t").iceberg.metadata_location)
    elsewhere = tmp_path / "elsewhere" / metadata.name
    elsewhere.parent.mkdir()
    shutil.copy(metadata, elsewhere)
    disk.create_table("ns.inside", metadata_location=metadata)
    with pytest.raises(tl.InvalidLocation, match="a file of this lakehouse"):
        disk.create_table("ns.e", metadata_location=elsewhere)
    with pytest.raises(tl.RegistrationFailed, match="a file of this lakehouse"):
        disk.register([{"kind": "table", "namespace": "ns", "name": "e", "metadata_location": f"file://{elsewhere}"}])

    # One data file, which a manifest names, is in the lakehouse.
    orders = catalog.load_table("sales.orders")
    disk.create_table("ns.orders", metadata_location=orders.metadata_location)
    orders.add_files([plain_file(disk)])
    with pytest.raises(tl.InvalidLocation, match=r"plain\.parquet, a file of this lakehouse"):
        disk.alter_table("ns.orders", metadata_location=orders.metadata_location)
    with pytest.raises(tl.InvalidLocation, match=r"plain\.parquet, a file of this lakehouse"):
        disk.create_table("ns.more", metadata_location=orders.metadata_location)
    with pytest.raises(tl.RegistrationFailed, match=r"plain\.parquet, a file of this lakehouse"):
        disk.register(
            [{"kind": "table", "namespace": "ns", "name": "more", "metadata_location": orders.metadata_location}]
        )
    with pytest.raises(tl.InvalidLocation, match=r"plain\.parquet, a file of this lakehouse"):
        TrinityLakeCatalog("lake", root=disk.uri).register_table("ns.more", orders.metadata_location)
    assert disk.tables() == ["ns.inside", "ns.orders", "ns.t"]


@pytest.mark.parametrize("spelling", ["//", "/./", "/ns/../"])
def test_files_of_the_lakehouse_are_not_external_in_another_spelling(
    disk: tl.Lakehouse, catalog: SqlCatalog, spelling: str
) -> None:
    """Metadata below the root cannot be registered as external in another spelling, such as with `//`. Otherwise vacuum
    would delete its files."""

    def respelled(uri: str) -> str:
        return uri.replace("/lake/", f"/lake{spelling}", 1)

    location = respelled(f"file://{local_path(disk.table('ns.t').iceberg.metadata_location)}")
    with pytest.raises(tl.InvalidLocation, match="not a qualified location"):
        disk.create_table("ns.e", metadata_location=location)
    orders = catalog.load_table("sales.orders")
    orders.add_files([respelled(plain_file(disk))])
    with pytest.raises(tl.InvalidLocation, match=r"plain\.parquet, a file of this lakehouse"):
        disk.create_table("ns.e", metadata_location=orders.metadata_location)
    assert disk.tables() == ["ns.t"]


def test_fsck_reports_an_external_table_whose_files_vacuum_would_delete(
    disk: tl.Lakehouse, catalog: SqlCatalog
) -> None:
    """fsck reports an external table whose files vacuum would delete. An earlier release registered such a table
    without a check."""
    orders = catalog.load_table("sales.orders")
    disk.create_table("ns.orders", metadata_location=orders.metadata_location)
    assert disk.maintenance.fsck(files=True).findings == ()
    orders.add_files([plain_file(disk)])
    with pytest.MonkeyPatch.context() as former_release:
        former_release.setattr("trinitylake.iceberg_storage.external_tables.first_inside", lambda *args, **kwargs: None)
        disk.alter_table("ns.orders", metadata_location=orders.metadata_location)
    (finding,) = disk.maintenance.fsck(files=True).findings
    assert (finding.kind, finding.affected) == ("misplaced", ("table ns.orders",))
    assert finding.path.endswith("/data/plain.parquet")


def test_an_external_table_whose_manifests_cannot_be_read_is_refused(disk: tl.Lakehouse, catalog: SqlCatalog) -> None:
    orders = catalog.load_table("sales.orders")
    snapshot = orders.current_snapshot()
    assert snapshot is not None
    local_path(snapshot.manifest_list).unlink()
    with pytest.raises(tl.InvalidLocation, match="a manifest that cannot be read"):
        disk.create_table("ns.orders", metadata_location=orders.metadata_location)
