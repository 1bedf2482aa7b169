"""Views, and tables whose metadata file exists already. SqlCatalog has no views, so these have no oracle."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, load

ROWS = pa.table({"id": [1, 2, 3]})


def view_of(sql: str) -> ViewVersion:
    representation = ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect="spark"))
    return ViewVersion.model_validate(
        {"version-id": 1, "schema-id": 0, "representations": [representation], "default-namespace": ("shop",)}
    )


@pytest.fixture
def ours(tmp_path: Path) -> TrinityLakeCatalog:
    """Our catalog with an empty namespace."""
    catalog = load(tl.create(str(tmp_path / "lake"), durability="none"))
    catalog.create_namespace("shop")
    return catalog


def test_a_view_lives_from_creation_to_drop(ours: TrinityLakeCatalog) -> None:
    created = ours.create_view("shop.busy", ROWS.schema, view_of("SELECT id FROM orders"), properties={"a": "b"})
    loaded = ours.load_view("shop.busy")
    assert loaded == created
    assert loaded.schema().column_names == ["id"]
    assert loaded.current_version().default_namespace == ("shop",)
    assert loaded.properties == {"a": "b"}
    representation = loaded.sql_for("SPARK")
    assert representation is not None
    assert representation.sql == "SELECT id FROM orders"
    assert ours.list_views("shop") == [("shop", "busy")]
    assert ours.list_tables("shop") == []
    with pytest.raises(NamespaceNotEmptyError):
        ours.drop_namespace("shop")
    ours.drop_view("shop.busy")
    assert not ours.view_exists("shop.busy")
    with pytest.raises(NoSuchViewError):
        ours.load_view("shop.busy")
    with pytest.raises(NoSuchViewError):
        ours.drop_view("shop.busy")


def test_views_and_tables_share_their_names(ours: TrinityLakeCatalog) -> None:
    ours.create_view("shop.busy", ROWS.schema, view_of("SELECT 1"))
    ours.create_table("shop.orders", ROWS.schema)
    with pytest.raises(ViewAlreadyExistsError):
        ours.create_view("shop.busy", ROWS.schema, view_of("SELECT 2"))
    with pytest.raises(TableAlreadyExistsError):
        ours.create_view("shop.orders", ROWS.schema, view_of("SELECT 2"))
    with pytest.raises(TableAlreadyExistsError):
        ours.create_table("shop.busy", ROWS.schema)
    with pytest.raises(TableAlreadyExistsError):
        ours.rename_table("shop.orders", "shop.busy")
    with pytest.raises(NoSuchNamespaceError):
        ours.create_view("none.busy", ROWS.schema, view_of("SELECT 1"))
    with pytest.raises(NoSuchNamespaceError):
        ours.list_views("none")


def test_a_view_of_the_lakehouse_is_a_view_of_the_catalog(ours: TrinityLakeCatalog) -> None:
    assert isinstance(ours.source, tl.Lakehouse)
    ours.source.create_view("shop.plain", "SELECT 1", schema=ROWS.schema)
    ours.create_view("shop.busy", ROWS.schema, view_of("SELECT 1"))
    ours.source.replace_view("shop.busy", "SELECT 2")
    plain, busy = (ours.load_view(name).sql_for("spark") for name in ("shop.plain", "shop.busy"))
    assert plain is not None
    assert plain.sql == "SELECT 1"
    assert busy is not None
    assert busy.sql == "SELECT 2"
    assert len(ours.load_view("shop.busy").versions) == 2


def test_metadata_inside_becomes_a_managed_table(ours: TrinityLakeCatalog) -> None:
    table = ours.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    ours.drop_table("shop.orders")
    back = ours.register_table("shop.back", table.metadata_location)
    back.append(ROWS)
    assert ours.load_table("shop.back").scan().count() == 6
    assert back.metadata.table_uuid == table.metadata.table_uuid
    with pytest.raises(TableAlreadyExistsError):
        ours.register_table("shop.back", table.metadata_location)
    ours.register_table("shop.back", table.metadata_location, overwrite=True)
    assert ours.load_table("shop.back").scan().count() == 3


def test_metadata_elsewhere_becomes_a_read_only_table(ours: TrinityLakeCatalog, tmp_path: Path) -> None:
    there = SqlCatalog("there", uri=f"sqlite:///{tmp_path}/there.db", warehouse=f"file://{tmp_path}/there")
    there.create_namespace("n")
    source = there.create_table("n.t", ROWS.schema)
    source.append(ROWS)
    table = ours.register_table("shop.external", source.metadata_location)
    assert table.scan().count() == 3
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        table.append(ROWS)
    source.append(ROWS)
    assert ours.load_table("shop.external").scan().count() == 3
    there.close()


def test_a_bad_metadata_file_is_not_registered(ours: TrinityLakeCatalog, tmp_path: Path) -> None:
    bad = tmp_path / "lake" / "bad.metadata.json"
    bad.write_text("{}")
    with pytest.raises(tl.CorruptFile):
        ours.register_table("shop.bad", f"file://{bad}")
    with pytest.raises(FileNotFoundError):
        ours.register_table("shop.bad", f"file://{tmp_path}/lake/none.metadata.json")
    with pytest.raises(tl.InvalidLocation):
        ours.register_table("shop.bad", f"file://{tmp_path}/elsewhere/none.metadata.json")
    assert ours.list_tables("shop") == []
