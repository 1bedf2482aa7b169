"""Commits: of one namespace on a disk, at a million tables, and with many objects."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import trinitylake as tl
from benches import lakes, peers
from benches.limits import RawFiles
from benches.measure import Bench, at_least, at_most, in_turn, seconds

DEFINITION_SIZE_BYTES = 40


def _root_size(folder: Path) -> int:
    """Bytes of the newest root file of a lakehouse on disk."""
    return max(folder.glob("_[01]*.arrow"), key=lambda file: file.stat().st_mtime).stat().st_size


def commit_synced(bench: Bench) -> None:
    """Commit one namespace, synced, compared with its two files and with SQLite."""
    folder = bench.folder("synced")
    lake = tl.create(str(folder), durability="fsync")
    for number in range(bench.size(300, 20)):
        lake.create_namespace(f"warm_{number:06d}")
    catalog = peers.sql_catalog(bench.folder("sql"))
    raw = RawFiles(bench.folder("raw"), [DEFINITION_SIZE_BYTES, _root_size(folder)], fsync=True)
    times = in_turn(
        bench.size(15, 3),
        bench.size(40, 5),
        ours=lambda i: lake.create_namespace(f"namespace_{i:06d}"),
        raw=raw.create,
        sql=lambda i: catalog.create_namespace(f"namespace_{i:06d}"),
    )
    what = "commit one namespace, synced"
    bench.cost(what, times["ours"], "its two files, synced", times["raw"], at_most(2))
    bench.speed(what, times["ours"], "SqlCatalog.create_namespace", times["sql"], at_least(1.5))


def commit_at_scale(bench: Bench) -> None:
    """Commits that replace one random table each, at a thousand and at a million tables."""
    small, large = 1_000, bench.size(1_000_000, 20_000)
    commits = bench.size(1_000, 40)
    rounds = bench.size(5, 2)
    handles = {
        tables: tl.open(lakes.registered(bench.folder(f"commits-{tables}"), tables), durability="none")
        for tables in (small, large)
    }
    counts: dict[int, list[dict[str, int]]] = {small: [], large: []}
    times: dict[int, list[float]] = {small: [], large: []}
    chance = random.Random(1)
    definition = chance.randbytes(200)

    names_of = {tables: lakes.table_names(tables) for tables in handles}

    def commit(tables: int) -> float:
        """Seconds of one commit that replaces one random table."""
        namespaces, names = names_of[tables]
        row = chance.randrange(tables)
        transaction = handles[tables]._core.begin()
        transaction.replace("table", namespaces[row], names[row], definition)
        return seconds(transaction.commit)

    for tables in handles:
        for _ in range(commits // 3):  # fills the buffers of the upper nodes
            commit(tables)
    for _ in range(rounds):
        for tables, lake in handles.items():
            before = lake._storage.counters()
            took = [commit(tables) for _ in range(commits // rounds)]
            after = lake._storage.counters()
            # The mean, not the median: a larger tree has more commits that flush.
            times[tables].append(statistics.mean(took))
            counts[tables].append({verb: after[verb] - before[verb] for verb in after})
    per_round = commits // rounds

    def mean(tables: int, *verbs: str) -> list[float]:
        return [sum(count[verb] for verb in verbs) / per_round for count in counts[tables]]

    requests = ("get", "get_range", "head", "exists", "list", "put_if_absent", "put_hint")
    what = f"a commit at {large:,} tables"
    peer = f"at {small:,} tables"
    bench.cost(f"{what}: requests", mean(large, *requests), peer, mean(small, *requests), at_most(1.3), "count")
    written = ("written_bytes", "read_bytes")
    bench.cost(f"{what}: bytes", mean(large, *written), peer, mean(small, *written), unit="bytes")
    bench.cost(f"{what}: mean time", times[large], peer, times[small])
    bench.figure(f"{what}: bytes written", mean(large, "written_bytes"), "bytes", at_most(40_000))
    note = "definition, root and tree nodes; the version hint is overwritten as well"
    bench.figure(f"{what}: files created", mean(large, "put_if_absent"), "count", at_most(2.5), note)


def large_transactions(bench: Bench) -> None:
    """The cost of an object in a transaction of many objects, compared with one of a quarter of them."""
    large = bench.size(100_000, 4_000)
    times: dict[int, list[float]] = {large // 4: [], large: []}
    for turn in range(bench.size(3, 1)):
        for objects, taken in times.items():
            lake = tl.create(str(bench.folder(f"transaction-{objects}-{turn}")), durability="none")

            def create(lake: tl.Lakehouse = lake, objects: int = objects) -> None:
                with lake.transaction() as txn:
                    for number in range(objects):
                        txn.create_namespace(f"namespace_{number:06d}")

            taken.append(seconds(create) / objects)
    what = f"an object in a transaction of {large:,}"
    bench.cost(what, times[large], f"in one of {large // 4:,}", times[large // 4], at_most(1.3))


BENCHMARKS = {
    "commit-synced": commit_synced,
    "commit-at-scale": commit_at_scale,
    "large-transactions": large_transactions,
}
