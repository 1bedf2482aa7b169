"""Targets 14 to 16: the format's own functions over Arrow, from Python; `cargo bench` has them in Rust."""

from __future__ import annotations

import random

import mmh3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
from pyiceberg.table.locations import ObjectStoreLocationProvider

from benches.python.measure import Bench, at_least, at_most, in_turn
from trinitylake import _core, core


def optimize_paths(bench: Bench) -> None:
    """Target 14: object-store paths, Arrow to Arrow, beside the bare hash and beside PyIceberg's in Python."""
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
    bench.figure(14, f"optimize_paths, {count:,} paths, one core", ours, "1/s", at_least(20e6))
    bench.cost(
        None,
        "optimize_paths",
        ours,
        "mmh3 alone, in a Python loop",
        [count / time for time in times["hash"]],
        unit="1/s",
    )
    bench.cost(
        None,
        "optimize_paths",
        ours,
        "PyIceberg's ObjectStoreLocationProvider",
        [few / time for time in times["pyiceberg"]],
        unit="1/s",
    )


def encode_keys(bench: Bench) -> None:
    """Target 15: table keys, beside a copy of as many bytes and beside pyarrow's own padding."""
    count = bench.size(1_000_000, 20_000)
    namespaces = pa.array(f"namespace_{i // 1000:05d}" for i in range(count))
    names = pa.array(f"table_{i:07d}" for i in range(count))
    keys = core.encode_table_keys(namespaces, names)
    size = keys.buffers()[2].size
    source = memoryview(keys.buffers()[2])

    def with_pyarrow(_: int) -> None:
        padded = [pc.ascii_rpad(column, 100, " ") for column in (namespaces, names)]
        pc.binary_join_element_wise("C===", *padded, "")

    times = in_turn(
        bench.size(9, 3),
        1,
        ours=lambda _: core.encode_table_keys(namespaces, names),
        copy=lambda _: bytearray(source),
        pyarrow=with_pyarrow,
    )
    bench.cost(
        15,
        f"encode_table_keys, {count:,} keys of 204 bytes",
        [size / time for time in times["ours"]],
        "a copy of as many bytes into new memory",
        [size / time for time in times["copy"]],
        at_least(0.5),
        unit="bytes/s",
    )
    bench.speed(None, "encode_table_keys", times["ours"], "pyarrow: two ascii_rpad and a join", times["pyarrow"])


def read_node(bench: Bench) -> None:
    """Target 16: decoding a node of 128 rows and 172 messages and one search in it, beside pyarrow."""
    order, messages = 128, 172
    keys = core.encode_table_keys(
        "namespace_00001", pa.array(f"table_{i:07d}" for i in range(order + messages))
    ).to_pylist()
    chance = random.Random(5)

    def locations(count: int) -> list[str]:
        ids = [f"table-{i:07d}-namespace_00001-{chance.randbytes(16).hex()}.binpb" for i in range(count)]
        paths: list[str] = core.optimize_paths(pa.array(ids)).to_pylist()
        return paths

    own = sorted(chance.sample(keys, order - 1))
    rest = [key for key in keys if key not in set(own)]
    table = pa.record_batch(
        {
            "key": pa.array([None, *own]),
            "value": pa.array([None, *locations(order - 1)]),
            "pnode": pa.array(locations(order)),
        }
    )
    buffer = pa.record_batch(
        {
            "key": pa.array(chance.choices(rest, k=messages)),
            "value": pa.array(locations(messages)),
            "txn": pa.array([f"{chance.randbytes(16).hex()}" for _ in range(messages)]),
        }
    )
    files = {
        compression: _core.write_node({"height": "1"}, table, buffer, compression) for compression in ("none", "zstd")
    }
    repeats = bench.size(300, 20)
    for compression, limit in (("none", 30e-6), ("zstd", 200e-6)):
        data = files[compression]

        def ours(number: int, data: bytes = data) -> None:
            answer, _ = _core.read_node(data).search(own[number % len(own)])
            assert answer in ("row", "message")

        def with_pyarrow(number: int, data: bytes = data) -> None:
            batch = pyarrow.ipc.open_file(pa.BufferReader(data)).get_batch(0)
            assert pc.index(batch.column(0), own[number % len(own)]).as_py() >= 0

        times = in_turn(bench.size(9, 3), repeats, ours=ours, pyarrow=with_pyarrow)
        name = "uncompressed" if compression == "none" else "ZSTD"
        what = f"decode a node and search it once, {name}"
        bench.figure(16, what, times["ours"], "s", at_most(limit), note=f"{len(data):,} bytes")
        bench.speed(None, what, times["ours"], "pyarrow: read the batch, find the key", times["pyarrow"])


BENCHMARKS = {"optimize-paths": optimize_paths, "encode-keys": encode_keys, "read-node": read_node}
