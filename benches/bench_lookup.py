"""Opening a lakehouse of a million objects, and finding, listing and scanning its objects."""

from __future__ import annotations

import random

import pyarrow as pa

import trinitylake as tl
from benches import lakes, peers
from benches.measure import Bench, at_least, at_most, in_turn, seconds
from trinitylake import core


def _requests(after: dict[str, int], before: dict[str, int]) -> float:
    return float(sum(after[verb] - before[verb] for verb in after if not verb.endswith("_bytes")))


def cold_open(bench: Bench) -> None:
    """A fresh handle, then one look-up; then a refresh of the handle."""
    tables = bench.size(1_000_000, 20_000)
    uri = lakes.shared(bench, tables)
    namespaces, names = lakes.table_names(tables)
    chance = random.Random(2)
    requests, read, refreshes, opens = [], [], [], []
    for _ in range(bench.size(30, 5)):
        row = chance.randrange(tables)
        opened: list[tl.Lakehouse] = []

        def find(row: int = row, opened: list[tl.Lakehouse] = opened) -> None:
            opened.append(tl.open(uri))
            # By number, because the version that `open` read needs no request.
            assert opened[0]._core.version(1).exists("table", namespaces[row], names[row])

        opens.append(seconds(find))
        lake = opened[0]
        counts = lake._storage.counters()
        requests.append(_requests(counts, dict.fromkeys(counts, 0)))
        read.append(float(counts["read_bytes"]))
        assert lake.version == 1
        refreshes.append(_requests(lake._storage.counters(), counts))
    what = f"cold open and one look-up at {tables:,} tables"
    note = "hint and boundary in parallel, root and next root in parallel, then one node per level below the root"
    bench.figure(f"{what}: requests", requests, "count", note=note)
    bench.figure(f"{what}: bytes read", read, "bytes", at_most(150_000))
    bench.figure(what, opens, "s", note="the files are in the page cache")
    note = "in one round: the next root, the one after it, and once a second the hint and the boundary"
    bench.figure("refresh of an open handle: requests", refreshes, "count", at_most(4), note)


def _rates(count: int, times: list[float]) -> list[float]:
    return [count / time for time in times]


def look_up(bench: Bench) -> None:
    """Warm look-ups one by one and in a batch, compared with LMDB and SQLite."""
    tables = bench.size(1_000_000, 20_000)
    lake = tl.open(lakes.shared(bench, tables), cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
    at = lake.at()
    version = lake._core.latest()
    namespaces, names = lakes.table_names(tables)
    keys = core.encode_table_keys(pa.array(namespaces), pa.array(names))
    assert version.scan(columns=("key",)).read_all().num_rows > tables  # reads every node into the cache

    store = peers.Lmdb(bench.folder("lmdb"))
    raw_keys = [key.encode() for key in keys.to_pylist()]
    store.load(raw_keys, [location.encode() for location in lakes.table_locations(tables).to_pylist()])
    catalog = peers.sql_catalog(bench.folder("sql"))
    catalog.create_namespace("namespace")
    catalog.create_table(("namespace", "table"), peers.SCHEMA)

    chance = random.Random(3)
    count = bench.size(50_000, 2_000)
    rows = [chance.randrange(tables) for _ in range(count)]
    identifiers = [f"{namespaces[row]}.{names[row]}" for row in rows]
    some_keys = [raw_keys[row] for row in rows]
    batch = keys.take(pa.array(chance.choices(range(tables), k=bench.size(500_000, 10_000))))
    few = max(count // 100, 1)
    found: list[bool] = []
    before = lake._storage.counters()["get"]

    def one_by_one(_: int) -> None:
        found.append(all(at.exists(identifier) for identifier in identifiers))

    def in_batch(_: int) -> None:
        found.append(pa.array(version.locate_keys(batch)).null_count == 0)

    def lmdb(_: int) -> None:
        found.append(store.get(some_keys) == count)

    def sql(_: int) -> None:
        found.append(all(catalog.table_exists(("namespace", "table")) for _ in range(few)))

    times = in_turn(bench.size(7, 2), 1, exists=one_by_one, batch=in_batch, lmdb=lmdb, sql=sql)
    assert all(found)
    ours = _rates(count, times["exists"])
    what = f"exists, warm, at {tables:,} tables"
    reads = lake._storage.counters()["get"] - before
    bench.figure(what, ours, "1/s", at_least(200_000), note=f"{reads} nodes had to be read again")
    bench.figure("locate_keys, a batch as Arrow, warm", _rates(len(batch), times["batch"]), "1/s", at_least(1e6))
    bench.cost(what, ours, "LMDB get", _rates(count, times["lmdb"]), unit="1/s")
    bench.cost(what, ours, "SqlCatalog.table_exists, 1 table", _rates(few, times["sql"]), unit="1/s")


def list_tables(bench: Bench) -> None:
    """The 10,000 tables of one namespace of a hundred, cold and warm, compared with PyIceberg's catalog."""
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
    bench.figure(f"{what}, to Arrow, warm", times["ours"], "s", at_most(10e-3))
    bench.figure(f"{what}, cold: GETs", gets, "count", at_most(100))
    bench.figure(f"{what}, cold", cold, "s", note="the files are in the page cache")
    bench.speed(what, times["ours"], f"SqlCatalog.list_tables of {expected:,}", times["sql"])


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
    """All keys in order, warm, compared with LMDB."""
    tables = bench.size(1_000_000, 20_000)
    lake = tl.open(lakes.shared(bench, tables), cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
    version = lake._core.latest()
    cold = seconds(lambda: version.scan(columns=("key",)).read_all())
    namespaces, names = lakes.table_names(tables)
    keys = core.encode_table_keys(pa.array(namespaces), pa.array(names)).to_pylist()
    store = peers.Lmdb(bench.folder("lmdb"))
    store.load([key.encode() for key in keys], [b"location" * 14] * len(keys))
    rows: list[int] = []
    times = in_turn(
        bench.size(9, 3),
        1,
        keys=lambda _: rows.append(version.scan(columns=("key",)).read_all().num_rows),
        both=lambda _: rows.append(version.scan().read_all().num_rows),
        lmdb=lambda _: rows.append(store.scan()),
    )
    assert min(rows) >= tables
    ours = _rates(tables, times["keys"])
    what = f"scan of all keys of {tables:,} tables to Arrow, warm"
    bench.figure(what, ours, "1/s")
    bench.figure("the same with locations", _rates(tables, times["both"]), "1/s")
    bench.figure("the same, keys only, no node cached", [tables / cold], "1/s")
    bench.cost(what, ours, "LMDB cursor into a list", _rates(tables, times["lmdb"]), at_least(1), unit="1/s")


BENCHMARKS = {"open": cold_open, "look-up": look_up, "list": list_tables, "scan": scan_all}
