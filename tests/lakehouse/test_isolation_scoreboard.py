"""The isolation scoreboard finds anomalies of faulty catalogs, and none of correct ones.

A checker that never finds anything proves nothing: here it tests catalogs with known faults.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import trinitylake as tl
from trinitylake import rest
from waiting import PATIENCE_SECONDS

FOLDER = Path(__file__).parents[2] / "compatibility"
sys.path.insert(0, str(FOLDER))

from serialization_graph import Transaction, check  # noqa: E402


def scoreboard(url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the program without this package, as a user does. Returns the exit code and the findings."""
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import isolation_scoreboard as one; "
    code += "assert 'trinitylake' not in sys.modules; raise SystemExit(one.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, url, "--json", "--rounds=6", "--transactions=40", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == "" or done.returncode == 3, done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


class Faulty:
    """A catalog in memory with one fault.

    All commits that the scoreboard sends at the same time arrive before the first one is executed. On a busy machine
    they came one after the other, and a fault that needs two concurrent commits was not found.
    """

    AT_ONCE: ClassVar[dict[str, int]] = {"lost_update": 2, "write_skew": 2, "list": 8}

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.lock = threading.Lock()
        self.barriers = {
            test: threading.Barrier(count, timeout=PATIENCE_SECONDS) for test, count in self.AT_ONCE.items()
        }

    def meet(self, changes: list[dict[str, Any]]) -> None:
        """Wait until all concurrent commits of the test have arrived."""
        test = changes[0]["identifier"]["name"].rpartition("_")[0]
        if test in self.barriers:
            self.barriers[test].wait()

    def metadata(self, name: str) -> dict[str, Any]:
        schemas = [
            {"type": "struct", "schema-id": number, "fields": fields} for number, fields in enumerate(self.tables[name])
        ]
        last = schemas[-1]
        return {"schemas": schemas, "current-schema-id": last["schema-id"], "last-column-id": len(last["fields"])}

    def holds(self, change: dict[str, Any]) -> bool:
        now = self.metadata(change["identifier"]["name"])["current-schema-id"]
        ignored = self.fault == "requirements of unchanged tables" and not change["updates"]
        return ignored or all(one["current-schema-id"] == now for one in change["requirements"])

    def apply(self, change: dict[str, Any]) -> None:
        for update in change["updates"]:
            if update["action"] == "add-schema":
                self.tables[change["identifier"]["name"]].append(update["schema"]["fields"])

    def commit(self, changes: list[dict[str, Any]]) -> int:
        if self.fault == "not offered":
            return 404
        if self.fault == "one after the other":
            for change in changes:
                with self.lock:
                    if not self.holds(change):
                        return 409
                    self.apply(change)
            return 204
        if self.fault == "checked before":
            held = all(self.holds(change) for change in changes)
            self.meet(changes)
            if not held:
                return 409
            with self.lock:
                for change in changes:
                    self.apply(change)
            return 204
        self.meet(changes)
        with self.lock:
            if self.fault == "refuses everything" or not all(self.holds(change) for change in changes):
                return 409
            for change in changes:
                self.apply(change)
        return 204


@contextmanager
def served(catalog: Faulty) -> Iterator[str]:
    """Serve the catalog in this process. Yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: Any = None) -> None:
            text = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            is_table = "/tables/" in self.path
            self.answer(200, {"metadata": catalog.metadata(name)} if is_table else {"defaults": {}, "overrides": {}})

        def do_DELETE(self) -> None:
            self.answer(204)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/tables"):
                catalog.tables[body["name"]] = [body["schema"]["fields"]]
            is_commit = self.path.endswith("/transactions/commit")
            self.answer(catalog.commit(body["table-changes"]) if is_commit else 200, None if is_commit else {})

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # a connection over the usual 5 is tried again after a second

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_this_server_has_no_anomaly(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    with rest.serve(lake) as url:
        code, result = scoreboard(url)
    assert code == 0, result
    assert result["transactions"]["committed"] > 4
    assert lake.namespaces() == [], "it leaves nothing behind"


@pytest.mark.parametrize(
    ("fault", "code"), [("none", 0), ("not offered", 3), ("refuses everything", 2), ("checked before", 1)]
)
def test_exit_code_reports_anomalies(fault: str, code: int) -> None:
    """A catalog that refuses every commit has no anomaly, so refusals must not count as success."""
    with served(Faulty(fault)) as url:
        assert scoreboard(url)[0] == code


def test_requirements_of_tables_that_are_not_changed_are_tested() -> None:
    """A known fault of servers: they ignore requirements on a table that the commit does not change."""
    with served(Faulty("requirements of unchanged tables")) as url:
        code, result = scoreboard(url)
    assert code == 1
    assert result["write skew"] == result["rounds"]
    assert result["lost update"] == result["all or nothing"] == 0
    assert result["serializable"]["cycles"] > 0


def test_commits_of_one_table_at_a_time_are_detected() -> None:
    with served(Faulty("one after the other")) as url:
        code, result = scoreboard(url)
    assert code == 1
    assert result["all or nothing"] == result["rounds"]


def test_requirements_checked_before_the_commit_are_detected() -> None:
    with served(Faulty("checked before")) as url:
        _, result = scoreboard(url)
    assert result["lost update"] > 0
    assert result["serializable"]["lost_writes"] > 0


def one(id: str, reads: dict[str, list[str]], appends: str, outcome: bool | None = True) -> Transaction:
    return Transaction(id, reads, frozenset(appends), outcome)


def test_a_history_with_an_order_has_no_cycle() -> None:
    history = [one("1", {"x": []}, "x"), one("2", {"x": ["1"], "y": []}, "y"), one("3", {"x": ["1"], "y": ["2"]}, "x")]
    assert check(history, {"x": ["1", "3"], "y": ["2"]}).is_serializable


def test_write_skew_is_a_cycle() -> None:
    history = [one("1", {"x": [], "y": []}, "x"), one("2", {"x": [], "y": []}, "y")]
    [cycle] = check(history, {"x": ["1"], "y": ["2"]}).cycles
    assert cycle == "1 -[rw y]-> 2 -[rw x]-> 1"


def test_a_read_of_half_a_transaction_is_a_cycle() -> None:
    history = [one("1", {}, "xy"), one("2", {"x": ["1"], "y": []}, "")]
    [cycle] = check(history, {"x": ["1"], "y": ["1"]}).cycles
    assert "wr x" in cycle
    assert "rw y" in cycle


def test_writes_in_two_orders_are_a_cycle() -> None:
    assert check([one("1", {}, "xy"), one("2", {}, "xy")], {"x": ["1", "2"], "y": ["2", "1"]}).cycles


def test_a_cycle_of_three_is_found_once() -> None:
    history = [one("1", {"y": []}, "x"), one("2", {"z": []}, "y"), one("3", {"x": []}, "z")]
    [cycle] = check(history, {"x": ["1"], "y": ["2"], "z": ["3"]}).cycles
    assert cycle.count("rw") == 3


@pytest.mark.parametrize(
    ("history", "final", "kind"),
    [
        ([one("1", {}, "x")], {"x": []}, "lost_writes"),
        ([one("1", {}, "xy")], {"x": ["1"], "y": []}, "partial_commits"),
        ([one("1", {}, "x", False)], {"x": ["1"]}, "aborted_writes"),
        ([one("1", {"x": ["9"]}, "y")], {"x": [], "y": ["1"]}, "impossible_reads"),
        ([], {"x": ["9"]}, "impossible_reads"),
    ],
)
def test_each_kind_of_fault_has_its_name(history: list[Transaction], final: dict[str, list[str]], kind: str) -> None:
    findings = vars(check(history, final))
    assert [name for name, examples in findings.items() if examples] == [kind]


def test_a_transaction_with_unknown_outcome_is_committed_or_not() -> None:
    assert check([one("1", {}, "x", None)], {"x": []}).is_serializable
    assert check([one("1", {}, "x", None)], {"x": ["1"]}).is_serializable
