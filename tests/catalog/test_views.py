"""Views through the catalog, compared with the same views through the lakehouse's own API."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from orders import SCHEMA
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError, TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import ViewVersion

import trinitylake as tl
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg import TrinityLakeCatalog, load
from trinitylake.iceberg_storage.view_metadata import PROPERTY

VIEW = ("sales", "eu", "unpaid")
COLUMNS = Schema(NestedField(7, "id", LongType(), required=True, doc="the key"))


def version(sql: str = "SELECT id FROM orders WHERE NOT paid", **more: object) -> ViewVersion:
    return ViewVersion.model_validate(
        {
            "version-id": 1,
            "schema-id": 1,
            "timestamp-ms": 1_700_000_000_000,
            "summary": {"engine": "test"},
            "representations": [
                {"type": "sql", "sql": sql, "dialect": "spark"},
                {"type": "sql", "sql": sql + " -- trino", "dialect": "trino"},
            ],
            "default-catalog": "lake",
            "default-namespace": ["sales", "eu"],
            **more,
        }
    )


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    return tl.create(str(tmp_path / "lake"), order=5, durability="none")


@pytest.fixture(params=["latest", "transaction"])
def catalog(request: pytest.FixtureRequest, lake: tl.Lakehouse) -> TrinityLakeCatalog:
    catalog = load(lake) if request.param == "latest" else load(transaction=lake.begin())
    catalog.create_namespace("sales.eu")
    return catalog


def test_a_created_view_can_be_loaded(catalog: TrinityLakeCatalog) -> None:
    created = catalog.create_view(VIEW, COLUMNS, version(), properties={"owner": "ops", "tries": 3})
    view = catalog.load_view("sales.eu.unpaid")
    assert view == created
    assert view.name() == VIEW
    assert view.current_version() == version()
    assert view.history()[0].timestamp_ms == 1_700_000_000_000
    assert view.properties == {"owner": "ops", "tries": "3"}
    assert view.location().startswith("file:///")
    representation = view.sql_for("TRINO")
    assert representation is not None
    assert representation.sql.endswith("-- trino")
    (column,) = view.schema().fields
    assert (column.field_id, column.name, column.required, column.doc) == (1, "id", True, "the key")
    assert view.schema().schema_id == 1


def test_an_arrow_schema_and_a_location_can_be_given(catalog: TrinityLakeCatalog) -> None:
    arrow = pa.schema([pa.field("id", pa.int64())])
    folder = f"{catalog.file_io().root}chosen/views"
    view = catalog.create_view(VIEW, arrow, version(), location=f"{folder}/")
    assert view.location() == folder
    assert view.schema().column_names == ["id"]
    assert catalog.load_view(VIEW) == view


def test_a_location_outside_of_the_lakehouse_is_refused(catalog: TrinityLakeCatalog) -> None:
    for location in ["s3://anywhere/views", "file:///elsewhere", "{root}_version", "{root}a/../../b"]:
        with pytest.raises(InvalidLocation):
            catalog.create_view(VIEW, COLUMNS, version(), location=location.format(root=catalog.file_io().root))
        assert not catalog.view_exists(VIEW), location


def test_views_are_listed_and_dropped(catalog: TrinityLakeCatalog) -> None:
    assert catalog.list_views("sales.eu") == []
    catalog.create_view(VIEW, COLUMNS, version())
    catalog.create_table(("sales", "eu", "orders"), SCHEMA)
    assert catalog.list_views("sales.eu") == [VIEW]
    assert catalog.list_tables("sales.eu") == [("sales", "eu", "orders")]
    assert catalog.list_views("sales") == []
    assert catalog.view_exists(VIEW)
    assert not catalog.table_exists(VIEW)
    assert not catalog.view_exists(("sales", "eu", "orders"))
    catalog.drop_view(VIEW)
    assert not catalog.view_exists(VIEW)
    assert catalog.list_views("sales.eu") == []


def test_missing_objects_are_not_found(catalog: TrinityLakeCatalog) -> None:
    for identifier in (VIEW, "unpaid", ("sales", "eu", "x" * 500)):
        with pytest.raises(NoSuchViewError):
            catalog.load_view(identifier)
        with pytest.raises(NoSuchViewError):
            catalog.drop_view(identifier)
        assert not catalog.view_exists(identifier)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_views("nowhere")
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_view(("nowhere", "unpaid"), COLUMNS, version())


def test_tables_and_views_share_their_names(catalog: TrinityLakeCatalog) -> None:
    catalog.create_view(VIEW, COLUMNS, version())
    with pytest.raises(ViewAlreadyExistsError):
        catalog.create_view(VIEW, COLUMNS, version())
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(VIEW, SCHEMA)
    catalog.create_table(("sales", "eu", "orders"), SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_view(("sales", "eu", "orders"), COLUMNS, version())
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(("sales", "eu", "orders"), VIEW)


def test_a_view_needs_sql_in_distinct_dialects(catalog: TrinityLakeCatalog) -> None:
    twice = [{"type": "sql", "sql": "SELECT 1", "dialect": dialect} for dialect in ("spark", "Spark")]
    with pytest.raises(tl.InvalidArgument, match="two texts in the dialect"):
        catalog.create_view(VIEW, COLUMNS, version(representations=twice))
    with pytest.raises(tl.InvalidArgument):
        catalog.create_view(VIEW, COLUMNS, version(representations=[]))
    with pytest.raises(tl.InvalidArgument, match="reserved"):
        catalog.create_view(VIEW, COLUMNS, version(), properties={PROPERTY: "{}"})
    assert not catalog.view_exists(VIEW)


def test_the_lakehouse_shows_the_same_view(lake: tl.Lakehouse) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    created = catalog.create_view(VIEW, COLUMNS, version(), properties={"owner": "ops"})
    view = lake.view("sales.eu.unpaid")
    assert view.id == str(created.uuid())
    assert list(view.representations) == ["spark", "trino"]
    assert view.sql == "SELECT id FROM orders WHERE NOT paid"
    assert view.default_namespace == "sales.eu"
    assert view.properties == {"owner": "ops"}
    assert view.schema is not None
    assert view.schema.names == ("id",)


def test_a_view_of_the_lakehouse_shows_in_the_catalog(lake: tl.Lakehouse) -> None:
    lake.create_namespace("sales")
    made = lake.create_view("sales.unpaid", "SELECT 1 AS one", dialect="duckdb", properties={"owner": "ops"})
    view = load(lake).load_view("sales.unpaid")
    # Compared as text, because PyIceberg's schema without columns does not equal itself.
    assert view.metadata.model_dump_json() == load(lake).load_view("sales.unpaid").metadata.model_dump_json()
    assert str(view.uuid()) == made.id
    assert view.current_version().version_id == 1
    representation = view.sql_for("duckdb")
    assert representation is not None
    assert representation.sql == "SELECT 1 AS one"
    assert view.schema().fields == ()
    assert view.properties == {"owner": "ops"}
    assert view.location().startswith(lake.uri + "sales/unpaid-")


def test_replacing_the_text_in_the_lakehouse_adds_a_version(lake: tl.Lakehouse) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    catalog.create_view(VIEW, COLUMNS, version(), location=f"{lake.uri}chosen/views")
    lake.replace_view("sales.eu.unpaid", "SELECT id, name FROM orders", schema={"id": "bigint", "name": "varchar"})
    view = catalog.load_view(VIEW)
    assert [one.version_id for one in view.versions] == [1, 2]
    assert [entry.version_id for entry in view.history()] == [1, 2]
    assert view.current_version().version_id == 2
    assert view.schema().column_names == ["id", "name"]
    first = view.version(1)
    assert first is not None
    assert view.schemas()[first.schema_id].column_names == ["id"]
    assert view.location() == f"{lake.uri}chosen/views"


def test_replacing_the_properties_in_the_lakehouse_keeps_the_versions(lake: tl.Lakehouse) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    created = catalog.create_view(VIEW, COLUMNS, version(), properties={"owner": "ops", "tier": "gold"})
    lake.replace_view("sales.eu.unpaid", properties={"owner": "sales"})
    view = catalog.load_view(VIEW)
    assert view.properties == {"owner": "sales"}
    assert view.versions == created.versions
    assert lake.view("sales.eu.unpaid").properties == {"owner": "sales"}


def test_a_renamed_view_keeps_its_metadata(lake: tl.Lakehouse) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    created = catalog.create_view(VIEW, COLUMNS, version())
    lake.create_namespace("archive")
    lake.rename_view("sales.eu.unpaid", "archive.unpaid_2020")
    renamed = catalog.load_view("archive.unpaid_2020")
    assert renamed.metadata == created.metadata
    assert renamed.name() == ("archive", "unpaid_2020")


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_view_can_be_registered_from_its_metadata_file(lake: tl.Lakehouse, tmp_path: Path, place: str) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    created = catalog.create_view(VIEW, COLUMNS, version(), properties={"owner": "ops"})
    catalog.drop_view(VIEW)
    file = tmp_path / ("lake/kept" if place == "inside" else "kept") / "00000.gz.metadata.json"
    file.parent.mkdir()
    file.write_text(created.metadata.model_dump_json())
    view = catalog.register_view(VIEW, f"file://{file}")
    file.unlink()
    assert view == created
    assert catalog.load_view(VIEW) == created


def test_a_file_that_is_no_view_cannot_be_registered(lake: tl.Lakehouse, tmp_path: Path) -> None:
    catalog = load(lake)
    catalog.create_namespace("sales.eu")
    (tmp_path / "bad.metadata.json").write_text('{"view-uuid": 1}')
    with pytest.raises(tl.CorruptFile, match=r"bad\.metadata\.json"):
        catalog.register_view(VIEW, f"file://{tmp_path}/bad.metadata.json")
    with pytest.raises(FileNotFoundError):
        catalog.register_view(VIEW, f"file://{tmp_path}/missing.metadata.json")
    assert not catalog.view_exists(VIEW)


def test_damaged_metadata_of_a_view_names_its_file(lake: tl.Lakehouse) -> None:
    from trinitylake.definitions import new_view_def, serialize

    lake.create_namespace("sales")
    definition = new_view_def({"spark": "SELECT 1"}, properties={PROPERTY: '{"versions": 7}'})
    with lake.transaction() as transaction:
        transaction._state().create("view", "sales", "broken", serialize(definition))
    with pytest.raises(tl.CorruptFile, match="Iceberg metadata of the view") as failure:
        load(lake).load_view("sales.broken")
    assert failure.value.path.endswith(".binpb")
