"""Missing files: an expired version raises `VersionExpired`, a retained version raises `CorruptFile`."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import age, local_path
from trinitylake.tables.table import Table

ROWS = pa.table({"id": list(range(10))})

Reading = Callable[[], object]


def rows_of(table: Table) -> Reading:
    return lambda: table.scan().to_arrow()


def by_sql(reader: tl.Lakehouse | tl.LakehouseVersion) -> Reading:
    query = reader.sql("SELECT count(*) FROM shop.orders")
    return lambda: query.fetchall()


def in_transaction(lake: tl.Lakehouse) -> Reading:
    table = lake.begin().table("shop.orders")

    def read() -> object:
        table.append(ROWS)
        table.delete("id = 1")
        return table.scan().to_arrow()

    return read


def after_writing(lake: tl.Lakehouse) -> Reading:
    table = lake.table("shop.orders")
    table.append(ROWS)
    return rows_of(table)


def pickled(lake: tl.Lakehouse) -> Reading:
    copy: Table = pickle.loads(pickle.dumps(lake.at().table("shop.orders")))
    return rows_of(copy)


#: Ways to get a table that is read later.
WAYS: dict[str, Callable[[tl.Lakehouse], Reading]] = {
    "latest": lambda lake: rows_of(lake.table("shop.orders")),
    "written": after_writing,
    "view": lambda lake: rows_of(lake.at().table("shop.orders")),
    "pickle": pickled,
    "scan": lambda lake: lake.at().table("shop.orders").scan().to_arrow,
    "transaction": in_transaction,
    "sql": by_sql,
    "sql of a view": lambda lake: by_sql(lake.at()),
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none", txn_ttl_millis=1)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS).append(ROWS)
    return lake


def collect(lake: tl.Lakehouse) -> None:
    """Expire all versions but the latest, whose table has none of its former files, and collect garbage."""
    lake.drop_table("shop.orders")
    lake.create_table("shop.orders", ROWS).append(ROWS)
    lake.maintenance.expire(keep=1)
    age(local_path(lake.uri))
    assert lake.maintenance.vacuum().total_deleted.files
    assert lake.table("shop.orders").scan().count() == 10


@pytest.mark.parametrize("way", WAYS)
def test_version_that_expires_during_a_read_raises_version_expired(lake: tl.Lakehouse, way: str) -> None:
    """A reader whose version expires gets `VersionExpired`, not an error about damage or a missing file."""
    read = WAYS[way](lake)
    collect(lake)
    with pytest.raises(tl.VersionExpired, match="has expired; the oldest kept is"):
        read()


@pytest.mark.parametrize("way", WAYS)
def test_lost_file_of_a_retained_version_never_raises_version_expired(lake: tl.Lakehouse, way: str) -> None:
    """A lost file of a kept version is reported as damage. `VersionExpired` would hide the loss."""
    read = WAYS[way](lake)
    lake.maintenance.expire(keep=1)
    for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet"):
        path.unlink()
    with pytest.raises((tl.CorruptFile, FileNotFoundError), match="does not exist"):
        read()


def test_lost_file_of_a_tagged_version_does_not_raise_version_expired(lake: tl.Lakehouse) -> None:
    """A lost file of a tagged version, which is older than the oldest kept version, is reported as damage."""
    lake.tags.create("q1")
    table = lake.at("tag:q1").table("shop.orders")
    lake.table("shop.orders").append(ROWS)
    collect(lake)
    assert table.scan().count() == 10
    for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(tl.CorruptFile, match="does not exist"):
        table.scan().to_arrow()
    lake.tags.drop("q1")
    with pytest.raises(tl.VersionExpired):
        table.scan().to_arrow()


def test_a_transaction_whose_own_files_were_collected_raises_transaction_expired(lake: tl.Lakehouse) -> None:
    """The error is not about damage."""
    slow = lake.begin()
    table = slow.table("shop.orders")
    table.append(ROWS)
    assert table.scan().count() == 20
    time.sleep(4.1)
    tl.open(lake.uri).maintenance.vacuum(grace="0 s")
    with pytest.raises(tl.TransactionExpired, match="may have been deleted"):
        table.scan().to_arrow()
