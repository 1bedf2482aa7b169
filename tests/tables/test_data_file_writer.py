"""What is left of data files that are given up while a thread encodes for them."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.iceberg_storage import file_writer
from trinitylake.iceberg_storage.extended_pyiceberg import data_file_writer
from trinitylake.iceberg_storage.extended_pyiceberg.data_file_writer import DataFileWriter

#: Enough that a row group is encoded while others come, and that its bytes do not wait in memory.
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


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_file_that_is_given_up_is_removed_also_if_waiting_is_interrupted(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """Ctrl-C while a file that was given up waited for the thread that encodes for it: the file was not removed, and a
    thread that had not begun it yet began it afterwards."""
    may_encode, waits = threading.Event(), threading.Event()
    encode = data_file_writer._OpenFile._encode
    encoded: list[bool] = []

    def slow(file: Any, rows: list[pa.Table]) -> None:
        if encoded or not is_begun:
            waits.set()
            assert may_encode.wait(30)
        encode(file, rows)
        encoded.append(True)

    monkeypatch.setattr(data_file_writer._OpenFile, "_encode", slow)
    with ThreadPoolExecutor(1) as pool, lake.transaction() as txn:
        table = txn.table("a.t").iceberg
        writer = DataFileWriter(table.metadata, table.io, encoders=pool)
        writer.write(ROWS)
        if is_begun:
            writer.write(ROWS)
        assert waits.wait(30)
        assert len(data_files(lake)) == is_begun
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            writer.discard()
        may_encode.set()
        pool.shutdown()
        assert not data_files(lake)


def test_discard_removes_files_that_wait_for_a_thread_to_finish_them(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, may_finish = data_file_writer._OpenFile.finish, threading.Event()

    def slow(file: Any) -> Any:
        assert may_finish.wait(30)
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
        assert len(data_files(lake)) == 1  # of the thread at work
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
    table = lake.table("a.t")
    table.set_properties({"write.target-file-size-bytes": str(8 << 20), "write.parquet.compression-codec": "none"})
    table.append(rows)
    assert len(data_files(lake)) == 4
    assert table.scan().to_arrow().equals(rows)


def test_a_stream_that_was_given_up_takes_nothing(lake: tl.Lakehouse) -> None:
    """Whoever wrote on made the file again."""
    with lake.transaction() as txn:
        table = txn.table("a.t").iceberg
        stream = table.io.new_output(f"{table.location()}/data/one.parquet").create()
        stream.write(b"x" * (256 << 10))
        assert len(data_files(lake)) == 1
        stream.discard()  # type: ignore[attr-defined]
        assert not data_files(lake)
        assert stream.write(b"x" * (256 << 10)) == 256 << 10
        assert not data_files(lake)
