"""Row groups have the sizes that the properties of the table set, on every write path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from local_files import lake_on_disk
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files import file_sizes, parquet_batches

LIMIT, SIZE = "write.parquet.row-group-limit", "write.parquet.row-group-size-bytes"


lake = lake_on_disk("a")


def rows(first: int, count: int, value: int = 0) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "value": pa.array([value] * count, pa.int64())})


def groups(table: tl.Table) -> list[list[int]]:
    """The numbers of rows of all row groups, for each file."""
    table.refresh()
    found = []
    for task in table.iceberg.scan().plan_files():
        metadata = pq.read_metadata(task.file.file_path.removeprefix("file://"))
        found.append([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])
    return found


def by_append(table: tl.Table) -> None:
    table.append(rows(0, 1000))


def by_stream(table: tl.Table) -> None:
    table.append(rows(0, 1000).to_reader(max_chunksize=70))


def by_overwrite(table: tl.Table) -> None:
    table.append(rows(0, 5))
    table.overwrite(rows(0, 1000))


def by_upsert(table: tl.Table) -> None:
    table.append(rows(0, 1000))
    assert table.upsert(rows(100, 800, 1), on=["id"]) == (800, 0)


def by_insertion(table: tl.Table) -> None:
    table.append(rows(-1, 1))
    assert table.upsert(rows(-1, 1001), on=["id"]) == (0, 1000)
    table.delete("id = -1")


def by_deletion(table: tl.Table) -> None:
    table.append(rows(-1, 1001))
    table.delete("id = -1")


def by_compaction(table: tl.Table) -> None:
    for part in range(5):
        table.append(rows(part * 200, 200))
    table.maintenance.compact()


def by_sorting(table: tl.Table) -> None:
    table.append(rows(0, 1000))
    table.maintenance.compact(sort_by="id desc")


def by_sql(table: tl.Table) -> None:
    lake = tl.open(table.location.partition("/lake/")[0] + "/lake", durability="none")
    lake.sql("insert into a.t select range as id, 0 as value from range(1000)")


def by_pyiceberg(table: tl.Table) -> None:
    table.iceberg.append(rows(0, 1000))


WRITERS: dict[str, Callable[[tl.Table], None]] = {
    "append": by_append,
    "stream": by_stream,
    "overwrite": by_overwrite,
    "upsert": by_upsert,
    "insertion": by_insertion,
    "deletion": by_deletion,
    "compaction": by_compaction,
    "sorting": by_sorting,
    "SQL": by_sql,
    "PyIceberg": by_pyiceberg,
}


@pytest.mark.parametrize("limit", [64, 400])
@pytest.mark.parametrize("writer", WRITERS)
def test_row_groups_have_the_rows_that_the_table_asks_for(
    lake: tl.Lakehouse, writer: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups have the number of rows that the table's property sets; the parts of a stream do not each leave a
    small row group."""
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", 90)
    table = lake.create_table("a.t", rows(0, 0).schema, properties={LIMIT: str(limit)})
    WRITERS[writer](table)
    assert groups(table) == [[limit] * (1000 // limit) + [1000 % limit]]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(1000))


def test_row_groups_are_as_large_as_the_table_says(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups have the size of the property `write.parquet.row-group-size-bytes`, which PyIceberg does not know, and
    nothing warns of it."""
    table = lake.create_table("a.t", rows(0, 0).schema, properties={SIZE: "1600"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.append(rows(0, 1000).to_reader(max_chunksize=10))
    assert groups(table) == [[100] * 10]
    lake.alter_table(table.name, {SIZE: str(1 << 30)})
    monkeypatch.setattr(file_sizes, "MAX_ROW_GROUP_SIZE_BYTES", 3200)
    table.overwrite(rows(0, 1000).to_reader(max_chunksize=10))
    assert groups(table) == [[200] * 5], "row groups are limited by memory"


def test_a_large_file_of_small_row_groups_is_compressed_and_does_not_wait_in_memory(lake: tl.Lakehouse) -> None:
    """A large file whose first row group is small is compressed, and written as a stream instead of being kept in
    memory to its end."""
    table = lake.create_table("a.t", rows(0, 0).schema, properties={LIMIT: "50"})
    table.append(rows(0, 2000).to_reader(max_chunksize=50))
    table.refresh()
    [task] = table.iceberg.scan().plan_files()
    metadata = pq.read_metadata(task.file.file_path.removeprefix("file://"))
    assert metadata.num_row_groups == 40
    assert {metadata.row_group(number).column(0).compression for number in range(40)} == {"ZSTD"}


def test_numbers_that_row_groups_cannot_have(lake: tl.Lakehouse) -> None:
    options: dict[str, Any] = {"properties": {LIMIT: "0", SIZE: "0"}}
    table = lake.create_table("a.t", rows(0, 0).schema, **options)
    table.append(rows(0, 10))
    assert groups(table) == [[10]]
    for properties in ({LIMIT: "many"}, {SIZE: "-1"}, {SIZE: str(1 << 40)}):
        with pytest.raises(InvalidArgument, match="row-group"):
            lake.alter_table(table.name, properties)
