"""Names of files on a store of objects: what readers and a collection of garbage do not take alike is not committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import s3_server
import trinitylake as tl
from s3_server import S3Server

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.serve() as server:
        yield server


def test_a_scheme_that_a_collection_does_not_know_is_not_committed(server: S3Server) -> None:
    """Our reader took `s3n://` for the same store, and the collection of garbage did not: it deleted the file, which
    the latest version named."""
    bucket = server.new_bucket()
    lake = tl.create(f"s3://{bucket}/the/lake", storage_options=server.storage_options)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    table = lake.table("shop.orders")
    table.append(ROWS)
    [task] = table.iceberg.scan().plan_files()
    before = lake.version
    for taken, scheme in ((False, "s3n"), (False, "S3"), (True, "s3a")):
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=task.file.file_path.replace("s3://", f"{scheme}://").replace(".parquet", "-2.parquet"),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
            spec_id=0,
        )
        expected: AbstractContextManager[object] = (
            nullcontext() if taken else pytest.raises(tl.InvalidLocation, match="the scheme")
        )
        with expected, table.writing() as iceberg, iceberg.transaction() as change:
            change.append_files([file])  # type: ignore[attr-defined]
        assert lake.version == before + taken
