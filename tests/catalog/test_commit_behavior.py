"""Commits to tables through a catalog behave as in PyIceberg: data, schemas, properties, requirements."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from catalogs import is_in_transaction, is_ours
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import trinitylake as tl
from local_files import local_path

TABLE = ("sales", "orders")


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace("sales")


def file_version(catalog: Catalog, uri: str) -> int:
    return catalog._parse_metadata_version(uri)  # type: ignore[attr-defined,no-any-return]


# Data


def test_appended_rows_can_be_read(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    table.append(rows)
    (snapshot,) = table.metadata.snapshots
    assert snapshot.snapshot_id == table.metadata.current_snapshot_id
    assert snapshot.parent_snapshot_id is None
    assert snapshot.sequence_number == 1
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.APPEND
    counts = ("added-data-files", "added-records", "total-data-files", "total-records")
    assert [snapshot.summary[name] for name in counts] == ["1", "2", "1", "2"]
    assert table.scan().to_arrow() == rows
    loaded = catalog.load_table(TABLE)
    assert loaded == table
    assert loaded.scan().to_arrow() == rows


def test_each_commit_logs_the_metadata_file_before(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    first, updated = table.metadata_location, table.metadata.last_updated_ms
    table.append(rows)
    if is_in_transaction(catalog):  # all changes of a transaction have one metadata file
        assert table.metadata.metadata_log == []
        return
    assert file_version(catalog, table.metadata_location) == 1
    (entry,) = table.metadata.metadata_log
    assert (entry.metadata_file, entry.timestamp_ms) == (first, updated)
    assert local_path(first).exists()
    table.append(rows)
    assert [file_version(catalog, one.metadata_file) for one in table.metadata.metadata_log] == [0, 1]


@pytest.mark.parametrize("format_version", [1, 2])
def test_one_transaction_evolves_appends_overwrites_and_deletes(catalog: Catalog, format_version: int) -> None:
    narrow = pa.table({"foo": pa.array(["a", None, "z"], pa.large_string())})
    wide = narrow.append_column("bar", pa.array([19, None, 25], pa.int32()))
    table = catalog.create_table(TABLE, narrow.schema, properties={"format-version": str(format_version)})
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.union_by_name(wide.schema)
        transaction.append(wide)
        transaction.overwrite(wide)
        transaction.delete("foo = 'a'")
    assert catalog.load_table(TABLE).scan().to_arrow().to_pydict() == {"foo": [None, "z"], "bar": [None, 25]}


def test_rows_can_be_deleted_overwritten_and_upserted(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    table.append(rows)
    table.delete("id = 1")
    assert table.scan().to_arrow()["id"].to_pylist() == [2]
    table.overwrite(rows.slice(0, 1))
    assert table.scan().to_arrow()["name"].to_pylist() == ["ann"]
    upper = pa.array(["ANN", "BOB"], rows.schema.field("name").type)
    result = table.upsert(rows.set_column(0, rows.schema.field("name"), upper))
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert sorted(catalog.load_table(TABLE).scan().to_arrow()["name"].to_pylist()) == ["ANN", "BOB"]


@pytest.mark.parametrize("format_version", [1, 2])
def test_manifests_are_merged_when_the_table_asks_for_it(
    catalog: Catalog, schema: Schema, rows: pa.Table, format_version: int
) -> None:
    properties = {
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "2",
        "format-version": str(format_version),
    }
    table = catalog.create_table(TABLE, schema, properties=properties)
    for _ in range(5):
        table.append(rows)
    assert table.scan().to_arrow().num_rows == 10
    snapshot = table.current_snapshot()
    assert snapshot is not None
    # The newest files keep a separate manifest, so that an append can be rebased after a lost race.
    assert len(snapshot.manifests(table.io)) == (2 if is_ours(catalog) else 1)


def test_branches_and_tags_are_kept(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    table.append(rows)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "audited").create_branch(head.snapshot_id, "draft").commit()
    table.append(rows, branch="draft")
    loaded = catalog.load_table(TABLE)
    assert loaded.scan().to_arrow().num_rows == 2
    assert loaded.scan().use_ref("draft").to_arrow().num_rows == 4
    assert loaded.metadata.refs["audited"].snapshot_id == head.snapshot_id


# Schemas and properties


def test_an_added_column_shows_in_the_table(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    table.update_schema().add_column("first", IntegerType()).commit()
    assert table.schema().schema_id == 1
    with table.update_schema() as update:
        update.add_column("second", IntegerType(), doc="the other one")
    with table.transaction() as transaction:
        transaction.update_schema().add_column("third", LongType()).commit()
    added = (
        NestedField(4, "first", IntegerType(), required=False),
        NestedField(5, "second", IntegerType(), required=False, doc="the other one"),
        NestedField(6, "third", LongType(), required=False),
    )
    assert table.schema() == Schema(*schema.fields, *added, identifier_field_ids=[2])
    assert table.schema().schema_id == 3
    assert len(table.metadata.schemas) == 4
    assert catalog.load_table(TABLE).schema() == table.schema()


def test_a_schema_can_be_committed_without_requirements(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    changed = Schema(*schema.fields, NestedField(4, "more", LongType()), schema_id=1)
    response = table.catalog.commit_table(table, (), (AddSchemaUpdate(schema=changed), SetCurrentSchemaUpdate()))
    assert response.metadata.table_uuid == table.metadata.table_uuid
    assert response.metadata.schemas[1] == changed
    assert response.metadata.current_schema_id == changed.schema_id
    assert catalog.load_table(TABLE).metadata == response.metadata
    assert catalog.load_table(TABLE).metadata_location == response.metadata_location


def test_properties_can_be_set_and_removed(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema, properties={"owner": "ops", "tier": "gold"})
    with table.transaction() as transaction:
        transaction.set_properties(owner="sales", year=2026)
        transaction.remove_properties("tier")
    assert table.properties["owner"] == "sales"
    assert table.properties["year"] == "2026"
    assert "tier" not in catalog.load_table(TABLE).properties


def test_a_commit_that_changes_nothing_leaves_the_table(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    response = catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), ())
    assert response.metadata_location == table.metadata_location
    assert catalog.load_table(TABLE).metadata_location == table.metadata_location


def test_the_path_of_metadata_can_be_chosen(catalog: Catalog, schema: Schema, rows: pa.Table, warehouse: Path) -> None:
    table = catalog.create_table(TABLE, schema)
    assert table.location_provider().new_metadata_location("x") == f"{table.location()}/metadata/x"
    inside, beside = f"{table.location()}/own/metadata", f"file://{warehouse}/custom/path"
    table.transaction().set_properties({TableProperties.WRITE_METADATA_PATH: inside}).commit_transaction()
    table.append(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list.startswith(inside)
    assert all(manifest.manifest_path.startswith(inside) for manifest in snapshot.manifests(table.io))
    assert catalog.load_table(TABLE).scan().to_arrow() == rows
    change = table.transaction().set_properties({TableProperties.WRITE_METADATA_PATH: beside})
    if is_ours(catalog):  # access to a table covers its folder only
        with pytest.raises(tl.InvalidLocation, match="outside of the table"):
            change.commit_transaction()
        with pytest.raises(tl.InvalidLocation, match="outside of the table"):
            catalog.create_table(("sales", "other"), schema, properties={TableProperties.WRITE_METADATA_PATH: beside})
    else:
        change.commit_transaction()
        assert table.metadata_location.startswith(beside)


def test_old_metadata_files_are_kept_while_a_version_references_them(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    first = table.metadata_location
    keep = {
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "2",
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    }
    table.transaction().set_properties(keep).commit_transaction()
    for number in range(4):
        table.update_schema().add_column(f"column_{number}", IntegerType()).commit()
    if is_in_transaction(catalog):
        return
    assert [file_version(catalog, one.metadata_file) for one in table.metadata.metadata_log] == [3, 4]
    # The first file stays despite the property of the table, because older versions of the lakehouse read it.
    assert local_path(first).exists() is is_ours(catalog)


# Creation in a transaction


@pytest.mark.parametrize("format_version", [1, 2])
def test_a_table_can_be_created_with_its_rows(catalog: Catalog, format_version: int) -> None:
    narrow = pa.table({"foo": pa.array(["a", None, "z"], pa.large_string())})
    wide = narrow.append_column("bar", pa.array([19, None, 25], pa.int32()))
    properties = {"format-version": str(format_version)}
    with catalog.create_table_transaction(TABLE, narrow.schema, properties=properties) as transaction:
        for rows in (narrow, wide):
            with transaction.update_schema() as update:
                update.union_by_name(rows.schema)
            with transaction.update_snapshot().fast_append() as append:
                for file in _dataframe_to_data_files(transaction.table_metadata, rows, transaction._table.io):
                    append.append_data_file(file)
        assert not catalog.table_exists(TABLE)
    table = catalog.load_table(TABLE)
    assert table.format_version == format_version
    assert table.scan().to_arrow().num_rows == 6
    assert table.scan().to_arrow()["bar"].null_count == 4
    assert file_version(catalog, table.metadata_location) == 0
    table.append(wide)
    assert catalog.load_table(TABLE).scan().to_arrow().num_rows == 9


def test_an_abandoned_creation_leaves_no_table(catalog: Catalog, schema: Schema) -> None:
    with pytest.raises(RuntimeError), catalog.create_table_transaction(TABLE, schema):
        raise RuntimeError
    assert not catalog.table_exists(TABLE)
    assert catalog.list_tables("sales") == []


def test_a_creation_does_not_replace_a_table(catalog: Catalog, schema: Schema) -> None:
    creation = catalog.create_table_transaction(TABLE, schema)
    table = catalog.create_table(TABLE, schema)
    with pytest.raises(CommitFailedException, match="Table already exists"):
        creation.commit_transaction()
    assert catalog.load_table(TABLE) == table
    if is_ours(catalog):  # raised at once, as by a REST server
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table_transaction(TABLE, schema)


# Requirements


def test_the_second_of_two_schema_changes_fails(catalog: Catalog, schema: Schema) -> None:
    one, other = catalog.create_table(TABLE, schema), catalog.load_table(TABLE)
    with one.update_schema() as update:
        update.add_column("mine", IntegerType())
    message = "Requirement failed: current schema id has changed: expected 0, found 1"
    with pytest.raises(CommitFailedException, match=message), other.update_schema() as update:
        update.add_column("yours", IntegerType())
    assert catalog.load_table(TABLE).schema().column_names == ["name", "id", "paid", "mine"]
    other.refresh()
    with other.update_schema() as update:
        update.add_column("yours", IntegerType())
    assert other.schema().column_names == ["name", "id", "paid", "mine", "yours"]


def test_requirements_are_checked_against_the_current_table(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    stale = catalog.create_table(TABLE, schema)
    catalog.load_table(TABLE).append(rows)
    head = catalog.load_table(TABLE).metadata.current_snapshot_id
    change = (SetPropertiesUpdate(updates={"a": "b"}),)
    failing = [
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": None}),
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": 17}),
        AssertCurrentSchemaId.model_validate({"current-schema-id": 1}),
        AssertTableUUID(uuid="00000000-0000-4000-8000-000000000000"),
        AssertCreate(),
    ]
    for requirement in failing:
        with pytest.raises(CommitFailedException):
            catalog.commit_table(stale, (requirement,), change)
    assert "a" not in catalog.load_table(TABLE).properties
    holding = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": head})
    catalog.commit_table(stale, (holding,), change)
    assert catalog.load_table(TABLE).properties["a"] == "b"
    assert catalog.load_table(TABLE).scan().to_arrow() == rows


def test_invalid_updates_are_refused(catalog: Catalog, schema: Schema) -> None:
    table = catalog.create_table(TABLE, schema)
    with pytest.raises(ValueError, match="99"):
        catalog.commit_table(table, (), (SetCurrentSchemaUpdate(schema_id=99),))
    assert catalog.load_table(TABLE) == table


def test_a_stale_handle_appends_to_the_current_table(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    one, other = catalog.create_table(TABLE, schema), catalog.load_table(TABLE)
    one.append(rows)
    with one.update_schema() as update:
        update.add_column("more", StringType())
    other.append(rows)
    assert other.schema().column_names == ["name", "id", "paid", "more"]
    assert other.scan().to_arrow().num_rows == 4
    first, second = catalog.load_table(TABLE).metadata.snapshots
    assert second.parent_snapshot_id == first.snapshot_id
    assert second.sequence_number == 2


def test_a_stale_handle_does_not_delete_unseen_rows(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    table.append(rows)
    stale = catalog.load_table(TABLE)
    table.append(rows.slice(0, 1))
    with pytest.raises((CommitFailedException, ValidationException)):
        stale.delete(EqualTo("id", 1))
    assert catalog.load_table(TABLE).scan().to_arrow().num_rows == 3


def test_a_handle_of_a_dropped_table_writes_nothing(catalog: Catalog, schema: Schema, rows: pa.Table) -> None:
    table = catalog.create_table(TABLE, schema)
    catalog.drop_table(TABLE)
    with pytest.raises(NoSuchTableError):
        table.append(rows)
    assert not catalog.table_exists(TABLE)


def test_a_handle_of_a_table_that_was_created_again_writes_nothing(
    catalog: Catalog, schema: Schema, rows: pa.Table
) -> None:
    table = catalog.create_table(TABLE, schema)
    catalog.drop_table(TABLE)
    catalog.create_table(TABLE, schema)
    # PyIceberg's check fails with another error, because it comes too late.
    expected = CommitFailedException if is_ours(catalog) else ValueError
    with pytest.raises(expected, match="UUID"):
        table.append(rows)
    with pytest.raises(CommitFailedException, match="UUID"), table.transaction() as change:
        change.set_properties({"a": "b"})
    assert catalog.load_table(TABLE).scan().to_arrow().num_rows == 0
