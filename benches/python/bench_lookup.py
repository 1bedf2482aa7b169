"""Targets 8 to 10: finding, listing and scanning objects in a lakehouse of a million."""

from __future__ import annotations

import random

import pyarrow as pa

import trinitylake as tl
from benches.python import lakes, peers
from benches.python.measure import Bench, at_least, at_most, in_turn, seconds
from trinitylake import core


def _rates(count: int, times: list[float]) -> list[float]:
    return [count / time for time in times]


def look_up(bench: Bench) -> None:
    """Target 8: warm look-ups one by one and by the batch, beside LMDB and SQLite."""
    tables = bench.size(1_000_000, 20_000)
    lake = tl.open(lakes.shared(bench, tables), cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
    at = lake.at()
    version = lake._core.latest()
    namespaces, names = lakes.table_names(tables)
    keys = core.encode_table_keys(pa.array(namespaces), pa.array(names))
    assert version.scan(columns=("key",)).read_all().num_rows > tables  # reads every node: warm from here on

    store = peers.Lmdb(bench.folder("lmdb"))
    raw_keys = [key.encode() for key in keys.to_pylist()]
    store.load(raw_keys, [location.encode() for location in lakes.table_locations(tables).to_pylist()])
    catalog = peers.sql_catalog(bench.folder("sql"))
    catalog.create_namespace("namespace")
    catalog.create_table(("namespace", "table"), peers.SCHEMA)

    chance = random.Random(3)
    count = bench.size(50_000, 2_000)
    rows = [chance.randrange(tables) for _ in range(count)]
    pairs = [(namespaces[row], names[row]) for row in rows]
    identifiers = [f"{namespace}.{name}" for namespace, name in pairs]
    some_keys = [raw_keys[row] for row in rows]
    batch = keys.take(pa.array(chance.choices(range(tables), k=bench.size(500_000, 10_000))))
    few = max(count // 100, 1)
    found: list[bool] = []
    before = lake._storage.counters()["get"]

    def one_by_one(_: int) -> None:
        found.append(all(at.exists(identifier) for identifier in identifiers))

    def core_one_by_one(_: int) -> None:
        found.append(all(version.exists("table", namespace, name) for namespace, name in pairs))

    def in_batch(_: int) -> None:
        found.append(pa.array(version.locate_keys(batch)).null_count == 0)

    def lmdb(_: int) -> None:
        found.append(store.get(some_keys) == count)

    def sql(_: int) -> None:
        found.append(all(catalog.table_exists(("namespace", "table")) for _ in range(few)))

    times = in_turn(bench.size(7, 2), 1, exists=one_by_one, core=core_one_by_one, batch=in_batch, lmdb=lmdb, sql=sql)
    assert all(found)
    ours = _rates(count, times["exists"])
    reads = lake._storage.counters()["get"] - before
    bench.figure(
        8,
        f"exists, warm, at {tables:,} tables",
        ours,
        "1/s",
        at_least(200_000),
        note=f"{reads} nodes had to be read again",
    )
    bench.figure(None, "the same, at the core", _rates(count, times["core"]), "1/s")
    bench.figure(8, "locate_keys, a batch as Arrow, warm", _rates(len(batch), times["batch"]), "1/s", at_least(2e6))
    bench.cost(None, "exists", ours, "LMDB get", _rates(count, times["lmdb"]), unit="1/s")
    bench.cost(
        None,
        "exists",
        ours,
        "SqlCatalog.table_exists, 1 table",
        _rates(few, times["sql"]),
        unit="1/s",
    )


def list_tables(bench: Bench) -> None:
    """Target 9: the 10,000 tables of one namespace of a hundred, cold and warm, beside PyIceberg's catalog."""
    tables = bench.size(1_000_000, 20_000)
    uri = lakes.shared(bench, tables)
    namespaces, _ = lakes.table_names(tables)
    within = namespaces[tables // 2]
    expected = namespaces.count(within)
    catalog = peers.sql_catalog(bench.folder("sql"))
    catalog.create_namespace(within)
    _fill_sql_catalog(catalog, within, expected)
    warm = tl.open(uri)._core.latest()
    gets, cold = [], []
    for _ in range(bench.size(5, 2)):
        lake = tl.open(uri)
        version = lake._core.latest()
        before = lake._storage.counters()
        cold.append(seconds(lambda version=version: version.list("table", within)))
        gets.append(float(lake._storage.counters()["get"] - before["get"]))
    rows: list[int] = []
    times = in_turn(
        bench.size(15, 3),
        1,
        ours=lambda _: rows.append(warm.list("table", within).num_rows),
        sql=lambda _: rows.append(len(catalog.list_tables(within))),
    )
    assert set(rows) == {expected}
    what = f"list {expected:,} tables of {tables:,}"
    bench.figure(9, f"{what}, to Arrow, warm", times["ours"], "s", at_most(10e-3))
    bench.figure(9, f"{what}, cold: GETs", gets, "count", at_most(100))
    bench.figure(None, f"{what}, cold", cold, "s", note="the files are in the page cache")
    bench.speed(None, what, times["ours"], f"SqlCatalog.list_tables of {expected:,}", times["sql"])


def _fill_sql_catalog(catalog: object, namespace: str, tables: int) -> None:
    """Rows as `create_table` writes them, without the files that listing does not read."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy.orm import Session

    with Session(catalog.engine) as session:  # type: ignore[attr-defined]
        session.add_all(
            IcebergTables(
                catalog_name="bench",
                table_namespace=namespace,
                table_name=f"table_{number:07d}",
                metadata_location=f"file:///metadata/{number}.json",
                previous_metadata_location=None,
            )
            for number in range(tables)
        )
        session.commit()


def scan_all(bench: Bench) -> None:
    """Target 10: all keys in order, warm, beside LMDB."""
    tables = bench.size(1_000_000, 20_000)
    lake = tl.open(lakes.shared(bench, tables), cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
    version = lake._core.latest()
    cold = seconds(lambda: version.scan(columns=("key",)).read_all())
    namespaces, names = lakes.table_names(tables)
    keys = core.encode_table_keys(pa.array(namespaces), pa.array(names)).to_pylist()
    store = peers.Lmdb(bench.folder("lmdb"))
    store.load([key.encode() for key in keys], [b"location" * 14] * len(keys))
    rows: list[int] = []
    before = lake._storage.counters()["get"]
    times = in_turn(
        bench.size(9, 3),
        1,
        keys=lambda _: rows.append(version.scan(columns=("key",)).read_all().num_rows),
        both=lambda _: rows.append(version.scan().read_all().num_rows),
        lmdb=lambda _: rows.append(store.scan()),
    )
    assert min(rows) >= tables
    reads = lake._storage.counters()["get"] - before
    ours = _rates(tables, times["keys"])
    bench.figure(
        10,
        f"scan of all keys of {tables:,} tables to Arrow, warm",
        ours,
        "1/s",
        at_least(10e6),
        note=f"{reads} nodes had to be read again",
    )
    bench.figure(None, "the same with locations", _rates(tables, times["both"]), "1/s")
    bench.figure(None, "the same, keys only, no node cached", [tables / cold], "1/s")
    bench.cost(None, "scan of all keys", ours, "LMDB cursor into a list", _rates(tables, times["lmdb"]), unit="1/s")


BENCHMARKS = {"look-up": look_up, "list": list_tables, "scan": scan_all}
