"""Upsert and compaction, beside DuckDB that reads, joins and writes the same rows, and beside delta-rs."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import trinitylake as tl
from benches.python import peers
from benches.python.measure import Bench, at_least, at_most, in_turn, seconds

#: Rows that come in, and rows of the table; half of the first are updates of random rows, half are new.
SIZES = ((50_000, 200_000), (1_000_000, 10_000_000))
#: Rows of the table in one append.
PART = 2_000_000


def made_rows(ids: Any, seed: int) -> pa.Table:
    """Rows with these ids, and random values of the usual types."""
    import numpy as np

    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": ids,
            "a": random.random(len(ids)),
            "b": random.integers(0, 1000, len(ids)),
            "name": pa.array([f"name {number}" for number in ids % 100_000], pa.string()),
            "at": pa.array(random.integers(0, 10**15, len(ids)), pa.timestamp("us")),
        }
    )


def incoming(rows: int, table_rows: int) -> pa.Table:
    """The rows that come in."""
    import numpy as np

    updated = np.random.default_rng(0).choice(table_rows, rows // 2, replace=False)
    return made_rows(np.concatenate([updated, np.arange(table_rows, table_rows + rows - rows // 2)]), 7)


def upsert(bench: Bench) -> None:
    """An upsert beside an anti join in DuckDB that reads both sides and writes what changed, and delta-rs's merge."""
    import duckdb
    import numpy as np
    from deltalake import DeltaTable, write_deltalake

    for full_rows, full_table_rows in SIZES if not bench.quick else ((500, 2_000),):
        root, delta = bench.folder("upsert"), str(bench.folder("delta"))
        lake = tl.create(str(root), durability="none")
        lake.create_namespace("n")
        given = incoming(full_rows, full_table_rows)
        table = lake.create_table("n.t", given.schema)
        for start in range(0, full_table_rows, PART):
            part = made_rows(np.arange(start, min(full_table_rows, start + PART)), start)
            table.append(part)
            write_deltalake(delta, part, mode="append")
        begin, delta_begin = lake.version, DeltaTable(delta).version()
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().iceberg.plan_files()]
        connection = duckdb.connect()
        connection.register("given", given)
        ours: list[float] = []
        ducks: list[float] = []
        deltas: list[float] = []

        def in_duckdb(folder: Path, files: list[str] = files, connection: Any = connection) -> None:
            connection.execute(
                f"COPY (SELECT t.* FROM read_parquet({files}) t ANTI JOIN given USING (id) UNION ALL "
                f"SELECT * FROM given) TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PER_THREAD_OUTPUT)"
            )

        def in_delta(delta: str = delta, given: pa.Table = given) -> None:
            merge = DeltaTable(delta).merge(given, "s.id = t.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

        for _ in range(bench.size(3 if full_rows > 100_000 else 9, 2)):
            table = lake.table("n.t")
            ours.append(seconds(functools.partial(table.upsert, given, on="id")))
            assert lake.table("n.t").scan().count() == full_table_rows + full_rows - full_rows // 2
            lake.rollback(version=begin)
            ducks.append(seconds(lambda: in_duckdb(bench.folder("duckdb"))))
            deltas.append(seconds(in_delta))
            DeltaTable(delta).restore(delta_begin)
        what = f"upsert {full_rows:,} into {full_table_rows:,}"
        bench.cost(None, what, ours, "DuckDB: read, join, write", ducks, at_most(2))
        bench.speed(None, what, ours, "delta-rs", deltas, at_least(1))
        if full_rows >= 100_000:
            bench.figure(None, f"{what}, resident memory", [_peak(root, full_rows)], "bytes", at_most(1 << 30))


def _peak(root: Path, rows: int) -> float:
    """The most memory of a process of its own that does the upsert, without what it had before."""
    program = (
        "import json, sys; import trinitylake as tl; from benches.python.bench_merge import incoming\n"
        "from benches.python.memory import most_memory_bytes\n"
        "root, rows = sys.argv[1], int(sys.argv[2]); lake = tl.open(root, durability='none')\n"
        "table = lake.table('n.t'); given = incoming(rows, table.scan().count())\n"
        "table.upsert(given, on='id'); print(json.dumps(most_memory_bytes()))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root), str(rows)], capture_output=True, check=True)
    return float(json.loads(done.stdout))


def compact(bench: Bench) -> None:
    """A thousand files of a thousand rows put together, beside DuckDB reading and writing the same rows."""
    import duckdb
    import numpy as np

    count, rows = bench.size(1000, 20), 1000
    lake = tl.create(str(bench.folder("compact")), durability="none")
    lake.create_namespace("n")
    lake.create_table("n.t", made_rows(np.arange(0), 0).schema)
    with lake.transaction() as txn:
        for number in range(count):
            txn.table("n.t").append(made_rows(np.arange(number * rows, (number + 1) * rows), number))
    begin = lake.version
    files = [task.file.file_path.removeprefix("file://") for task in lake.table("n.t").scan().iceberg.plan_files()]
    connection = duckdb.connect()
    ours: list[float] = []
    ducks: list[float] = []
    for _ in range(bench.size(5, 2)):
        table = lake.table("n.t")
        ours.append(seconds(table.maintenance.compact))
        assert lake.table("n.t").scan().count() == count * rows
        lake.rollback(version=begin)
        out = bench.folder("duckdb")
        copy = f"COPY (FROM read_parquet({files})) TO '{out}' (FORMAT parquet, COMPRESSION zstd)"
        ducks.append(seconds(functools.partial(connection.execute, copy)))
    what = f"compact {count:,} files of {rows:,} rows"
    bench.cost(None, what, ours, "DuckDB: read and write", ducks, at_most(1.5))


def long_history(bench: Bench) -> None:
    """Appends of ten rows, far into the history of a table beside early ones: bytes written, and time."""
    import os

    late, window = bench.size(10_000, 150), bench.size(50, 10)
    root = bench.folder("history")
    lake = tl.create(str(root), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", peers.SCHEMA)

    def size_bytes() -> int:
        return sum(os.path.getsize(Path(where, name)) for where, _, names in os.walk(root) for name in names)

    sizes: list[float] = []
    number = 0
    for end in (100, late):
        while number < end - window:
            table.append(peers.ten_rows(number))
            number += 1
        before = size_bytes()
        while number < end:
            table.append(peers.ten_rows(number))
            number += 1
        sizes.append((size_bytes() - before) / window)
    bench.cost(None, f"bytes of append {late:,}", [sizes[1]], "append 100", [sizes[0]], at_most(1.2), unit="bytes")
    # In turn with a table of the same lakehouse that is young: ten seconds later the machine may be another.
    young = lake.create_table("n.young", peers.SCHEMA)
    for early in range(100 - window):
        young.append(peers.ten_rows(early))
    times = in_turn(
        10,
        window // 10,
        late=lambda i: table.append(peers.ten_rows(late + i)),
        young=lambda i: young.append(peers.ten_rows(100 + i)),
    )
    bench.cost(None, f"append {late:,}", times["late"], "append 100", times["young"], at_most(1.2))
    bench.figure(None, f"bytes in all after {late:,} appends", [float(size_bytes())], "bytes", None)


BENCHMARKS = {"upsert": upsert, "compact": compact, "append-history": long_history}
