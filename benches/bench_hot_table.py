"""A hundred writers append to one table; every append must land without a retry by its caller.

The writers are threads of one process, or processes of five threads each, with and without the intent queue.
"""

from __future__ import annotations

import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import trinitylake as tl
from benches import peers
from benches.measure import Bench, at_least, at_most, seconds

Append = Callable[[pa.Table], object]
#: A process waits this long until the others have started.
START_TIMEOUT_SECONDS = 300
LONE_APPENDS = 20


class Appended(NamedTuple):
    """Duration of each append, and the errors of those that failed."""

    seconds: list[float]
    errors: list[str]


@dataclass(frozen=True)
class Writers:
    """Number of writers, and of the appends of each."""

    processes: int
    threads: int
    each: int

    @property
    def appends(self) -> int:
        return self.processes * self.threads * self.each


class Lake:
    """A lakehouse on disk with the table `n.t`; each append is one transaction without a retry by the caller."""

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
    """The work of one process: all its threads append through one handle as soon as `start` returns."""
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it logs each retry
    handle = target.handle()

    def append_each(thread: int) -> Appended:
        append = target.appender(handle)
        done = Appended([], [])
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
    return _sum(parts)


def in_processes(target: Lake | Sql, writers: Writers, folder: Path) -> Appended:
    """Run all writers, in this process if there is only one process."""
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
    """Wait until all processes have called this."""
    (folder / str(number)).touch()
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while len(list(folder.iterdir())) < processes:
        if time.monotonic() > deadline:
            raise TimeoutError("the other processes did not start")
        time.sleep(0.01)


def _sum(parts: Sequence[Appended]) -> Appended:
    return Appended([one for part in parts for one in part.seconds], [one for part in parts for one in part.errors])


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _hot_table(bench: Bench, writers: Writers, coordination: str = "none") -> None:
    name = f"{writers.processes} processes of {writers.threads} threads" if writers.processes > 1 else "100 threads"
    name += ", intent queue" if coordination == "queue" else ""
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
    bench.figure(f"{what}: appends that raised", [float(len(ours.errors))], "count", at_most(0), note=errors)
    bench.figure(f"{what}: share that landed", [landed / writers.appends], "count", at_least(1))
    bench.figure(f"{what}: root versions for {writers.appends:,} appends", [float(versions)], "count")
    for share in (0.5, 0.99):
        contended = [_percentile(ours.seconds, share)]
        bench.cost(f"{what}: p{share * 100:.0f}", contended, "one lone append", [statistics.median(lone)])
    if coordination == "queue":
        return
    sql = Sql(bench.folder("sql"))
    began = time.perf_counter()
    theirs = in_processes(sql, writers, bench.folder("meet"))
    their_took = time.perf_counter() - began
    their_landed = sql.rows() // peers.ROWS
    reasons = "; ".join(sorted({error[:80] for error in theirs.errors})[:3])
    bench.figure(
        f"SqlCatalog, {what}: appends that raised",
        [float(len(theirs.errors))],
        "count",
        note=f"of {writers.appends:,}; {their_landed:,} landed; {reasons}",
    )
    bench.cost(
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
    """The same processes with the intent queue."""
    _hot_table(bench, Writers(bench.size(20, 3), 5, bench.size(5, 2)), "queue")


BENCHMARKS = {
    "hot-table": hot_table_threads,
    "hot-table-processes": hot_table_processes,
    "hot-table-queue": hot_table_queue,
}
