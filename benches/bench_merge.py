"""Upserts compared with DuckDB and delta-rs, and appends to a table with a long history."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import trinitylake as tl
from benches import peers
from benches.measure import Bench, Limit, at_least, at_most, in_turn, seconds

#: Number of incoming rows, and of rows in the table. Half of the incoming rows are updates of random rows, half are
#: new.
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
    """The incoming rows."""
    import numpy as np

    updated = np.random.default_rng(0).choice(table_rows, rows // 2, replace=False)
    return made_rows(np.concatenate([updated, np.arange(table_rows, table_rows + rows - rows // 2)]), 7)


def upsert(bench: Bench) -> None:
    """An upsert compared with an anti join in DuckDB that writes the result, and with delta-rs's merge."""
    for full_rows, full_table_rows in SIZES if not bench.quick else ((500, 2_000),):
        root = compare_upserts(bench, full_rows, full_table_rows, "", {}, at_most(2), at_least(0.77))
        if full_rows >= 100_000:
            what = f"upsert {full_rows:,} into {full_table_rows:,}, resident memory"
            bench.figure(what, [_peak(root, full_rows)], "bytes", at_most(1 << 30))


def upsert_in_place(bench: Bench) -> None:
    """Like `upsert`, with few rows in a merge-on-read table."""
    properties = {"write.merge.mode": "merge-on-read", "format-version": "3"}
    sizes = bench.size(50_000, 500), bench.size(10_000_000, 2_000)
    compare_upserts(bench, *sizes, ", merge-on-read", properties, at_most(1), at_least(1))


def compare_upserts(
    bench: Bench, rows: int, table_rows: int, mode: str, properties: dict[str, str], duckdb_max: Limit, delta_min: Limit
) -> Path:
    """Compare upserts into a table with some properties; returns the root of its lakehouse."""
    import duckdb
    import numpy as np
    from deltalake import DeltaTable, write_deltalake

    root, delta = bench.folder("upsert"), str(bench.folder("delta"))
    lake = tl.create(str(root), durability="none")
    lake.create_namespace("n")
    given = incoming(rows, table_rows)
    table = lake.create_table("n.t", given.schema, properties=properties)
    for start in range(0, table_rows, PART):
        part = made_rows(np.arange(start, min(table_rows, start + PART)), start)
        table.append(part)
        write_deltalake(delta, part, mode="append")
    begin, delta_begin = lake.version, DeltaTable(delta).version()
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().iceberg.plan_files()]
    connection = duckdb.connect()
    connection.register("given", given)
    ours: list[float] = []
    ducks: list[float] = []
    deltas: list[float] = []

    def in_duckdb(folder: Path) -> None:
        connection.execute(
            f"COPY (SELECT t.* FROM read_parquet({files}) t ANTI JOIN given USING (id) UNION ALL "
            f"SELECT * FROM given) TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PER_THREAD_OUTPUT)"
        )

    def in_delta() -> None:
        merge = DeltaTable(delta).merge(given, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    for _ in range(bench.size(9 if table_rows < PART else 3, 2)):
        table = lake.table("n.t")
        ours.append(seconds(functools.partial(table.upsert, given, on="id")))
        assert lake.table("n.t").scan().count() == table_rows + rows - rows // 2
        lake.rollback(version=begin)
        ducks.append(seconds(lambda: in_duckdb(bench.folder("duckdb"))))
        deltas.append(seconds(in_delta))
        DeltaTable(delta).restore(delta_begin)
    what = f"upsert {rows:,} into {table_rows:,}{mode}"
    bench.cost(what, ours, "DuckDB: read, join, write", ducks, duckdb_max)
    bench.speed(what, ours, "delta-rs", deltas, delta_min)
    return root


def _peak(root: Path, rows: int) -> float:
    """Peak memory of a separate process that does the upsert."""
    program = (
        "import json, sys; import trinitylake as tl; from benches.bench_merge import incoming\n"
        "from benches.measure import most_memory_bytes\n"
        "root, rows = sys.argv[1], int(sys.argv[2]); lake = tl.open(root, durability='none')\n"
        "table = lake.table('n.t'); given = incoming(rows, table.scan().count())\n"
        "table.upsert(given, on='id'); print(json.dumps(most_memory_bytes()))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root), str(rows)], capture_output=True, check=True)
    return float(json.loads(done.stdout))


def long_history(bench: Bench) -> None:
    """Bytes and time of an append of ten rows after thousands of appends, compared with early ones."""
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
    bench.cost(f"bytes of append {late:,}", [sizes[1]], "append 100", [sizes[0]], at_most(1.2), unit="bytes")
    # Alternately with a new table of the same lakehouse, because the speed of the machine changes over time.
    young = lake.create_table("n.young", peers.SCHEMA)
    for early in range(100 - window):
        young.append(peers.ten_rows(early))
    times = in_turn(
        10,
        window // 10,
        late=lambda i: table.append(peers.ten_rows(late + i)),
        young=lambda i: young.append(peers.ten_rows(100 + i)),
    )
    bench.cost(f"append {late:,}", times["late"], "append 100", times["young"], at_most(1.2))
    bench.figure(f"bytes in all after {late:,} appends", [float(size_bytes())], "bytes", None)


BENCHMARKS = {"upsert": upsert, "upsert-in-place": upsert_in_place, "append-history": long_history}
