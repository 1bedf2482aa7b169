"""Targets 12 and 13: small appends to Iceberg tables: many in a row, from threads, to many tables at once."""

from __future__ import annotations

import functools
import statistics
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

import trinitylake as tl
from benches.python import peers
from benches.python.limits import FilesOfTransaction
from benches.python.measure import Bench, at_least, at_most, in_turn, seconds

WINDOW = 20


def _append_times(append: Callable[[pa.Table], object], commits: int) -> list[float]:
    times = []
    for number in range(commits):
        rows = peers.ten_rows(number)
        times.append(seconds(functools.partial(append, rows)))
    return times


def _windows(times: list[float], window: int) -> tuple[list[float], list[float]]:
    """The first and the last appends; the very first, which imports and opens, is left out."""
    return times[1 : window + 1], times[-window:]


def append_rows(bench: Bench) -> None:
    """Ten rows to one table, the first commits and those around the thousandth, beside delta-rs and PyIceberg."""
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
    # Its appends grow with the history, to more than a second each: 200 say enough.
    sqls = _append_times(sql_table.append, bench.size(200, 10))
    assert lake.table("n.t").scan().count() == commits * peers.ROWS
    assert delta.count() == commits * peers.ROWS
    our_first, our_last = _windows(ours, window)
    delta_first, delta_last = _windows(deltas, window)
    sql_first, sql_last = _windows(sqls, bench.size(WINDOW, 5))
    bench.figure(12, "append 10 rows, first commits", our_first, "s", at_most(10e-3))
    bench.figure(12, f"append 10 rows, commits up to {commits:,}", our_last, "s", at_most(10e-3))
    bench.speed(12, "append 10 rows, first commits", our_first, "delta-rs", delta_first, at_least(1))
    bench.speed(12, f"append 10 rows, commits up to {commits:,}", our_last, "delta-rs", delta_last, at_least(1))
    bench.speed(12, "append 10 rows, first commits", our_first, "SqlCatalog", sql_first, at_least(1))
    bench.speed(
        12,
        f"append 10 rows, commits up to {commits:,}",
        our_last,
        f"SqlCatalog, commits up to {len(sqls)}",
        sql_last,
        at_least(1),
    )


def append_from_threads(bench: Bench) -> None:
    """Eight threads append to one table: every row must land."""
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
    bench.figure(12, "8 threads append to one table", rates, "1/s", at_least(100))
    bench.figure(12, "8 threads append to one table: runs in which all rows landed", landed, "count", at_least(1))
    bench.cost(
        None,
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
    """One transaction that appends to ten tables, beside its own appends and beside DuckLake.

    DuckLake syncs its catalog and none of its data files; we sync all files or none. So it stands beside both.
    """
    names = [f"t{number}" for number in range(10)]
    ducklake = peers.DuckLake(bench.folder("ducklake"))
    ducklake.create_tables(names)
    synced = _ten_table_lake(bench, names, "fsync")
    unsynced = _ten_table_lake(bench, names, "none")
    appends: dict[str, list[float]] = {"synced": [], "unsynced": []}

    def transact(lake: tl.Lakehouse, name: str, number: int) -> None:
        rows = peers.ten_rows(number)
        with lake.transaction() as transaction:

            def append_all() -> None:
                for table in names:
                    transaction.table(f"n.{table}").append(rows)

            appends[name].append(seconds(append_all))

    before = _file_sizes(synced)
    transact(synced, "synced", 1_000)
    made = {path: size for path, size in _file_sizes(synced).items() if path not in before}
    root = next(path for path in made if path.startswith("_") and path.endswith(".arrow"))
    root_size_bytes = made.pop(root)
    floor = FilesOfTransaction(bench.folder("ten-floor"), made, root_size_bytes)
    appends["synced"].clear()

    def parquet(number: int) -> None:
        rows = peers.ten_rows(number)
        for _ in names:
            pq.write_table(rows, pa.BufferOutputStream(), compression="zstd")

    def least(number: int) -> None:
        parquet(number)
        floor.create(number)

    rounds, repeats = bench.size(10, 2), bench.size(5, 2)
    times = in_turn(
        rounds,
        repeats,
        least=least,
        synced=lambda number: transact(synced, "synced", number),
        unsynced=lambda number: transact(unsynced, "unsynced", number),
        ducklake=lambda number: ducklake.append(names, peers.ten_rows(number)),
    )
    for name, lake, word in (("synced", synced, "all files synced"), ("unsynced", unsynced, "nothing synced")):
        assert lake.table("n.t9").scan().count() == (rounds * repeats + (lake is synced)) * peers.ROWS
        sums = [statistics.median(appends[name][turn * repeats : (turn + 1) * repeats]) for turn in range(rounds)]
        what = f"a transaction over 10 tables, {word}"
        bench.cost(13, what, times[name], "its appends without the commit", sums, at_most(1.3))
        bench.speed(13, what, times[name], "DuckLake, its catalog synced", times["ducklake"], at_least(2))
    what = "a transaction over 10 tables, all files synced"
    bench.cost(None, what, times["synced"], "the same, nothing synced", times["unsynced"], at_most(1.6))
    bare = f"its {len(made)} files and the root alone, with ten bare Parquet writes"
    bench.cost(None, what, times["synced"], bare, times["least"])
    bench.speed(None, bare, times["least"], "DuckLake, its catalog synced", times["ducklake"])


def _file_sizes(lake: tl.Lakehouse) -> dict[str, int]:
    """The bytes of the files of a lakehouse on disk, by their paths in it."""
    root = Path(lake.uri.removeprefix("file://"))
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): file.stat().st_size for file in files if "hint" not in file.name}


def _ten_table_lake(bench: Bench, names: list[str], durability: Literal["fsync", "none"]) -> tl.Lakehouse:
    lake = tl.create(str(bench.folder(f"ten-{durability}")), durability=durability)
    lake.create_namespace("n")
    for name in names:
        lake.create_table(f"n.{name}", peers.SCHEMA)
    return lake


BENCHMARKS = {"append": append_rows, "append-threads": append_from_threads, "ten-tables": ten_tables}
