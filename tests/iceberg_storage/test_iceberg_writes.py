"""PyIceberg's tables write in transactions: `lake.table` commits each change, `txn.table` writes into the open
transaction.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog

ROWS = pa.table({"id": [1, 2, 3]})
MORE = pl.LazyFrame({"id": [4, 5]})


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a.t", ROWS).append(ROWS)
    return lake


def ids(reader: tl.Lakehouse | tl.Transaction) -> list[int]:
    return sorted(reader.table("a.t").scan().to_arrow()["id"].to_pylist())


def test_each_commit_of_pyiceberg_is_a_transaction_of_its_own(lake: tl.Lakehouse) -> None:
    """Each commit through `lake.table(t).iceberg` is a separate transaction, for all methods of PyIceberg."""
    table = lake.table("a.t")
    iceberg = table.iceberg
    iceberg.append(ROWS)
    assert (lake.version, ids(lake)) == (2, [1, 1, 2, 2, 3, 3])
    iceberg.delete("id = 1")
    with iceberg.update_schema() as update:
        update.add_column("delay", LongType())
    with iceberg.transaction() as both:
        both.set_properties({"owner": "ops"})
        both.append(pa.table({"id": [9], "delay": [1]}))
    assert (lake.version, ids(lake)) == (5, [2, 2, 3, 3, 9])
    assert (list(table.schema.names), lake.table("a.t").properties["owner"]) == (["id", "delay"], "ops")
    assert sorted(iceberg.scan().to_arrow()["id"].to_pylist()) == [2, 2, 3, 3, 9]


def test_an_old_handle_appends_to_what_the_table_is_now(lake: tl.Lakehouse) -> None:
    iceberg = lake.table("a.t").iceberg
    lake.table("a.t").append({"id": [7]})
    iceberg.append(pa.table({"id": [8]}))
    assert ids(lake) == [1, 2, 3, 7, 8]


def test_writers_at_once_lose_nothing(lake: tl.Lakehouse) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: lake.table("a.t").iceberg.append(pa.table({"id": [n]})), range(10, 22)))
    assert ids(lake) == [1, 2, 3, *range(10, 22)]


def test_conflict_raises_errors_of_pyiceberg(lake: tl.Lakehouse) -> None:
    iceberg, other = lake.table("a.t").iceberg, lake.table("a.t")
    other.overwrite({"id": [50]})
    with pytest.raises(ValidationException, match="removed by another commit"):
        iceberg.overwrite(pa.table({"id": [60]}))
    assert ids(lake) == [50]
    iceberg = lake.table("a.t").iceberg
    lake.drop_table("a.t")
    with pytest.raises(NoSuchTableError):
        iceberg.append(ROWS)
    lake.create_table("a.t", ROWS)
    with pytest.raises(CommitFailedException, match="open it again"):
        iceberg.append(ROWS)
    assert ids(lake) == []


def test_an_older_version_stays_for_reading(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        lake.at(1).table("a.t").iceberg.append(ROWS)


# polars


def test_polars_sinks_into_a_table(lake: tl.Lakehouse) -> None:
    MORE.sink_iceberg(lake.table("a.t").iceberg, mode="append")
    assert (lake.version, ids(lake)) == (2, [1, 2, 3, 4, 5])
    MORE.sink_iceberg(lake.table("a.t").iceberg, mode="overwrite")
    assert ids(lake) == [4, 5]


def test_polars_sinks_into_an_open_transaction(lake: tl.Lakehouse) -> None:
    """polars' sink can write into an open transaction, where it expects another metadata location after its commit."""
    with lake.transaction() as txn:
        MORE.sink_iceberg(txn.table("a.t").iceberg, mode="append")
        MORE.sink_iceberg(txn.table("a.t").iceberg, mode="append")
        txn.table("a.t").append({"id": [6]})
        MORE.sink_iceberg(txn.table("a.t").iceberg, mode="append")
        assert ids(txn) == [1, 2, 3, 4, 4, 4, 5, 5, 5, 6]
        txn.create_table("a.new", ROWS)
        MORE.sink_iceberg(txn.table("a.new").iceberg, mode="append")
        assert ids(lake) == [1, 2, 3]
    assert ids(lake) == [1, 2, 3, 4, 4, 4, 5, 5, 5, 6]
    assert lake.table("a.new").scan().count() == 2
    assert not lake.maintenance.fsck().findings


def test_rolled_back_polars_sink_leaves_no_rows(lake: tl.Lakehouse) -> None:
    txn = lake.begin()
    MORE.sink_iceberg(txn.table("a.t").iceberg, mode="append")
    txn.rollback()
    assert (lake.version, ids(lake)) == (1, [1, 2, 3])


def test_polars_sink_by_name_writes_into_the_bound_transaction(lake: tl.Lakehouse) -> None:
    """Polars creates a second catalog from the class and properties of the first."""
    with lake.transaction() as txn:
        catalog = TrinityLakeCatalog(lakehouse=lake, transaction=txn)
        MORE.sink_iceberg("a.t", mode="append", catalog=catalog)
        MORE.sink_iceberg("a.made", mode="append", catalog=catalog, create_if_not_exists=True)
        assert (ids(txn), ids(lake), lake.tables()) == ([1, 2, 3, 4, 5], [1, 2, 3], ["a.t"])
    assert (lake.version, ids(lake), lake.tables()) == (2, [1, 2, 3, 4, 5], ["a.made", "a.t"])
    MORE.sink_iceberg("a.t", mode="append", catalog=TrinityLakeCatalog(lakehouse=lake))
    assert len(ids(lake)) == 7
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        MORE.sink_iceberg("a.t", mode="append", catalog=TrinityLakeCatalog(lakehouse=lake, version=1))
    assert len(ids(lake)) == 7


def test_a_transaction_that_has_ended_is_not_written_by_its_id(lake: tl.Lakehouse) -> None:
    txn = lake.begin(id="ended")
    catalog = TrinityLakeCatalog(lakehouse=lake, transaction=txn)
    txn.rollback()
    with pytest.raises(tl.ObjectNotFound, match="ended"):
        MORE.sink_iceberg("a.t", mode="append", catalog=catalog)
    assert lake.version == 1


@pytest.mark.parametrize("name", ["Größe", "名", "x y", "d€"])
def test_names_of_partition_fields_in_manifests_are_avro_names(tmp_path: Path, name: str) -> None:
    """Avro allows ASCII only: DuckDB ended its process at a partition field `Größe`."""
    lake = tl.create(tmp_path / "other", durability="none")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"id": "int", name: "varchar"}, partition_spec=[f'"{name}"'])
    table.append({"id": [1, 2], name: ["a", "b"]})
    [manifest] = table.iceberg.inspect.manifests()["path"].to_pylist()
    with AvroFile[Record](table.iceberg.io.new_input(manifest)) as file:
        names = re.findall(r'"name": "([^"]*)"', file.header.meta["avro.schema"])
    assert len(names) > 20
    assert [one for one in names if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", one, re.ASCII) is None] == []
    table.delete(f"\"{name}\" = 'a'")
    rows = StaticTable.from_metadata(lake.table("a.t").iceberg.metadata_location).scan().to_arrow()
    assert rows.to_pylist() == [{"id": 2, name: "b"}]
