"""File names on an object store: a commit refuses names that readers and garbage collection interpret differently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pytest

import s3_server
import trinitylake as tl
from manifests_by_hand import data_file
from s3_server import S3Server
from trinitylake.iceberg_storage.manifests import snapshot_producer

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.serve() as server:
        yield server


def test_vacuum_keeps_files_named_in_another_spelling(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum keeps a file that the latest version names with another scheme of the same store, such as `s3n://`:
    readers and garbage collection have the same table of equal schemes. New commits cannot have such names, but
    existing tables may."""
    monkeypatch.setattr(snapshot_producer, "check_data_file", lambda io, file: None)
    bucket = server.new_bucket()
    uri = f"s3://{bucket}/the/lake"
    lake = tl.create(uri, storage_options=server.storage_options, txn_ttl_millis=1)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    table = lake.table("shop.orders")
    folder = table.iceberg.location().removeprefix(f"{uri}/")
    spellings = {"a": "s3://{}", "b": "s3a://{}", "c": "s3n://{}", "d": "S3://{}", "e": "s3://{}?x=1"}
    files = []
    for name, spelling in spellings.items():
        lake._storage.put(f"{folder}/data/{name}.parquet", b"x")
        files.append(data_file(spelling.format(f"{bucket}/the/lake/{folder}/data/{name}.parquet")))
    lake._storage.put(f"{folder}/data/garbage.parquet", b"x")
    with table._writing() as iceberg, iceberg.transaction() as change:
        change.append_files(files)  # type: ignore[attr-defined]
    for _ in range(30):  # the clock of the store is known only to some seconds
        time.sleep(1.5)
        lake.maintenance.vacuum(grace="0 s")
        kept = {path.rpartition("/")[2] for path, _, _ in lake._storage.list(f"{folder}/data/")}
        if "garbage.parquet" not in kept:
            break
    assert kept == {f"{name}.parquet" for name in spellings}


def test_an_outdated_scheme_is_not_committed(server: S3Server) -> None:
    """Many readers do not find a file with an outdated scheme, or find another file."""
    bucket = server.new_bucket()
    lake = tl.create(f"s3://{bucket}/the/lake", storage_options=server.storage_options)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    table = lake.table("shop.orders")
    table.append(ROWS)
    [task] = table.iceberg.scan().plan_files()
    before = lake.version
    for taken, scheme in ((False, "s3n"), (False, "S3"), (True, "s3a")):
        file = data_file(task.file.file_path.replace("s3://", f"{scheme}://").replace(".parquet", "-2.parquet"))
        expected: AbstractContextManager[object] = (
            nullcontext() if taken else pytest.raises(tl.InvalidLocation, match="the scheme")
        )
        with expected, table._writing() as iceberg, iceberg.transaction() as change:
            change.append_files([file])  # type: ignore[attr-defined]
        assert lake.version == before + taken
