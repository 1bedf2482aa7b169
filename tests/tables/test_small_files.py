"""Small files and row groups: rows are those that PyIceberg reads, and row groups have the right size."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType

import trinitylake as tl
from local_files import lake_on_disk
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files import file_sizes, parquet_batches, streamed_rows
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema_with_ids
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.tables import compaction

COLUMNS = {
    "id": "bigint",
    "small": "int",
    "is_new": "boolean",
    "ratio": "double",
    "share": "float",
    "day": "date",
    "moment": "timestamp",
    "there": "timestamptz",
    "hour": "time",
    "price": "decimal(12, 3)",
    "name": "text",
    "raw": "binary",
    "code": "fixed(4)",
    "key": "uuid",
}


def row(number: int) -> dict[str, Any]:
    if number % 5 == 4:
        return {"id": number}
    moment = dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=1_234_567 * number)
    return {
        "id": number,
        "small": number * 31,
        "is_new": number % 2 == 0,
        "ratio": number / 7,
        "share": float(number) / 4,
        "day": moment.date() + dt.timedelta(days=number),
        "moment": moment,
        "there": moment.replace(tzinfo=dt.UTC),
        "hour": moment.time(),
        "price": decimal.Decimal(number) / 8,
        "name": f"name {number % 3}",
        "raw": bytes([number % 256]) * (number % 4),
        "code": bytes([1, 2, 3, number % 256]),
        "key": uuid.UUID(int=number).bytes,
    }


lake = lake_on_disk("a")


def fill(table: tl.Table, files: int, rows: int = 7) -> None:
    for number in range(files):
        table.append([row(number * rows + one) for one in range(rows)])


def of_pyiceberg(table: tl.Table) -> list[dict[str, Any]]:
    """The rows as PyIceberg's own reader returns them, which uses nothing of this library."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    metadata, scan = table.iceberg.metadata, table.scan().iceberg
    reader = ArrowScan(metadata, scan.io, metadata.schema(), AlwaysTrue())
    rows: list[dict[str, Any]] = reader.to_table(scan.plan_files()).to_pylist()
    return rows


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("compression", ["zstd", "snappy", "uncompressed", "gzip", "lz4"])
def test_rows_of_all_types_are_those_that_pyiceberg_reads(
    lake: tl.Lakehouse, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"write.parquet.compression-codec": compression}
    plain = {name: kind for name, kind in COLUMNS.items() if name != "key"}
    table = lake.create_table("a.t", plain, properties=properties)
    for number in range(6):
        table.append([{k: v for k, v in row(number * 7 + one).items() if k != "key"} for one in range(7)])
    expected = by_id(of_pyiceberg(table))
    rows = table.scan().to_arrow_batch_reader().read_all()
    assert by_id(rows.to_pylist()) == expected
    table.maintenance.compact(min_files=2)
    assert len(list(table.scan().iceberg.plan_files())) == 1
    assert by_id(table.scan().to_arrow().to_pylist()) == expected


def test_columns_that_were_renamed_dropped_and_moved_are_found_by_their_ids(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`name` was renamed to `title`, and another column got the name `name`."""
    table = lake.create_table("a.t", {"id": "bigint", "name": "text", "other": "text"})
    for number in range(4):
        table.append([{"id": number, "name": f"name {number}", "other": f"other {number}"}])
    with table.update_schema() as change:
        change.rename_column("name", "title")
    with table.update_schema() as change:
        change.rename_column("other", "name")
        change.move_first("title")
    table = lake.table("a.t")
    expected = [{"title": f"name {n}", "id": n, "name": f"other {n}"} for n in range(4)]
    assert by_id(table.scan().to_arrow_batch_reader().read_all().to_pylist()) == expected
    with table.update_schema() as change:
        change.delete_column("name")
        change.add_column("late", StringType())
    table = lake.table("a.t")
    table.append([{"title": "name 4", "id": 4, "late": "yes"}])
    expected = [{"title": f"name {n}", "id": n, "late": "yes" if n == 4 else None} for n in range(5)]
    assert by_id(table.scan().to_arrow_batch_reader().read_all().to_pylist()) == expected
    table.maintenance.compact(min_files=2)
    assert by_id(table.scan().to_arrow().to_pylist()) == expected


def test_rows_that_were_deleted_by_position_do_not_come_back(lake: tl.Lakehouse) -> None:
    """The core reads whole files, so it must not read these."""
    table = lake.create_table("a.t", {"id": "bigint"}, properties={"write.delete.mode": "merge-on-read"})
    for number in range(5):
        table.append({"id": range(number * 10, number * 10 + 10)})
    gone = next(iter(table.scan("id = 23").iceberg.plan_files())).file
    tasks = list(table.scan().iceberg.plan_files())
    live = LiveRows(table.iceberg.metadata, table.iceberg.io, tasks)
    live.deletes[gone.file_path] = np.array([3, 5])
    found = sorted(one for batch in live.batches_of(tasks) for one in batch["id"].to_pylist())
    assert found == [one for one in range(50) if one not in (23, 25)]


def test_files_of_others_are_read_whatever_they_are(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """Every second file has other encodings, dictionaries, no ids, other widths or columns in another order."""
    table = lake.create_table("a.t", {"id": "bigint", "text": "text"})
    ids = {"PARQUET:field_id": "1"}, {"PARQUET:field_id": "2"}
    with_ids = pa.schema([pa.field("id", pa.int64(), metadata=ids[0]), pa.field("text", pa.string(), metadata=ids[1])])
    rows = pa.table({"id": pa.array([1, 2]), "text": ["a", None]})
    folder = Path(table.iceberg.metadata.location.removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    kinds: list[tuple[pa.Table, dict[str, Any]]] = [
        (rows.cast(with_ids), {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}}),
        (rows.cast(with_ids), {"data_page_version": "2.0", "compression": "gzip"}),
        (rows.cast(with_ids).select(["text", "id"]), {"compression": "snappy"}),
        (rows, {}),
        (rows.set_column(1, "text", rows["text"].dictionary_encode()), {}),
        (rows.cast(with_ids), {"compression": "zstd", "data_page_version": "2.0"}),
    ]
    paths = []
    for number, (kind, options) in enumerate(kinds):
        path = folder / f"{number}.parquet"
        pq.write_table(kind, path, **options)
        paths.append(f"file://{path}")
    table.iceberg.add_files(paths)
    for number in range(6):
        lake.table("a.t").append([{"id": number, "text": "own"}])
    table = lake.table("a.t")
    expected = sorted([(1, "a"), (2, None)] * 6 + [(number, "own") for number in range(6)], key=str)
    streamed = table.scan().to_arrow_batch_reader().read_all().to_pylist()
    assert sorted(((one["id"], one["text"]) for one in streamed), key=str) == expected
    table.maintenance.compact(min_files=2)
    found = table.scan().to_arrow().to_pylist()
    assert sorted(((one["id"], one["text"]) for one in found), key=str) == expected


def test_a_link_that_leaves_the_lakehouse_is_refused_as_always(lake: tl.Lakehouse, tmp_path: Path) -> None:
    table = lake.create_table("a.t", {"id": "bigint"})
    for number in range(3):
        table.append({"id": [number]})
    files = [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().iceberg.plan_files()]
    outside = tmp_path / "secret.parquet"
    os.rename(files[1], outside)
    os.symlink(outside, files[1])
    with pytest.raises(tl.errors.InvalidLocation):
        lake.table("a.t").scan().to_arrow_batch_reader().read_all()
    with pytest.raises(tl.errors.InvalidLocation):
        lake.table("a.t").maintenance.compact(min_files=2)


def test_a_file_that_is_missing_or_damaged_is_an_error_that_names_it(lake: tl.Lakehouse) -> None:
    """No rows are left out."""
    table = lake.create_table("a.t", {"id": "bigint"})
    for number in range(5):
        table.append({"id": [number]})
    paths = [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().iceberg.plan_files()]
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-20])
    with pytest.raises((pa.ArrowInvalid, tl.errors.TrinityLakeError)):
        lake.table("a.t").maintenance.compact(min_files=2)
    paths[2].unlink()
    with pytest.raises(Exception, match=paths[2].name):
        lake.table("a.t").scan().to_arrow_batch_reader().read_all()
    paths[2].write_bytes(whole)
    assert lake.table("a.t").scan().to_arrow_batch_reader().read_all().num_rows == 5


#: Program that evaluates a Bloom filter whose header claims zero blocks.
WITHOUT_BLOCK = """
import pyarrow as pa
from trinitylake._core import bloom_filter_may_hold
print(bloom_filter_may_hold(bytes.fromhex("15001c1c00001c1c00001c1c000000"), pa.array([1])))
"""


def test_damaged_bloom_filter_prints_nothing() -> None:
    """A panic of a Rust library that is caught prints no "thread panicked at …"."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_BLOCK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_a_flipped_byte_in_a_small_file_never_changes_values(lake: tl.Lakehouse) -> None:
    """The reader of small local files verifies the checksums of pages."""
    table = lake.create_table("a.t", {"id": "bigint", "name": "text"})
    for number in range(3):
        table.append([{"id": number * 100 + one, "name": f"name {one}"} for one in range(100)])
    expected = by_id(of_pyiceberg(table))
    path = Path(next(iter(table.scan().iceberg.plan_files())).file.file_path.removeprefix("file://"))
    whole = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    for column in (group.column(number) for number in range(2)):
        begin = column.dictionary_page_offset or column.data_page_offset
        end = begin + column.total_compressed_size
        # The last bytes of a column belong to a page, after the page header.
        for position in range(end - 30, end):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
            with pytest.raises((pa.ArrowException, OSError, tl.TrinityLakeError)):
                lake.table("a.t").scan().to_arrow()
    path.write_bytes(whole)
    assert by_id(lake.table("a.t").scan().to_arrow().to_pylist()) == expected


def test_schemas_with_ids_are_worked_out_once(lake: tl.Lakehouse) -> None:
    schema = lake.create_table("a.t", {"id": "bigint"}).iceberg.metadata.schema()
    assert arrow_schema_with_ids(schema) is arrow_schema_with_ids(schema)
    assert arrow_schema_with_ids(schema).field("id").metadata[b"PARQUET:field_id"] == b"1"


def test_all_rows_at_once_of_many_small_files_are_those_of_a_stream(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create_table("a.t", {name: kind for name, kind in COLUMNS.items() if name != "key"})
    for number in range(10):
        table.append([{k: v for k, v in row(number * 7 + one).items() if k != "key"} for one in range(7)])
    rows = table.scan().to_arrow()
    assert by_id(rows.to_pylist()) == by_id(of_pyiceberg(table))
    assert (
        table.scan(columns=["name", "id"]).to_arrow().schema == rows.schema.empty_table().select(["id", "name"]).schema
    )
    assert table.scan("id < 10").to_arrow().num_rows == table.scan(limit=10).to_arrow().num_rows == 10


def test_few_rows_are_written_while_others_are_read(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of encoding one row group with one thread at the end."""
    monkeypatch.setattr(compaction, "LEAST_ROW_GROUP_SIZE_BYTES", 1 << 14)
    monkeypatch.setattr(streamed_rows, "RUN_FILES", 1)
    table = lake.create_table("a.t", {"id": "bigint", "raw": "binary"})
    for number in range(4):
        table.append({"id": range(number * 1000, number * 1000 + 1000), "raw": [os.urandom(100) for _ in range(1000)]})
    table.maintenance.compact(min_files=2)
    (task,) = table.scan().iceberg.plan_files()
    assert 2 <= pq.ParquetFile(task.file.file_path.removeprefix("file://")).metadata.num_row_groups <= 5


# Row groups


LIMIT, SIZE = "write.parquet.row-group-limit", "write.parquet.row-group-size-bytes"


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
    """The parts of a stream do not each leave a small row group."""
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", 90)
    table = lake.create_table("a.t", rows(0, 0).schema, properties={LIMIT: str(limit)})
    WRITERS[writer](table)
    assert groups(table) == [[limit] * (1000 // limit) + [1000 % limit]]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(1000))


def test_row_groups_are_as_large_as_the_table_says(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg does not know `write.parquet.row-group-size-bytes`, and nothing warns of it."""
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
    """It is written as a stream although its first row group is small."""
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
