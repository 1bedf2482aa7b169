"""Small appends to Iceberg tables: many in a row, from threads, and to many tables in one transaction."""

from __future__ import annotations

import functools
import statistics
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pyarrow as pa

import trinitylake as tl
from benches import peers
from benches.measure import Bench, at_least, in_turn, seconds

WINDOW = 20


def _append_times(append: Callable[[pa.Table], object], commits: int) -> list[float]:
    times = []
    for number in range(commits):
        rows = peers.ten_rows(number)
        times.append(seconds(functools.partial(append, rows)))
    return times


def _windows(times: list[float], window: int) -> tuple[list[float], list[float]]:
    """The first and the last appends, without the very first, which also imports modules and opens the table."""
    return times[1 : window + 1], times[-window:]


def append_rows(bench: Bench) -> None:
    """Ten rows to one table, early and late in its history, compared with delta-rs and PyIceberg."""
    commits = bench.size(1_000, 30)
    window = bench.size(WINDOW, 5)
    lake = tl.create(str(bench.folder("appends")), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", peers.SCHEMA)
    delta = peers.DeltaTable(bench.folder("delta"))
    catalog = peers.sql_catalog(bench.folder("sql"))
    catalog.create_namespace("n")
    sql_table = catalog.create_table("n.t", peers.SCHEMA)

    ours = _append_times(table.append, commits)
    deltas = _append_times(delta.append, commits)
    # 200 are enough: its appends take longer with each commit, up to more than a second.
    sqls = _append_times(sql_table.append, bench.size(200, 10))
    assert lake.table("n.t").scan().count() == commits * peers.ROWS
    assert delta.count() == commits * peers.ROWS
    our_first, our_last = _windows(ours, window)
    delta_first, delta_last = _windows(deltas, window)
    sql_first, sql_last = _windows(sqls, bench.size(WINDOW, 5))
    early, late = "append 10 rows, first commits", f"append 10 rows, commits up to {commits:,}"
    bench.speed(early, our_first, "delta-rs", delta_first, at_least(1))
    bench.speed(late, our_last, "delta-rs", delta_last, at_least(1))
    bench.speed(early, our_first, "SqlCatalog", sql_first, at_least(1))
    bench.speed(late, our_last, f"SqlCatalog, commits up to {len(sqls)}", sql_last, at_least(1))


def append_from_threads(bench: Bench) -> None:
    """Eight threads append to one table; all rows must be in the table."""
    threads, each = 8, bench.size(50, 5)
    rates, their_rates, landed, their_failures = [], [], [], []
    for _ in range(bench.size(3, 2)):
        lake = tl.create(str(bench.folder("threads")), durability="none")
        lake.create_namespace("n")
        lake.create_table("n.t", peers.SCHEMA)
        handles = [lake.table("n.t") for _ in range(threads)]
        took, failed = _in_threads([handle.append for handle in handles], each)
        assert not failed, f"{failed} appends failed"
        rates.append(threads * each / took)
        landed.append(float(lake.table("n.t").scan().count() == threads * each * peers.ROWS))
        delta = peers.DeltaTable(bench.folder("delta"))
        took, failed = _in_threads([delta.append] * threads, each)
        their_rates.append((threads * each - failed) / took)
        their_failures.append(failed / (threads * each))
    bench.figure("8 threads append to one table", rates, "1/s", at_least(100))
    bench.figure("8 threads append to one table: runs in which all rows landed", landed, "count", at_least(1))
    bench.cost(
        "8 threads append to one table",
        rates,
        "delta-rs, those that landed",
        their_rates,
        unit="1/s",
        note=f"of delta-rs's appends {statistics.mean(their_failures):.1%} failed",
    )


def _in_threads(appends: list[Callable[[pa.Table], object]], each: int) -> tuple[float, int]:
    """Seconds until every thread has appended `each` times, and how many of the appends failed."""
    start = threading.Barrier(len(appends) + 1)

    def work(position: int) -> int:
        failed = 0
        start.wait()
        for number in range(each):
            try:
                appends[position](peers.ten_rows(position * each + number))
            except Exception:
                failed += 1
        return failed

    with ThreadPoolExecutor(len(appends)) as pool:
        workers = [pool.submit(work, position) for position in range(len(appends))]
        start.wait()
        failures: list[int] = []
        took = seconds(lambda: failures.extend(worker.result() for worker in workers))
    return took, sum(failures)


def ten_tables(bench: Bench) -> None:
    """One transaction that appends to ten tables, compared with DuckLake, which syncs only its catalog."""
    names = [f"t{number}" for number in range(10)]
    ducklake = peers.DuckLake(bench.folder("ducklake"))
    ducklake.create_tables(names)
    synced = _ten_table_lake(bench, names, "fsync")
    unsynced = _ten_table_lake(bench, names, "none")

    def transact(lake: tl.Lakehouse, number: int) -> None:
        rows = peers.ten_rows(number)
        with lake.transaction() as transaction:
            for table in names:
                transaction.table(f"n.{table}").append(rows)

    rounds, repeats = bench.size(10, 2), bench.size(5, 2)
    times = in_turn(
        rounds,
        repeats,
        synced=lambda number: transact(synced, number),
        unsynced=lambda number: transact(unsynced, number),
        ducklake=lambda number: ducklake.append(names, peers.ten_rows(number)),
    )
    for name, lake, word in (("synced", synced, "all files synced"), ("unsynced", unsynced, "nothing synced")):
        assert lake.table("n.t9").scan().count() == rounds * repeats * peers.ROWS
        what = f"a transaction over 10 tables, {word}"
        bench.speed(what, times[name], "DuckLake, its catalog synced", times["ducklake"], at_least(1.5))


def _ten_table_lake(bench: Bench, names: list[str], durability: Literal["fsync", "none"]) -> tl.Lakehouse:
    lake = tl.create(str(bench.folder(f"ten-{durability}")), durability=durability)
    lake.create_namespace("n")
    for name in names:
        lake.create_table(f"n.{name}", peers.SCHEMA)
    return lake


BENCHMARKS = {"append": append_rows, "append-threads": append_from_threads, "ten-tables": ten_tables}
