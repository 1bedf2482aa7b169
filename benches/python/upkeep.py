"""What upkeep leaves, and what it costs: `python -m benches.python.upkeep --appends 1500 --objects 100000`.

The first part appends single rows to one table, and tells files and bytes before and after upkeep that keeps one
version. The second vacuums a lakehouse of that many registered tables, with as much garbage, in a process of its own,
and tells requests, and the most memory that the process held. Times are for orientation. `--appends 0` leaves the first
part out; `TMPDIR` says where all of it lies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import trinitylake as tl
from benches.python.lakes import table_names
from benches.python.memory import most_memory_bytes
from trinitylake import _core
from trinitylake.definitions import new_table_def, serialize

ROW = pa.table({"id": [1]})


def files_and_bytes(folder: Path) -> str:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.2f} MB"


def appends(count: int) -> None:
    """Single rows, one at a time."""
    folder = Path(tempfile.mkdtemp()) / "lake"
    lake = tl.create(
        folder, durability="none", txn_ttl_millis=1, maximum_version_age_millis=1, minimum_versions_to_keep=1
    )
    lake.create_namespace("ns")
    table = lake.create_table("ns.t", ROW)
    for _ in range(count):
        table.append(ROW)
    print(f"{count} appends: {files_and_bytes(folder)}")
    time.sleep(3)  # nothing younger than two seconds goes
    started = time.monotonic()
    done = lake.maintenance.run()
    assert done.vacuumed is not None
    print(f"after upkeep: {files_and_bytes(folder)}; {time.monotonic() - started:.1f} s")
    assert lake.table("ns.t").scan().to_arrow().num_rows == count


def listed_and_read(root: Path) -> float:
    """Seconds for finding all files and reading half of them, as many as are reached, by 8 threads."""
    started = time.monotonic()
    paths = [Path(where, name) for where, _, names in os.walk(root) for name in names]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda path: (path.stat().st_mtime, path.read_bytes()), paths[::2], chunksize=500):
            pass
    return time.monotonic() - started


def vacuum_registered(uri: str) -> None:
    """What a vacuum would do, and one that does it; and what that took."""
    lake = tl.open(uri, durability="none")
    resident = most_memory_bytes()
    started = time.monotonic()
    lake.maintenance.vacuum(grace="0 s", dry_run=True)
    print(f"dry run: {time.monotonic() - started:.1f} s; memory at most {most_memory_bytes() / 1e6:.0f} MB")
    before = lake._storage.counters()
    started = time.monotonic()
    done = lake.maintenance.vacuum(grace="0 s")
    elapsed = time.monotonic() - started
    requests = {name: count - before[name] for name, count in lake._storage.counters().items() if count > before[name]}
    print(f"kept {done.total_kept}, deleted {done.total_deleted}: {elapsed:.1f} s")
    print(f"memory: {resident / 1e6:.0f} MB before, at most {most_memory_bytes() / 1e6:.0f} MB; requests: {requests}")


def registered(count: int) -> None:
    """Tables that have definitions and no metadata yet, and as many definitions that nobody names."""
    folder = Path(tempfile.mkdtemp()) / "lake"
    lake = tl.create(folder, durability="none", txn_ttl_millis=1)
    namespaces, names = table_names(count)
    definition = serialize(new_table_def())
    paths = [_core.definition_path("table", *name) for name in zip(namespaces, names, strict=True)]
    garbage = [_core.definition_path("table", *name) for name in zip(namespaces, names, strict=True)]
    parents = sorted(set(namespaces))
    heads = [_core.definition_path("namespace", parent, "") for parent in parents]
    for some in (paths, garbage, heads):
        lake._storage.put_many([(path, definition) for path in some])
    kinds = ["namespace"] * len(parents) + ["table"] * count
    objects = pa.table(
        {
            "kind": kinds,
            "namespace": [*parents, *namespaces],
            "name": [""] * len(parents) + names,
            "location": heads + paths,
        }
    )
    lake._core.register(objects)
    print(f"{count} tables: {files_and_bytes(folder)}")
    time.sleep(3)
    print(f"all files listed, half of them read, by 8 threads of Python: {listed_and_read(folder):.1f} s")
    process = multiprocessing.get_context("spawn").Process(target=vacuum_registered, args=(lake.uri,))
    process.start()
    process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=1500)
    parser.add_argument("--objects", type=int, default=100_000)
    given = parser.parse_args()
    if given.appends:
        appends(given.appends)
    registered(given.objects)
