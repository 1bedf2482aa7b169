"""Merge-on-read compared with copy-on-write: what a delete writes, how long it waits, and scans of the result."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests import stepped_store

import trinitylake as tl
from benches.bench_merge import made_rows
from benches.measure import Bench, at_least, at_most, in_turn

MODES = ("merge-on-read", "copy-on-write")
#: Rows of about 100 MB in one file.
ROWS = 3_000_000


def _table(lake: tl.Lakehouse, name: str, mode: str, version: int = 3) -> tl.Table:
    modes = {f"write.{statement}.mode": mode for statement in ("delete", "update", "merge")}
    properties = {**modes, "format-version": str(version), "write.target-file-size-bytes": str(1 << 30)}
    return lake.create_table(name, made_rows(np.arange(1), 0).schema, properties=properties)


def delete_one_row(bench: Bench) -> None:
    """A delete of one row of a file of 100 MB: bytes written, and waiting time on a remote store."""
    rows = made_rows(np.arange(bench.size(ROWS, 10_000)), 0)
    written: dict[str, list[float]] = {}
    with stepped_store.running() as store:
        lake = tl.create("s3://bucket/lake", storage_options=store.storage_options)
        lake.create_namespace("n")
        for mode in MODES:
            table = _table(lake, f"n.{mode[:5]}", mode)
            table.append(rows)
            table.delete("id = 100")  # fills caches
            with store.trace() as trace:
                table.delete("id = 5000")
            written[mode] = [float(sum(one.size_bytes for one in trace.requests if one.verb == "PUT"))]
            data = [path for path in trace.asked("PUT") if "/data/" in path and path.endswith(".parquet")]
            if mode == MODES[0]:
                counts = ", ".join(f"{count} {verb}" for verb, count in sorted(trace.counts.items()))
                what = f"delete 1 of {len(rows):,} rows, merge-on-read"
                bench.figure(f"{what}: rounds of PUT", [trace.put_rounds], "count", at_most(3), counts)
                bench.figure(f"{what}: data files written", [float(len(data))], "count", at_most(0))
    less = [theirs / ours for ours, theirs in zip(*written.values(), strict=True)]
    bench.figure("copy-on-write writes so many times the bytes", less, "count", at_least(20))


def scan_with_deletes(bench: Bench) -> None:
    """A scan of a table of which a tenth of the rows is deleted by vectors, compared with one without deletes."""
    lake = tl.create(str(bench.folder("scan")), durability="none")
    lake.create_namespace("n")
    count = bench.size(3_000_000, 20_000)
    tables = {}
    for name in ("plain", "deleted"):
        tables[name] = _table(lake, f"n.{name}", MODES[0])
        for start in range(0, count, count // 4):
            tables[name].append(made_rows(np.arange(start, start + count // 4), start))
    gone = np.random.default_rng(0).choice(count, count // 10, replace=False)
    lake.sql(
        "DELETE FROM n.deleted WHERE id IN (SELECT id FROM gone)", data={"gone": made_rows(gone, 1).select(["id"])}
    )
    deleted = lake.table("n.deleted")
    assert deleted.count() == count - len(gone)
    paths = [task.file.file_path.removeprefix("file://") for task in tables["plain"].scan().iceberg.plan_files()]
    remains = pa.array(~np.isin(np.arange(count // 4), gone))

    def read(_: int, *masks: pa.Array) -> list[pa.RecordBatch]:
        """The rows of the same files, filtered by a mask that is given: what pyarrow needs at least."""
        found = []
        for path in paths:
            start = 0
            for batch in pq.ParquetFile(path).iter_batches(131_072, use_threads=True):
                found += [batch.filter(mask.slice(start, batch.num_rows)) for mask in masks] or [batch]
                start += batch.num_rows
        return found

    times = in_turn(
        bench.size(7, 2),
        1,
        deleted=lambda _: deleted.scan().to_arrow(),
        plain=lambda _: tables["plain"].scan().to_arrow(),
        filtered=lambda number: read(number, remains),
        read=read,
    )
    bench.cost(
        f"pyarrow alone: {count:,} rows filtered by a mask", times["filtered"], "without a filter", times["read"]
    )
    what = f"scan of {count:,} rows, a tenth deleted by vectors"
    bench.cost(what, times["deleted"], "without deletes", times["plain"], at_most(1.3))


BENCHMARKS = {"delete-one-row": delete_one_row, "scan-with-deletes": scan_with_deletes}
