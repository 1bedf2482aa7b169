"""Namespaces and their properties behave as in PyIceberg's catalogs, also nested ones."""

from __future__ import annotations

import re

import pytest
from catalogs import is_ours
from orders import SCHEMA
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.schema import Schema
from sqlalchemy.exc import IntegrityError

PROPERTIES = {"comment": "what was sold", "location": "/some/where", "key1": "1", "key2": "2"}


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


def test_a_created_namespace_has_its_properties(catalog: Catalog) -> None:
    catalog.create_namespace("sales.eu", PROPERTIES)
    assert catalog.namespace_exists("sales.eu")
    assert catalog.namespace_exists(("sales", "eu"))
    assert catalog.load_namespace_properties(("sales", "eu")) == PROPERTIES
    assert catalog.list_namespaces() == [("sales",)]


def test_a_namespace_without_properties_has_none(catalog: Catalog) -> None:
    catalog.create_namespace("sales")
    # SQL catalogs store a namespace without properties as a row, and show this row as a property.
    assert catalog.load_namespace_properties("sales") == ({} if is_ours(catalog) else {"exists": "true"})


def test_a_namespace_is_created_once(catalog: Catalog) -> None:
    catalog.create_namespace("sales", {"key1": "1"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("sales", {"key1": "2"})
    catalog.create_namespace_if_not_exists("sales", {"key1": "2"})
    catalog.create_namespace_if_not_exists("costs")
    assert catalog.load_namespace_properties("sales") == {"key1": "1"}
    assert sorted(catalog.list_namespaces()) == [("costs",), ("sales",)]


def test_a_namespace_has_a_name(catalog: Catalog) -> None:
    for empty in ["", (), ("", ""), " ", ("sales", " ")]:
        with pytest.raises(NoSuchNamespaceError):
            catalog.create_namespace(empty)


def test_a_property_has_a_name_and_a_value(catalog: Catalog) -> None:
    # A lakehouse checks before it writes; SQL catalogs rely on constraints of their database.
    error = ValueError if is_ours(catalog) else IntegrityError
    for properties in ({None: "value"}, {"key": None}):
        with pytest.raises(error):
            catalog.create_namespace("sales", properties)  # type: ignore[dict-item]
    assert not catalog.namespace_exists("sales")


def test_a_namespace_with_nested_ones_exists(catalog: Catalog) -> None:
    for name in ("db1", "db1.ns1", "db2.ns1", "db3.ns1.ns2"):
        catalog.create_namespace(name)
        assert catalog.namespace_exists(name)
    assert catalog.namespace_exists("db2")
    assert catalog.namespace_exists("db3.ns1")
    assert catalog.load_namespace_properties("db3.ns1") == {}
    assert catalog.list_tables("db2") == []
    for name in ("db", "db_", "db%", "db1.ns", "ns1", "db3.ns1.ns"):
        assert not catalog.namespace_exists(name)


def test_a_table_can_be_created_in_an_implicit_namespace(catalog: Catalog, schema: Schema) -> None:
    catalog.create_namespace("sales.eu")
    catalog.create_table("sales.orders", schema)
    assert catalog.list_tables("sales") == [("sales", "orders")]
    assert catalog.list_namespaces("sales") == [("sales", "eu")]


def test_a_child_can_follow_its_parent(catalog: Catalog) -> None:
    catalog.create_namespace("sales")
    catalog.create_namespace("sales.eu")
    assert catalog.list_namespaces() == [("sales",)]
    assert catalog.list_namespaces("sales") == [("sales", "eu")]


def test_a_parent_can_follow_its_child(catalog: Catalog) -> None:
    catalog.create_namespace("sales.eu")
    if is_ours(catalog):  # SQL catalogs report that the parent exists
        catalog.create_namespace("sales", {"key1": "1"})
        assert catalog.load_namespace_properties("sales") == {"key1": "1"}
    else:
        with pytest.raises(NamespaceAlreadyExistsError):
            catalog.create_namespace("sales", {"key1": "1"})
    assert catalog.list_namespaces("sales") == [("sales", "eu")]


def test_listing_names_the_next_level_only(catalog: Catalog) -> None:
    for name in ("db", "db.ns1", "db.ns1.ns2", "db.ns2", "db2", "db2.ns1", "db%"):
        catalog.create_namespace_if_not_exists(name)
    assert sorted(catalog.list_namespaces()) == [("db",), ("db%",), ("db2",)]
    assert sorted(catalog.list_namespaces("db")) == [("db", "ns1"), ("db", "ns2")]
    assert catalog.list_namespaces("db.ns1") == [("db", "ns1", "ns2")]
    assert catalog.list_namespaces(("db", "ns1", "ns2")) == []


def test_listing_takes_names_literally(catalog: Catalog) -> None:
    for name in ("db.ns1", "db.ns1.ns2", "db.ns2", "db.ns1X.ns3", "db_.ns1.ns2", "db2.ns1.ns2"):
        catalog.create_namespace_if_not_exists(name)
    assert catalog.list_namespaces("db.ns1") == [("db", "ns1", "ns2")]
    assert catalog.list_namespaces("db_.ns1") == [("db_", "ns1", "ns2")]


def test_missing_objects_are_not_found(catalog: Catalog) -> None:
    message = re.escape("Namespace sales.eu does not exists")
    with pytest.raises(NoSuchNamespaceError, match=message):
        catalog.load_namespace_properties(("sales", "eu"))
    with pytest.raises(NoSuchNamespaceError, match=message):
        catalog.update_namespace_properties(("sales", "eu"), updates={"key1": "1"})
    for method in (catalog.list_namespaces, catalog.list_tables, catalog.drop_namespace):
        with pytest.raises(NoSuchNamespaceError):
            method(("sales", "eu"))
    assert not catalog.namespace_exists("sales.eu")


def test_an_update_returns_removed_updated_and_missing_properties(catalog: Catalog) -> None:
    catalog.create_namespace("sales", PROPERTIES)
    summary = catalog.update_namespace_properties(
        "sales", {"key1", "key2", "never there"}, {"comment": "what was returned", "key3": "3"}
    )
    assert sorted(summary.removed) == ["key1", "key2"]
    assert sorted(summary.updated) == ["comment", "key3"]
    assert summary.missing == ["never there"]
    assert catalog.load_namespace_properties("sales") == {
        "comment": "what was returned",
        "location": "/some/where",
        "key3": "3",
    }


def test_an_update_may_only_set_or_only_remove(catalog: Catalog) -> None:
    catalog.create_namespace("sales", {"key1": "1"})
    summary = catalog.update_namespace_properties("sales", updates={"key3": "3", "key4": "4"})
    assert (summary.removed, sorted(summary.updated), summary.missing) == ([], ["key3", "key4"], [])
    summary = catalog.update_namespace_properties("sales", removals={"key1"})
    assert (summary.removed, summary.updated, summary.missing) == (["key1"], [], [])
    assert catalog.load_namespace_properties("sales") == {"key3": "3", "key4": "4"}


def test_a_property_is_not_set_and_removed_at_once(catalog: Catalog) -> None:
    catalog.create_namespace("sales", {"key1": "1"})
    with pytest.raises(ValueError, match="overlap"):
        catalog.update_namespace_properties("sales", {"key1"}, {"key1": "2"})
    assert catalog.load_namespace_properties("sales") == {"key1": "1"}


def test_properties_can_be_set_on_an_implicit_namespace(catalog: Catalog) -> None:
    catalog.create_namespace("sales.eu")
    catalog.update_namespace_properties("sales", updates={"key1": "1"})
    assert catalog.load_namespace_properties("sales") == {"key1": "1"}


def test_only_an_empty_namespace_can_be_dropped(catalog: Catalog, schema: Schema) -> None:
    catalog.create_namespace("sales.eu")
    catalog.create_table("sales.eu.orders", schema)
    with pytest.raises(NamespaceNotEmptyError, match=re.escape("Namespace sales.eu is not empty")):
        catalog.drop_namespace("sales.eu")
    catalog.drop_table("sales.eu.orders")
    catalog.drop_namespace("sales.eu")
    assert not catalog.namespace_exists("sales.eu")
    assert not catalog.namespace_exists("sales")


def test_a_namespace_with_nested_ones_is_not_empty(catalog: Catalog) -> None:
    catalog.create_namespace("sales")
    catalog.create_namespace("sales.eu")
    if is_ours(catalog):
        # SQL catalogs look only for tables, and lose the properties of a namespace that continues to exist.
        with pytest.raises(NamespaceNotEmptyError, match=re.escape("Namespace sales is not empty")):
            catalog.drop_namespace("sales")
    else:
        catalog.drop_namespace("sales")
    assert catalog.namespace_exists("sales")
    assert catalog.list_namespaces("sales") == [("sales", "eu")]


def test_an_implicit_namespace_cannot_be_dropped(catalog: Catalog) -> None:
    catalog.create_namespace("sales.eu")
    if is_ours(catalog):
        with pytest.raises(NamespaceNotEmptyError):
            catalog.drop_namespace("sales")
    assert catalog.namespace_exists("sales.eu")


def test_invalid_names_do_not_exist(catalog: Catalog) -> None:
    long = "x" * 500
    assert not catalog.namespace_exists(long)
    assert not catalog.table_exists((long, "orders"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables(long)
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties(long)
