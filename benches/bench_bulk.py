"""Bulk operations over Arrow: registration of a million objects, and paths of data files."""

from __future__ import annotations

import mmh3
import pyarrow as pa
from pyiceberg.table.locations import ObjectStoreLocationProvider

import trinitylake as tl
from benches import lakes, peers
from benches.limits import size_on_disk
from benches.measure import Bench, at_least, at_most, in_turn, seconds
from trinitylake import core


def bulk_build(bench: Bench) -> None:
    """Registration of objects with given locations, compared with LMDB's load of the same keys and values."""
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
    bench.speed(what, ours, "LMDB load, synced once", theirs)
    bench.cost(f"{what}: bytes on disk", sizes, "LMDB", their_sizes, at_most(1), unit="bytes")


def optimize_paths(bench: Bench) -> None:
    """Paths for object stores, Arrow to Arrow, compared with the hash alone and with PyIceberg's in Python."""
    count = bench.size(1_000_000, 20_000)
    paths = pa.array(f"table-customers_{i:07d}-sales-5f0c7b1e-{i:012d}.binpb" for i in range(count))
    encoded = [path.encode() for path in paths.to_pylist()]
    few = max(count // 20, 1)
    provider = ObjectStoreLocationProvider("s3://bucket/table", {})
    some = paths.to_pylist()[:few]
    times = in_turn(
        bench.size(9, 3),
        1,
        ours=lambda _: core.optimize_paths(paths),
        hash=lambda _: [mmh3.hash(path) for path in encoded],
        pyiceberg=lambda _: [provider.new_data_location(path) for path in some],
    )
    ours = [count / time for time in times["ours"]]
    hashes = [count / time for time in times["hash"]]
    theirs = [few / time for time in times["pyiceberg"]]
    what = f"optimize_paths, {count:,} paths, one core"
    bench.figure(what, ours, "1/s", at_least(10e6))
    bench.cost(what, ours, "mmh3 alone, in a Python loop", hashes, unit="1/s")
    bench.cost(what, ours, "PyIceberg's ObjectStoreLocationProvider", theirs, unit="1/s")


BENCHMARKS = {"bulk": bulk_build, "optimize-paths": optimize_paths}
