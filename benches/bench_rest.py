"""The REST server under load from another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trinitylake as tl
from benches import lakes, peers
from benches.measure import Bench, at_least, at_most
from trinitylake.rest import serve

TOP = Path(__file__).resolve().parent.parent
CONNECTIONS = 16
#: Tables with metadata; the others are only registered.
REAL_TABLES = 256

Request = tuple[str, str, str]


def load(port: int, requests: list[list[Request]], repeats: int) -> dict[str, float]:
    """Rates and latencies of a client with one connection for each list (`http_load.py`)."""
    task = json.dumps({"port": port, "repeats": repeats, "requests": requests})
    command = [sys.executable, "-m", "benches.http_load"]
    done = subprocess.run(command, input=task, capture_output=True, text=True, cwd=TOP, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def rest_loading(bench: Bench) -> None:
    """Load single tables and list a namespace of 10,000, at 100,000 tables."""
    tables = bench.size(100_000, 1_000)
    lake = tl.open(lakes.registered(bench.folder("lake"), tables), durability="none")
    lake.create_namespace("real")
    with lake.transaction() as txn:
        for number in range(REAL_TABLES):
            txn.create_table(f"real.t{number:04d}", peers.SCHEMA)
    server = serve(lake)
    with server:
        one_each: list[list[Request]] = [
            [
                ("GET", f"/v1/latest/namespaces/real/tables/t{number:04d}", "")
                for number in range(start, REAL_TABLES, CONNECTIONS)
            ]
            for start in range(CONNECTIONS)
        ]
        load(server.port, one_each, 2)
        rates, latencies = [], []
        for _ in range(bench.size(7, 2)):
            found = load(server.port, one_each, bench.size(40, 4))
            rates.append(found["requests"] / found["seconds"])
            latencies.append(found["percentile_99"])
        what = f"REST: load tables of {tables:,} over {CONNECTIONS} connections"
        bench.figure(f"{what}, requests a second", rates, "1/s", at_least(1500))
        bench.figure(f"{what}, 99th percentile", latencies, "s", at_most(0.020))
        looks: list[list[Request]] = [[("HEAD", path, "") for _, path, _ in requests] for requests in one_each]
        found_rates = []
        for _ in range(bench.size(7, 2)):
            found = load(server.port, looks, bench.size(40, 4))
            found_rates.append(found["requests"] / found["seconds"])
        what = f"REST: table exists, of {tables:,} over {CONNECTIONS} connections, requests a second"
        bench.figure(what, found_rates, "1/s")
        share = lakes.TABLES_PER_NAMESPACE if tables >= 100_000 else tables // 10
        path = "/v1/latest/namespaces/namespace_00003/tables"
        lists = [load(server.port, [[("GET", path, "")]], 5)["median"] for _ in range(bench.size(7, 2))]
        bench.figure(f"REST: list {share:,} tables", lists, "s", at_most(0.100))


BENCHMARKS = {"rest-load": rest_loading}
