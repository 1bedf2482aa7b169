"""The REST server, embedded, under load from another process; commits beside PyIceberg's SqlCatalog on SQLite."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import uvicorn

import trinitylake as tl
from benches.python import lakes, peers
from benches.python.limits import FilesOfTransaction
from benches.python.measure import Bench, at_least, at_most
from trinitylake.rest import serve

TOP = Path(__file__).resolve().parent.parent.parent
CONNECTIONS = 16
#: With metadata, among those that are only registered.
REAL_TABLES = 256

Request = tuple[str, str, str]


def load(port: int, requests: list[list[Request]], repeats: int) -> dict[str, float]:
    """What a client with a connection for each list sees (`http_load.py`)."""
    task = json.dumps({"port": port, "repeats": repeats, "requests": requests})
    command = [sys.executable, "-m", "benches.python.http_load"]
    done = subprocess.run(command, input=task, capture_output=True, text=True, cwd=TOP, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def bare_server(body: bytes) -> Iterator[int]:
    """The port of a server that does nothing but answer each request with the same body, by the same libraries."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def files_of_commits(bench: Bench, lake: tl.Lakehouse, commits_each: int) -> FilesOfTransaction:
    """The files of a version that holds so many commits of a property, as large as those of the newest version."""
    sizes = {}
    table = lake.table("n.t00")
    definition = lake._core.latest().locate("table", "n", "t00")
    assert definition is not None
    for what, uri in (("metadata", table.metadata_location), ("definition", f"{lake.uri}{definition}")):
        size_bytes = Path(uri.removeprefix("file://")).stat().st_size
        sizes |= {f"{what}-{number}/file": size_bytes for number in range(commits_each)}
    roots = Path(lake.uri.removeprefix("file://")).glob("_*.arrow")
    return FilesOfTransaction(
        bench.folder(f"files-of-{commits_each}"), sizes, max(root.stat().st_size for root in roots)
    )


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
        answer = urlopen(server.url + one_each[0][0][1]).read()
        rates, bare_rates, latencies = [], [], []
        with bare_server(answer) as bare_port:
            load(bare_port, one_each, 2)
            for _ in range(bench.size(7, 2)):
                repeats = bench.size(40, 4)
                found = load(server.port, one_each, repeats)
                rates.append(found["requests"] / found["seconds"])
                latencies.append(found["percentile_99"])
                found = load(bare_port, one_each, repeats)
                bare_rates.append(found["requests"] / found["seconds"])
        what = f"REST: load tables of {tables:,} over {CONNECTIONS} connections"
        bench.figure(None, f"{what}, requests a second", rates, "1/s", at_least(3000))
        bare = f"a server that answers the same {len(answer):,} bytes to everything"
        bench.cost(None, f"{what}, requests a second", rates, bare, bare_rates, unit="1/s")
        bench.figure(None, f"{what}, 99th percentile", latencies, "s", at_most(0.020))
        looks: list[list[Request]] = [[("HEAD", path, "") for _, path, _ in requests] for requests in one_each]
        found_rates = []
        for _ in range(bench.size(7, 2)):
            found = load(server.port, looks, bench.size(40, 4))
            found_rates.append(found["requests"] / found["seconds"])
        what = f"REST: look whether tables of {tables:,} exist over {CONNECTIONS} connections, requests a second"
        bench.figure(None, what, found_rates, "1/s")
        share = lakes.TABLES_PER_NAMESPACE if tables >= 100_000 else tables // 10
        path = "/v1/latest/namespaces/namespace_00003/tables"
        lists = [load(server.port, [[("GET", path, "")]], 5)["median"] for _ in range(bench.size(7, 2))]
        bench.figure(None, f"REST: list {share:,} tables", lists, "s", at_most(0.100))


def rest_commits(bench: Bench) -> None:
    """Commits of a table property, from 16 clients, each on a table of its own. Both sides sync their catalog."""
    lake = tl.create(str(bench.folder("lake")), durability="fsync")
    sql = peers.sql_catalog(bench.folder("sql"))
    sql.create_namespace("n")
    lake.create_namespace("n")
    names = [f"t{number:02d}" for number in range(CONNECTIONS)]
    for name in names:
        lake.create_table(f"n.{name}", peers.SCHEMA)
        sql.create_table(f"n.{name}", peers.SCHEMA)
    theirs_tables = [sql.load_table(f"n.{name}") for name in names]
    server = serve(lake)
    repeats = bench.size(20, 3)

    def set_property(table: Any) -> None:
        for number in range(repeats):
            with table.transaction() as change:
                change.set_properties({"number": str(number)})

    def posts(name: str, round: int) -> list[Request]:
        requests: list[Request] = []
        for number in range(repeats):
            updates = [{"action": "set-properties", "updates": {"number": f"{round}.{number}"}}]
            body = json.dumps({"requirements": [], "updates": updates})
            requests.append(("POST", f"/v1/latest/namespaces/n/tables/{name}", body))
        return requests

    def set_ours(name: str) -> None:
        table = lake.table(f"n.{name}")
        for number in range(repeats):
            table.set_properties({"number": f"in process {number}"})

    ours, theirs, bare, alone = [], [], [], []
    used: list[float] = []
    files: dict[int, list[float]]
    with server, ThreadPoolExecutor(CONNECTIONS) as pool, bare_server(b"x" * 2_000) as bare_port:
        method, path, body = posts(names[0], -1)[0]
        urlopen(HttpRequest(server.url + path, body.encode(), method=method)).read()
        before = lake.version
        for round in range(bench.size(5, 2)):
            os.sync()  # what the others have left for the disk to do is not ours
            began = time.process_time()  # the clients are another process
            ours.append(
                load(server.port, [posts(name, round) for name in names], 1)["seconds"] / (repeats * len(names))
            )
            used.append((time.process_time() - began) / (repeats * len(names)))
            os.sync()
            start = time.perf_counter()
            list(pool.map(set_property, theirs_tables))
            theirs.append((time.perf_counter() - start) / (repeats * len(names)))
            bare.append(load(bare_port, [posts(name, round) for name in names], 1)["seconds"] / (repeats * len(names)))
        versions = lake.version - before
        commits = len(ours) * repeats * len(names)
        commits_each = max(1, int(commits / versions + 0.5))
        files = {each: [] for each in sorted({1, commits_each, CONNECTIONS})}
        of_versions = {each: files_of_commits(bench, lake, each) for each in files}
        for round in range(len(ours)):
            for each, of_version in of_versions.items():
                start = time.perf_counter()
                for number in range(repeats):
                    of_version.create(round * repeats + number)
                files[each].append((time.perf_counter() - start) / (repeats * each))
        for _ in ours:
            start = time.perf_counter()
            list(pool.map(set_ours, names))
            alone.append((time.perf_counter() - start) / (repeats * len(names)))
    what = f"REST: commit a table property from {CONNECTIONS} clients"
    processor = statistics.median(used)
    note = (
        f"{commits} commits made {versions} versions; {processor * 1000:.2f} ms of this process's processors for each"
    )
    bench.speed(None, what, ours, "SqlCatalog on SQLite", theirs, at_least(10), note=note)
    bench.cost(None, what, ours, "the same requests to a server that answers at once", bare)
    bench.cost(None, what, ours, "the same commits by 16 threads of one process", alone)
    for each, seconds in files.items():
        bench.cost(None, what, ours, f"their files alone, synced, {each} to a version", seconds)


BENCHMARKS = {"rest-load": rest_loading, "rest-commit": rest_commits}
