"""The memory of scans and compactions does not depend on the width of rows.

Compaction limited the rows of a batch and the files that a thread reads ahead, but not their bytes. A table of equal
documents of a megabyte each had files of some kilobytes. Maintenance took them for small files, read all rows of
thirty-two files into memory at once, and was killed by the system.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from local_files import lake_on_disk
from trinitylake.iceberg_storage.data_files import live_rows, parquet_batches, streamed_rows
from trinitylake.iceberg_storage.data_files.streamed_rows import ReadAhead
from trinitylake.tables import compaction

WIDE = 512 << 10
FILES, ROWS = 32, 50
#: Maximum memory of readers, waiting batches and the writer together. The rows of one file take 25 MiB, those of all
#: files 800 MiB.
BOUND = 500 << 20
#: The pools must live on, because memory from them may be freed later.
POOLS: list[pa.MemoryPool] = []


lake = lake_on_disk("ns")


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Measure the memory that Arrow allocates in the block. Yields a function that returns the maximum."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield lambda: int(pool.max_memory() or 0)
    finally:
        pa.set_memory_pool(before)


def alike(first: int) -> pa.Array:
    """Equal documents, which a file stores once in a dictionary."""
    return pa.array(["x" * WIDE] * ROWS)


def different(first: int) -> pa.Array:
    """Different documents that compress well."""
    return pa.array([f"{first + number:08}".ljust(WIDE, "x") for number in range(ROWS)])


def documents(lake: tl.Lakehouse, text: Callable[[int], pa.Array]) -> tl.Table:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = lake.create_table("ns.documents", schema)
    with lake.transaction() as txn:
        for number in range(FILES):
            ids = range(number * ROWS, (number + 1) * ROWS)
            txn.table("ns.documents").append(pa.table([pa.array(ids), text(ids[0])], schema=schema))
    table.refresh()
    return table


@pytest.mark.sample(2)
@pytest.mark.parametrize("sort_by", [None, "id desc"])
@pytest.mark.parametrize("text", [alike, different])
def test_wide_rows_are_put_together_in_bounded_memory(
    lake: tl.Lakehouse, text: Callable[[int], pa.Array], sort_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SORTED_ROWS_SIZE_BYTES", 32 << 20)
    table = documents(lake, text)
    with counted() as most:
        result = table.maintenance.compact(sort_by=sort_by)
        assert most() < BOUND
    assert result.files_removed == FILES
    assert sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == list(range(FILES * ROWS))


def test_so_are_rows_of_a_table_that_has_got_another_column_since(lake: tl.Lakehouse) -> None:
    """Batches of wide rows are small also for files with other columns or with deleted rows, which other code reads."""
    from pyiceberg.types import LongType

    table = documents(lake, alike)
    with table.update_schema() as update:
        update.add_column("n", LongType())
    with counted() as most:
        table.maintenance.compact()
        assert most() < BOUND
    assert table.scan(filter="n is null", columns=["id"]).to_arrow().num_rows == FILES * ROWS


def test_sorted_rows_that_do_not_fit_into_memory_are_sorted_in_parts(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SORTED_ROWS_SIZE_BYTES", 1000)
    monkeypatch.setattr(live_rows, "_JOINED_SIZE_BYTES", 1000)
    table = lake.create_table("ns.t", pa.schema([("id", pa.int64())]))
    for first in range(4):
        table.append(pa.table({"id": range(first, 400, 4)}))
    assert table.maintenance.compact(sort_by="id", min_files=1).files_added > 1
    for task in table.iceberg.scan().plan_files():
        ids = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        assert ids == sorted(ids)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(400))


NESTED = pa.table(
    {
        "list": pa.array([["x", "y" * 50], None, [], ["x"]] * 500),
        "struct": pa.array([{"k": "v" * 30, "n": 1}, None] * 1000),
        "map": pa.array([[("k", "v")]] * 2000, pa.map_(pa.string(), pa.string())),
        "a.b": ["q", None, "long" * 10, ""] * 500,
        "nothing": pa.array([None] * 2000, pa.string()),
        "id": pa.array(range(2000), pa.int64()),
        "binary": pa.array([b"z" * 3000] * 2000, pa.binary()),
        "large": pa.array(["w" * 300] * 2000, pa.large_string()),
        "apart": pa.array([f"{number:0200}" for number in range(2000)], pa.string()),
    }
)


@pytest.mark.sample(18)
@pytest.mark.parametrize("columns", [NESTED.column_names, ["id"], ["a.b", "list"], ["nothing"], []])
@pytest.mark.parametrize("size_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("row_group_size", [300, 5000])
def test_batches_have_all_rows_in_their_order(
    tmp_path: Path,
    columns: list[str],
    size_bytes: int,
    row_group_size: int,
    use_dictionary: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_batches, "BATCH_SIZE_BYTES", size_bytes)
    path = tmp_path / "f.parquet"
    pq.write_table(NESTED, path, row_group_size=row_group_size, use_dictionary=use_dictionary)
    with pa.OSFile(str(path)) as stream:
        batches = list(parquet_batches.batches_of(stream, parquet_batches.open_parquet(stream), columns))
    assert sum(batch.num_rows for batch in batches) == NESTED.num_rows
    if columns:
        expected = NESTED.select(columns)
        assert pa.Table.from_batches(batches).cast(expected.schema).equals(expected)
        wide = size_bytes == 20_000 and columns == NESTED.column_names
        assert not wide or max(batch.nbytes for batch in batches) < 3 * size_bytes


def repeated(value: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), value)


REPEATED = {
    "a text": repeated(pa.array(["x" * 50_000])),
    "bytes": repeated(pa.array([b"x" * 50_000])),
    "texts in lists": pa.ListArray.from_arrays([0, 1, 2000], repeated(pa.array(["x" * 50_000]))),
}


@pytest.mark.parametrize("what", REPEATED)
def test_a_file_of_some_kilobytes_may_stand_for_a_quarter_of_a_gigabyte(tmp_path: Path, what: str) -> None:
    """50 kB can contain five thousand rows of the same long string."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": range(len(REPEATED[what])), "text": REPEATED[what]}), path, store_schema=False)
    assert path.stat().st_size < 100_000
    with pa.OSFile(str(path)) as stream:
        sizes = [
            (batch.num_rows, batch.nbytes)
            for batch in parquet_batches.batches_of(stream, parquet_batches.open_parquet(stream), ["id", "text"])
        ]
    assert sum(rows for rows, _ in sizes) == len(REPEATED[what])
    assert all(rows == 1 or size_bytes <= parquet_batches.BATCH_SIZE_BYTES for rows, size_bytes in sizes)


def texts(path: Path, values: Any, **options: Any) -> pa.Table:
    """Write a file with a column of dictionary-encoded strings and columns of numbers. Returns its rows."""
    ids = pa.array(range(len(values)), pa.int64())
    rows = pa.table({"text": values} | {f"id{number}": ids for number in range(12)})
    pq.write_table(
        rows, path, use_dictionary=["text"], dictionary_pagesize_limit=64 << 20, store_schema=False, **options
    )
    return rows


def test_long_texts_that_stand_together_make_no_large_batch(tmp_path: Path) -> None:
    """Hundreds of long strings follow each other, in a file whose strings take little memory on average."""
    path = tmp_path / "f.parquet"
    long = [str(number).rjust(50_000, "x") for number in range(40)]
    values = [""] * 1_000 + [long[number % 40] for number in range(400)] + ["a", "b"] * 400_000
    rows = texts(path, values)
    with pa.OSFile(str(path)) as stream:
        file = parquet_batches.open_parquet(stream)
        batches = list(parquet_batches.batches_of(stream, file, file.schema_arrow.names))
    assert pa.Table.from_batches(batches).equals(rows)
    # Strings and other columns of a batch have separate limits.
    assert max(batch.nbytes for batch in batches) <= 2 * parquet_batches.BATCH_SIZE_BYTES


class Parts:
    """Six parts with tables of one kilobyte. Counts the tables that were read and not yet consumed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.read_ahead = self.most = 0

    def read(self, part: int) -> Iterator[pa.Table]:
        for number in range(20):
            with self.lock:
                self.read_ahead += 1
                self.most = max(self.most, self.read_ahead)
            if part == 4 and number == 10:
                raise OSError("the disk is gone")
            yield pa.table({"id": pa.array([part * 20 + number] * 128, pa.int64())})


def test_rows_are_read_ahead_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a read is raised at its place in the order, and no thread remains."""
    monkeypatch.setattr(streamed_rows, "BUFFER_SIZE_BYTES", 5 << 10)
    parts = Parts()
    before = threading.active_count()
    taken: list[Any] = []

    def take() -> None:
        for table in ReadAhead(range(6), parts.read, 3):
            with parts.lock:
                parts.read_ahead -= 1
            taken.append(table["id"][0].as_py())

    with pytest.raises(OSError, match="the disk is gone"):
        take()
    assert taken == list(range(90))
    assert parts.most <= 5 + 1 + 3
    assert threading.active_count() <= before


def test_a_closed_reader_leaves_no_thread() -> None:
    before = threading.active_count()
    rows = iter(ReadAhead(range(4), Parts().read, 3))
    assert next(rows).num_rows == 128
    rows.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
