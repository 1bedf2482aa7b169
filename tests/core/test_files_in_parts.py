"""Large files of a transaction on a local disk are written in parts, so that no file is in memory as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.iceberg_storage import RemoteStorage

import trinitylake as tl
from trinitylake.iceberg_storage.data_files import data_file_writer, file_sizes
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.file_writer import PART_SIZE_BYTES, FileWriter

SIZE_BYTES = 3 * PART_SIZE_BYTES + 1000


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("ns")
    lake.create_table("ns.t", rows(0))
    return lake


def rows(count: int) -> pa.Table:
    """Rows of eight bytes that cannot be compressed."""
    values = pa.array(memoryview(os.urandom(8 * count)).cast("q"), pa.int64())
    return pa.table({"value": values})


def begun(txn: tl.Transaction) -> tuple[FileWriter, LakehouseFileIO, Path]:
    """A large file of an open transaction, written except for its end, and its path."""
    io = txn.table("ns.t").iceberg.io
    assert isinstance(io, LakehouseFileIO)
    stream = io.new_output(io.uri_of("ns/t/data/large.parquet")).create(overwrite=True)
    assert isinstance(stream, FileWriter)
    for _ in range(SIZE_BYTES // 1000):
        stream.write(b"x" * 1000)
        assert stream.held_bytes <= PART_SIZE_BYTES + 1000
    where = io.local_path("ns/t/data/large.parquet")
    assert where is not None
    return stream, io, Path(where)


def test_a_large_file_is_on_the_disk_before_it_is_whole(lake: tl.Lakehouse) -> None:
    """The parts of a large file are written to disk when they arrive, instead of being collected in memory."""
    with lake.transaction() as txn:
        stream, io, where = begun(txn)
        assert PART_SIZE_BYTES <= where.stat().st_size < stream.tell() == SIZE_BYTES // 1000 * 1000
        stream.close()
        assert where.stat().st_size == stream.tell()
        with pytest.raises(FileExistsError, match="immutable"):
            io.of_lakehouse().scoped().new_output(io.uri_of("ns/t/data/large.parquet")).create(overwrite=False)
    assert where.read_bytes() == b"x" * (SIZE_BYTES // 1000 * 1000)


def test_the_rows_of_a_large_file_are_read_back(lake: tl.Lakehouse) -> None:
    given = rows(2_000_000)
    table = lake.table("ns.t")
    table.append(given.to_reader(max_chunksize=100_000))
    files = [task.file for task in table.iceberg.scan().plan_files()]
    assert sum(file.file_size_in_bytes for file in files) > 3 * PART_SIZE_BYTES
    for file in files:
        assert os.path.getsize(file.file_path.removeprefix("file://")) == file.file_size_in_bytes
    assert table.scan().to_arrow()["value"].equals(given["value"])
    assert not lake.maintenance.fsck(files=True).findings


@pytest.mark.parametrize("way", ["exception", "discard", "rollback", "rollback when written", "forgotten"])
def test_aborted_file_leaves_nothing_on_disk(lake: tl.Lakehouse, way: str) -> None:
    """The parts of an aborted large file stayed on the disk, under a name that nothing references."""
    txn = lake.transaction()
    stream, _, where = begun(txn)
    assert where.exists()
    if way == "exception":
        with pytest.raises(KeyError), stream:
            raise KeyError
    elif way == "discard":
        stream.discard()
    elif way == "rollback":
        txn.rollback()
        with pytest.raises(tl.TrinityLakeError, match=r"rolled back|ended"):
            stream.close()
    elif way == "rollback when written":
        stream.close()
        txn.rollback()
    del stream
    assert not where.exists()
    txn.rollback()


def test_a_forked_child_leaves_the_file_of_its_parent_alone(lake: tl.Lakehouse) -> None:
    """A process that is forked during a write does not delete the file of its parent when it ends."""
    with lake.transaction() as txn:
        stream, _, where = begun(txn)
        child = os.fork()
        if child == 0:
            try:
                stream.discard()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        stream.close()
    assert where.stat().st_size == SIZE_BYTES // 1000 * 1000


def test_parts_on_disk_do_not_count_towards_the_memory_of_open_files(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_writer, "OPEN_FILES_SIZE_BYTES", 2 * PART_SIZE_BYTES)
    monkeypatch.setattr(file_sizes, "ROW_GROUP_SIZE_BYTES", 1 << 20)
    table = lake.table("ns.t")
    table.append(rows(2_000_000).to_reader(max_chunksize=100_000))
    assert len(list(table.iceberg.scan().plan_files())) == 1


def test_other_stores_are_given_whole_files() -> None:
    store = RemoteStorage()
    io = LakehouseFileIO(store)
    with io.new_output(io.uri_of("a.parquet")).create(overwrite=True) as stream:
        stream.write(b"x" * SIZE_BYTES)
        assert not store.files
    assert len(store.files["a.parquet"]) == SIZE_BYTES
