"""What a commit, an opening and a look-up cost at a thousand objects, ten thousand and so on: curves of the plot."""

from __future__ import annotations

import os
import random
import statistics

import trinitylake as tl
from benches.python import lakes
from benches.python.measure import Bench, seconds

#: The largest size. Ten millions take 9 GB of memory to register: `BENCH_MOST_TABLES=10000000`.
MOST_TABLES = int(os.environ.get("BENCH_MOST_TABLES", 1_000_000))


def _requests(counts: dict[str, int]) -> int:
    return sum(count for verb, count in counts.items() if not verb.endswith("_bytes"))


def sizes(bench: Bench) -> None:
    """The same statements at each size; nothing is compared but one size with another."""
    most = bench.size(MOST_TABLES, 10_000)
    tables = 1_000
    while tables <= most:
        _at(bench, tables)
        tables *= 10


def _at(bench: Bench, tables: int) -> None:
    folder = bench.folder(f"size-{tables}")
    uri = lakes.registered(folder, tables)
    namespaces, names = lakes.table_names(tables)
    chance = random.Random(5)
    rows = [chance.randrange(tables) for _ in range(bench.size(2_000, 60))]
    bench.curve("disk, for each object", tables, [_size_bytes(folder) / tables], "bytes")

    opens, opened = [], []
    for row in rows[: bench.size(30, 3)]:
        handles: list[tl.Lakehouse] = []

        def find(row: int = row, handles: list[tl.Lakehouse] = handles) -> None:
            handles.append(tl.open(uri))
            assert handles[0]._core.version(1).exists("table", namespaces[row], names[row])

        opens.append(seconds(find))
        opened.append(handles[0]._storage.counters())
    bench.curve("open and look up: requests", tables, [_requests(one) for one in opened], "count")
    bench.curve("open and look up: bytes read", tables, [one["read_bytes"] for one in opened], "bytes")
    bench.curve("open and look up", tables, opens, "s")

    lake = tl.open(uri, durability="none", cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
    version = lake._core.latest()
    for row in rows:  # their nodes are in the cache from here on
        version.exists("table", namespaces[row], names[row])
    asked = seconds(lambda: [version.exists("table", namespaces[row], names[row]) for row in rows])
    bench.curve("exists, warm", tables, [asked / len(rows)], "s")

    definition = chance.randbytes(200)
    times, written = [], []
    for number, row in enumerate(rows):
        before = lake._storage.counters()["written_bytes"]
        transaction = lake._core.begin()
        transaction.replace("table", namespaces[row], names[row], definition)
        took = seconds(transaction.commit)
        if number >= len(rows) // 2:  # until the buffers are as full as they get
            times.append(took)
            written.append(lake._storage.counters()["written_bytes"] - before)
    bench.curve("a commit of one table, mean", tables, [statistics.mean(times)], "s")
    bench.curve("a commit of one table: bytes written, mean", tables, [statistics.mean(written)], "bytes")


def _size_bytes(folder: os.PathLike[str]) -> int:
    return sum(os.stat(os.path.join(place, name)).st_size for place, _, files in os.walk(folder) for name in files)


BENCHMARKS = {"sizes": sizes}
