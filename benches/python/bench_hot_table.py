"""A hundred writers append to one table: all must land, none by being done again by its user.

Once as threads of one process, once as processes of five threads each, which know nothing of each other.
"""

from __future__ import annotations

import logging
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import trinitylake as tl
from benches.python import peers
from benches.python.measure import Bench, at_least, at_most, seconds
from trinitylake.iceberg_storage.staging.staged_table import StagedTable

Append = Callable[[pa.Table], object]
#: How long a process waits for the others to have imported everything.
START_TIMEOUT_SECONDS = 300
LONE_APPENDS = 20


class Appended(NamedTuple):
    """What some writers did: how long each append took, the errors of those that failed, how often one was redone."""

    seconds: list[float]
    errors: list[str]
    redone: int


@dataclass(frozen=True)
class Writers:
    """How many there are, and how many appends each of them makes."""

    processes: int
    threads: int
    each: int

    @property
    def appends(self) -> int:
        return self.processes * self.threads * self.each


class Lake:
    """A lakehouse on disk with the table `n.t`. Each append is a transaction that its user would have to redo."""

    def __init__(self, folder: Path, coordination: str = "none") -> None:
        self._uri, self._coordination = str(folder), coordination
        lake = tl.create(self._uri, durability="none")
        with lake.transaction() as txn:
            txn.create_namespace("n")
            txn.create_table("n.t", peers.SCHEMA)

    def handle(self) -> tl.Lakehouse:
        return tl.open(self._uri, durability="none")

    def appender(self, lake: tl.Lakehouse) -> Append:
        return partial(self._append, lake)

    def _append(self, lake: tl.Lakehouse, rows: pa.Table) -> None:
        txn = lake.begin()
        txn.table("n.t").append(rows)
        txn.commit(coordination=self._coordination)

    def rows(self) -> int:
        return int(self.handle().table("n.t").scan().count())

    def versions(self) -> int:
        return self.handle().version


class Sql:
    """PyIceberg's catalog in SQLite with the same table. PyIceberg tries a commit five times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        catalog = peers.sql_catalog(folder)
        catalog.create_namespace("n")
        catalog.create_table("n.t", peers.SCHEMA)

    def handle(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        uri, warehouse = f"sqlite:///{self._folder}/catalog.db", f"file://{self._folder}/warehouse"
        return SqlCatalog("bench", uri=uri, warehouse=warehouse)

    def appender(self, catalog: Any) -> Append:
        return lambda rows: catalog.load_table("n.t").append(rows)

    def rows(self) -> int:
        return int(self.handle().load_table("n.t").scan().count())


def work(target: Lake | Sql, writers: Writers, number: int, start: Callable[[], object]) -> Appended:
    """What one process does: all its threads append, through one handle, as soon as `start` returns."""
    counter = _count_redone()
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it tells of each retry
    handle = target.handle()

    def append_each(thread: int) -> Appended:
        append = target.appender(handle)
        done = Appended([], [], 0)
        for position in range(writers.each):
            rows = peers.ten_rows((number * writers.threads + thread) * writers.each + position)
            began = time.perf_counter()
            try:
                append(rows)
            except Exception as error:
                done.errors.append(f"{type(error).__name__}: {error}"[:300])
            else:
                done.seconds.append(time.perf_counter() - began)
        return done

    with ThreadPoolExecutor(writers.threads) as pool:
        start()
        parts = list(pool.map(append_each, range(writers.threads)))
    return _sum([*parts, Appended([], [], counter())])


def in_processes(target: Lake | Sql, writers: Writers, folder: Path) -> Appended:
    """All writers at once; alone in this process if there is to be no more than one."""
    if writers.processes == 1:
        return work(target, writers, 0, lambda: None)
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(writers.processes, mp_context=context) as pool:
        futures = [
            pool.submit(work, target, writers, number, partial(_meet, folder, number, writers.processes))
            for number in range(writers.processes)
        ]
        return _sum([future.result() for future in futures])


def _meet(folder: Path, number: int, processes: int) -> None:
    """Wait until all processes are here."""
    (folder / str(number)).touch()
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while len(list(folder.iterdir())) < processes:
        if time.monotonic() > deadline:
            raise TimeoutError("the other processes did not start")
        time.sleep(0.01)


def _sum(parts: Sequence[Appended]) -> Appended:
    return Appended(
        [one for part in parts for one in part.seconds],
        [one for part in parts for one in part.errors],
        sum(part.redone for part in parts),
    )


def _count_redone() -> Callable[[], int]:
    """Counts from now on how often a staged table is redone, in this process."""
    lock, counts = threading.Lock(), [0]
    reapply = _REAPPLY

    def counting(staged: StagedTable, newer_metadata_path: str) -> None:
        with lock:
            counts[0] += 1
        reapply(staged, newer_metadata_path)

    StagedTable.reapply = counting  # type: ignore[method-assign]
    return lambda: counts[0]


_REAPPLY = StagedTable.reapply


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _hot_table(bench: Bench, writers: Writers, coordination: str = "none") -> None:
    name = f"{writers.processes} processes of {writers.threads} threads" if writers.processes > 1 else "100 threads"
    name += ", commit queue" if coordination == "queue" else ""
    lake = Lake(bench.folder("hot"), coordination)
    lone_append = lake.appender(lake.handle())
    lone = [seconds(partial(lone_append, peers.ten_rows(number))) for number in range(LONE_APPENDS)][1:]
    before = lake.versions()
    took: list[float] = []
    done: list[Appended] = []
    took.append(seconds(lambda: done.append(in_processes(lake, writers, bench.folder("meet")))))
    (ours,) = done
    landed = lake.rows() // peers.ROWS - LONE_APPENDS
    versions = lake.versions() - before
    errors = "; ".join(sorted(set(ours.errors))[:3])
    what = f"{name} append to one table"
    bench.figure(None, f"{what}: appends that raised", [float(len(ours.errors))], "count", at_most(0), note=errors)
    bench.figure(None, f"{what}: share that landed", [landed / writers.appends], "count", at_least(1))
    bench.figure(
        None,
        f"{what}: root versions for {writers.appends:,} appends",
        [float(versions)],
        "count",
        note=f"{ours.redone:,} redone on newer metadata, {ours.redone / writers.appends:.2f} for each append",
    )
    for share in (0.5, 0.99):
        contended = [_percentile(ours.seconds, share)]
        bench.cost(None, f"{what}: p{share * 100:.0f}", contended, "one lone append", [statistics.median(lone)])
    if coordination == "queue":
        return
    sql = Sql(bench.folder("sql"))
    began = time.perf_counter()
    theirs = in_processes(sql, writers, bench.folder("meet"))
    their_took = time.perf_counter() - began
    their_landed = sql.rows() // peers.ROWS
    reasons = "; ".join(sorted({error[:80] for error in theirs.errors})[:3])
    bench.figure(
        None,
        f"SqlCatalog, {what}: appends that raised",
        [float(len(theirs.errors))],
        "count",
        note=f"of {writers.appends:,}; {their_landed:,} landed; {reasons}",
    )
    bench.cost(
        None,
        f"{what}: landed a second, processes started",
        [landed / took[0]],
        "SqlCatalog, those that landed",
        [their_landed / their_took],
        unit="1/s",
    )


def hot_table_threads(bench: Bench) -> None:
    """A hundred threads of one process."""
    _hot_table(bench, Writers(1, 100, bench.size(5, 1)))


def hot_table_processes(bench: Bench) -> None:
    """Twenty processes of five threads each."""
    _hot_table(bench, Writers(bench.size(20, 3), 5, bench.size(5, 2)))


def hot_table_queue(bench: Bench) -> None:
    """The same processes with the commit queue."""
    _hot_table(bench, Writers(bench.size(20, 3), 5, bench.size(5, 2)), "queue")


BENCHMARKS = {
    "hot-table": hot_table_threads,
    "hot-table-processes": hot_table_processes,
    "hot-table-queue": hot_table_queue,
}
