"""Tables whose metadata file exists already."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    TableAlreadyExistsError,
)

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, load

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def ours(tmp_path: Path) -> TrinityLakeCatalog:
    """Our catalog with an empty namespace."""
    catalog = load(tl.create(str(tmp_path / "lake"), durability="none"))
    catalog.create_namespace("shop")
    return catalog


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
