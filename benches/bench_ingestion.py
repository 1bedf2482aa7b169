"""`table.writer()`: rows of small writes that are durable, and a table that a stream has fed for an hour."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import trinitylake as tl
from benches import peers
from benches.measure import Bench, at_least, at_most

sys.path.append(str(Path(__file__).parents[1] / "tests"))

COMMITS_PER_HOUR = 3600
BATCHES_PER_SECOND = 100


def writer_throughput(bench: Bench) -> None:
    """One thread writes batches of ten rows to a store with 60 ms for a write and 20 ms for a read."""
    from slow_s3 import slow_s3

    batches = 5_000 if bench.quick else 25_000
    with slow_s3() as store:
        lake = tl.create(store.uri("lake"), storage_options=store.options)
        with lake.transaction() as txn:
            txn.create_namespace("n")
            txn.create_table("n.t", peers.SCHEMA)
        rows = [peers.ten_rows(number).to_pylist() for number in range(100)]
        waits: list[float] = []
        with lake.table("n.t").writer(max_delay="1 second") as writer:
            began = time.perf_counter()
            for number in range(batches):
                sent = time.perf_counter()
                future = writer.write(rows[number % len(rows)])
                future.add_done_callback(lambda _, sent=sent: waits.append(time.perf_counter() - sent))
            writer.flush()
            took = time.perf_counter() - began
        assert lake.table("n.t").count() == 10 * batches
    bench.figure("batches of ten rows, one thread, 60/20 ms", [batches / took], "1/s", at_least(5_000))
    bench.figure("longest wait for an acknowledgement", [max(waits)], "s", at_most(1.3))


def hour_of_events(bench: Bench) -> None:
    """3,600 commits of 100 batches of ten rows, then a scan of the last minute, and of the same rows in one file."""
    import pyarrow as pa

    commits = 360 if bench.quick else COMMITS_PER_HOUR
    lake = tl.create(str(bench.folder("hour")), durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("n")
        for name in ("t", "one"):
            txn.create_table(f"n.{name}", {"second": "bigint", "value": "double"})
    per_commit = 10 * BATCHES_PER_SECOND
    most_files = 0
    with lake.table("n.t").writer() as writer:
        for second in range(commits):
            writer.write(pa.table({"second": [second] * per_commit, "value": [1.5] * per_commit}))
            writer.flush()
            most_files = max(most_files, _files(lake))
            if writer._compaction is not None:  # in real time a second passes between two commits
                writer._compaction.join()
                writer._next_compaction = 0.0
    last_minute = f"second >= {commits - 60}"
    lake.table("n.one").append(lake.table("n.t").scan().to_arrow().sort_by("second"))
    took: dict[str, list[float]] = {"n.t": [], "n.one": []}
    for _ in range(30):
        for name in ("n.t", "n.one"):
            table = tl.open(lake.uri, durability="none").table(name)
            began = time.perf_counter()
            assert table.scan(last_minute).to_arrow().num_rows == 60 * per_commit
            took[name].append(time.perf_counter() - began)
    bench.figure("most data files at any time", [float(most_files)], "count", at_most(200))
    bench.cost("scan of the last minute", took["n.t"], "the same rows in one file", took["n.one"], at_most(1.5))
    table = lake.table("n.t").iceberg
    snapshot = table.current_snapshot()
    assert snapshot is not None
    metadata = Path(table.metadata_location.removeprefix("file://")).stat().st_size
    # The metadata file lists the newest 500 snapshots.
    bench.figure("metadata file after an hour", [metadata], "bytes", at_most(400_000))
    bench.figure("manifests after an hour", [len(snapshot.manifests(table.io))], "count", at_most(100))


def _files(lake: tl.Lakehouse) -> int:
    snapshot = lake.table("n.t").iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["total-data-files"] or 0)


BENCHMARKS = {"writer": writer_throughput, "writer-hour": hour_of_events}
