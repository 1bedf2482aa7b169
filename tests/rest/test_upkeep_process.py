"""The process in which a server tidies up tables: what is in them takes it down at most."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import trinitylake as tl
from trinitylake.rest.state import upkeep_process
from trinitylake.rest.state.upkeep_process import UpkeepProcess

ROWS = pa.table({"id": [1]})
N_FILES = 6
#: How often a run begins again at most, of those in these tests.
MAX_ATTEMPTS = 3
SIZE_BYTES = 768 << 20


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none", properties={"upkeep.vacuum": "false"})
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    for _ in range(N_FILES):
        lake.table("shop.orders").append(ROWS)
    return lake


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes the same table again and again fails: it would go on until somebody stopped it."""
    attempt, attempts = UpkeepProcess._attempt, 0

    def counted(process: UpkeepProcess, look: Callable[[], object]) -> object:
        nonlocal attempts
        attempts += 1
        assert attempts <= MAX_ATTEMPTS, "the run begins again and again"
        return attempt(process, look)

    monkeypatch.setattr(UpkeepProcess, "_attempt", counted)


def add_bombs(lake: tl.Lakehouse, name: str) -> None:
    """Files of a kilobyte each: forty times one value of 8 MB, two gigabytes in all."""
    lake.create_table(name, {"item": "text"})
    with lake.table(name).writing() as iceberg, iceberg.transaction() as change:
        folder = iceberg.location().removeprefix("file://")
        os.makedirs(f"{folder}/data", exist_ok=True)
        rows = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["x" * 8_000_000]))
        field = pa.field("item", rows.type, metadata={"PARQUET:field_id": "1"})
        files = []
        for number in range(N_FILES):
            path = f"{folder}/data/{number}.parquet"
            table = pa.table({"item": rows}, schema=pa.schema([field]))
            pq.write_table(
                table,
                path,
                compression="zstd",
                store_schema=False,
                write_statistics=False,
                dictionary_pagesize_limit=1 << 30,
            )
            assert os.path.getsize(path) < 10_000
            files.append(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"file://{path}",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=len(rows),
                    file_size_in_bytes=os.path.getsize(path),
                    spec_id=0,
                )
            )
        change.append_files(files)  # type: ignore[attr-defined]


def test_files_that_are_small_and_hold_very_much_do_not_take_the_memory_of_the_server(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client committed six files of a kilobyte each, and the next upkeep on schedule read them in the server's
    process: within a minute it had all memory of the machine, again after each start."""
    monkeypatch.setattr(upkeep_process, "MAX_SIZE_BYTES", SIZE_BYTES)
    add_bombs(lake, "shop.bomb")
    done = UpkeepProcess(lake.storage).run(lambda: None)
    assert set(done.skipped) == {"shop.bomb"}
    assert "memory" in done.skipped["shop.bomb"]
    assert set(done.compacted) == {"shop.orders"}
    assert lake.table("shop.orders").scan().count() == N_FILES


def test_a_table_that_ends_the_process_is_left_out_and_the_others_are_not(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table at which no file was done for very long kept the others from upkeep, run after run."""
    monkeypatch.setattr(upkeep_process, "PATIENCE_SECONDS", 0.0)
    process = UpkeepProcess(lake.storage)
    with pytest.raises(RuntimeError, match="before it began"):
        process.run(lambda: None)
    monkeypatch.undo()
    process.left_out["shop.orders"] = "it ended the process"
    done = process.run(lambda: None)
    assert done.skipped == {"shop.orders": "it ended the process"}
    assert not done.compacted


def test_a_process_that_is_killed_at_a_table_begins_again_without_it(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system ended it for its memory, and nobody could tell which table that was."""
    process = UpkeepProcess(lake.storage)
    attempts: list[Callable[[], object]] = []
    attempt = process._attempt

    def killed_once(look: Callable[[], object]) -> object:
        attempts.append(look)
        return "shop.orders" if len(attempts) == 1 else attempt(look)

    monkeypatch.setattr(process, "_attempt", killed_once)
    done = process.run(lambda: None)
    assert len(attempts) == 2
    assert "too much memory or time" in done.skipped["shop.orders"]
