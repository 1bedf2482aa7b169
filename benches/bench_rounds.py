"""Dependent rounds and requests of statements on a remote store.

The store has its own clock, which stands still while its client works (`tests/stepped_store.py`), so the figures are
the same on every machine. A PUT takes 60 ms, any other request 20 ms. One round is the duration of one PUT.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from tests import stepped_store

import trinitylake as tl
from benches.measure import Bench, at_most
from trinitylake.iceberg_storage import metadata

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{i}" for i in range(10)]})
ROOT = "s3://bucket/lake"
TABLES = 10


def rounds(bench: Bench) -> None:
    """Measures each statement once, after the same statements on another table have filled the caches."""
    with stepped_store.running() as store:
        lake = tl.create(ROOT, storage_options=store.storage_options)
        for namespace in ("warm", "n"):
            lake.create_namespace(namespace)
            lake.create_table(f"{namespace}.t", ROWS.schema).append(ROWS)
            six = lake.create_table(f"{namespace}.six", ROWS.schema)
            for _ in range(6):
                six.append(ROWS)
        with lake.transaction() as txn:
            for number in range(TABLES):
                txn.create_table(f"n.t{number}", ROWS.schema)
        table = lake.table("n.t")
        table.append(ROWS)

        def append_delete_append() -> None:
            with lake.transaction() as txn:
                table = txn.table("n.t")
                for write in (lambda: table.append(ROWS), lambda: table.delete("id = 5"), lambda: table.append(ROWS)):
                    write()
                    table.scan().to_arrow()

        def ten_tables() -> None:
            with lake.transaction() as txn:
                for number in range(TABLES):
                    txn.table(f"n.t{number}").append(ROWS)

        def measure(what: str, statement: Callable[[], object], rounds_max: float | None = None) -> None:
            with store.trace() as trace:
                statement()
            limit = None if rounds_max is None else at_most(rounds_max)
            note = f"{trace.millis} ms; " + ", ".join(f"{count} {verb}" for verb, count in sorted(trace.counts.items()))
            bench.figure(f"{what}: rounds of PUT", [trace.put_rounds], "count", limit, note)
            bench.figure(f"{what}: requests", [float(len(trace.requests))], "count")

        lake.table("warm.t").delete("id = 5")
        lake.table("warm.t").overwrite(ROWS, filter="id = 4")
        lake.table("warm.six").scan().to_arrow()
        measure("create a namespace", lambda: lake.create_namespace("other"), 1.1)
        measure("change a property of a namespace", lambda: lake.alter_namespace("other", {"owner": "ann"}), 1.1)
        measure("create a table", lambda: lake.create_table("n.new", ROWS.schema))
        measure("append 10 rows, with a handle", lambda: table.append(ROWS), 2.4)
        measure("append 10 rows, by name", lambda: lake.table("n.t").append(ROWS), 2.5)
        measure("delete", lambda: table.delete("id = 3"))
        measure("overwrite", lambda: table.overwrite(ROWS, filter="id = 4"))
        measure("append to 10 tables in a transaction", ten_tables, 3.5)
        measure("append, delete, append, with reads between", append_delete_append, 3.5)
        measure("scan of six small files, cached", lambda: lake.table("n.six").scan().to_arrow(), 1.5)
        metadata.cache.clear()
        other = tl.open(ROOT, storage_options=store.storage_options)
        measure("scan of six small files, not cached", lambda: other.table("n.six").scan().to_arrow())


BENCHMARKS = {"rounds": rounds}
