"""Namespaces, views and the lakehouse definition, and the rules for names."""

from __future__ import annotations

from pathlib import Path

import pytest

import trinitylake as tl


def test_namespaces_are_listed_by_full_name_sorted_and_below_a_parent(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        for name in ("b", "a.y", "a", "a.x.deep", "ab"):
            txn.create_namespace(name)
    assert lake.namespaces() == ["a", "a.x.deep", "a.y", "ab", "b"]
    assert lake.namespaces("a") == ["a.x.deep", "a.y"]
    assert lake.namespaces(parent="b") == []
    with pytest.raises(tl.ObjectNotFound):
        lake.namespaces("missing")


def test_a_nested_namespace_needs_no_parent(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a.b")
    assert lake.exists("a.b")
    assert not lake.exists("a")
    assert lake.namespaces("a") == ["a.b"]


def test_namespace_properties_are_set_and_removed_one_by_one(lake: tl.Lakehouse) -> None:
    created = lake.create_namespace("nyc", {"owner": "ops", "tier": "1"})
    lake.alter_namespace("nyc", {"tier": "2", "site": "x"}, remove_properties=["owner", "never-set"])
    altered = lake.namespace("nyc")
    assert altered.properties == {"tier": "2", "site": "x"}
    assert altered.id == created.id
    with pytest.raises(tl.InvalidArgument, match="tier"):
        lake.alter_namespace("nyc", {"tier": "3"}, remove_properties=["tier"])


def test_creating_a_namespace_twice_fails_unless_it_may_exist(lake: tl.Lakehouse) -> None:
    first = lake.create_namespace("nyc", {"owner": "ops"})
    with pytest.raises(tl.ObjectAlreadyExists, match="nyc"):
        lake.create_namespace("nyc")
    again = lake.create_namespace("nyc", {"owner": "other"}, exist_ok=True)
    assert again == first
    assert lake.version == 1


def test_a_namespace_dropped_and_created_again_has_another_id(lake: tl.Lakehouse) -> None:
    first = lake.create_namespace("nyc")
    lake.drop_namespace("nyc")
    assert lake.create_namespace("nyc").id != first.id


@pytest.mark.parametrize("content", ["view", "table", "namespace"])
def test_a_namespace_with_content_is_dropped_only_by_cascade(lake: tl.Lakehouse, content: str) -> None:
    lake.create_namespace("nyc")
    if content == "view":
        lake.create_view("nyc.inner", "SELECT 1")
    elif content == "table":
        lake.create_table("nyc.inner", {"id": "bigint"})
    else:
        lake.create_namespace("nyc.inner")
        lake.create_view("nyc.inner.deep", "SELECT 1")
    with pytest.raises(tl.NamespaceNotEmpty, match="nyc"):
        lake.drop_namespace("nyc")
    lake.create_namespace("nycx")
    lake.drop_namespace("nyc", cascade=True)
    assert lake.namespaces() == ["nycx"]
    assert lake.tables() == []
    assert lake.views() == []


def test_dropping_a_missing_object_fails_without_missing_ok(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    for drop, name in ((lake.drop_namespace, "gone"), (lake.drop_table, "nyc.gone"), (lake.drop_view, "nyc.gone")):
        with pytest.raises(tl.ObjectNotFound, match="gone"):
            drop(name)
        drop(name, missing_ok=True)
    assert lake.version == 1


def test_exists_and_kind_distinguish_namespaces_tables_and_views(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_namespace("a.n")
        txn.create_table("a.t", {"id": "bigint"})
        txn.create_view("a.v", "SELECT 1")
        assert txn._kind("a.v") == "view"
    for reader in (lake, lake.at(), lake.begin()):
        names = ["a", "a.n", "a.t", "a.v", "a.x", "x", ("a", "t"), ("a", "n")]
        assert [reader._kind(name) for name in names] == [
            *("namespace", "namespace", "table", "view", None, None),
            *("table", "namespace"),
        ]
        assert [reader.exists(name) for name in names] == [True] * 4 + [False] * 2 + [True] * 2


def test_tuple_and_string_identifiers_are_equal(lake: tl.Lakehouse) -> None:
    lake.create_namespace(("a", "b"))
    lake.create_view(("a.b", "v"), "SELECT 1")
    assert lake.namespaces() == ["a.b"]
    assert lake.views(("a", "b")) == ["a.b.v"]
    assert lake.view("a.b.v").name == lake.view(("a", "b", "v")).name == "a.b.v"


def test_a_name_that_no_key_can_hold_is_refused(lake: tl.Lakehouse) -> None:
    for name in ["", " space before", "space after ", "tab\t", "a..b", ".a", "a.", "é" * 51]:
        with pytest.raises(tl.InvalidName):
            lake.create_namespace(name)
        assert lake.version == 0


def test_a_table_or_view_needs_a_namespace_in_its_name(lake: tl.Lakehouse) -> None:
    for call in (lake.table, lake.view, lake.drop_table, lambda name: lake.create_view(name, "SELECT 1")):
        with pytest.raises(tl.InvalidName, match=r"namespace\.name"):
            call("flights")


def test_view_keeps_all_its_attributes(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    lake.create_view(
        "nyc.busy",
        {"spark": "SELECT 1", "trino": "SELECT 2"},
        schema={"n": "int"},
        default_namespace="nyc",
        properties={"owner": "ops"},
    )
    view = lake.view("nyc.busy")
    assert view.representations == {"spark": "SELECT 1", "trino": "SELECT 2"}
    assert (view.dialect, view.sql, view.sql_for("TRINO")) == ("spark", "SELECT 1", "SELECT 2")
    assert (view.default_namespace, view.properties) == ("nyc", {"owner": "ops"})
    assert view.schema is not None
    assert view.schema.names == ("n",)
    with pytest.raises(tl.ObjectNotFound, match="duckdb"):
        view.sql_for("duckdb")


def test_replacing_a_view_keeps_its_id_and_omitted_parts(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    before = lake.create_view("nyc.busy", "SELECT 1", schema={"n": "int"}, properties={"owner": "ops"})
    after = lake.replace_view("nyc.busy", "SELECT 2", dialect="duckdb")
    assert lake.view("nyc.busy").representations == {"duckdb": "SELECT 2"}
    assert after.schema is None, "the schema of the old SQL does not describe the new SQL"
    assert (after.id, after.properties) == (before.id, {"owner": "ops"})
    lake.replace_view("nyc.busy", properties={})
    assert lake.view("nyc.busy").sql == "SELECT 2"
    assert lake.view("nyc.busy").properties == {}


@pytest.mark.parametrize("sql", ["", "  ", {}])
def test_a_view_without_a_text_is_refused(lake: tl.Lakehouse, sql: str | dict[str, str]) -> None:
    lake.create_namespace("nyc")
    with pytest.raises(tl.InvalidArgument):
        lake.create_view("nyc.busy", sql)


def test_renamed_view_keeps_its_id(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    lake.create_namespace("b")
    before = lake.create_view("a.v", "SELECT 1")
    lake.rename_view("a.v", "b.w")
    assert lake.views() == ["b.w"]
    assert lake.view("b.w").id == before.id
    with pytest.raises(tl.ObjectNotFound):
        lake.rename_view("b.w", "missing.w")


def test_a_table_and_a_view_cannot_share_a_name(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    lake.create_view("nyc.v", "SELECT 1")
    lake.create_table("nyc.t", {"id": "bigint"})
    with pytest.raises(tl.ObjectAlreadyExists):
        lake.create_table("nyc.v", {"id": "bigint"})
    with pytest.raises(tl.ObjectAlreadyExists):
        lake.create_view("nyc.t", "SELECT 1")
    with pytest.raises(tl.ObjectAlreadyExists):
        lake.rename_view("nyc.v", "nyc.t")
    with pytest.raises(tl.ObjectNotFound, match="there is a view of that name"):
        lake.table("nyc.v")


def test_listing_a_namespace_that_is_missing_fails_and_an_empty_one_lists_nothing(lake: tl.Lakehouse) -> None:
    lake.create_namespace("empty")
    assert lake.tables("empty") == lake.views("empty") == []
    for listing in (lake.tables, lake.views):
        with pytest.raises(tl.ObjectNotFound, match="missing"):
            listing("missing")


def test_a_change_of_the_lakehouse_definition_is_a_commit(lake: tl.Lakehouse) -> None:
    lake.alter({"owner": "ops"}, name="renamed", maximum_version_age_millis=1000, default_isolation="serializable")
    assert (lake.name, lake.properties, lake.version) == ("renamed", {"owner": "ops"}, 1)
    assert lake._definition.maximum_version_age_millis == 1000
    assert lake._definition.order == 5
    assert lake.begin().isolation == "serializable"
    assert lake.begin(isolation="snapshot").isolation == "snapshot"
    assert lake.at(0).properties == {}
    with pytest.raises(tl.InvalidArgument, match="order"):
        lake.alter(order=7)  # type: ignore[call-arg]


def test_creating_a_lakehouse_twice_fails_unless_it_may_exist(root: str) -> None:
    tl.create(root, name="first")
    with pytest.raises(tl.ObjectAlreadyExists):
        tl.create(root, name="second")
    assert tl.create(root, name="second", exist_ok=True).name == "first"
    assert tl.open(root).name == "first"


def test_stats_count_live_objects(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        for number in range(30):
            txn.create_namespace(f"n{number:02}")
        txn.create_view("n00.v", "SELECT 1")
        txn.create_table("n00.t", {"id": "bigint"})
    lake.drop_namespace("n29")
    stats = lake.maintenance.stats()
    assert (stats.version, stats.namespaces, stats.tables, stats.views) == (2, 29, 1, 1)
    assert stats.tree_height >= 1, "32 keys do not fit into one node of order 5"
    assert stats.tree_nodes > 1
    assert stats.tree_size_bytes > 0


def test_namespace_is_created_on_a_handle_with_expired_versions(tmp_path: Path) -> None:
    """`create_namespace` works on a handle whose known version has expired, because another process committed and
    expired versions. It must not raise TransactionExpired, because its caller began no transaction."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("known")
    other = tl.open(str(tmp_path / "lake"))
    for name in ("one", "two"):
        other.create_namespace(name)
    other.maintenance.expire(keep=1)
    other.maintenance.vacuum(grace="0 seconds")
    lake.create_namespace("three")
    assert [*tl.open(str(tmp_path / "lake")).namespaces()] == ["known", "one", "three", "two"]


def test_namespace_is_altered_on_the_latest_version(tmp_path: Path) -> None:
    """A statement begins on the last known version without a lookup.

    It must not undo a concurrent change of another process, must see an object that it created, and must not see one
    that it dropped.
    """
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for name in ("shop", "dropped"):
        lake.create_namespace(name, {"first": "1"})
    other = tl.open(str(tmp_path / "lake"))
    other.alter_namespace("shop", {"second": "2"})
    other.create_namespace("new")
    other.drop_namespace("dropped")
    altered = lake.alter_namespace("shop", {"third": "3"}, message="a third one", author="ann")
    assert altered.properties == {"first": "1", "second": "2", "third": "3"}
    assert altered == tl.open(str(tmp_path / "lake")).namespace("shop")
    assert [(one.message, one.author) for one in lake.log(limit=1)[0].transactions] == [("a third one", "ann")]
    other.create_namespace("newer")
    assert lake.alter_namespace("newer", {"a": "b"}).properties == {"a": "b"}
    with pytest.raises(tl.ObjectNotFound):
        lake.alter_namespace("dropped", {"a": "b"})
    with pytest.raises(tl.InvalidArgument):
        lake.alter_namespace("shop", {"": "b"})
    before = lake.version
    with lake.transaction() as txn:
        txn.alter_namespace("shop", {"fourth": "4"}, remove_properties=["first"])
        assert txn.namespace("shop").properties == {"second": "2", "third": "3", "fourth": "4"}
    assert lake.version == before + 1


def test_namespace_is_altered_on_a_handle_with_expired_versions(tmp_path: Path) -> None:
    """A statement on a handle whose known version has expired sees the latest version, and does not undo a change of
    another process."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("shop", {"first": "1"})
    other = tl.open(str(tmp_path / "lake"))
    for value in ("2", "3"):
        other.alter_namespace("shop", {"first": value})
    other.maintenance.expire(keep=1)
    other.maintenance.vacuum(grace="0 seconds")
    assert lake.alter_namespace("shop", {"second": "x"}).properties == {"first": "3", "second": "x"}


def test_fsck_reports_views_of_tables_that_do_not_exist(lake: tl.Lakehouse) -> None:
    """fsck reports views that name a dropped table or the catalog of a transaction, which fail only when they
    are read."""
    lake.create_namespace("shop")
    lake.create_namespace("shop.eu")
    for name in ("shop.orders", "shop.eu.orders"):
        lake.create_table(name, {"id": "bigint"})
    texts = {
        "whole": "WITH c AS (SELECT * FROM orders) SELECT * FROM c JOIN shop.eu.orders USING (id), range(3)",
        "of_view": "SELECT * FROM shop.whole",
        "by_catalog": "SELECT * FROM lake.shop.orders",
        "elsewhere": "SELECT * FROM hive.sales.orders",
        "of_spark": "SELECT * FROM shop.gone LATERAL VIEW explode(a) t AS b",
        "of_gone": "SELECT * FROM shop.orders WHERE id IN (SELECT id FROM gone)",
        "of_gone_in_catalog": "SELECT * FROM lake.shop.gone",
        "in_transaction": "SELECT * FROM lake_txn_0123456789ab.shop.orders",
    }
    for name, sql in texts.items():
        lake.create_view(f"shop.{name}", sql, dialect="spark")
    report = lake.maintenance.fsck()
    assert report.is_sound
    found = {finding.affected[0]: finding for finding in report.findings}
    assert set(found) == {f"view shop.{name}" for name in ("of_gone", "of_gone_in_catalog", "in_transaction")}
    assert {finding.kind for finding in report.findings} == {"dangling"}
    assert "it reads gone, and there is no such table" in found["view shop.of_gone"].message
    assert "in the catalog of a transaction" in found["view shop.in_transaction"].message
    assert all("view-" in finding.path for finding in report.findings)
    lake.drop_view("shop.in_transaction")
    before = lake.version - 1
    assert len(lake.maintenance.fsck().findings) == 2
    assert len(lake.maintenance.fsck(before).findings) == 3
