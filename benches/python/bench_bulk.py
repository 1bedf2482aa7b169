"""Target 11: a million objects at once."""

from __future__ import annotations

import pyarrow as pa

import trinitylake as tl
from benches.python import lakes, peers
from benches.python.limits import RawFiles, size_on_disk
from benches.python.measure import Bench, at_least, at_most, seconds
from trinitylake import _core, core
from trinitylake.definitions import new_table_def, serialize


def bulk_build(bench: Bench) -> None:
    """Registration of objects with given locations, beside LMDB's load of the same keys and values."""
    tables = bench.size(1_000_000, 20_000)
    objects = lakes.objects(tables)
    namespaces, names = lakes.table_names(tables)
    keys = [key.encode() for key in core.encode_table_keys(pa.array(namespaces), pa.array(names)).to_pylist()]
    values = [location.encode() for location in lakes.table_locations(tables).to_pylist()]
    ours, theirs, sizes, their_sizes = [], [], [], []
    for _ in range(bench.size(3, 2)):
        folder = bench.folder("bulk")
        lake = tl.create(str(folder), durability="none")
        ours.append(seconds(lambda lake=lake: lake._core.register(objects)))
        sizes.append(float(size_on_disk(folder)))
        store = peers.Lmdb(bench.folder("lmdb"))
        theirs.append(seconds(lambda store=store: store.load(keys, values)))
        their_sizes.append(float(size_on_disk(store.path)))
    what = f"register {tables:,} tables"
    bench.figure(11, what, ours, "s", at_most(3))
    bench.figure(11, f"{what}: bytes on disk", sizes, "bytes", at_most(100e6))
    bench.speed(None, what, ours, "LMDB load, synced once", theirs)
    bench.cost(None, f"{what}: bytes on disk", sizes, "LMDB", their_sizes, unit="bytes")


def bulk_definitions(bench: Bench) -> None:
    """The same with definition files written, beside the creation of as many files and nothing else."""
    tables = bench.size(20_000, 2_000)
    namespaces, names = lakes.table_names(tables)
    definition = serialize(new_table_def())
    ours, raws = [], []
    for _ in range(bench.size(5, 2)):
        lake = tl.create(str(bench.folder("definitions")), durability="none")
        raw = RawFiles(bench.folder("raw"), [len(definition)], fsync=False)

        def build(lake: tl.Lakehouse = lake) -> None:
            paths = [
                _core.definition_path("table", namespace, name)
                for namespace, name in zip(namespaces, names, strict=True)
            ]
            lake._storage.put_many([(path, definition) for path in paths])
            parents = sorted(set(namespaces))
            heads = [_core.definition_path("namespace", parent, "") for parent in parents]
            lake._storage.put_many([(path, definition) for path in heads])
            lake._core.register(
                pa.table(
                    {
                        "kind": ["namespace"] * len(parents) + ["table"] * tables,
                        "namespace": parents + namespaces,
                        "name": [""] * len(parents) + names,
                        "location": heads + paths,
                    }
                )
            )

        def create_files(raw: RawFiles = raw) -> None:
            for number in range(tables):
                raw.create(number)

        ours.append(tables / seconds(build))
        raws.append(tables / seconds(create_files))
    bench.cost(
        11,
        f"write and register {tables:,} definitions",
        ours,
        "as many files in one folder, one thread",
        raws,
        at_least(0.7),
        unit="1/s",
    )


BENCHMARKS = {"bulk": bulk_build, "bulk-definitions": bulk_definitions}
