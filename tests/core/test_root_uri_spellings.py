"""A file that a manifest names by another spelling of its URI is in use: garbage collection keeps it, as readers find
it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import trinitylake as tl
from local_files import age
from trinitylake.iceberg_storage.manifests import snapshot_producer

ROWS = pa.table({"id": [1, 2, 3]})
SPELLINGS: dict[str, Callable[[str], str]] = {
    "two slashes": lambda path: f"file://{path.replace('/data/', '//data/')}",
    "a dot": lambda path: f"file://{path.replace('/data/', '/./data/')}",
    "two dots": lambda path: f"file://{path.replace('/data/', '/data/../data/')}",
    "four slashes": lambda path: f"file:///{path}",
    "a query": lambda path: f"file://{path}?x=1",
    "a fragment": lambda path: f"file://{path}#x",
    "a link": lambda path: f"file://{path.replace('/lake/', '/link/')}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_vacuum_keeps_files_named_in_another_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Vacuum keeps a file that the latest version names in another spelling, such as with a second slash. New commits
    cannot have such names, but existing tables may, and other writers of the format commit them."""
    monkeypatch.setattr(snapshot_producer, "check_data_file", lambda io, file: None)
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    table = lake.table("shop.orders")
    table.append(ROWS)
    [task] = table.iceberg.scan().plan_files()
    written = task.file.file_path.removeprefix("file://")
    path, garbage = f"{os.path.dirname(written)}/f.parquet", f"{os.path.dirname(written)}/g.parquet"
    for copy in (path, garbage):
        shutil.copy(written, copy)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=SPELLINGS[spelling](path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ROWS.num_rows,
        file_size_in_bytes=os.path.getsize(path),
        spec_id=0,
    )
    with table._writing() as iceberg, iceberg.transaction() as change:
        change.append_files([file])  # type: ignore[attr-defined]
    age(tmp_path / "lake")
    lake.maintenance.vacuum(grace="1 minute")
    assert os.path.exists(path)
    assert not os.path.exists(garbage)
