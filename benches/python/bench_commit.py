"""Targets 1 to 3: what a commit costs, with and without fsync, and at a million objects."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import trinitylake as tl
from benches.python import lakes, peers
from benches.python.limits import CommitCalls, RawFiles
from benches.python.measure import Bench, at_least, at_most, in_turn, seconds

DEFINITION_SIZE_BYTES = 40


def _root_size(folder: Path) -> int:
    """Bytes of the newest root file of a lakehouse on disk."""
    return max(folder.glob("_[01]*.arrow"), key=lambda file: file.stat().st_mtime).stat().st_size


def _warm(lake: tl.Lakehouse, commits: int) -> None:
    for number in range(commits):
        lake.create_namespace(f"warm_{number:06d}")


def commit_synced(bench: Bench) -> None:
    """Target 1: one namespace, synced, beside the two files a commit must create and beside SQLite."""
    folder = bench.folder("synced")
    lake = tl.create(str(folder), durability="fsync")
    _warm(lake, bench.size(300, 20))
    catalog = peers.sql_catalog(bench.folder("sql"))
    raw = RawFiles(bench.folder("raw"), [DEFINITION_SIZE_BYTES, _root_size(folder)], fsync=True)
    times = in_turn(
        bench.size(15, 3),
        bench.size(40, 5),
        ours=lambda i: lake.create_namespace(f"namespace_{i:06d}"),
        raw=raw.create,
        sql=lambda i: catalog.create_namespace(f"namespace_{i:06d}"),
    )
    bench.cost(1, "commit one namespace, synced", times["ours"], "its two files, synced", times["raw"], at_most(2))
    bench.speed(
        1, "commit one namespace, synced", times["ours"], "SqlCatalog.create_namespace", times["sql"], at_least(2)
    )


def commit_unsynced(bench: Bench) -> None:
    """Target 2: one namespace without fsync, beside Icechunk's `commit()` alone."""
    folder = bench.folder("unsynced")
    lake = tl.create(str(folder), durability="none")
    _warm(lake, bench.size(300, 20))
    icechunk = peers.Icechunk(bench.folder("icechunk"))
    raw = RawFiles(bench.folder("raw"), [DEFINITION_SIZE_BYTES, _root_size(folder)], fsync=False)
    calls = CommitCalls(bench.folder("calls"), DEFINITION_SIZE_BYTES, _root_size(folder))
    rounds, repeats = bench.size(15, 3), bench.size(40, 5)
    parts: dict[str, list[float]] = {"ours": [], "alone": [], "raw": [], "calls": [], "icechunk": []}
    # Icechunk's commit() is timed without the change before it, so the rounds are written out.
    for turn in range(rounds):
        round_times = in_turn(
            1,
            repeats,
            ours=lambda i, turn=turn: lake.create_namespace(f"namespace_{turn:03d}_{i:06d}"),
            raw=lambda i, turn=turn: raw.create(turn * repeats + i),
            calls=lambda i, turn=turn: calls.create(turn * repeats + i),
        )
        for name in ("ours", "raw", "calls"):
            parts[name] += round_times[name]
        commits = []
        for i in range(repeats):
            transaction = lake.begin()
            transaction.create_namespace(f"alone_{turn:03d}_{i:06d}")
            commits.append(seconds(transaction.commit))
        parts["alone"].append(statistics.median(commits))
        commits = []
        for i in range(repeats):
            session = icechunk.change(turn * repeats + i)
            commits.append(seconds(lambda session=session: session.commit("change")))
        parts["icechunk"].append(statistics.median(commits))
    bench.figure(2, "commit one namespace, not synced", parts["ours"], "s", at_most(0.3e-3))
    bench.speed(
        2, "commit one namespace, not synced", parts["ours"], "Icechunk commit()", parts["icechunk"], at_least(2)
    )
    bench.speed(None, "Transaction.commit() alone, not synced", parts["alone"], "Icechunk commit()", parts["icechunk"])
    two_files = "its two files, not synced"
    bench.cost(None, "commit one namespace, not synced", parts["ours"], two_files, parts["raw"], at_most(3))
    bench.cost(None, "the system calls of a commit, not synced", parts["calls"], two_files, parts["raw"])
    bench.cost(None, "commit one namespace, not synced", parts["ours"], "its system calls alone", parts["calls"])


def commit_property(bench: Bench) -> None:
    """One changed property without fsync, beside Icechunk's `commit()` of one changed attribute: like with like."""
    lake = tl.create(str(bench.folder("property")), durability="none")
    lake.create_namespace("shop")
    _warm(lake, bench.size(300, 20))
    icechunk = peers.IcechunkElsewhere(bench.folder("icechunk-property"))
    repeats = bench.size(40, 5)
    icechunk.commits(repeats)
    ours, theirs, raw_times = [], [], []
    raw = RawFiles(bench.folder("raw"), [DEFINITION_SIZE_BYTES, _root_size(Path(lake.uri[7:]))], fsync=False)
    for turn in range(bench.size(15, 3)):
        numbers = range(turn * repeats, (turn + 1) * repeats)
        changes = [seconds(lambda i=i: lake.alter_namespace("shop", {"owner": f"team {i}"})) for i in numbers]
        ours.append(statistics.median(changes))
        theirs.append(icechunk.commits(repeats))
        raw_times.append(statistics.median(seconds(lambda i=i: raw.create(i)) for i in numbers))
    icechunk.close()
    what, note = "change a property of a namespace, not synced", f"Icechunk {icechunk.version}"
    bench.speed(2, what, ours, "Icechunk commit() of a changed attribute", theirs, at_least(2), note=note)
    bench.cost(None, what, ours, "its two files, not synced", raw_times, at_most(3))


def commit_at_scale(bench: Bench) -> None:
    """Target 3: commits that replace one random table each, at a thousand and at a million tables."""
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
        for _ in range(commits // 3):  # until the buffers of the root and of what is below it are as full as they get
            commit(tables)
    for _ in range(rounds):
        for tables, lake in handles.items():
            before = lake._storage.counters()
            took = [commit(tables) for _ in range(commits // rounds)]
            after = lake._storage.counters()
            # The mean, not the median: the commits that flush are what a larger tree has more of.
            times[tables].append(statistics.mean(took))
            counts[tables].append({verb: after[verb] - before[verb] for verb in after})
    per_round = commits // rounds

    def mean(tables: int, *verbs: str) -> list[float]:
        return [sum(count[verb] for verb in verbs) / per_round for count in counts[tables]]

    requests = ("get", "get_range", "head", "exists", "list", "put_if_absent", "put_hint")
    what = f"a commit at {large:,} tables"
    peer = f"at {small:,} tables"
    bench.cost(3, f"{what}: requests", mean(large, *requests), peer, mean(small, *requests), at_most(1.3), "count")
    written = ("written_bytes", "read_bytes")
    bench.cost(3, f"{what}: bytes", mean(large, *written), peer, mean(small, *written), at_most(1.3), "bytes")
    bench.cost(3, f"{what}: mean time", times[large], peer, times[small], at_most(1.3))
    for tables in handles:
        bench.figure(None, f"a commit at {tables:,} tables: bytes read", mean(tables, "read_bytes"), "bytes")
    bench.figure(3, f"{what}: bytes written", mean(large, "written_bytes"), "bytes", at_most(40_000))
    bench.figure(
        3,
        f"{what}: files created",
        mean(large, "put_if_absent"),
        "count",
        at_most(2.5),
        note="definition, root and tree nodes; the version hint is overwritten besides",
    )


def large_transactions(bench: Bench) -> None:
    """One transaction that creates many objects, beside one with a quarter: an object must cost the same."""
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
    bench.cost(None, what, times[large], f"in one of {large // 4:,}", times[large // 4], at_most(1.3))


BENCHMARKS = {
    "commit-synced": commit_synced,
    "commit-unsynced": commit_unsynced,
    "commit-property": commit_property,
    "commit-at-scale": commit_at_scale,
    "large-transactions": large_transactions,
}
