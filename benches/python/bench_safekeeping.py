"""Checks and exports of a large lakehouse: memory, requests, and rates beside reading the files and nothing else."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import trinitylake as tl
from benches.python import lakes
from benches.python.measure import Bench, at_least, at_most, seconds
from trinitylake.definitions import new_table_def, serialize

_MEASURED_FSCK = """
import sys
import trinitylake as tl
from benches.python.memory import most_memory_bytes
lake = tl.open(sys.argv[1], durability="none")
report = lake.maintenance.fsck()
assert report.is_sound, report.findings[:3]
print(most_memory_bytes(), report.definitions)
"""


def _lakehouse(folder: Path, tables: int) -> tl.Lakehouse:
    """Tables that have definitions and no files of their own, in one registration."""
    namespaces, names = lakes.table_names(tables)
    lake = tl.create(folder, durability="none")
    parents = sorted(set(namespaces))
    definition = serialize(new_table_def(table_type="external", format_properties={"metadata_location": "s3://b/x"}))
    with lake.transaction() as txn:
        for parent in parents:
            txn.create_namespace(parent)
    batch = pa.table(
        {
            "kind": ["table"] * tables,
            "namespace": namespaces,
            "name": names,
            "definition": pa.array([definition] * tables, pa.binary()),
        }
    )
    lake.register(batch)
    return lake


def fsck(bench: Bench) -> None:
    """All nodes and definitions of a version, in a process of its own, beside reading the same files with threads."""
    tables = bench.size(1_000_000, 20_000)
    lake = _lakehouse(bench.folder("fsck"), tables)
    ours, raws, peaks = [], [], []
    locations = pa.RecordBatchReader.from_stream(lake._state().scan()).read_all().column(1).to_pylist()
    root = Path(lake.uri.removeprefix("file://"))

    def read_all() -> None:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda path: (root / path).read_bytes(), locations, chunksize=500):
                pass

    for _ in range(bench.size(2, 2)):

        def check() -> None:
            done = subprocess.run(
                [sys.executable, "-c", _MEASURED_FSCK, str(root)], check=True, capture_output=True, text=True
            )
            peaks.append(float(done.stdout.split()[0]))

        ours.append(tables / seconds(check))
        raws.append(tables / seconds(read_all))
    bench.figure(None, f"fsck of {tables:,} objects: memory at most", peaks, "bytes", at_most(300e6))
    bench.cost(
        None,
        f"fsck of {tables:,} objects",
        ours,
        "open and read the same files, 8 threads",
        raws,
        at_least(0.7),
        unit="1/s",
    )


def export_again(bench: Bench) -> None:
    """Requests and bytes of a second export, after ten changes."""
    tables = bench.size(1_000_000, 20_000)
    lake = _lakehouse(bench.folder("source"), tables)
    target = bench.folder("target") / "copy"
    lake.create_namespace("mill")
    for number in range(10):
        lake.create_table(f"mill.t{number}", pa.table({"id": [1]})).append(pa.table({"id": [1]}))
    lake.export(target, durability="none")
    for number in range(3):
        lake.table(f"mill.t{number}").append(pa.table({"id": [2]}))
    for number in range(3, 6):
        lake.alter_table(f"mill.t{number}", {"changed": "yes"})
    lake.create_view("mill.v", "SELECT 1")
    lake.create_namespace("mill2")
    lake.drop_table("mill.t9")
    lake.rename_table("mill.t8", "mill.t88")
    requests, sizes = [], []
    source = tl.open(lake.uri, durability="none")
    before = source._storage.counters()
    done = source.export(target, durability="none")
    after = source._storage.counters()
    here = sum(after[verb] - before[verb] for verb in after if not verb.endswith("_bytes"))
    requests.append(float(here + done.requests))
    sizes.append(float(done.size_bytes))
    what = f"second export after 10 changes among {tables:,} objects"
    bench.figure(None, f"{what}: requests", requests, "count", at_most(100))
    bench.figure(None, "the same: bytes written", sizes, "bytes")


BENCHMARKS = {"fsck": fsck, "export-again": export_again}
