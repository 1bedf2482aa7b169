"""Target 7: what it takes to open a lakehouse of a million objects and find one."""

from __future__ import annotations

import random

import trinitylake as tl
from benches.python import lakes
from benches.python.measure import Bench, at_most, seconds


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {verb: after[verb] - before[verb] for verb in after}


def _requests(counts: dict[str, int]) -> int:
    return sum(count for verb, count in counts.items() if not verb.endswith("_bytes"))


def cold_open(bench: Bench) -> None:
    """A fresh handle, then one look-up; then a refresh of the handle."""
    tables = bench.size(1_000_000, 20_000)
    uri = lakes.shared(bench, tables)
    namespaces, names = lakes.table_names(tables)
    chance = random.Random(2)
    requests, read, refreshes, opens = [], [], [], []
    for _ in range(bench.size(30, 5)):
        row = chance.randrange(tables)
        found: list[tuple[tl.Lakehouse, bool]] = []

        def find(row: int = row, found: list[tuple[tl.Lakehouse, bool]] = found) -> None:
            lake = tl.open(uri)
            # The version that `open` just read: asking for it by number costs nothing.
            version = lake._core.version(1)
            found.append((lake, version.exists("table", namespaces[row], names[row])))

        opens.append(seconds(find))
        lake, exists = found[0]
        assert exists
        counts = lake._storage.counters()
        requests.append(float(_requests(counts)))
        read.append(float(counts["read_bytes"]))
        before = lake._storage.counters()
        assert lake.version == 1
        refreshes.append(float(_requests(_difference(lake._storage.counters(), before))))
    what = f"cold open and one look-up at {tables:,} tables"
    bench.figure(
        7,
        f"{what}: requests in all",
        requests,
        "count",
        note="hint and boundary at once, root and next root at once, then one node for each level below the root: "
        "`cargo bench --bench remote` counts the dependent rounds",
    )
    bench.figure(7, f"{what}: bytes read", read, "bytes", at_most(150_000))
    bench.figure(None, what, opens, "s", note="the files are in the page cache")
    bench.figure(
        7,
        "refresh of an open handle: requests",
        refreshes,
        "count",
        at_most(4),
        note="in one round: the next root, is there one after it, and once a second the hint and the boundary",
    )


BENCHMARKS = {"open": cold_open}
