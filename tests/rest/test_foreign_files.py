"""Metadata of external and federated tables has limits before it is read, as that of managed tables.

A file of one megabyte outside of the lakehouse decompressed to a gigabyte when a reader loaded or planned the table.
"""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from local_files import local_path
from rest.client import Client
from rest.shop import with_tables
from trinitylake.iceberg_storage import metadata
from trinitylake.rest import metadata_limits

PATH = "/v1/namespaces/shop/tables/outside"


@pytest.fixture
def elsewhere(tmp_path: Path, lake: tl.Lakehouse) -> tl.Table:
    """A table in another lakehouse, which this one has as an external table."""
    other = tl.create(str(tmp_path / "other"), durability="none")
    with_tables(other, "else.where")
    table = other.table("else.where")
    table.append({"id": [7, 8]})
    lake.create_namespace("shop")
    lake.create_external_table("shop.outside", table.iceberg.metadata_location)
    return table


def planned(client: Client) -> Any:
    return client("POST", f"{PATH}/plan", {})


def test_a_scan_of_a_table_elsewhere_is_planned(http_client: Client, elsewhere: tl.Table) -> None:
    files = {task.file.file_path for task in elsewhere.iceberg.scan().plan_files()}
    assert len(files) == 2
    assert {task["data-file"]["file-path"] for task in planned(http_client).body["file-scan-tasks"]} == files


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_ENTRIES", 1), ("MAX_SIZE_BYTES", 100), ("MAX_STORED_SIZE_BYTES", 9)]
)
def test_manifests_elsewhere_have_limits(
    http_client: Client, elsewhere: tl.Table, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(http_client).code == 200
    monkeypatch.setattr(metadata_limits, limit, value)
    answer = planned(http_client)
    assert answer.code == 406
    assert "exceeds the limit" in answer.body["error"]["message"]


def test_metadata_elsewhere_have_limits(http_client: Client, elsewhere: tl.Table) -> None:
    file = local_path(elsewhere.iceberg.metadata_location)
    whole = file.read_bytes()
    for bomb in (gzip.compress(b" " * (300 << 20)), b'{"x":[' + b"[]," * 3_000_000 + b"0]}", b" " * (65 << 20)):
        file.write_bytes(bomb)
        metadata.cache.clear()
        tracemalloc.start()
        try:
            answer = http_client("GET", PATH)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (answer.code, answer.error) == (500, "CorruptFileException")
        assert "exceeds the limit" in answer.body["error"]["message"]
        assert most < 150 << 20
    file.write_bytes(whole)
    metadata.cache.clear()
    assert http_client("GET", PATH).body["metadata"]["table-uuid"] == str(elsewhere.iceberg.metadata.table_uuid)


def test_metadata_elsewhere_are_one_compressed_text(http_client: Client, elsewhere: tl.Table) -> None:
    """Texts of nothing, one behind the other, were unpacked one by one, and for each the rest was copied twice: a few
    megabytes of them took an hour, long after the client had been told that nobody answers."""
    local_path(elsewhere.iceberg.metadata_location).write_bytes(gzip.compress(b"") * 1000)
    metadata.cache.clear()
    answer = http_client("GET", PATH)
    assert (answer.code, answer.error) == (500, "CorruptFileException")
    assert "has data after the end of its compressed text" in answer.body["error"]["message"]
