"""Creating, finding, renaming and dropping tables behaves as in PyIceberg's catalogs."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from catalogs import is_in_transaction, is_ours
from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

import trinitylake as tl
from local_files import local_path

TABLE = ("sales", "eu", "orders")
OTHER = ("archive", "orders_2020")


@pytest.fixture(autouse=True)
def namespaces(catalog: Catalog) -> None:
    for identifier in (TABLE, OTHER):
        catalog.create_namespace(identifier[:-1])


def test_a_created_table_can_be_loaded(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    loaded = catalog.load_table(TABLE)
    assert loaded.name() == TABLE
    assert loaded == table
    assert loaded.metadata == table.metadata
    assert loaded.schema().fields == schema.fields
    assert loaded.schema().identifier_field_ids == [2]


def test_an_identifier_may_be_text_or_a_tuple_or_that_of_a_table(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table("sales.eu.orders", schema)
    assert table.name() == TABLE
    assert catalog.load_table(table.name()) == catalog.load_table(TABLE) == catalog.load_table("sales.eu.orders")


def test_the_first_metadata_file_is_numbered_zero(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    assert catalog._parse_metadata_version(table.metadata_location) == 0  # type: ignore[attr-defined]
    # In a transaction, the metadata file is named at once and written at the commit.
    assert local_path(table.metadata_location).exists() is not is_in_transaction(catalog)


def test_table_is_in_the_warehouse_by_default(catalog: Catalog, schema: Schema, warehouse: Path) -> None:
    table = catalog.create_table(TABLE, schema)
    assert table.location().startswith(f"file://{warehouse}/")
    assert table.metadata_location.startswith(f"{table.location()}/metadata/")


def test_a_name_is_taken_once(catalog: Catalog, schema: Schema) -> None:
    first = catalog.create_table(TABLE, schema)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(TABLE, schema)
    assert catalog.create_table_if_not_exists(TABLE, schema) == first
    assert catalog.create_table_if_not_exists(OTHER, schema).name() == OTHER


def test_a_table_needs_its_namespace(catalog: Catalog, schema: Schema) -> None:
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table(("nowhere", "orders"), schema)


def test_a_name_without_namespace_cannot_be_created(catalog: Catalog, schema: Schema) -> None:
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("orders", schema)


def test_a_name_without_namespace_cannot_be_found(catalog: Catalog) -> None:
    # PyIceberg's catalogs refuse the form of the name. In a lakehouse, as behind a REST server, the table is not found.
    with pytest.raises(NoSuchTableError if is_ours(catalog) else ValueError):
        catalog.load_table("orders")


def test_missing_objects_are_not_found(catalog: Catalog) -> None:
    message = re.escape("Table does not exist: sales.eu.orders")
    assert not catalog.table_exists(TABLE)
    for method in (catalog.load_table, catalog.drop_table, catalog.purge_table):
        with pytest.raises(NoSuchTableError, match=message):
            method(TABLE)


def test_existence_follows_creation_and_drop(catalog: Catalog, schema: Schema) -> None:
    assert not catalog.table_exists(TABLE)
    catalog.create_table(TABLE, schema, properties={"format-version": "2"})
    assert catalog.table_exists(TABLE)
    assert catalog.table_exists("sales.eu.orders")
    assert not catalog.table_exists(("sales", "orders"))
    catalog.drop_table(TABLE)
    assert not catalog.table_exists(TABLE)


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_table_is_unpartitioned_and_unsorted_by_default(
    catalog: Catalog, schema: Schema, format_version: int
) -> None:
    table = catalog.create_table(TABLE, schema, properties={"format-version": str(format_version)})
    assert table.format_version == format_version
    assert table.spec() == UNPARTITIONED_PARTITION_SPEC
    assert table.sort_order().order_id == 0
    assert table.sort_order().is_unsorted


def test_partition_spec_and_sort_order_are_kept(catalog: Catalog, schema: Schema) -> None:
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=BucketTransform(4), name="bucket"))
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform(), null_order=NullOrder.NULLS_FIRST))
    table = catalog.create_table(TABLE, schema, partition_spec=spec, sort_order=order)
    assert catalog.load_table(TABLE).spec() == spec
    assert table.sort_order().order_id == 1
    (field,) = table.sort_order().fields
    assert field.source_id == 1
    assert field.direction == SortDirection.ASC
    assert field.null_order == NullOrder.NULLS_FIRST
    assert isinstance(field.transform, IdentityTransform)


def test_new_field_ids_are_assigned(catalog: Catalog) -> None:
    scattered = Schema(
        NestedField(17, "id", LongType(), required=True, doc="the key"),
        NestedField(
            5,
            "lines",
            ListType(9, StructType(NestedField(40, "sku", StringType(), required=True)), element_required=False),
            required=False,
        ),
    )
    table = catalog.create_table(TABLE, scattered)
    assert [field.field_id for field in table.schema().fields] == [1, 2]
    assert table.schema().find_field("id").doc == "the key"
    assert table.schema().find_field("lines.element.sku").required
    assert table.metadata.last_column_id == 4
    assert catalog.load_table(TABLE).schema() == table.schema()


def test_arrow_schema_is_accepted(catalog: Catalog) -> None:
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))])
    table = catalog.create_table(TABLE, arrow)
    assert catalog.load_table(TABLE) == table
    assert str(table.schema().find_type("id")) == "long"
    assert table.schema().find_field("id").required
    assert str(table.schema().find_type("tags")) == "list<string>"


def test_property_values_become_text(catalog: Catalog, schema: Schema) -> None:
    properties = {"answer": 42, "on": True}
    table = catalog.create_table(TABLE, schema, properties=properties)  # type: ignore[arg-type]
    assert catalog.load_table(TABLE).properties == table.properties
    assert table.properties["answer"] == "42"
    assert table.properties["on"] == "true"


def test_a_property_needs_a_value(catalog: Catalog, schema: Schema) -> None:
    properties = {"nothing": None}
    with pytest.raises(ValidationError, match="None type is not a supported value in properties: nothing"):
        catalog.create_table(TABLE, schema, properties=properties)  # type: ignore[arg-type]
    assert not catalog.table_exists(TABLE)


def test_a_location_in_the_warehouse_is_taken_as_given(catalog: Catalog, schema: Schema, warehouse: Path) -> None:
    location = f"file://{warehouse}/chosen/place"
    table = catalog.create_table(TABLE, schema, location=location + "/")
    assert table.location() == location
    assert table.metadata_location.startswith(f"{location}/metadata/")
    assert catalog.load_table(TABLE) == table


def test_a_location_outside_of_the_lakehouse_is_refused(catalog: Catalog, schema: Schema, tmp_path: Path) -> None:
    location = f"file://{tmp_path}/elsewhere"
    if is_ours(catalog):
        # A managed table must be below the root, because versions, rollback and expiry apply to its files.
        with pytest.raises(tl.InvalidLocation, match="outside of the lakehouse"):
            catalog.create_table(TABLE, schema, location=location)
        with pytest.raises(tl.InvalidLocation, match="outside of the lakehouse"):
            catalog.create_table_transaction(TABLE, schema, location=location)
        assert not catalog.table_exists(TABLE)
    else:
        assert catalog.create_table(TABLE, schema, location=location).location() == location


def test_listing_names_the_tables_of_exactly_one_namespace(catalog: Catalog, schema: Schema) -> None:
    catalog.create_namespace(("sales", "eu", "old"))
    catalog.create_table(TABLE, schema)
    catalog.create_table(OTHER, schema)
    catalog.create_table(("sales", "eu", "old", "orders"), schema)
    assert catalog.list_tables(TABLE[:-1]) == [TABLE]
    assert catalog.list_tables("archive") == [OTHER]
    assert catalog.list_tables("sales.eu.old") == [("sales", "eu", "old", "orders")]
    assert catalog.list_tables("sales") == []


def test_listing_needs_the_namespace(catalog: Catalog) -> None:
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nowhere")


def test_a_rename_moves_a_table_to_another_namespace(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    table.append(rows)
    renamed = catalog.rename_table(table.name(), OTHER)
    assert renamed.name() == OTHER
    loaded = catalog.load_table(OTHER)
    assert loaded.name() == OTHER
    assert loaded.metadata_location == table.metadata_location
    assert loaded.metadata.table_uuid == table.metadata.table_uuid
    with pytest.raises(NoSuchTableError):
        catalog.load_table(TABLE)
    loaded.append(rows)
    assert catalog.load_table(OTHER).scan().to_arrow().num_rows == 4


def test_a_rename_does_not_replace_a_table(catalog: Catalog, schema: Schema) -> None:
    old, new = catalog.create_table(TABLE, schema), catalog.create_table(OTHER, schema)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(TABLE, OTHER)
    assert catalog.load_table(TABLE) == old
    assert catalog.load_table(OTHER) == new


def test_a_rename_needs_the_table_and_the_namespace(catalog: Catalog, schema: Schema) -> None:
    with pytest.raises(NoSuchTableError):
        catalog.rename_table(TABLE, OTHER)
    catalog.create_table(TABLE, schema)
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table(TABLE, ("nowhere", "orders"))
    assert catalog.table_exists(TABLE)


def test_a_dropped_table_is_gone(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    catalog.drop_table(table.name())
    for identifier in (TABLE, table.name()):
        with pytest.raises(NoSuchTableError):
            catalog.load_table(identifier)
    assert catalog.list_tables(TABLE[:-1]) == []


def test_a_dropped_name_can_be_used_again(catalog: Catalog, schema: Schema) -> None:
    first = catalog.create_table(TABLE, schema)
    catalog.drop_table(TABLE)
    second = catalog.create_table(TABLE, schema)
    assert second.metadata.table_uuid != first.metadata.table_uuid
    assert catalog.load_table(TABLE) == second


def test_a_purged_table_is_gone(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    catalog.purge_table(TABLE)
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: sales.eu.orders")):
        catalog.load_table(TABLE)
    # The files stay until the older versions that have the table expire.
    assert local_path(table.metadata_location).exists() is (is_ours(catalog) and not is_in_transaction(catalog))


def test_server_side_planning_is_not_offered(catalog: Catalog) -> None:
    assert not catalog.supports_server_side_planning()
