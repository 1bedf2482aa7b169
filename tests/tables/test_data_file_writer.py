"""The data file writer: files of partitions in parallel threads, the target size, and discarded files."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.iceberg_storage import file_writer
from trinitylake.iceberg_storage.data_files import data_file_writer, partitioned_rows
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from waiting import PATIENCE_SECONDS

#: So many rows that parts of a file are stored before the file is finished.
ROWS = pa.table({"id": np.random.default_rng(1).integers(0, 1 << 62, 300_000)})


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tl.Lakehouse:
    monkeypatch.setattr(file_writer, "PART_SIZE_BYTES", 64 << 10)
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS.schema)
    return lake


def data_files(lake: tl.Lakehouse) -> list[Path]:
    return list(Path(lake.uri.removeprefix("file://")).rglob("*.parquet"))


def test_discard_removes_files_that_wait_for_a_thread_to_finish_them(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, may_finish = data_file_writer._OpenFile.finish, threading.Event()

    def slow(file: Any) -> Any:
        assert may_finish.wait(PATIENCE_SECONDS)
        return finish(file)

    parts = pa.table({"id": ROWS["id"], "part": np.arange(len(ROWS)) % 3})
    lake.create_table("a.parts", parts.schema, partition_spec=["part"])
    monkeypatch.setattr(data_file_writer, "OPEN_FILES_SIZE_BYTES", 1 << 30)
    monkeypatch.setattr(data_file_writer, "MAX_OPEN_FILES", 1)
    monkeypatch.setattr(data_file_writer._OpenFile, "finish", slow)
    with ThreadPoolExecutor(1) as pool:
        txn = lake.begin()
        table = txn.table("a.parts").iceberg
        writer = DataFileWriter(table.metadata, table.io, row_group_size_bytes=1 << 10, finishers=pool)
        writer.write(parts)
        assert len(data_files(lake)) == 3
        writer.discard()
        assert len(data_files(lake)) == 1  # the file of the running thread
        txn.rollback()
        may_finish.set()
    assert not data_files(lake)


def test_files_are_finished_by_threads_in_the_order_of_their_rows(lake: tl.Lakehouse) -> None:
    parts = pa.table({"id": ROWS["id"][:100], "part": range(100)})
    lake.create_table("a.parts", parts.schema, partition_spec=["part"])
    with ThreadPoolExecutor(4) as pool, lake.transaction() as txn:
        table = txn.table("a.parts").iceberg
        files = DataFileWriter(table.metadata, table.io, finishers=pool).written([parts])
        assert [file.partition[0] for file in files] == list(range(100))


def test_append_of_a_large_table_closes_files_at_the_target_size(lake: tl.Lakehouse) -> None:
    rows = pa.concat_tables([ROWS] * 50)  # 120 MB
    properties = {"write.target-file-size-bytes": str(8 << 20), "write.parquet.compression-codec": "none"}
    lake.alter_table("a.t", properties)
    table = lake.table("a.t")
    table.append(rows)
    assert len(data_files(lake)) == 4
    assert table.scan().to_arrow().equals(rows)


def test_a_stream_that_was_given_up_takes_nothing(lake: tl.Lakehouse) -> None:
    """A discarded file accepts no more bytes. A later write created the file again."""
    with lake.transaction() as txn:
        table = txn.table("a.t").iceberg
        stream = table.io.new_output(f"{table.location()}/data/one.parquet").create()
        stream.write(b"x" * (256 << 10))
        assert len(data_files(lake)) == 1
        stream.discard()  # type: ignore[attr-defined]
        assert not data_files(lake)
        assert stream.write(b"x" * (256 << 10)) == 256 << 10
        assert not data_files(lake)


@pytest.mark.parametrize("size_bytes", [1, 2_000, 1 << 20])
def test_rows_of_a_partition_keep_their_order_however_they_are_copied(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """A copy may end within a partition or exactly at its end."""
    monkeypatch.setattr(partitioned_rows, "_COPY_SIZE_BYTES", size_bytes)
    parts = [None, 1, 2, 2, 1, None, 3, 2] * 50
    rows = pa.table(
        {
            "id": pa.array(range(400), pa.int64()),
            "part": pa.array(parts, pa.int32()),
            "text": [None if number % 5 == 0 else "x" * (number % 7) for number in range(400)],
            "nested": pa.array([[{"a": [number]}] * (number % 3) for number in range(400)]),
        }
    )
    chunked = pa.Table.from_batches(rows.to_batches(max_chunksize=37))
    table = lake.create_table("a.parts", rows.schema, partition_spec=["part"])
    table.append(chunked)
    for part in (None, 1, 2, 3):
        mine = [row for row in rows.to_pylist() if row["part"] == part]
        found = table.scan("part IS NULL" if part is None else f"part = {part}")
        assert found.to_arrow().to_pylist() == mine
        assert len(list(found.iceberg.plan_files())) == 1
