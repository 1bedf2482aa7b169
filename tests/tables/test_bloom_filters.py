"""Bloom filters are written for the columns that a table names. A merge does not read files whose filters exclude its
keys.
"""

from __future__ import annotations

import uuid
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import parquet_files_to_data_files

import trinitylake as tl
from trinitylake import _core
from trinitylake.iceberg_storage.data_files import bloom_filters
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema_with_ids
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.tables.merging import matching

ENABLED = "write.parquet.bloom-filter-enabled.column."


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tl.Lakehouse:
    monkeypatch.setattr(matching, "_SMALL_SIZE_BYTES", 0)
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    return lake


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files whose rows are read."""
    read: list[str] = []
    original = LiveRows.batches

    def batches(self: LiveRows, task: Any, *arguments: Any) -> Any:
        read.append(task.file.file_path)
        return original(self, task, *arguments)

    monkeypatch.setattr(LiveRows, "batches", batches)
    return read


VALUES: dict[str, Any] = {
    "bigint": lambda n: n * 1_000_003 % 100_003,
    "int": lambda n: n * 7919 % 10_007,
    "text": lambda n: f"{n * 7919 % 10_007:05d}",
    "binary": lambda n: f"{n * 7919 % 10_007:05d}".encode(),
    "uuid": lambda n: uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes,
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_merge_reads_no_file_whose_filter_excludes_its_keys(
    lake: tl.Lakehouse, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files have similar bounds, as with random ids, so bounds exclude none."""
    value = VALUES[kind]
    table = lake.create_table("a.t", {"key": kind, "n": "bigint"}, properties={ENABLED + "key": "true"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyIceberg warns that filters are not written
        for part in range(8):
            numbers = range(part, 800, 8)
            table.append([{"key": value(n), "n": n} for n in numbers])
    read = counted(monkeypatch)
    for number in (3, 80, 799):
        read.clear()
        result = table.upsert([{"key": value(number), "n": -number}], on=["key"])
        assert (result.rows_updated, result.rows_inserted) == (1, 0)
        assert 1 <= len(set(read)) <= 3, "of eight files; one filter in a hundred is wrong"
    read.clear()
    assert table.upsert([{"key": value(9_000), "n": 1}], on=["key"]).rows_inserted == 1
    assert len(set(read)) <= 2
    rows = {row["n"] for row in table.scan().to_arrow().to_pylist()}
    assert rows == (set(range(800)) | {-3, -80, -799, 1}) - {3, 80, 799}


def test_keys_of_several_columns_are_excluded_by_any_of_them(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {ENABLED + "a": "true", ENABLED + "b": "TRUE"}
    table = lake.create_table("a.t", {"a": "bigint", "b": "text", "n": "int"}, properties=properties)
    table.append([{"a": n, "b": f"b{n % 10}", "n": n} for n in range(0, 100, 2)])
    table.append([{"a": n, "b": f"b{n % 10}", "n": n} for n in range(1, 100, 2)])
    read = counted(monkeypatch)
    keys = [{"a": 2, "b": "b3", "n": 0}]  # the values are in different files
    assert table.upsert(keys, on=["a", "b"]).rows_inserted == 1
    assert read == []


def test_files_without_filters_and_types_that_changed_are_read(lake: tl.Lakehouse) -> None:
    """Otherwise rows of these files would be inserted again."""
    from pyiceberg.types import LongType

    table = lake.create_table("a.t", {"key": "int", "n": "int"})
    table.append([{"key": n, "n": n} for n in range(100)])
    lake.alter_table(table.name, {ENABLED + "key": "true"})
    table.append([{"key": n, "n": n} for n in range(100, 200)])
    with table.update_schema() as change:
        change.update_column("key", LongType())
    table = lake.table("a.t")
    table.append([{"key": n, "n": n} for n in range(200, 300)])
    result = table.upsert([{"key": n, "n": -1} for n in (5, 150, 250, 1000)], on=["key"])
    assert (result.rows_updated, result.rows_inserted) == (3, 1)


def test_columns_that_were_renamed_are_found_by_their_ids(lake: tl.Lakehouse) -> None:
    """`code` was renamed, and another column, which has filters as well, is called `code` now."""
    properties = {ENABLED + "code": "true", ENABLED + "other": "true"}
    table = lake.create_table("a.t", {"code": "bigint", "other": "bigint"}, properties=properties)
    table.append([{"code": n, "other": -n} for n in range(1, 100)])
    with table.update_schema() as change:
        change.rename_column("code", "was")
    with table.update_schema() as change:
        change.rename_column("other", "code")
    table = lake.table("a.t")
    result = table.upsert([{"code": -7, "was": 0}], on=["code"])
    assert (result.rows_updated, result.rows_inserted) == (1, 0)


def test_many_keys_ask_no_filter(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("a.t", {"key": "bigint", "n": "int"}, properties={ENABLED + "key": "true"})
    table.append([{"key": n, "n": n} for n in range(0, 4000, 2)])
    asked: list[object] = []
    monkeypatch.setattr(matching, "may_hold", lambda *arguments: asked.append(arguments) or True)
    table.upsert([{"key": n, "n": 0} for n in range(bloom_filters.MAX_KEYS + 1)], on=["key"])
    assert asked == []
    table.upsert([{"key": n, "n": 1} for n in range(bloom_filters.MAX_KEYS)], on=["key"])
    assert len(asked) > 0


def filters(table: tl.Table) -> dict[str, int]:
    """The size of each Bloom filter in the newest file, by column."""
    path = max(
        (task.file.file_path for task in table.scan().iceberg.plan_files()),
        key=lambda path: Path(path[7:]).stat().st_mtime_ns,
    )
    metadata = pq.ParquetFile(path.removeprefix("file://")).metadata
    chunks = [metadata.row_group(0).column(number) for number in range(metadata.num_columns)]
    return {chunk.path_in_schema: chunk.bloom_filter_length for chunk in chunks if chunk.bloom_filter_offset}


def test_filters_are_as_large_as_the_table_says(lake: tl.Lakehouse) -> None:
    columns = {"a": "bigint", "b": "text", "c": "bigint"}
    rows = pa.table({"a": range(20_000), "b": [str(n) for n in range(20_000)], "c": range(20_000)})
    table = lake.create_table("a.t", columns, properties={ENABLED + "a": "true", ENABLED + "c": "false"})
    table.append(rows)
    assert filters(table).keys() == {"a"}
    usual = filters(table)["a"]
    assert 16_384 < usual < 66_000
    lake.alter_table(table.name, {"write.parquet.bloom-filter-max-bytes": "4096"})
    table.append(rows)
    assert filters(table)["a"] < 4096 + 64
    lake.alter_table(
        table.name,
        {"write.parquet.bloom-filter-max-bytes": "nonsense", "write.parquet.bloom-filter-fpp.column.a": "0.3"},
    )
    table.append(rows)
    assert filters(table)["a"] < usual
    lake.alter_table(
        table.name, {"write.parquet.bloom-filter-fpp.column.a": "7", "write.parquet.bloom-filter-ndv.column.a": "100"}
    )
    table.append(rows)
    assert filters(table)["a"] < 1024


def test_a_filter_that_cannot_be_read_says_nothing() -> None:
    for odd in (b"", b"\0", b"\x15\0", bytes(64), b"\x15\0\x1c\x1c\0\0\x1c\x1c\0\0\x1c\x1c\0\0\0"):
        assert _core.bloom_filter_may_hold(odd, pa.array([1, 2])) is None


@pytest.mark.parametrize("name", ["a.b", "a b", "1st", 'q"x'])
def test_columns_whose_names_differ_in_files_have_filters(lake: tl.Lakehouse, name: str) -> None:
    """In files, `a.b` is `a_x2Eb`, as in Avro."""
    properties = {ENABLED + name: "true", f"write.parquet.bloom-filter-ndv.column.{name}": "10"}
    table = lake.create_table("a.t", {name: "bigint", "n": "int"}, properties=properties)
    table.append([{name: n * 7919 % 10_007, "n": n} for n in range(1000)])
    assert len(filters(table)) == 1
    assert min(filters(table).values()) < 100
    assert table.upsert([{name: 7919, "n": -1}, {name: 10_007, "n": 1}], on=[name]) == (1, 1)


def test_columns_without_bloom_filters_are_written(lake: tl.Lakehouse) -> None:
    """Arrow fails if it is asked for a filter of booleans, or for less than one value."""
    properties = {ENABLED + "is_new": "true", ENABLED + "key": "true"}
    properties["write.parquet.bloom-filter-ndv.column.key"] = "0.5"
    table = lake.create_table("a.t", {"key": "bigint", "is_new": "boolean"}, properties=properties)
    table.append([{"key": 1, "is_new": True}])
    assert filters(table).keys() == {"key"}


def by_us(table: tl.Table, part: pa.Table) -> None:
    table.append(part)


def by_another_engine(table: tl.Table, part: pa.Table) -> None:
    """A file with field ids and Bloom filters, and without an Arrow schema."""
    path = f"{table.location}/data/{uuid.uuid4()}.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(parents=True, exist_ok=True)
    rows = part.cast(arrow_schema_with_ids(table.iceberg.schema()))
    options = {"id": {"ndv": 200, "fpp": 0.01}, "n": {"ndv": 200, "fpp": 0.01}}
    pq.write_table(rows, local, store_schema=False, bloom_filter_options=options)
    files = parquet_files_to_data_files(table.iceberg.io, table.iceberg.metadata, iter([path]))
    with table.iceberg.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)


@pytest.mark.parametrize("write", [by_us, by_another_engine])
def test_files_with_structures_and_lists_are_asked(
    lake: tl.Lakehouse, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of structs and lists count as columns in the file."""
    schema = {"id": "bigint", "tags": "list<text>", "of": "struct<k: bigint, l: text>", "n": "bigint"}
    table = lake.create_table("a.t", schema, properties={ENABLED + "id": "true", ENABLED + "n": "true"})
    ids = [(n + 1) * 7919 % 100_003 for n in range(1600)]
    for part in range(8):
        mine = ids[part::8]
        write(
            table,
            pa.table(
                {
                    "id": mine,
                    "tags": [["a", str(id)] for id in mine],
                    "of": [{"k": id + 1, "l": "x"} for id in mine],
                    "n": [id + 2 for id in mine],
                }
            ),
        )
    table = lake.table("a.t")
    read = counted(monkeypatch)
    for on, key in (("id", ids[3]), ("n", ids[80] + 2), ("id", ids[1599])):
        read.clear()
        row = {"id": 0, "tags": None, "of": None, "n": 0, on: key}
        assert table.upsert([row], on=[on]) == (1, 0)
        assert 1 <= len(set(read)) <= 3, "of eight"
        table = lake.table("a.t")
