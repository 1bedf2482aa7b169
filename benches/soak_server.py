"""The REST server under mixed load for a long time: `python -m benches.soak_server --seconds 1800`.

Sixteen clients read, write, conflict and work in transactions at a steady pace. They drop what they create, and old
versions expire, so the lakehouse does not grow. Attackers send requests that once leaked memory: reports, eight bodies
of 15 MB at once, and scan plans that nobody continues. The server is a separate process with small caches, which are
full after the first third of the run. After that its memory must not grow. The exit code is 0 if it does not, if
requests of clients fail only with conflicts, and if requests of attackers are only refused. Memory is judged in runs of
at least ten minutes. `--no-attacks` runs without attackers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
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
import pyarrow as pa

import trinitylake as tl
from benches import peers
from trinitylake.rest import serve
from trinitylake.rest.handlers import scan_planning

TOP = Path(__file__).resolve().parent.parent
CLIENTS = 16
SHARED_TABLES = 8
PAUSE_SECONDS = 0.1
CACHE_SIZE_BYTES = 2 << 20
#: Interval of the expiry, and the age of versions that expire.
EXPIRY_SECONDS = 10.0
VERSION_AGE = timedelta(seconds=60)
#: Allowed growth of the median memory from the second to the last third, in runs of at least this length.
GROWTH_MAX = 0.03
JUDGED_MIN_SECONDS = 600
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
FINE = (200, 201, 204, 304)
#: Status codes that refuse a request of an attacker.
REFUSALS = (400, 408, 413, 422, 429, 503)
READER, WRITER = "reader-of-the-shared-tables", "may-do-everything-here"
LARGE_BODIES, LARGE_BODY_SIZE_BYTES, LARGE_BODIES_PAUSE_SECONDS = 8, 15 << 20, 15.0
ATTACK_PAUSE_SECONDS = 0.2
REPORT_SIZE_BYTES = 60_000
SLOW_BYTES = 45
#: Files per answer of a scan plan, and files of the planned table, so that a plan has several answers.
PLAN_MAX_FILES, PLANNED_FILES = 2, 12


class Client(threading.Thread):
    """A client with one connection that runs random tasks until `end`."""

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
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, data, {"Authorization": f"Bearer {WRITER}", **sent})
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
        """All clients create the same table; the one that succeeds drops it again."""
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


class Attacker(threading.Thread):
    """An attacker that repeats one attack until `end`."""

    def __init__(self, name: str, port: int, end: float, attack: Callable[[Attacker], None], pause: float) -> None:
        super().__init__(name=name)
        self.codes: Counter[int] = Counter()
        self.errors: list[str] = []
        self.random = random.Random(name)
        self.port = port
        self._end = end
        self._attack = attack
        self._pause = pause

    def run(self) -> None:
        while time.monotonic() < self._end:
            try:
                self._attack(self)
            except OSError:  # the server closed the connection because the body is too large
                self.codes[0] += 1
            except (http.client.HTTPException, LookupError, ValueError) as error:
                self.errors.append(repr(error))
            time.sleep(self._pause)

    def post(self, path: str, body: bytes, token: str) -> bytes:
        """The body of the response to a POST on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, body, {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        self.codes[response.status] += 1
        if response.status not in (*FINE, *REFUSALS):
            self.errors.append(f"{path}: {response.status} {text[:300].decode()}")
        return text


def _report(attacker: Attacker) -> None:
    """Send metrics reports about a table as a reader, each of them different and of the maximum size."""
    report = {"report-type": "scan-report", "number": attacker.random.random(), "text": "x" * REPORT_SIZE_BYTES}
    attacker.post("/v1/latest/namespaces/shared/tables/t0/metrics", json.dumps(report).encode(), READER)


def _send_large_body(attacker: Attacker) -> None:
    """Send a large body, which the server reads and parses completely and then refuses."""
    body = {"namespace": [], "properties": {"note": "x" * LARGE_BODY_SIZE_BYTES}}
    attacker.post("/v1/latest/namespaces", json.dumps(body).encode(), WRITER)


def _begin_a_plan(attacker: Attacker) -> None:
    """Begin a different scan plan each time. Half of the plans are continued once, and no plan is completed."""
    path = "/v1/latest/namespaces/shared/tables/planned"
    request = {"filter": {"type": "gt", "term": "id", "value": -attacker.random.randrange(1 << 40)}}
    begun = json.loads(attacker.post(f"{path}/plan", json.dumps(request).encode(), READER))
    if attacker.random.random() < 0.5:
        attacker.post(f"{path}/tasks", json.dumps({"plan-task": begun["plan-tasks"][0]}).encode(), READER)


def _send_nonsense(attacker: Attacker) -> None:
    """Send JSON that is deeply nested, has numbers of a megabyte, or has more values than a body may have."""
    bodies = (
        b'{"namespace":' + b"[" * 50_000,
        b'{"namespace":[' + b"9" * 1_000_000 + b"]}",
        b"[" + b"1," * 300_000 + b"1]",
    )
    attacker.post("/v1/latest/namespaces", attacker.random.choice(bodies), WRITER)


def _send_slowly(attacker: Attacker) -> None:
    """Send a body byte by byte until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", attacker.port), timeout=60) as connection:
        lines = (
            "POST /v1/latest/namespaces HTTP/1.1",
            "Host: x",
            f"Authorization: Bearer {WRITER}",
            "Content-Length: 1000",
        )
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        for _ in range(SLOW_BYTES):
            connection.sendall(b" ")
            time.sleep(1)
    attacker.codes[0] += 1


def _attackers(port: int, end: float) -> list[Attacker]:
    return [
        Attacker("nonsense", port, end, _send_nonsense, ATTACK_PAUSE_SECONDS),
        *(Attacker(f"slow-{number}", port, end, _send_slowly, ATTACK_PAUSE_SECONDS) for number in range(20)),
        *(Attacker(f"reports-{number}", port, end, _report, ATTACK_PAUSE_SECONDS) for number in range(2)),
        *(Attacker(f"plans-{number}", port, end, _begin_a_plan, ATTACK_PAUSE_SECONDS) for number in range(2)),
        *(
            Attacker(f"bodies-{number}", port, end, _send_large_body, LARGE_BODIES_PAUSE_SECONDS)
            for number in range(LARGE_BODIES)
        ),
    ]


def soak(seconds: float, pause: float, *, attacks: bool) -> int:
    """Run the soak test and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="trinitylake-soak-") as folder:
        lake = tl.create(f"{folder}/lake", durability="none")
        lake.create_namespace("own")
        lake.create_namespace("shared")
        for number in range(SHARED_TABLES):
            lake.create_table(f"shared.t{number}", peers.SCHEMA)
        planned = lake.create_table("shared.planned", pa.schema([pa.field("id", pa.int64())]))
        for number in range(PLANNED_FILES):
            planned.append(pa.table({"id": [number]}))
        tokens = Path(folder, "tokens")
        tokens.write_text(f"{READER} reader reader:shared.*\n{WRITER} writer admin:*\n")
        tokens.chmod(0o600)
        command = [sys.executable, "-m", "benches.soak_server", "--serve", f"{folder}/lake"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TOP) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                end = time.monotonic() + seconds
                clients = [Client(number, port, end, pause) for number in range(CLIENTS)]
                attackers = _attackers(port, end) if attacks else []
                for thread in (*clients, *attackers):
                    thread.start()
                samples = _watch(psutil.Process(server.pid), lake, end)
                for thread in (*clients, *attackers):
                    thread.join()
            finally:
                server.terminate()
        return _verdict(samples, clients, attackers, lake.version, judges_memory=seconds >= JUDGED_MIN_SECONDS)


def _watch(process: psutil.Process, lake: tl.Lakehouse, end: float) -> list[tuple[float, float]]:
    """Expire old versions once a second, and record the seconds since the start and the memory of a process in MiB."""
    began = expired_at = time.monotonic()
    samples = []
    while (now := time.monotonic()) < end:
        samples.append((now - began, process.memory_info().rss / 2**20))
        if now - expired_at > EXPIRY_SECONDS and now - began > VERSION_AGE.total_seconds():
            lake.maintenance.expire(before=datetime.now(UTC) - VERSION_AGE)
            expired_at = now
        time.sleep(1)
    return samples


def _verdict(
    samples: list[tuple[float, float]],
    clients: list[Client],
    attackers: list[Attacker],
    versions: int,
    *,
    judges_memory: bool,
) -> int:
    third = len(samples) // 3
    warm, last = samples[third : 2 * third], samples[2 * third :]
    slope = statistics.linear_regression(*zip(*samples[third:], strict=True)).slope * 3600
    before, after = (statistics.median(size for _, size in part) for part in (warm, last))
    codes, attacked = (sum((one.codes for one in group), Counter[int]()) for group in (clients, attackers))
    errors = [error for one in (*clients, *attackers) for error in one.errors]
    print(
        f"{codes.total()} requests in {samples[-1][0]:.0f} s, {versions} versions; codes {dict(sorted(codes.items()))}"
    )
    print(f"{attacked.total()} attacks; codes {dict(sorted(attacked.items()))}")
    tenth = max(len(samples) // 10, 1)
    tenths = [statistics.median(size for _, size in samples[at : at + tenth]) for at in range(0, len(samples), tenth)]
    print(f"memory in MiB, over time: {' '.join(f'{size:.1f}' for size in tenths)}")
    minutes = [statistics.median(size for _, size in samples[at : at + 60]) for at in range(0, len(samples), 60)]
    print(f"memory in MiB, of each minute: {' '.join(f'{size:.0f}' for size in minutes)}")
    print(f"memory: {before:.1f} MiB in the second third, {after:.1f} MiB in the last; slope {slope:+.1f} MiB an hour")
    for error in errors[:20]:
        print(f"failed: {error}")
    is_growing = judges_memory and after > before * (1 + GROWTH_MAX)
    if is_growing:
        print(f"the memory grew by more than {GROWTH_MAX:.0%}")
    return int(is_growing or bool(errors))


def run_server(root: str) -> None:
    """Serve with small caches and print the port."""
    scan_planning.MAX_FILES = PLAN_MAX_FILES
    lake = tl.open(root, durability="none", cache_size_bytes=CACHE_SIZE_BYTES)
    server = serve(lake, token_file=Path(root).parent / "tokens")
    server._app.service.plans._max_size_bytes = CACHE_SIZE_BYTES
    print(server.port, flush=True)
    server.run_process()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument(
        "--pause", type=float, default=PAUSE_SECONDS, help="of each client after each request, in seconds"
    )
    parser.add_argument("--no-attacks", action="store_true", help="only the sixteen clients")
    parser.add_argument("--serve", metavar="ROOT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_server(arguments.serve)
        return 0
    return soak(arguments.seconds, arguments.pause, attacks=not arguments.no_attacks)


if __name__ == "__main__":
    raise SystemExit(main())
