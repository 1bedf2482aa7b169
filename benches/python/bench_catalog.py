"""The PyIceberg catalog beside PyIceberg's own SqlCatalog on SQLite: the same calls, in turn."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import insert

import trinitylake as tl
from benches.python import peers
from benches.python.measure import Bench, in_turn
from trinitylake import core
from trinitylake.iceberg import load


def catalog_calls(bench: Bench) -> None:
    """Load, list, a commit of metadata alone and an append, each through the catalog's own methods.

    SQLite syncs its file and PyIceberg none of the table's; ours syncs everything.
    """
    folder = bench.folder("lake")
    catalogs = {
        "ours": load(tl.create(str(folder), durability="fsync"), name="bench"),
        "sql": peers.sql_catalog(bench.folder("sql")),
    }
    tables = bench.size(200, 20)
    for catalog in catalogs.values():
        catalog.create_namespace("n")
        for number in range(tables):
            catalog.create_table(f"n.t{number:04d}", peers.SCHEMA)
    changed = {name: catalog.load_table("n.t0000") for name, catalog in catalogs.items()}
    appended = {name: catalog.load_table("n.t0001") for name, catalog in catalogs.items()}

    def set_property(name: str, number: int) -> None:
        with changed[name].transaction() as change:
            change.set_properties({"number": str(number)})

    calls = {
        "load a table": lambda name, number: catalogs[name].load_table(f"n.t{number % tables:04d}"),
        "look whether a table exists": lambda name, number: catalogs[name].table_exists(f"n.t{number % tables:04d}"),
        f"list {tables} tables": lambda name, _: catalogs[name].list_tables("n"),
        "commit a table property": set_property,
        f"append {peers.ROWS} rows": lambda name, number: appended[name].append(peers.ten_rows(number)),
    }
    rounds, repeats = bench.size(10, 2), bench.size(20, 3)
    for what, call in calls.items():
        times = in_turn(
            rounds,
            repeats,
            ours=partial(call, "ours"),
            sql=partial(call, "sql"),
        )
        bench.speed(None, f"PyIceberg catalog: {what}", times["ours"], "SqlCatalog on SQLite", times["sql"])
    for catalog in catalogs.values():
        assert catalog.load_table("n.t0001").scan().count() == rounds * repeats * peers.ROWS


def catalog_listing(bench: Bench) -> None:
    """List one namespace of many tables, which both sides have from a bulk load."""
    tables = bench.size(10_000, 500)
    sql = peers.sql_catalog(bench.folder("sql-listing"))
    sql.create_namespace("n")
    names = [f"table_{number:07d}" for number in range(tables)]
    with sql.engine.begin() as connection:
        connection.execute(insert(IcebergTables), [sql._create_table_row("n", name, "none") for name in names])
    lake = tl.create(str(bench.folder("lake-listing")), durability="none")
    lake.create_namespace("n")
    locations = core.optimize_paths([f"table-{name}-n.binpb" for name in names])  # listing reads no definition
    kinds, parents = pa.repeat("table", tables), pa.repeat("n", tables)
    columns = {"kind": kinds, "namespace": parents, "name": names, "location": locations}
    lake._core.register(pa.table(columns))
    ours = load(lake, name="bench")
    assert sorted(ours.list_tables("n")) == sorted(sql.list_tables("n"))
    times = in_turn(bench.size(10, 2), 3, ours=lambda _: ours.list_tables("n"), sql=lambda _: sql.list_tables("n"))
    what = f"PyIceberg catalog: list {tables:,} tables"
    bench.speed(None, what, times["ours"], "SqlCatalog on SQLite", times["sql"])


BENCHMARKS = {"catalog": catalog_calls, "catalog-listing": catalog_listing}
