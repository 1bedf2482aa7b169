"""Properties with the prefix `trinitylake.` are reserved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import Table as IcebergTable

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog

OWN = {"trinitylake.iceberg-view": "not what the library wrote"}

WRITES: list[Callable[[tl.Lakehouse], object]] = [
    lambda lake: lake.create_view("a.w", "SELECT 1", properties=OWN),
    lambda lake: lake.replace_view("a.v", properties=OWN),
    lambda lake: lake.create_namespace("b", OWN),
    lambda lake: lake.alter_namespace("a", OWN),
    lambda lake: lake.alter_namespace("a", remove_properties=OWN),
    lambda lake: lake.create_table("a.u", {"x": "bigint"}, properties=OWN),
    lambda lake: lake.alter_table("a.t", OWN),
    lambda lake: lake.alter_table("a.t", remove_properties=OWN),
    lambda lake: lake.alter(OWN),
    lambda lake: TrinityLakeCatalog(lakehouse=lake).create_namespace("b", OWN),
]


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a.t", {"x": "bigint"})
        txn.create_view("a.v", "SELECT 1")
    return lake


@pytest.mark.parametrize("write", WRITES)
def test_reserved_properties_cannot_be_set(shop: tl.Lakehouse, write: Callable[[tl.Lakehouse], object]) -> None:
    """Users cannot set reserved properties, which would make a view unreadable for Iceberg's clients."""
    version = shop.version
    with pytest.raises(
        tl.InvalidArgument, match=r"'trinitylake\.' are reserved for the library: trinitylake\.iceberg-view"
    ):
        write(shop)
    assert shop.version == version
    assert TrinityLakeCatalog(lakehouse=shop).load_view("a.v").metadata.properties == {}


def test_catalog_keeps_reserved_properties(shop: tl.Lakehouse) -> None:
    catalog = TrinityLakeCatalog(lakehouse=shop)
    assert isinstance(catalog.load_table("a.t"), IcebergTable)
    shop.replace_view("a.v", properties={"comment": "theirs"})
    assert shop.view("a.v").properties == {"comment": "theirs"}
    assert catalog.load_view("a.v").metadata.properties["comment"] == "theirs"
