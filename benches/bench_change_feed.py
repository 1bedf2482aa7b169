"""The change feed: inserted rows, a copy-on-write update, and many versions of one row each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import trinitylake as tl
from benches import remote_store
from benches.bench_merge import made_rows
from benches.measure import Bench, at_most, in_turn


def _count(rows: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in rows)


def rows_of_the_feed(bench: Bench) -> None:
    """The feed of a version that inserted rows, and of one that updated 0.1 % of them, compared with scans."""
    lake = tl.create(str(bench.folder("rows")), durability="none")
    lake.create_namespace("n")
    count = bench.size(1_000_000, 20_000)
    rows = made_rows(np.arange(count), 0)
    table = lake.create_table("n.t", rows.schema, properties={"write.target-file-size-bytes": str(1 << 30)})
    table.append(rows)
    inserted = lake.version
    ids = np.random.default_rng(0).choice(count, count // 1000, replace=False)
    table.merge(made_rows(np.sort(ids), 1), on=["id"]).when_matched_update().execute()
    updated = lake.version
    scans = [lake.at(version).table("n.t").scan() for version in (inserted, updated)]
    times = in_turn(
        bench.size(7, 2),
        1,
        inserted=lambda _: _count(table.changes(inserted - 1, inserted)),
        scan=lambda _: _count(scans[0].to_arrow_batch_reader()),
        updated=lambda _: _count(table.changes(inserted, updated)),
        scans=lambda _: [_count(scan.to_arrow_batch_reader()) for scan in scans],
    )
    bench.cost(f"feed of {count:,} inserted rows", times["inserted"], "a scan", times["scan"], at_most(1.25))
    what = f"feed of {len(ids):,} of {count:,} rows, updated copy-on-write"
    bench.cost(what, times["updated"], "scans of both versions", times["scans"], at_most(2))


def feed_of_many_versions(bench: Bench) -> None:
    """The feed of 10,000 versions with one row each: time compared with a quarter of them, and requests on S3."""
    count = bench.size(10_000, 200)
    table, since = _one_row_per_version(str(bench.folder("versions")), count, durability="none")
    times = in_turn(
        bench.size(3, 1),
        1,
        all=lambda _: _count(table.changes(since)),
        quarter=lambda _: _count(table.changes(since, since + count // 4)),
    )
    bench.cost(f"feed of {count:,} versions", times["all"], "a quarter of them", times["quarter"], at_most(4.4))
    count = bench.size(500, 20)
    with remote_store.running() as store:
        table, since = _one_row_per_version("s3://bucket/lake", count, storage_options=store.storage_options)
        store.requests()
        assert _count(table.changes(since)) == count
        requests = store.requests()
    shown = ", ".join(f"{number} {verb}" for verb, number in sorted(requests.items()))
    # The root and the data file; the rest are metadata, manifests, and a LIST for each 32 versions.
    what = f"feed of {count:,} versions on S3: requests a version"
    bench.figure(what, [sum(requests.values()) / count], "count", at_most(2.2), shown)


def _one_row_per_version(root: str, count: int, **options: Any) -> tuple[tl.Table, int]:
    """A table to which each version after the returned one appended a row, opened by a handle that has read nothing."""
    lake = tl.create(root, **options)
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"})
    since = lake.version
    for number in range(count):
        table.append({"id": [number]})
    return tl.open(root, storage_options=options.get("storage_options")).table("n.t"), since


BENCHMARKS = {"feed-rows": rows_of_the_feed, "feed-versions": feed_of_many_versions}
