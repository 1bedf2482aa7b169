"""Background uploads of a transaction: number of waits for the store, and failures of uploads.

The store answers some requests only when others have arrived, so requests in sequence get no answer. Times are not
asserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from slow_s3 import Request, SlowS3, rounds, slow_s3
from trinitylake import _core
from trinitylake.errors import PermissionDenied, TrinityLakeError

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


@pytest.fixture(scope="module")
def s3() -> Iterator[SlowS3]:
    with slow_s3(0.05, 0.005) as store:
        yield store


@pytest.fixture
def lake(s3: SlowS3, request: pytest.FixtureRequest) -> tl.Lakehouse:
    lake = tl.create(s3.uri(request.node.name), storage_options=s3.options)
    lake.create_namespace("a")
    return lake


def puts(requests: list[Request]) -> list[str]:
    return [one.key.rsplit("/", 1)[-1] for one in requests if one.verb == "put" and "hint" not in one.key]


def test_an_append_waits_for_the_store_twice(s3: SlowS3, lake: tl.Lakehouse) -> None:
    """It waited for six files, one after the other."""
    table = lake.create_table("a.t", {"id": "int8"})
    table.append(ROWS)
    with s3.watched() as requests, s3.answering_together(5):
        table.append(ROWS)
    assert len(puts(requests)) == 6, puts(requests)
    assert rounds([one for one in requests if "hint" not in one.key], "put") == 2, requests


def test_a_transaction_on_ten_tables_waits_twice_as_well(s3: SlowS3, lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        for number in range(10):
            txn.create_table(f"a.t{number}", {"id": "int8"})
    with s3.watched() as requests, s3.answering_together(25), lake.transaction() as txn:
        for number in range(10):
            txn.table(f"a.t{number}").append(ROWS)
    assert len(puts(requests)) == 51, "five files for each table, and the root"


def test_transaction_reads_its_own_pending_uploads(s3: SlowS3, lake: tl.Lakehouse) -> None:
    lake.create_table("a.t", {"id": "int8"})
    with s3.watched() as requests, lake.transaction() as txn:
        table = txn.table("a.t")
        table.append(ROWS)
        assert table.scan().to_arrow().num_rows == 10
        table.delete("id < 4")
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(4, 10))
        table.append(ROWS)
    assert lake.table("a.t").scan().to_arrow().num_rows == 16
    own = {one.key for one in requests if one.verb == "put" and "/_" not in one.key}
    read = [one.key for one in requests if one.verb in ("get", "head") and one.key in own]
    assert not read, "files of the transaction itself are not fetched"
    definitions = [name for name in puts(requests) if name.startswith("table-") or "-table-t" in name]
    assert len(definitions) == 1, "a definition that a later statement replaced is not sent"


def test_parts_of_a_pending_upload_are_read(s3: SlowS3, lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        path, content = "a/t-01234567/data/part.parquet", bytes(range(100))
        with s3.watched() as requests:
            txn._storage.put(path, content)
            assert txn._storage.get_ranges(path, [(90, 10), (0, 3), (50, 0)]) == [content[90:], content[:3], b""]
            with pytest.raises(TrinityLakeError):
                txn._storage.get_ranges(path, [(0, 1), (101, 1)])
        assert not [one for one in requests if one.verb in ("get", "head")]


def test_a_file_that_cannot_be_written_fails_its_transaction(s3: SlowS3, lake: tl.Lakehouse) -> None:
    table = lake.create_table("a.t", {"id": "int8"})
    before = lake.version
    for part in (".parquet", "-m0.avro", "snap-", "metadata.json"):
        s3.denied.add(part)
        try:
            with pytest.raises(PermissionDenied, match="denies permission"):
                table.append(ROWS)
        finally:
            s3.denied.clear()
        assert lake.version == before
        assert lake.table("a.t").scan().to_arrow().num_rows == 0
    table.append(ROWS)
    assert lake.table("a.t").scan().to_arrow().num_rows == 10


def test_save_waits_for_the_files_that_it_names(s3: SlowS3, lake: tl.Lakehouse) -> None:
    """`save` waits for pending uploads, so that another process that resumes the transaction finds all files."""
    lake.create_table("a.t", {"id": "int8"})
    txn = lake.begin(id="handed-over")
    txn.table("a.t").append(ROWS)
    with s3.watched() as requests:
        txn.save()
    state = next(one for one in requests if one.verb == "put" and "/_txn/" in one.key)
    assert all(one.end <= state.begin for one in requests if one.verb == "put" and one is not state)
    other = tl.open(lake.uri, storage_options=s3.options).resume("handed-over")
    other.commit()
    assert lake.table("a.t").scan().to_arrow().num_rows == 10


def test_rollback_deletes_pending_uploads(s3: SlowS3, lake: tl.Lakehouse) -> None:
    lake.create_table("a.t", {"id": "int8"})
    before = set(s3.files)
    txn = lake.begin()
    txn.table("a.t").append(ROWS)
    txn.rollback()
    assert set(s3.files) == before
    with pytest.raises(TrinityLakeError):
        txn._storage.put("late", b"")
    assert set(s3.files) == before


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_on_a_local_disk_files_have_their_names_at_once(tmp_path: Path, durability: str) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability=durability)  # type: ignore[arg-type]
    txn = lake.begin()
    txn._storage.put("data/x", b"content")
    assert (tmp_path / "lake/data/x").read_bytes() == b"content"
    assert txn._storage.get("data/x") == b"content"
    assert (txn._storage.size("data/x"), txn._storage.get_range("data/x", 3, 2)) == (7, b"te")
    txn.create_namespace("a")
    txn.commit()
    assert lake._storage.get("data/x") == b"content"
    assert not [file for file in (tmp_path / "lake").rglob("*#*")], "no temporary file is left"


def test_pickled_storage_of_a_transaction_is_that_of_the_lakehouse(tmp_path: Path) -> None:
    import pickle

    lake = tl.create(str(tmp_path / "lake"))
    other = pickle.loads(pickle.dumps(lake.begin()._storage))
    other.put("data/x", b"1")
    assert isinstance(other, _core.Storage)
    assert lake._storage.get("data/x") == b"1"
