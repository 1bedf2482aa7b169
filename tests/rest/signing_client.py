"""PyIceberg as a client without credentials, whose requests the server signs. It runs in a new process, like the
process of a user: without file systems, credentials or `botocore` hooks of other tests.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.fsspec import FsspecFileIO, S3V4RestSigner

#: Without this setting, fsspec shares one file system and signer between all tables with the same settings
#: (docs/guide/rest.md).
ONE_FILE_SYSTEM_EACH = {"FSSPEC_S3_SKIP_INSTANCE_CACHE": "true"}
#: Settings with which the AWS libraries find no credentials.
NO_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "",
    "AWS_SECRET_ACCESS_KEY": "",
    "AWS_SESSION_TOKEN": "",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_CONFIG_FILE": "/nonexistent",
}


@contextmanager
def own_process(environment: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """A new process with these environment variables, which calls functions of this module."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with mock.patch.dict(os.environ, {**NO_CREDENTIALS, **environment}):
            pool.submit(os.getpid).result()
        yield lambda function, *args: pool.submit(function, *args).result()


@contextmanager
def connected(url: str, token: str) -> Iterator[RestCatalog]:
    """The catalog, over s3fs."""
    with RestCatalog(
        "test",
        uri=url,
        token=token,
        **{"header.X-Iceberg-Access-Delegation": "remote-signing", "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"},
    ) as catalog:
        yield catalog


def ids(catalog: RestCatalog, table: str) -> list[int]:
    """The rows of a table."""
    return sorted(catalog.load_table(table).scan().to_arrow()["id"].to_pylist())


def properties(url: str, token: str, table: str) -> dict[str, Any]:
    """The properties and the class of a table's file access."""
    with connected(url, token) as catalog:
        io = catalog.load_table(table).io
        return {**io.properties, "class": type(io).__name__}


def append(url: str, token: str, table: str, rows: pa.Table) -> tuple[list[int], list[int]]:
    """Append rows to a table. Returns the ids in the table before and after."""
    with connected(url, token) as catalog:
        before = ids(catalog, table)
        catalog.load_table(table).append(rows)
        return before, ids(catalog, table)


def create(url: str, token: str, table: str, rows: pa.Table, staged: bool) -> list[int]:
    """Create a table with rows, in one commit if `staged`. Returns the ids in the table."""
    with connected(url, token) as catalog:
        if staged:
            with catalog.create_table_transaction(table, rows.schema) as transaction:
                transaction.append(rows)
        else:
            catalog.create_table(table, rows.schema).append(rows)
        return ids(catalog, table)


def read_in_turn(url: str, token: str, first: str, second: str) -> list[list[int]]:
    """Open two tables, and read the first, the second and again the first one. Returns the ids of each read."""
    with connected(url, token) as catalog:
        tables = [catalog.load_table(first), catalog.load_table(second)]
        return [sorted(table.scan().to_arrow()["id"].to_pylist()) for table in (*tables, tables[0])]


def signers_of_two_tables() -> list[str]:
    """The endpoints at which requests for each of two tables would be signed. Sends no request."""
    access = [
        FsspecFileIO(
            {
                "uri": "http://127.0.0.1:1",
                "s3.endpoint": "http://127.0.0.1:2",
                "s3.region": "us-east-1",
                "s3.signer": "S3V4RestSigner",
                "s3.signer.endpoint": table,
            }
        )
        for table in ("first", "second")
    ]
    systems = [one.get_fs("s3") for one in access]
    signers = []
    for system in systems:
        handlers = system.s3.meta.events._emitter._handlers.prefix_search("before-sign.s3.GetObject")
        [signer] = [one for one in handlers if isinstance(one, S3V4RestSigner)]
        signers.append(signer.properties["s3.signer.endpoint"])
    return signers
