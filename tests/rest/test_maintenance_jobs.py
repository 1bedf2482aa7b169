"""Maintenance of tables in a worker process: a table can end the worker, but not the server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import trinitylake as tl
from trinitylake.lakehouse.maintenance_policy import Skipped
from trinitylake.rest import limits
from trinitylake.rest.workers import maintenance_jobs
from trinitylake.rest.workers.maintenance_jobs import maintain_tables
from trinitylake.rest.workers.pool import JobAbandoned, WorkerDied, WorkerPool

ROWS = pa.table({"id": [1]})
N_FILES = 6
#: How many workers a run may start in these tests.
MAX_ATTEMPTS = 3
SIZE_BYTES = 768 << 20


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none", properties={"maintenance.vacuum": "false"})
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    for _ in range(N_FILES):
        lake.table("shop.orders").append(ROWS)
    return lake


@pytest.fixture
def workers() -> Iterator[WorkerPool]:
    """A pool that limits the number of workers of a run. Without a limit, a failing run would start new workers for
    ever."""
    pool = CountingPool()
    yield pool
    pool.close()


class CountingPool(WorkerPool):
    attempts = 0

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.attempts += 1
        assert self.attempts <= MAX_ATTEMPTS, "the run has started too many workers"
        return super().run(*arguments, **options)


def maintain(workers: WorkerPool, lake: tl.Lakehouse, skipped: dict[str, Skipped]) -> Any:
    return maintain_tables(workers, lake._storage, skipped, lambda: True)


def add_bombs(lake: tl.Lakehouse, name: str) -> None:
    """Add files of one kilobyte. Each contains a value of 8 MB forty times; together they expand to two gigabytes."""
    lake.create_table(name, {"item": "text"})
    with lake.table(name)._writing() as iceberg, iceberg.transaction() as change:
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


def test_small_files_that_expand_do_not_fill_the_memory_of_the_server(
    lake: tl.Lakehouse, workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance reads files of clients in a worker with a memory limit. Six files of a kilobyte each can expand to
    more than the memory of the machine."""
    monkeypatch.setitem(limits.JOBS, "maintenance", limits.JobLimits(1, 1, SIZE_BYTES))
    add_bombs(lake, "shop.bomb")
    done = maintain(workers, lake, {})
    assert set(done.skipped) == {"shop.bomb"}
    assert any(word in done.skipped["shop.bomb"].message for word in ("memory", "malloc"))
    assert set(done.compacted) == {"shop.orders"}
    assert lake.table("shop.orders").scan().count() == N_FILES


def test_a_worker_that_ends_before_its_first_table_is_an_error(
    lake: tl.Lakehouse, workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_jobs, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(RuntimeError, match="before its first table"):
        maintain(workers, lake, {})


def test_a_table_that_is_skipped_does_not_keep_others_from_maintenance(lake: tl.Lakehouse, workers: WorkerPool) -> None:
    skipped = {"shop.orders": Skipped("ended_process", "it ended the worker")}
    done = maintain(workers, lake, dict(skipped))
    assert done.skipped == skipped
    assert not done.compacted


def test_a_worker_that_is_killed_at_a_table_is_replaced_by_one_that_skips_it(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system kills a worker for its memory use, a new worker skips the table, and the log names the table."""

    class KilledOnce(CountingPool):
        def run(self, job: Any, *arguments: Any, **options: Any) -> Any:
            if self.attempts:
                return super().run(job, *arguments, **options)
            self.attempts += 1
            options["on_progress"]("shop.orders")
            raise WorkerDied

    workers = KilledOnce()
    skipped: dict[str, Skipped] = {}
    done = maintain(workers, lake, skipped)
    workers.close()
    assert workers.attempts == 2
    assert "too much memory or time" in done.skipped["shop.orders"].message
    assert skipped == done.skipped


def test_maintenance_ends_when_the_server_does(lake: tl.Lakehouse, workers: WorkerPool) -> None:
    with pytest.raises(JobAbandoned):
        maintain_tables(workers, lake._storage, {}, lambda: False)
