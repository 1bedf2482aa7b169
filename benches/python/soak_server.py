"""The REST server under mixed load for a long time: `python -m benches.python.soak_server --seconds 1800`.

Sixteen clients read, write, collide and work in transactions, at a steady pace. What they make they also drop, and old
versions expire meanwhile, so the lakehouse does not grow. The server is a process of its own with small caches, which
are full when the warm-up, the first third, is over. Afterwards its memory must stay where it is. The exit code is 0 if
it does, and if no request failed but by a conflict. A run of less than ten minutes does not judge the memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

import trinitylake as tl
from benches.python import peers
from trinitylake.rest import ServerOptions, serve

TOP = Path(__file__).resolve().parent.parent.parent
CLIENTS = 16
SHARED_TABLES = 8
PAUSE_SECONDS = 0.1
CACHE_SIZE_BYTES = 2 << 20
#: Old versions expire as often, and when they are as old.
UPKEEP_SECONDS = 10.0
VERSION_AGE = timedelta(seconds=60)
#: What the middle of the last third may lie above that of the second third, in a run that is no shorter than this.
GROWTH_MAX = 0.03
JUDGED_MIN_SECONDS = 600
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
FINE = (200, 201, 204, 304)


class Client(threading.Thread):
    """One client: a connection, and a random choice of what to do next, until `end`."""

    def __init__(self, number: int, port: int, end: float, pause: float) -> None:
        super().__init__(name=f"client-{number}")
        self._pause = pause
        self.codes: Counter[int] = Counter()
        self.errors: list[str] = []
        self._number = number
        self._port = port
        self._end = end
        self._random = random.Random(number)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._made = 0
        self._tags: dict[str, str] = {}

    def run(self) -> None:
        tasks: list[tuple[int, Callable[[], None]]] = [
            (50, self._load),
            (10, self._list),
            (10, self._plan),
            (10, self._commit),
            (5, self._commit_two),
            (5, self._make_and_drop),
            (5, self._collide),
            (3, self._work_in_a_transaction),
            (2, self._view),
        ]
        while time.monotonic() < self._end:
            [task] = self._random.choices([task for _, task in tasks], [weight for weight, _ in tasks])
            try:
                task()
            except (OSError, http.client.HTTPException, LookupError, TypeError, ValueError) as error:
                self.errors.append(repr(error))
                self._connection.close()
            time.sleep(self._pause)

    def _ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        response = self._connection.getresponse()
        text = response.read()
        self.codes[response.status] += 1
        if response.status not in (*FINE, 409):
            self.errors.append(f"{method} {path}: {response.status} {text[:300].decode()}")
        if tag := response.headers.get("ETag"):
            self._tags[path] = tag
        return json.loads(text) if text else None

    def _shared(self) -> str:
        return f"/v1/latest/namespaces/shared/tables/t{self._random.randrange(SHARED_TABLES)}"

    def _load(self) -> None:
        path = self._shared()
        self._ask("GET", path, **({"If_None_Match": self._tags[path]} if path in self._tags else {}))

    def _list(self) -> None:
        self._ask("GET", "/v1/latest/namespaces")
        self._ask("GET", "/v1/latest/namespaces/shared/tables?pageSize=3")

    def _plan(self) -> None:
        self._ask("POST", f"{self._shared()}/plan", {"filter": {"type": "gt", "term": "id", "value": 1}})
        self._ask("GET", "/v1/config")

    def _change(self) -> dict[str, Any]:
        updates = [{"action": "set-properties", "updates": {"color": str(self._random.random())}}]
        return {"requirements": [], "updates": updates}

    def _commit(self) -> None:
        self._ask("POST", self._shared(), self._change())

    def _commit_two(self) -> None:
        names = self._random.sample(range(SHARED_TABLES), 2)
        changes = [
            {"identifier": {"namespace": ["shared"], "name": f"t{number}"}, **self._change()} for number in names
        ]
        self._ask("POST", "/v1/latest/transactions/commit", {"table-changes": changes})

    def _make_and_drop(self) -> None:
        self._made += 1
        name = f"c{self._number}_{self._made}"
        self._ask("POST", "/v1/latest/namespaces/own/tables", {"name": name, "schema": SCHEMA})
        source, destination = ({"namespace": ["own"], "name": one} for one in (name, f"{name}_new"))
        self._ask("POST", "/v1/latest/tables/rename", {"source": source, "destination": destination})
        self._ask("DELETE", f"/v1/latest/namespaces/own/tables/{name}_new")

    def _collide(self) -> None:
        """All clients want the same name: one gets it, until it gives it back."""
        made = self._ask("POST", "/v1/latest/namespaces/own/tables", {"name": "wanted", "schema": SCHEMA})
        if "metadata" in made:
            self._ask("DELETE", "/v1/latest/namespaces/own/tables/wanted")

    def _work_in_a_transaction(self) -> None:
        begun = self._ask("POST", "/trinitylake/v1/transactions", {"isolation": "serializable"})
        path = f"/v1/txn~{begun['id']}/namespaces/shared/tables/t{self._random.randrange(SHARED_TABLES)}"
        self._ask("GET", path)
        self._ask("POST", path, self._change())
        end = "commit" if self._random.random() < 0.7 else "rollback"
        self._ask("POST", f"/trinitylake/v1/transactions/{begun['id']}/{end}")

    def _view(self) -> None:
        self._made += 1
        name = f"v{self._number}_{self._made}"
        version = {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {},
            "default-namespace": ["own"],
            "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        }
        body = {"name": name, "schema": SCHEMA, "view-version": version, "properties": {}}
        self._ask("POST", "/v1/latest/namespaces/own/views", body)
        self._ask("DELETE", f"/v1/latest/namespaces/own/views/{name}")


def soak(seconds: float, pause: float) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="trinitylake-soak-") as folder:
        lake = tl.create(f"{folder}/lake", durability="none")
        lake.create_namespace("own")
        lake.create_namespace("shared")
        for number in range(SHARED_TABLES):
            lake.create_table(f"shared.t{number}", peers.SCHEMA)
        command = [sys.executable, "-m", "benches.python.soak_server", "--serve", f"{folder}/lake"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TOP) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                end = time.monotonic() + seconds
                clients = [Client(number, port, end, pause) for number in range(CLIENTS)]
                for client in clients:
                    client.start()
                samples = _watch(psutil.Process(server.pid), lake, end)
                for client in clients:
                    client.join()
            finally:
                server.terminate()
        return _report(samples, clients, lake.version, judges_memory=seconds >= JUDGED_MIN_SECONDS)


def _watch(process: psutil.Process, lake: tl.Lakehouse, end: float) -> list[tuple[float, float]]:
    """Seconds since the start and the memory of a process in MiB, about once a second; upkeep of its lakehouse."""
    began = kept_up = time.monotonic()
    samples = []
    while (now := time.monotonic()) < end:
        samples.append((now - began, process.memory_info().rss / 2**20))
        if now - kept_up > UPKEEP_SECONDS and now - began > VERSION_AGE.total_seconds():
            lake.expire(before=datetime.now(UTC) - VERSION_AGE)
            kept_up = now
        time.sleep(1)
    return samples


def _report(samples: list[tuple[float, float]], clients: list[Client], versions: int, *, judges_memory: bool) -> int:
    third = len(samples) // 3
    warm, last = samples[third : 2 * third], samples[2 * third :]
    slope = statistics.linear_regression(*zip(*samples[third:], strict=True)).slope * 3600
    before, after = (statistics.median(size for _, size in part) for part in (warm, last))
    codes: Counter[int] = Counter()
    for client in clients:
        codes += client.codes
    errors = [error for client in clients for error in client.errors]
    print(
        f"{codes.total()} requests in {samples[-1][0]:.0f} s, {versions} versions; codes {dict(sorted(codes.items()))}"
    )
    tenth = max(len(samples) // 10, 1)
    tenths = [statistics.median(size for _, size in samples[at : at + tenth]) for at in range(0, len(samples), tenth)]
    print(f"memory in MiB, over time: {' '.join(f'{size:.1f}' for size in tenths)}")
    print(f"memory: {before:.1f} MiB in the second third, {after:.1f} MiB in the last; slope {slope:+.1f} MiB an hour")
    for error in errors[:20]:
        print(f"failed: {error}")
    is_growing = judges_memory and after > before * (1 + GROWTH_MAX)
    if is_growing:
        print(f"the memory grew by more than {GROWTH_MAX:.0%}")
    return int(is_growing or bool(errors))


def run_server(root: str) -> None:
    """Serve with small caches, and tell the port."""
    lake = tl.open(root, durability="none", cache_size_bytes=CACHE_SIZE_BYTES)
    server = serve(lake, options=ServerOptions(table_cache_size_bytes=CACHE_SIZE_BYTES))
    print(server.port, flush=True)
    server.run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument(
        "--pause", type=float, default=PAUSE_SECONDS, help="of each client after each request, in seconds"
    )
    parser.add_argument("--serve", metavar="ROOT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_server(arguments.serve)
        return 0
    return soak(arguments.seconds, arguments.pause)


if __name__ == "__main__":
    raise SystemExit(main())
