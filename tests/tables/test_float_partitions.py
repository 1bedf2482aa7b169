"""Tables partitioned by floating-point numbers: NaN, which equals nothing, and two zeros, which equal each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse
from pyiceberg.expressions.visitors import bind
from pyiceberg.typedef import Record
from tests.position_deletes import delete_positions

import trinitylake as tl
from trinitylake.errors import CommitConflict
from trinitylake.iceberg_storage.data_files.partitioned_rows import in_partitions

ODD = [math.nan, None, 0.0, -0.0, 1.5, math.inf]


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("ns")
    lake.create_table("ns.t", {"size": "double", "n": "int"}, partition_spec=["size"])
    return lake


def rows(sizes: Sequence[float | None], first: int = 0) -> pa.Table:
    numbers = pa.array(range(first, first + len(sizes)), pa.int32())
    return pa.table({"size": pa.array(sizes, pa.float64()), "n": numbers})


def found(lake: tl.Lakehouse, filter: str | None = None) -> list[tuple[str, int]]:
    """Sizes and numbers of the matching rows. Sizes are texts, because -0.0 equals 0.0."""
    read = lake.table("ns.t").scan(filter=filter).to_arrow().sort_by("n")
    return [(str(size), n) for size, n in zip(*read.to_pydict().values(), strict=True)]


EVERY = [(str(size), number) for number, size in enumerate(ODD)]


@pytest.mark.parametrize("way", ["append", "stream", "overwrite", "overwrite by a stream", "upsert", "create"])
def test_each_row_is_in_one_partition(lake: tl.Lakehouse, way: str) -> None:
    """Also rows with NaN, 0.0 and -0.0, which equal nothing or each other."""
    table = lake.table("ns.t")
    if way == "append":
        table.append(rows(ODD))
    elif way == "stream":
        table.append(rows(ODD).to_reader())
    elif way == "overwrite":
        table.overwrite(rows(ODD))
    elif way == "overwrite by a stream":
        table.overwrite(rows(ODD).to_reader())
    elif way == "upsert":
        table.upsert(rows(ODD), ["n"])
    else:
        lake.drop_table("ns.t")
        lake.create_table("ns.t", rows(ODD), partition_spec=["size"])
        lake.table("ns.t").append(rows(ODD))
    assert found(lake) == EVERY
    files = [task.file for task in lake.table("ns.t").iceberg.scan().plan_files()]
    assert sorted(str(file.partition[0]) for file in files) == sorted(str(size) for size in ODD)
    assert found(lake, "size is nan") == EVERY[:1]
    assert found(lake, "size = 0.0") == EVERY[2:4]


@pytest.mark.parametrize("sort_by", [[], ["n"]])
def test_a_compaction_keeps_the_rows_of_each_partition(lake: tl.Lakehouse, sort_by: list[str]) -> None:
    """A compaction keeps the rows of partitions with NaN, although NaN equals nothing."""
    table = lake.table("ns.t")
    for first in range(0, 24, 6):
        table.append(rows(ODD, first))
    before = found(lake)
    result = table.maintenance.compact(min_files=2, sort_by=sort_by)
    assert (result.files_removed, result.files_added) == (24, 6), "files of NaN are joined, too"
    assert found(lake) == before
    assert len(before) == 24


def test_rows_are_deleted_and_replaced_where_the_partition_is_nan(lake: tl.Lakehouse) -> None:
    """PyIceberg has no literal for NaN. A dynamic overwrite of -0.0 keeps the partition of 0.0."""
    table = lake.table("ns.t")
    table.append(rows([math.nan] * 4 + ODD))
    table.delete("n = 0")
    table.delete("n > 7")
    assert [n for _, n in found(lake)] == [1, 2, 3, 4, 5, 6, 7]
    with table._writing() as iceberg:
        given = rows([math.nan, -0.0], 20)
        iceberg.dynamic_partition_overwrite(given)
    assert found(lake) == [("None", 5), ("0.0", 6), ("nan", 20), ("-0.0", 21)]
    table.delete("size is nan")
    assert [n for _, n in found(lake)] == [5, 6, 21]


def test_files_of_several_partitions_are_split_when_they_are_rewritten(lake: tl.Lakehouse) -> None:
    """A file from before the table was partitioned can contain 0.0 and -0.0."""
    lake.create_table("ns.u", {"size": "double", "n": "int"})
    table = lake.table("ns.u")
    table.append(rows(ODD))
    with table.update_spec() as update:
        update.add_identity("size")
    table.delete("n = 5")
    read = table.scan().to_arrow()
    assert sorted(read["n"].to_pylist()) == [0, 1, 2, 3, 4]


def test_deleted_positions_of_a_nan_partition_stay_deleted(lake: tl.Lakehouse) -> None:
    """The position deletes apply to the data files of this partition, although NaN equals nothing."""
    table = lake.table("ns.t")
    table.append(rows([math.nan, math.nan, 1.5]))
    (task,) = (one for one in table.iceberg.scan().plan_files() if one.file.record_count == 2)
    delete_positions(table, task, [0])
    assert [n for _, n in found(lake)] == [1, 2]
    table.refresh()
    table.maintenance.compact(min_files=1)
    assert [n for _, n in found(lake)] == [1, 2]


def test_a_delete_in_a_nan_partition_meets_a_compaction(lake: tl.Lakehouse) -> None:
    """Without a conflict, the compacted file would restore the deleted rows."""
    table = lake.table("ns.t")
    for first in range(3):
        table.append(rows([math.nan] * 2, 2 * first))
    txn = lake.transaction()
    txn.table("ns.t").maintenance.compact(min_files=2)
    task = next(iter(table.iceberg.scan().plan_files()))
    delete_positions(table, task, [0])
    with pytest.raises(CommitConflict, match="may have deleted rows"):
        txn.commit()


def test_a_filter_for_many_partitions_is_shallow(lake: tl.Lakehouse) -> None:
    """A thousand nested conditions would end in a `RecursionError`."""
    filter = in_partitions([Record(float(number)) for number in range(5000)], ["size"])
    assert bind(lake.table("ns.t").iceberg.schema(), filter, case_sensitive=True)
    assert in_partitions([], ["size"]) == in_partitions([Record()], []) == AlwaysFalse()
