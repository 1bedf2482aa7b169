"""TPC-H's refreshes while drivers, executors and workers are killed: readers see only whole refreshes, each once.

A refresh inserts new orders with their items and deletes old ones, by four statements on two tables in one transaction.
A reader permanently compares both tables of one version: the price of each order is the sum of the prices of its items,
and the orders are those of whole, consecutive refreshes. After a kill the application is started again.
`TRINITYLAKE_DEEP=1` kills ten times as often.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl

#: Each start of Spark executes a dozen statements.
pytestmark = pytest.mark.timeout(3600)

JOB = Path(__file__).parent / "refresh_job.py"
DEEP = 10 if os.environ.get("TRINITYLAKE_DEEP") else 1
#: The same numbers as in `refresh_job.py`.
ORDERS, KEPT = 60, 3
#: A cluster of two executors in separate processes.
CLUSTER = "local-cluster[2,1,700]"
PATIENCE_SECONDS = 600


class Application:
    """The application in a separate process, and the processes that it starts."""

    def __init__(self, root: str, master: str, refreshes: int, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(JOB), root, master, str(refreshes)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "SPARK_HOME": _spark_home()},
            start_new_session=True,
        )
        self.said: list[tuple[str, int]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, number = line.decode().partition(" ")
            with self._news:
                if what in ("begun", "committed", "keys"):
                    self.said.append((what, int(number)))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait(self, what: str, number: int) -> None:
        """Wait until the application has printed this. Fails if the application ends before."""

        def is_there() -> bool:
            return (what, number) in self.said or not self._reader.is_alive()

        with self._news:
            assert self._news.wait_for(is_there, PATIENCE_SECONDS), f"{what} {number} was not printed: {self.said}"
        assert (what, number) in self.said, f"the application ended before: {self.said}; see {self._log.name}"

    def wait_for_the_end(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def processes(self, of: str) -> list[int]:
        """The processes that the application started, at any depth, whose command contains a word."""
        found, parents = [], {self._process.pid}
        table = sorted(_processes())  # parents have lower numbers than their children, mostly
        for _ in range(4):
            for pid, parent, command in table:
                if parent in parents:
                    parents.add(pid)
                    if of in command and pid not in found:
                        found.append(pid)
        return found

    def kill(self) -> None:
        """Kill the driver, its JVM and all other processes at once, as if the machine were lost."""
        for _, _, pid in sorted((0, 0, pid) for pid in [*self.processes(""), self._process.pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def _processes() -> Iterator[tuple[int, int, str]]:
    """Number, parent and command of each process of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, command


class Reader(threading.Thread):
    """Permanently compares both tables of one version."""

    def __init__(self, root: str) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._ends = threading.Event()
        self.looks: dict[int, int] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        lake = tl.open(self._root)
        while not self._ends.is_set() and not self.problems:
            try:
                view = lake.at()
                if view.version not in self.looks:
                    self.looks[view.version] = len(whole_refreshes(view))
            except BaseException as error:
                self.problems.append(repr(error))
            time.sleep(0.02)

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENCE_SECONDS)
        assert self.problems == []


def whole_refreshes(view: tl.Lakehouse | tl.LakehouseVersion) -> list[int]:
    """The numbers of the refreshes whose orders are in the table. Raises `AssertionError` if a refresh is incomplete or
    duplicated."""
    orders = view.table("tpch.orders").scan().to_arrow()
    items = view.table("tpch.lineitem").scan().to_arrow()
    numbers = sorted(set(orders["refresh"].to_pylist()))
    if numbers:
        assert numbers == list(range(max(0, numbers[-1] - KEPT + 1), numbers[-1] + 1)), numbers
    expected = sorted(key for number in numbers for key in range(number * ORDERS, (number + 1) * ORDERS))
    assert sorted(orders["key"].to_pylist()) == expected, "an order is missing or duplicated"
    sums = items.group_by("key").aggregate([("price", "sum")]).sort_by("key")
    assert sums["price_sum"].to_pylist() == orders.sort_by("key")["price"].to_pylist(), "orders and items differ"
    assert sums["key"].to_pylist() == expected
    return numbers


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Tables of orders and items, one copy-on-write and one merge-on-read, and a table of keys that the data source
    writes."""
    lake = tl.create(str(tmp_path / "lake"), name="tpch")
    copied, merged = ({f"write.{how}.mode": mode for how in ("delete", "update", "merge")} for mode in MODES)
    with lake.transaction() as txn:
        txn.create_namespace("tpch")
        txn.create_table(
            "tpch.orders", {"key": "bigint", "refresh": "int", "price": "bigint"}, properties={**merged, **KEEP_TRYING}
        )
        txn.create_table("tpch.lineitem", {"key": "bigint", "line": "int", "price": "bigint"}, properties=copied)
        txn.create_table("tpch.keys", {"key": "bigint"})
    return str(tmp_path / "lake")


MODES = ("copy-on-write", "merge-on-read")
KEEP_TRYING = {"commit.retry.num-retries": "10"}


def check_all_is_there_once(root: str, said: list[tuple[str, int]]) -> None:
    """Check that every acknowledged refresh was committed, and none twice."""
    lake = tl.open(root)
    whole = whole_refreshes(lake)
    keys = pa.table({"key": lake.table("tpch.keys").scan().to_arrow()["key"]}).sort_by("key")["key"].to_pylist()
    refreshes = 1 + max([number for what, number in said if what == "keys"], default=-1)
    last = max([number for what, number in said if what == "committed"], default=-1)
    assert max(whole, default=-1) >= last
    assert keys[: refreshes * ORDERS] == list(range(refreshes * ORDERS))
    assert keys == list(range(len(keys)))
    assert len(keys) % ORDERS == 0, "a write of the data source is incomplete"


def test_killed_driver_or_writer_leaves_whole_refreshes(root: str, tmp_path: Path) -> None:
    chance = random.Random(12)
    reader = Reader(root)
    reader.start()
    said: list[tuple[str, int]] = []
    log = tmp_path / "log"

    def killed_driver(application: Application, number: int) -> None:
        application.wait("begun", number)
        time.sleep(chance.uniform(0, 2.5))
        application.kill()

    def killed(of: str) -> Callable[[Application, int], None]:
        def kill(application: Application, number: int) -> None:
            application.wait("begun" if "Backend" in of else "committed", number)
            end = time.monotonic() + PATIENCE_SECONDS
            while not (found := application.processes(of)) and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.8))
            with suppress(ProcessLookupError):
                os.kill(chance.choice(application.processes(of) or found), signal.SIGKILL)
            application.wait("keys", number)  # the application continues

        return kill

    number = 0
    for _ in range(DEEP):
        # An executor, a worker and then the driver are killed, each at another refresh.
        application = Application(root, CLUSTER, 10_000, log)
        try:
            for kill in (
                killed("CoarseGrainedExecutorBackend"),
                killed("-m trinitylake.spark.worker_daemon"),
                killed_driver,
            ):
                number += 1
                kill(application, number)
        finally:
            application.kill()
        said += application.said
        assert not reader.problems, reader.problems
        check_all_is_there_once(root, said)
    application = Application(root, "local[2]", number + 2, log)
    try:
        assert application.wait_for_the_end() == 0, log.read_text()[-3000:]
    finally:
        application.kill()
    reader.end()
    lake = tl.open(root)
    assert whole_refreshes(lake) == [number - 1, number, number + 1]
    assert lake.table("tpch.keys").scan().count() == (number + 2) * ORDERS
    check_all_is_there_once(root, said + application.said)
    assert len(reader.looks) > number, "the reader saw too few versions"
    assert not lake.maintenance.fsck(files=True).findings
