"""fsck, vacuum and a repeated export of a large lakehouse: memory, requests, and rates."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

import trinitylake as tl
from benches import lakes
from benches.measure import Bench, at_least, at_most, most_memory_bytes, seconds
from trinitylake import _core
from trinitylake.definitions import new_table_def, serialize

#: `benches` is importable from this folder.
TOP = Path(__file__).resolve().parent.parent


def _lakehouse(folder: Path, tables: int) -> tl.Lakehouse:
    """Tables that have definitions and no files of their own, in one registration."""
    namespaces, names = lakes.table_names(tables)
    lake = tl.create(folder, durability="none", txn_ttl_millis=1)
    definition = serialize(new_table_def(table_type="external", format_properties={"metadata_location": "s3://b/x"}))
    with lake.transaction() as txn:
        for parent in sorted(set(namespaces)):
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


def _in_process(job: str, uri: str) -> dict[str, Any]:
    """Run a function of this module in a separate process, whose memory is measured."""
    program = f"import sys, json; from benches import bench_maintenance as b; print(json.dumps(b.{job}(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", program, uri], check=True, stdout=subprocess.PIPE, cwd=TOP)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check(uri: str) -> dict[str, Any]:
    report = tl.open(uri, durability="none").maintenance.fsck()
    assert report.is_sound, report.findings[:3]
    return {"memory": most_memory_bytes()}


def clean(uri: str) -> dict[str, Any]:
    lake = tl.open(uri, durability="none")
    took = seconds(lambda: lake.maintenance.vacuum(grace="0 s"))
    counts = lake._storage.counters()
    return {"memory": most_memory_bytes(), "seconds": took, "get": counts["get"], "list": counts["list"]}


def fsck(bench: Bench) -> None:
    """All nodes and definitions of a version, compared with reading the same files with threads."""
    tables = bench.size(1_000_000, 20_000)
    lake = _lakehouse(bench.folder("fsck"), tables)
    ours, raws, peaks = [], [], []
    locations = pa.RecordBatchReader.from_stream(lake._state().scan()).read_all().column(1).to_pylist()
    root = Path(lake.uri.removeprefix("file://"))

    def read_all() -> None:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda path: (root / path).read_bytes(), locations, chunksize=500):
                pass

    for _ in range(2):
        ours.append(tables / seconds(lambda: peaks.append(float(_in_process("check", str(root))["memory"]))))
        raws.append(tables / seconds(read_all))
    what = f"fsck of {tables:,} objects"
    bench.figure(f"{what}: peak memory", peaks, "bytes", at_most(300e6))
    bench.cost(what, ours, "open and read the same files, 8 threads", raws, at_least(0.7), unit="1/s")


def vacuum(bench: Bench) -> None:
    """A vacuum that deletes as many definitions as it keeps."""
    tables = bench.size(1_000_000, 20_000)
    lake = _lakehouse(bench.folder("vacuum"), tables)
    definition = serialize(new_table_def())
    garbage = [_core.definition_path("table", *name) for name in zip(*lakes.table_names(tables), strict=True)]
    lake._storage.put_many([(path, definition) for path in garbage])
    time.sleep(3)  # files younger than two seconds are kept
    done = _in_process("clean", lake.uri)
    what = f"vacuum of {tables:,} tables and as many unreferenced files"
    note = f"{done['get']:,} GET, {done['list']:,} LIST"
    bench.figure(what, [done["seconds"]], "s", note=note)
    bench.figure(f"{what}: peak memory", [float(done["memory"])], "bytes", at_most(300e6))


def export_again(bench: Bench) -> None:
    """Requests and bytes of a second export, after ten changes."""
    tables = bench.size(1_000_000, 20_000)
    lake = _lakehouse(bench.folder("source"), tables)
    target = bench.folder("target") / "copy"
    lake.create_namespace("mill")
    for number in range(10):
        lake.create_table(f"mill.t{number}", pa.table({"id": [1]})).append(pa.table({"id": [1]}))
    lake.export(target, durability="none", mode="minimal")
    for number in range(3):
        lake.table(f"mill.t{number}").append(pa.table({"id": [2]}))
    for number in range(3, 6):
        lake.alter_table(f"mill.t{number}", {"changed": "yes"})
    lake.create_view("mill.v", "SELECT 1")
    lake.create_namespace("mill2")
    lake.drop_table("mill.t9")
    lake.rename_table("mill.t8", "mill.t88")
    source = tl.open(lake.uri, durability="none")
    before = source._storage.counters()
    done = source.export(target, durability="none", mode="minimal")
    after = source._storage.counters()
    here = sum(after[verb] - before[verb] for verb in after if not verb.endswith("_bytes"))
    what = f"second export after 10 changes among {tables:,} objects"
    bench.figure(f"{what}: requests", [float(here + done.requests)], "count", at_most(100))
    bench.figure(f"{what}: bytes written", [float(done.size_bytes)], "bytes")


BENCHMARKS = {"fsck": fsck, "vacuum": vacuum, "export-again": export_again}
