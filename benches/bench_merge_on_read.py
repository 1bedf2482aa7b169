"""Merge-on-read compared with copy-on-write: what a delete writes, how long it waits, and scans of the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests import stepped_store

import trinitylake as tl
from benches.bench_merge import incoming, made_rows
from benches.measure import Bench, at_least, at_most, in_turn, seconds

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
            table.delete("id = 100")  # fills caches, as another delete before would
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
    times = in_turn(
        bench.size(7, 2),
        1,
        deleted=lambda _: deleted.scan().to_arrow(),
        plain=lambda _: tables["plain"].scan().to_arrow(),
    )
    what = f"scan of {count:,} rows, a tenth deleted by vectors"
    bench.cost(what, times["deleted"], "without deletes", times["plain"], at_most(1.3))


def upsert_in_place(bench: Bench) -> None:
    """An upsert of 50,000 rows into 10 million, merge-on-read, compared with delta-rs and with a rewrite by DuckDB."""
    import duckdb
    from deltalake import DeltaTable, write_deltalake

    given_rows, table_rows = bench.size(50_000, 500), bench.size(10_000_000, 2_000)
    lake = tl.create(str(bench.folder("upsert")), durability="none")
    lake.create_namespace("n")
    delta = str(bench.folder("delta"))
    table = _table(lake, "n.t", MODES[0])
    for start in range(0, table_rows, table_rows // 5):
        part = made_rows(np.arange(start, start + table_rows // 5), start)
        table.append(part)
        write_deltalake(delta, part, mode="append")
    given = incoming(given_rows, table_rows)
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().iceberg.plan_files()]
    connection = duckdb.connect()
    connection.register("given", given)
    begin, delta_begin = lake.version, DeltaTable(delta).version()

    def in_duckdb(folder: Path) -> None:
        connection.execute(
            f"COPY (SELECT t.* FROM read_parquet({files}) t ANTI JOIN given USING (id) UNION ALL "
            f"SELECT * FROM given) TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PER_THREAD_OUTPUT)"
        )

    def in_delta() -> None:
        merge = DeltaTable(delta).merge(given, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    ours, ducks, deltas = [], [], []
    for _ in range(bench.size(3, 1)):
        table = lake.table("n.t")
        ours.append(seconds(lambda table=table: table.upsert(given, on="id")))  # type: ignore[misc]
        assert lake.table("n.t").count() == table_rows + given_rows - given_rows // 2
        lake.rollback(version=begin)
        ducks.append(seconds(lambda: in_duckdb(bench.folder("duckdb"))))
        deltas.append(seconds(in_delta))
        DeltaTable(delta).restore(delta_begin)
    what = f"upsert {given_rows:,} into {table_rows:,}, merge-on-read"
    bench.speed(what, ours, "DuckDB: read, join, write", ducks, at_least(1))
    bench.speed(what, ours, "delta-rs", deltas, at_least(1))


BENCHMARKS = {
    "delete-one-row": delete_one_row,
    "scan-with-deletes": scan_with_deletes,
    "upsert-in-place": upsert_in_place,
}
