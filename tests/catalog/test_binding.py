"""Bindings of a catalog: the latest version, an older version, or an open transaction."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from orders import ROWS, SCHEMA
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import StringType
from pyiceberg.view.metadata import ViewVersion

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, load

ORDERS, LINES = ("sales", "orders"), ("sales", "lines")


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """A lakehouse with two tables, each with two rows."""
    lake = tl.create(root, order=5, durability="none")
    catalog = load(lake)
    catalog.create_namespace("sales")
    for identifier in (ORDERS, LINES):
        catalog.create_table(identifier, SCHEMA).append(ROWS)
    return lake


def count(catalog: Catalog, identifier: tuple[str, ...]) -> int:
    return len(catalog.load_table(identifier).scan().to_arrow())


# The latest version


def test_every_write_is_one_commit(lake: tl.Lakehouse) -> None:
    catalog = load(lake)
    writes: list[Callable[[], object]] = [
        lambda: catalog.create_namespace("archive"),
        lambda: catalog.update_namespace_properties("archive", updates={"a": "b"}),
        lambda: catalog.create_table("archive.a", SCHEMA),
        lambda: catalog.load_table("archive.a").append(ROWS),
        lambda: catalog.create_table_transaction("archive.b", SCHEMA).commit_transaction(),
        lambda: catalog.rename_table("archive.b", "sales.b"),
        lambda: catalog.drop_table("sales.b"),
        lambda: catalog.purge_table("archive.a"),
        lambda: catalog.drop_namespace("archive"),
    ]
    for write in writes:
        before = lake.version
        write()
        assert lake.version == before + 1


def test_reading_commits_nothing(lake: tl.Lakehouse) -> None:
    before, catalog = lake.version, load(lake)
    catalog.load_table(ORDERS).scan().to_arrow()
    catalog.list_tables("sales")
    catalog.list_namespaces()
    catalog.load_namespace_properties("sales")
    assert lake.version == before


def test_a_refused_write_commits_nothing(lake: tl.Lakehouse) -> None:
    before, catalog = lake.version, load(lake)
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("sales.missing")
    with pytest.raises(tl.InvalidLocation):
        catalog.create_table("sales.new", SCHEMA, location="file:///elsewhere")
    assert lake.version == before


def test_the_latest_version_includes_commits_of_others(lake: tl.Lakehouse, root: str) -> None:
    catalog = load(root)
    table = catalog.load_table(ORDERS)
    lake.table("sales.orders").append(ROWS)
    assert len(table.scan().to_arrow()) == 2
    assert len(table.refresh().scan().to_arrow()) == 4


# A version


def test_a_version_does_not_change(lake: tl.Lakehouse) -> None:
    before = lake.version
    latest, past = load(lake), load(lake, version=before)
    latest.load_table(ORDERS).append(ROWS)
    with latest.load_table(ORDERS).update_schema() as update:
        update.add_column("more", StringType())
    latest.drop_table(LINES)
    latest.create_namespace("archive")
    assert count(past, ORDERS) == 2
    assert past.load_table(ORDERS).schema().column_names == SCHEMA.column_names
    assert count(past, LINES) == 2
    assert past.list_tables("sales") == [LINES, ORDERS]
    assert past.list_namespaces() == [("sales",)]
    assert past.load_table(ORDERS).refresh().metadata.current_snapshot_id
    assert count(latest, ORDERS) == 4
    assert latest.list_tables("sales") == [ORDERS]


def test_older_versions_contain_dropped_and_purged_tables(lake: tl.Lakehouse) -> None:
    catalog, before = load(lake), lake.version
    catalog.drop_table(ORDERS)
    catalog.purge_table(LINES)
    past = load(lake, version=before)
    assert catalog.list_tables("sales") == []
    assert (count(past, ORDERS), past.load_table(LINES).name()) == (2, LINES)


def test_a_timestamp_chooses_the_version(lake: tl.Lakehouse) -> None:
    at = lake.at().created_at
    load(lake).load_table(ORDERS).append(ROWS)
    later = datetime.now(UTC) + timedelta(days=1)
    for moment, rows in ((at, 2), (at.isoformat(), 2), (later, 4)):
        assert count(load(lake, timestamp=moment), ORDERS) == rows


def test_a_version_refuses_every_write(lake: tl.Lakehouse) -> None:
    load(lake).create_view("sales.view", SCHEMA, view_version())
    catalog = load(lake, version=lake.version)
    table = catalog.load_table(ORDERS)
    uri = table.metadata_location
    writes: list[Callable[[], object]] = [
        lambda: table.append(ROWS),
        lambda: table.delete("id = 1"),
        lambda: table.transaction(),
        lambda: table.update_schema().add_column("more", StringType()).commit(),
        lambda: table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "t").commit(),
        lambda: catalog.commit_table(table, (), ()),
        lambda: catalog.create_table("sales.new", SCHEMA),
        lambda: catalog.create_table_transaction("sales.new", SCHEMA),
        lambda: catalog.create_table_if_not_exists("sales.orders", SCHEMA),
        lambda: catalog.register_table("sales.new", uri),
        lambda: catalog.rename_table(ORDERS, "sales.new"),
        lambda: catalog.drop_table(ORDERS),
        lambda: catalog.purge_table(ORDERS),
        lambda: catalog.create_namespace("archive"),
        lambda: catalog.update_namespace_properties("sales", updates={"a": "b"}),
        lambda: catalog.drop_namespace("sales"),
        lambda: catalog.create_view("sales.other", SCHEMA, view_version()),
        lambda: catalog.drop_view("sales.view"),
    ]
    files, before = all_files(lake), lake.version
    for write in writes:
        with pytest.raises(tl.InvalidArgument, match=f"read-only, because it is bound to version {before}"):
            write()
    assert lake.version == before
    assert all_files(lake) == files


def view_version() -> ViewVersion:
    text = {"type": "sql", "sql": "SELECT 1", "dialect": "spark"}
    return ViewVersion.model_validate({"schema-id": 0, "representations": [text], "default-namespace": []})


def all_files(lake: tl.Lakehouse) -> set[str]:
    return {path for path, _, _ in lake._storage.list("")}


# A transaction


def test_writes_show_inside_a_transaction_and_outside_after_its_commit(lake: tl.Lakehouse) -> None:
    outside, before = load(lake), lake.version
    with lake.transaction(message="two tables") as transaction:
        inside = load(transaction=transaction)
        inside.load_table(ORDERS).append(ROWS)
        inside.load_table(LINES).delete("id = 1")
        inside.create_namespace("archive")
        inside.create_table("archive.orders", SCHEMA).append(ROWS)
        inside.rename_table("archive.orders", "archive.old_orders")
        with inside.create_table_transaction("archive.lines", SCHEMA) as creation:
            creation.append(ROWS)
        assert [count(inside, one) for one in (ORDERS, LINES)] == [4, 1]
        assert inside.list_tables("archive") == [("archive", "lines"), ("archive", "old_orders")]
        assert inside.load_table("archive.old_orders").name() == ("archive", "old_orders")
        assert [count(outside, one) for one in (ORDERS, LINES)] == [2, 2]
        assert not outside.namespace_exists("archive")
        assert lake.version == before
    assert lake.version == before + 1
    assert lake.log(1)[0].transactions[0].message == "two tables"
    assert [count(outside, one) for one in (ORDERS, LINES)] == [4, 1]
    assert [count(outside, ("archive", name)) for name in ("lines", "old_orders")] == [2, 2]


def test_a_rollback_leaves_nothing(lake: tl.Lakehouse) -> None:
    files, before = all_files(lake), lake.version
    transaction = lake.begin()
    inside = load(transaction=transaction)
    inside.load_table(ORDERS).append(ROWS)
    inside.create_table("sales.new", SCHEMA).append(ROWS)
    with inside.create_table_transaction("sales.newer", SCHEMA) as creation:
        creation.append(ROWS)
    inside.drop_table(LINES)
    assert all_files(lake) > files
    transaction.rollback()
    assert lake.version == before
    assert all_files(lake) == files
    assert load(lake).list_tables("sales") == [LINES, ORDERS]
    with pytest.raises(tl.TransactionClosed):
        inside.load_table(ORDERS)


def test_the_transaction_and_its_catalog_see_each_other(lake: tl.Lakehouse) -> None:
    with lake.transaction() as transaction:
        catalog = load(transaction=transaction)
        transaction.table("sales.orders").append(ROWS)
        assert count(catalog, ORDERS) == 4
        catalog.load_table(ORDERS).append(ROWS)
        assert len(transaction.table("sales.orders").scan().to_arrow()) == 6
        catalog.drop_table(LINES)
        assert not transaction.exists("sales.lines")
    assert count(load(lake), ORDERS) == 6


def test_a_transaction_has_one_metadata_file_for_a_table(lake: tl.Lakehouse) -> None:
    before = {path for path in all_files(lake) if path.endswith(".metadata.json")}
    with lake.transaction() as transaction:
        table = load(transaction=transaction).load_table(ORDERS)
        for _ in range(3):
            table.append(ROWS)
    assert len({path for path in all_files(lake) if path.endswith(".metadata.json")} - before) == 1
    assert len(load(lake).load_table(ORDERS).metadata.snapshots) == 4


def test_a_lost_transaction_changes_neither_table(lake: tl.Lakehouse) -> None:
    transaction = lake.begin()
    inside = load(transaction=transaction)
    inside.load_table(ORDERS).append(ROWS)
    inside.load_table(LINES).delete("id = 1")
    load(lake).load_table(LINES).append(ROWS)
    with pytest.raises(tl.CommitConflict, match=r"sales\.lines"):
        transaction.commit()
    assert [count(load(lake), one) for one in (ORDERS, LINES)] == [2, 4]


def test_an_append_in_a_transaction_lands_on_what_others_appended(lake: tl.Lakehouse) -> None:
    with lake.transaction() as transaction:
        load(transaction=transaction).load_table(ORDERS).append(ROWS)
        load(lake).load_table(ORDERS).append(ROWS)
    assert count(load(lake), ORDERS) == 6


def test_a_saved_transaction_is_resumed_by_its_id(lake: tl.Lakehouse, root: str) -> None:
    transaction = lake.begin(id="load-42")
    load(transaction=transaction).load_table(ORDERS).append(ROWS)
    transaction.save()
    catalog = load(root, transaction="load-42")
    catalog.load_table(ORDERS).append(ROWS)
    assert count(catalog, ORDERS) == 6
    assert isinstance(catalog.source, tl.Transaction)
    assert count(load(root), ORDERS) == 2
    catalog.source.commit()
    assert count(load(root), ORDERS) == 6


# Opening


def test_source_is_the_bound_state(lake: tl.Lakehouse) -> None:
    assert load(lake).source is lake
    past = load(lake, version=1).source
    assert isinstance(past, tl.LakehouseVersion)
    assert past.version == 1
    with lake.begin() as transaction:
        assert load(lake, transaction=transaction).source is transaction


@pytest.mark.parametrize("choices", [{"version": 1, "timestamp": "2030-01-01"}, {"version": 1, "transaction": "x"}])
def test_contradicting_choices_are_refused(lake: tl.Lakehouse, choices: dict[str, object]) -> None:
    with pytest.raises(tl.InvalidArgument, match="not several"):
        load(lake, **choices)  # type: ignore[arg-type]


def test_a_transaction_of_another_lakehouse_is_refused(lake: tl.Lakehouse, tmp_path: Path) -> None:
    other = tl.create(str(tmp_path / "other"))
    with other.begin() as transaction, pytest.raises(tl.InvalidArgument, match="belongs to the lakehouse"):
        load(lake, transaction=transaction)


def test_missing_roots_versions_and_transactions_cannot_be_opened(lake: tl.Lakehouse, tmp_path: Path) -> None:
    with pytest.raises(tl.NotALakehouse):
        load(tmp_path / "nothing")
    with pytest.raises(tl.VersionNotFound):
        load(lake, version=99)
    with pytest.raises(tl.ObjectNotFound):
        load(lake, transaction="never-saved")
    with pytest.raises(tl.InvalidArgument, match="PYICEBERG_CATALOG__LAKE__ROOT"):
        load(name="lake")
    with pytest.raises(tl.InvalidArgument, match="whole number"):
        TrinityLakeCatalog("lake", lakehouse=lake, version="latest")


@pytest.mark.parametrize("key", ["root", "uri", "warehouse"])
def test_pyiceberg_loads_it_by_its_class(lake: tl.Lakehouse, root: str, key: str) -> None:
    properties = {"py-catalog-impl": "trinitylake.iceberg.TrinityLakeCatalog", key: root}
    catalog = load_catalog("lake", **properties)
    assert isinstance(catalog, TrinityLakeCatalog)
    assert catalog.name == "lake"
    assert count(catalog, ORDERS) == 2
    past = load_catalog("lake", **properties, version="1")
    assert past.list_tables("sales") == []


def test_pyicebergs_configuration_supplies_what_the_call_leaves_out(
    lake: tl.Lakehouse, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    root: {root}\n    version: 1\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    catalog = load_catalog("lake", **{"py-catalog-impl": "trinitylake.iceberg.TrinityLakeCatalog"})
    assert catalog.list_tables("sales") == []
    assert load(name="lake", version=lake.version).list_tables("sales") == [LINES, ORDERS]
    monkeypatch.setenv("PYICEBERG_CATALOG__ELSEWHERE__ROOT", root)
    assert load(name="elsewhere").list_tables("sales") == [LINES, ORDERS]
    monkeypatch.setenv("PYICEBERG_CATALOG__NOWHERE__ROOT", "/nowhere/at/all")
    assert load(root, name="nowhere").list_tables("sales") == [LINES, ORDERS]


def test_storage_options_come_from_properties_and_argument() -> None:
    from trinitylake.iceberg.bound_catalog import storage_options

    properties = {
        "root": "s3://b/l",
        "s3.region": "x",
        "storage.allow_http": "true",
        "durability": "none",
        "other": "y",
    }
    expected = {"s3.region": "z", "allow_http": "true"}
    assert storage_options(properties, {"s3.region": "z"}) == expected


def test_the_class_is_imported_when_it_is_asked_for() -> None:
    program = (
        "import sys, trinitylake, trinitylake.iceberg\n"
        "assert 'pyiceberg' not in sys.modules\n"
        "from trinitylake.iceberg import TrinityLakeCatalog\n"
        "assert 'pyiceberg' in sys.modules and trinitylake.iceberg.load is trinitylake.iceberg.catalog.load\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
