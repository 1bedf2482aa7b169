"""PyIceberg's REST catalog as a client."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import trinitylake as tl

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
VERSION = ViewVersion(
    **{
        "version-id": 1,
        "schema-id": 0,
        "representations": [
            ViewRepresentation(SQLViewRepresentation(type="sql", sql="SELECT 1 AS id", dialect="spark"))
        ],
        "default-namespace": ("shop",),
    }
)
COLUMNS = Schema(NestedField(1, "id", LongType(), required=False))


def test_namespaces_nest_and_have_properties(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_namespace("shop", {"owner": "ana"})
    catalog.create_namespace(("shop", "till", "one"))
    assert catalog.list_namespaces() == [("shop",)]
    assert catalog.list_namespaces("shop") == [("shop", "till")]
    assert catalog.load_namespace_properties("shop").items() >= {("owner", "ana")}
    summary = catalog.update_namespace_properties("shop", {"owner", "none"}, {"city": "Bern"})
    assert (summary.removed, summary.updated, summary.missing) == (["owner"], ["city"], ["none"])
    assert catalog.namespace_exists(("shop", "till", "one"))
    assert not catalog.namespace_exists("mall")
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("shop")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("shop")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_namespaces("mall")
    catalog.drop_namespace(("shop", "till", "one"))
    assert lake.namespaces() == ["shop"]


def test_append_to_a_table_without_uuid(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    """An append to a table of format version 1 without `table-uuid` succeeds. The server sends a UUID, because a client
    without one makes a random UUID, which no commit can match."""
    lake.create_namespace("shop")
    lake.create_table("shop.s", ROWS, properties={"format-version": "1"}).append(ROWS)
    source = Path(lake.table("shop.s").iceberg.metadata_location.removeprefix("file://"))
    content = json.loads(source.read_bytes())
    del content["table-uuid"]
    given = source.with_name(f"given-{source.name}")
    given.write_text(json.dumps(content))
    lake.register({"kind": ["table"], "namespace": ["shop"], "name": ["t"], "metadata_location": [given.as_uri()]})
    table = catalog.load_table("shop.t")
    table.append(ROWS)
    assert catalog.load_table("shop.t").metadata.table_uuid == table.metadata.table_uuid
    assert lake.table("shop.t").count() == 2 * ROWS.num_rows


def test_a_table_is_created_written_read_and_dropped(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS.schema, properties={"a": "b"})
    table.append(ROWS)
    table.append(ROWS.slice(0, 1))
    assert catalog.load_table("shop.orders").scan().to_arrow().num_rows == 4
    assert lake.table("shop.orders").scan().to_arrow().num_rows == 4
    assert catalog.list_tables("shop") == [("shop", "orders")]
    assert catalog.table_exists("shop.orders")
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("shop.orders", ROWS.schema)
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("mall.orders", ROWS.schema)
    before = lake.version
    catalog.purge_table("shop.orders")
    assert not catalog.table_exists("shop.orders")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("shop.orders")
    assert lake.at(before).table("shop.orders").scan().to_arrow().num_rows == 4  # earlier versions are readable


def test_schema_partitions_and_properties_change(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    with table.update_schema() as update:
        update.add_column("price", DoubleType())
        update.rename_column("name", "title")
    with table.update_spec() as spec:
        spec.add_identity("title")
    with table.transaction() as transaction:
        transaction.set_properties({"color": "red"})
    again = catalog.load_table("shop.orders")
    assert again.schema().column_names == ["id", "title", "price"]
    assert [field.name for field in again.spec().fields] == ["title"]
    assert again.properties["color"] == "red"
    assert [column.name for column in lake.table("shop.orders").schema.columns] == ["id", "title", "price"]
    again.append(pa.table({"id": pa.array([9], pa.int64()), "title": ["z"], "price": [1.5]}))
    assert catalog.load_table("shop.orders").scan(row_filter="price > 1").to_arrow()["id"].to_pylist() == [9]


def test_a_staged_table_appears_when_it_is_committed(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_namespace("shop")
    before = lake.version
    with catalog.create_table_transaction("shop.orders", ROWS.schema) as transaction:
        transaction.set_properties({"color": "red"})
        with transaction.update_snapshot().fast_append():
            pass
        assert lake.version == before
        assert not lake.exists("shop.orders")
    assert lake.version == before + 1
    assert lake.table("shop.orders").properties["color"] == "red"


def test_the_log_contains_the_rows_of_a_new_table(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    """The log entry of Spark's `CREATE TABLE … AS` contains the number of rows."""
    catalog.create_namespace("shop")
    with catalog.create_table_transaction("shop.orders", ROWS.schema) as transaction:
        transaction.append(ROWS)
    assert lake.log(1)[0].summary == "create table shop.orders +3 rows"
    catalog.load_table("shop.orders").append(ROWS)
    assert lake.log(1)[0].summary == "append +3 rows shop.orders"


def test_a_table_is_renamed_into_another_namespace(catalog: RestCatalog) -> None:
    catalog.create_namespace("shop")
    catalog.create_namespace("mall")
    catalog.create_table("shop.orders", ROWS.schema).append(ROWS)
    catalog.rename_table("shop.orders", "mall.sales")
    assert catalog.list_tables("shop") == []
    assert catalog.load_table("mall.sales").scan().to_arrow().num_rows == 3
    catalog.create_table("shop.orders", ROWS.schema)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("shop.orders", "mall.sales")
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("shop.none", "mall.new")


def test_a_dropped_table_is_registered_again(catalog: RestCatalog) -> None:
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    location = catalog.load_table("shop.orders").metadata_location
    catalog.drop_table("shop.orders")
    assert catalog.register_table("shop.found", location).scan().to_arrow().num_rows == 3
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("shop.found", location)


def test_a_stale_writer_gets_a_conflict(catalog: RestCatalog) -> None:
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", ROWS.schema).append(ROWS)
    stale = catalog.load_table("shop.orders")
    with catalog.load_table("shop.orders").update_schema() as update:
        update.add_column("price", DoubleType())
    with pytest.raises(CommitFailedException), stale.update_schema() as update:
        update.add_column("price", LongType())
    assert str(catalog.load_table("shop.orders").schema().find_type("price")) == "double"


def test_views_are_created_listed_and_dropped(catalog: RestCatalog, lake: tl.Lakehouse) -> None:
    catalog.create_namespace("shop")
    catalog.create_view("shop.busy", COLUMNS, VERSION, properties={"owner": "ana"})
    assert catalog.list_views("shop") == [("shop", "busy")]
    assert catalog.view_exists("shop.busy")
    view = catalog.load_view("shop.busy")
    assert view.metadata.properties == {"owner": "ana"}
    assert view.current_version().representations[0].root.sql == "SELECT 1 AS id"
    assert lake.view("shop.busy").sql == "SELECT 1 AS id"
    with pytest.raises(ViewAlreadyExistsError):
        catalog.create_view("shop.busy", COLUMNS, VERSION)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("shop.busy", ROWS.schema)
    catalog.drop_view("shop.busy")
    with pytest.raises(NoSuchViewError):
        catalog.drop_view("shop.busy")
