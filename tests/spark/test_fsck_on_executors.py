"""fsck whose executors check the files of tables finds the same as fsck on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.lakehouse.fsck import FsckReport

TABLES = 12


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), order=5, durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("n")
        for number in range(TABLES):
            txn.create_table(f"n.t{number}", pa.table({"id": [number]})).append(pa.table({"id": [number]}))
    for number in range(3):
        lake.table(f"n.t{number}").append(pa.table({"id": [number]}))
    lake.create_view("n.view", "SELECT 1")
    return lake


@pytest.mark.parametrize("version", [None, 1, (1, 3), "all"])
def test_executors_find_what_one_machine_finds(
    spark: SparkSession, lake: tl.Lakehouse, version: int | tuple[int, int] | Literal["all"] | None
) -> None:
    def both() -> tuple[FsckReport, FsckReport]:
        found, own = (lake.maintenance.fsck(version, files=True, data=True, engine=engine) for engine in (spark, None))
        assert found.findings == own.findings
        assert (found.versions, found.nodes, found.definitions) == (own.versions, own.nodes, own.definitions)
        return found, own

    found, own = both()
    assert found.findings == ()
    assert found.files >= own.files > TABLES  # tasks share no list of the files that were checked
    root = Path(lake.uri.removeprefix("file://"))
    data_files = [next(root.rglob(f"n/t{number}-*/data/*.parquet")) for number in (7, 8)]  # files of version 1
    definitions = list(root.rglob("*table-t5*"))
    data_files[0].unlink()
    torn = bytearray(data_files[1].read_bytes())
    torn[8] ^= 1
    data_files[1].write_bytes(torn)
    definitions[0].write_bytes(b"\xff\xff")
    found, _ = both()
    paths = {root / finding.path for finding in found.findings}
    assert {data_files[0], data_files[1], definitions[0]} <= paths
