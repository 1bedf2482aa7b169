"""TPC-H's 22 queries through `lake.sql`, beside DuckDB over the same Parquet files, and with equal results."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trinitylake as tl
from benches.python.measure import Bench, at_most, in_turn


def generated(scale: float) -> Any:
    """A DuckDB connection with the tables of TPC-H, whose generator is an extension of its own."""
    import duckdb

    package = importlib.util.find_spec("duckdb_extension_tpch")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("TPC-H is in the package duckdb-extension-tpch")
    extension = next(Path(package.origin).parent.rglob("tpch.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"CALL dbgen(sf = {scale})")
    return connection


def tpch(bench: Bench) -> None:
    """All queries, each a few times in turn with DuckDB's."""
    import duckdb

    scale = 0.01 if bench.quick else 1.0
    made = generated(scale)
    queries = [query for _, query in made.execute("SELECT * FROM tpch_queries() ORDER BY 1").fetchall()]
    lake = tl.create(str(bench.folder("tpch")), durability="none")
    lake.create_namespace("tpch")
    plain = duckdb.connect()
    for (name,) in made.execute("SHOW TABLES").fetchall():
        schema = made.execute(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
        with lake.transaction() as txn:
            txn.create_table(f"tpch.{name}", schema).append(made.execute(f"FROM {name}").to_arrow_reader(1_000_000))
        tasks = lake.table(f"tpch.{name}").scan().iceberg.plan_files()
        files = ", ".join(repr(task.file.file_path.removeprefix("file://")) for task in tasks)
        plain.execute(f"CREATE VIEW {name} AS FROM read_parquet([{files}])")
    made.close()
    sums: dict[str, list[float]] = {"ours": [], "theirs": []}
    worked: dict[str, list[float]] = {"ours": [], "theirs": []}
    slowest = (0.0, 0)
    for number, query in enumerate(queries, 1):
        check_equal(lake.sql(query, default_namespace="tpch").fetchall(), plain.execute(query).fetchall(), number)
        processor: dict[str, list[float]] = {"ours": [], "theirs": []}

        def measured(name: str, run: Callable[[], object], processor: dict[str, list[float]] = processor) -> None:
            start = time.process_time()
            run()
            processor[name].append(time.process_time() - start)

        def ours(_: int, query: str = query, measured: Callable[..., None] = measured) -> None:
            measured("ours", lambda: lake.sql(query, default_namespace="tpch").to_arrow())

        def theirs(_: int, query: str = query, measured: Callable[..., None] = measured) -> None:
            measured("theirs", lambda: plain.execute(query).to_arrow_table())

        took = in_turn(bench.size(3, 1), 1, ours=ours, theirs=theirs)
        best = {name: min(times) for name, times in took.items()}
        for name, seconds in best.items():
            sums[name].append(seconds)
            worked[name].append(min(processor[name]))
        slowest = max(slowest, (best["ours"] / best["theirs"], number))
    total_ours, total_theirs = sum(sums["ours"]), sum(sums["theirs"])
    note = f"22 results equal; most for query {slowest[1]}: {slowest[0]:.2f}"
    what = f"TPC-H's 22 queries at scale {scale}, sum"
    bench.cost(None, what, [total_ours], "DuckDB over the same files", [total_theirs], at_most(1.3), note=note)
    ours_worked, theirs_worked = sum(worked["ours"]), sum(worked["theirs"])
    bench.cost(None, "the same, processor time", [ours_worked], "DuckDB", [theirs_worked], at_most(1.3))
    bench.cost(None, "the same, query by query", sums["ours"], "DuckDB over the same files", sums["theirs"])


def check_equal(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], number: int) -> None:
    """Refuse other rows; sums of floating point may differ in their last digits."""
    same = len(ours) == len(theirs) and all(
        math.isclose(one, other, rel_tol=1e-9) if isinstance(one, float) else one == other
        for row, expected in zip(ours, theirs, strict=True)
        for one, other in zip(row, expected, strict=True)
    )
    if not same:
        raise AssertionError(f"query {number}: {ours[:3]} instead of {theirs[:3]}")


BENCHMARKS = {"tpch-sql": tpch}
