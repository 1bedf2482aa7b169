"""Lakehouses of a given size, built in one registration."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

import trinitylake as tl
from benches.measure import Bench
from trinitylake import core

TABLES_PER_NAMESPACE = 10_000
#: Enough for every decoded node of a million tables; leaves may take three quarters. Unused memory is not allocated.
WARM_CACHE_SIZE_BYTES = 480 << 20


def table_names(tables: int) -> tuple[list[str], list[str]]:
    """Namespace and name of each table, in key order.

    A namespace has 10,000 tables; in a lakehouse of fewer than 100,000 tables, a tenth of them.
    """
    share = TABLES_PER_NAMESPACE if tables >= 100_000 else max(tables // 10, 1)
    namespaces = [f"namespace_{i // share:05d}" for i in range(tables)]
    return namespaces, [f"table_{i % share:07d}" for i in range(tables)]


def table_locations(tables: int) -> pa.StringArray:
    """Locations as a writer chooses them, each with a unique id."""
    digits = random.Random(7).randbytes(16 * tables).hex()
    ids = [digits[start : start + 32] for start in range(0, len(digits), 32)]
    namespaces, names = table_names(tables)
    return core.optimize_paths(
        pa.array(
            f"table-{name}-{namespace}-{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}.binpb"
            for namespace, name, i in zip(namespaces, names, ids, strict=True)
        )
    )


def objects(tables: int) -> pa.Table:
    """Input of `register`: namespaces and tables. Their definition files do not exist."""
    namespaces, names = table_names(tables)
    parents = list(dict.fromkeys(namespaces))
    heads = pa.record_batch(
        {
            "kind": pa.repeat("namespace", len(parents)),
            "namespace": parents,
            "name": [""] * len(parents),
            "location": core.optimize_paths(pa.array(f"namespace-{parent}.binpb" for parent in parents)),
        }
    )
    rows = pa.record_batch(
        {
            "kind": pa.repeat("table", tables),
            "namespace": namespaces,
            "name": names,
            "location": table_locations(tables),
        }
    )
    return pa.Table.from_batches([heads, rows])


def registered(folder: Path, tables: int) -> str:
    """Create a lakehouse of that many tables and return its URI."""
    lake = tl.create(str(folder), durability="none")
    lake._core.register(objects(tables))
    return lake.uri


def shared(bench: Bench, tables: int) -> str:
    """URI of a lakehouse that the benchmarks of one run share and only read."""
    if tables not in bench.shared_lakes:
        bench.shared_lakes[tables] = registered(bench.folder(f"lake-{tables}"), tables)
    return bench.shared_lakes[tables]
