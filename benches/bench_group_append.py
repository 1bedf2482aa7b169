"""Concurrent appends of ten rows to one table: on a store with latency, on a synced disk, and between processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import trinitylake as tl
from benches import peers, remote_store
from benches.measure import Bench, Limit, at_least, at_most

if TYPE_CHECKING:
    from threading import Barrier

ROOT = "s3://bucket/lake"
#: Data files, manifests and manifest lists, metadata.
TABLE_FILES = ("PUT parquet", "PUT avro", "PUT gz", "PUT json")


@dataclass
class Appended:
    """Seconds of each append, of all of them together, and of the processor."""

    each: list[float]
    took: float
    processor: float

    @property
    def per_second(self) -> float:
        return len(self.each) / self.took

    def percentile(self, share: float) -> float:
        return sorted(self.each)[int(len(self.each) * share)]


def _append_for(seconds: float, threads: int, append: Callable[[pa.Table], object], first: int = 0) -> Appended:
    """Each thread appends again and again, for that time."""
    start = threading.Barrier(threads + 1)
    began = [0.0]

    def work(number: int) -> list[float]:
        times = []
        start.wait()
        while (before := time.perf_counter()) < began[0] + seconds:
            append(peers.ten_rows(first + number + len(times) * threads))
            times.append(time.perf_counter() - before)
        return times

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, number) for number in range(threads)]
        processor = time.process_time()
        began[0] = time.perf_counter()
        start.wait()
        each = [one for future in futures for one in future.result()]
        return Appended(each, time.perf_counter() - began[0], time.process_time() - processor)


def _create(uri: str, **options: object) -> tl.Lakehouse:
    lake = tl.create(uri, **options)  # type: ignore[arg-type]
    lake.create_namespace("n")
    lake.create_table("n.t", peers.SCHEMA)
    return lake


def _report(bench: Bench, what: str, done: Appended, rate: Limit | None, latency: Limit | None) -> None:
    load = f"load {os.getloadavg()[0]:.1f}"
    bench.figure(f"{what}: appends a second", [done.per_second], "1/s", rate, load)
    bench.figure(f"{what}: p50", [done.percentile(0.5)], "s")
    bench.figure(f"{what}: p99", [done.percentile(0.99)], "s", latency)
    bench.figure(f"{what}: processor seconds of one append", [done.processor / len(done.each)], "s")


def group_append(bench: Bench) -> None:
    """64 threads of one process, each with its own handle of the table, on the store with latency."""
    threads = 64
    with remote_store.running() as store:
        lake = _create(ROOT, storage_options=store.storage_options)
        tables = threading.local()

        def append(rows: pa.Table) -> None:
            if not hasattr(tables, "table"):
                tables.table = lake.table("n.t")
            tables.table.append(rows)

        _append_for(1, threads, append)
        before = lake.version
        store.requests()
        done = _append_for(bench.size(20, 2), threads, append, 1_000_000)
        requests, versions = store.requests(), lake.version - before
        what = f"{threads} threads, 60/20 ms"
        _report(bench, what, done, at_least(400), at_most(0.5))
        note = f"{len(done.each)} appends in {versions} versions; {dict(requests)}"
        of_table = sum(requests[kind] for kind in TABLE_FILES)
        bench.figure(f"{what}: files of the table a second", [of_table / done.took], "1/s", at_most(30), note)
        written = sum(count for kind, count in requests.items() if kind.startswith("PUT"))
        bench.figure(f"{what}: files a second, with those of the lakehouse", [written / done.took], "1/s")
        assert lake.table("n.t").count() >= len(done.each) * peers.ROWS
    # Its catalog is a file on this disk, without the latency of a store. With 64 threads its inserts conflict.
    peer = _append_for(bench.size(10, 2), 1, _inlining(bench))
    what = "DuckLake, one thread, rows inlined in a catalog on this disk"
    bench.figure(f"{what}: appends a second", [peer.per_second], "1/s")
    bench.figure(f"{what}: p99", [peer.percentile(0.99)], "s")


def group_append_local(bench: Bench) -> None:
    """8 threads of one process on a local disk that syncs, and DuckLake with inlined rows in its file."""
    threads = 8
    lake = _create(str(bench.folder("synced")), durability="fsync")
    tables = threading.local()

    def append(rows: pa.Table) -> None:
        if not hasattr(tables, "table"):
            tables.table = lake.table("n.t")
        tables.table.append(rows)

    what = f"{threads} threads, synced disk"
    ducklake = _inlining(bench)
    rounds = []
    for number in range(bench.size(3, 1)):
        first = 1_000_000 * number
        rounds.append((_append_for(5, threads, append, first), _append_for(5, threads, ducklake, first)))
    _report(bench, what, rounds[-1][0], None, None)
    ours, theirs = ([one.per_second for one in side] for side in zip(*rounds, strict=True))
    bench.cost(f"{what}: appends a second", ours, "DuckLake on its file, inlined", theirs, at_least(1), unit="1/s")


def _inlining(bench: Bench) -> Callable[[pa.Table], object]:
    """Appends to a DuckLake that stores few rows in its catalog; each thread has a cursor."""
    ducklake = peers.DuckLake(bench.folder("ducklake"), inlined_rows=peers.ROWS)
    ducklake.create_tables(["t"])
    cursors = threading.local()

    def append(rows: pa.Table) -> None:
        if not hasattr(cursors, "cursor"):
            cursors.cursor = ducklake.connection.cursor()
        cursors.cursor.register("new_rows", rows)
        cursors.cursor.execute("INSERT INTO lake.t SELECT * FROM new_rows")

    return append


def _work(uri: str, options: dict[str, str], first: int, seconds: float, start: Barrier) -> Appended:
    """The work of one process."""
    table = tl.open(uri, storage_options=options).table("n.t")
    table.append(peers.ten_rows(first))
    start.wait()
    return _append_for(seconds, 8, table.append, first + 1)


def group_append_processes(bench: Bench) -> None:
    """8 processes of 8 threads each on the store with latency, without a service."""
    processes = bench.size(8, 2)
    context = multiprocessing.get_context("spawn")
    with remote_store.running() as store, context.Manager() as manager:
        for coordination in ("none", "queue"):
            uri = f"s3://bucket/{coordination}"
            properties = {"commit.coordination": coordination}
            lake = _create(uri, storage_options=store.storage_options, properties=properties)
            before = lake.version
            start = manager.Barrier(processes)
            with ProcessPoolExecutor(processes, mp_context=context) as pool:
                arguments = (uri, store.storage_options)
                futures = [
                    pool.submit(_work, *arguments, number * 1_000_000, bench.size(20, 2), start)
                    for number in range(processes)
                ]
                parts = [future.result() for future in futures]
            took = max(part.took for part in parts)
            done = Appended([one for part in parts for one in part.each], took, sum(part.processor for part in parts))
            what = f"{processes} processes of 8 threads, 60/20 ms, coordination {coordination}"
            _report(bench, what, done, at_least(150) if coordination == "queue" else None, None)
            landed = tl.open(uri, storage_options=store.storage_options).table("n.t").count() // peers.ROWS
            lost = float(len(done.each) + processes - landed)
            bench.figure(f"{what}: lost appends", [lost], "count", at_most(0), f"{lake.version - before} versions")


BENCHMARKS = {
    "group-append": group_append,
    "group-append-local": group_append_local,
    "group-append-processes": group_append_processes,
}
