"""Processes that are killed during commits on a real disk, and processes that commit concurrently.

`TRINITYLAKE_DEEP=1` runs twelve times as many kills and many more commits. With `TRINITYLAKE_SOAK_SECONDS=n`, or `make
soak`, processes commit concurrently for that time on each kind of storage.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import s3_server
import trinitylake as tl
from trinitylake.errors import InvalidArgument
from waiting import PATIENCE_SECONDS

FORK = multiprocessing.get_context("fork")
DEEP = 12 if os.environ.get("TRINITYLAKE_DEEP") else 1
#: 0: the number of commits in the test.
SOAK_SECONDS = float(os.environ.get("TRINITYLAKE_SOAK_SECONDS", "0"))
#: A process that hangs fails the test after this time.
ROWS = pa.schema([("number", pa.int64())])


def count(view: tl.Lakehouse | tl.Transaction | tl.LakehouseVersion, name: str) -> int:
    """A counter: a namespace with a number as its property."""
    return int(view.namespace(name).properties.get("count", "0"))


def increment(txn: tl.Transaction, name: str) -> None:
    txn.alter_namespace(name, {"count": str(count(txn, name) + 1)})


def row_of(transaction: str) -> int:
    """A number that only this transaction writes."""
    return uuid.UUID(transaction).int >> 65


def start(work: Callable[[int], None]) -> tuple[multiprocessing.process.BaseProcess, int]:
    """Fork a child that writes to a pipe. Returns the reading end."""
    reading, writing = os.pipe()

    def run() -> None:
        os.close(reading)
        try:
            work(writing)
        except BaseException:
            os.write(writing, f"failed {traceback.format_exc()!r}\n".encode())

    child = FORK.Process(target=run)
    child.start()
    os.close(writing)
    return child, reading


class Messages:
    """Lines that a child writes; each line is written at once, so lines are complete."""

    def __init__(self, reading: int) -> None:
        self._pipe = os.fdopen(reading, "rb")
        self._lines: list[list[str]] = []

    def _read(self) -> bool:
        line = self._pipe.readline().decode().rstrip("\n")
        if line:
            self._lines.append(line.split(maxsplit=1))
        return bool(line)

    def wait(self, word: str, times: int) -> None:
        """Wait until this number of lines begins with a word, or the child has ended."""
        while sum(line[0] == word for line in self._lines) < times and self._read():
            pass

    def all(self) -> list[list[str]]:
        """All lines, after the child has ended."""
        with self._pipe:
            while self._read():
                pass
        assert not [line for line in self._lines if line[0] == "failed"], self._lines
        return self._lines


def said(reading: int) -> list[list[str]]:
    """All lines that a child wrote."""
    return Messages(reading).all()


class Killed:
    """A lakehouse on disk, with fsync, and all lines that its writers wrote before they were killed."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        properties = {"root.buffer-size-bytes": "900"}
        self.lake = tl.create(self.root, order=4, properties=properties)
        self.asked: list[str] = []
        self.acknowledged: dict[str, int] = {}

    def round(self, transact: Callable[[tl.Transaction], None], commits: int, milliseconds: float) -> None:
        """Run one writer that commits in a loop, and kill it.

        It is killed some time after it has acknowledged this number of commits or, with 0, after it has begun its
        first.
        """

        def work(pipe: int) -> None:
            lake = tl.open(self.root)
            while True:
                txn = lake.begin(message="killed")
                os.write(pipe, f"asked {txn.id}\n".encode())
                transact(txn)
                version = txn.commit()
                os.write(pipe, f"done {txn.id}:{version}\n".encode())

        child, reading = start(work)
        messages = Messages(reading)
        messages.wait("done" if commits else "asked", commits or 1)
        time.sleep(milliseconds / 1000)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(PATIENCE_SECONDS * DEEP)
        for what, message in messages.all():
            if what == "asked":
                self.asked.append(message)
            else:
                transaction, version = message.split(":")
                self.acknowledged[transaction] = int(version)

    def committed(self) -> dict[str, int]:
        """Transactions of the killed writers in the log, read by a new handle."""
        lake = tl.open(self.root)
        log = lake.log(None)
        assert [entry.version for entry in log] == list(range(lake.version, -1, -1)), "a version is missing"
        found = [(one.id, entry.version) for entry in log for one in entry.transactions if one.message == "killed"]
        assert len(found) == len(dict(found)), "committed twice"
        return dict(found)

    def check(self) -> None:
        committed = self.committed()
        lost = {one: version for one, version in self.acknowledged.items() if committed.get(one) != version}
        assert not lost, f"acknowledged, but not in the log: {lost}"
        assert committed.keys() <= set(self.asked)
        lake = tl.open(self.root)
        for transaction in self.asked[-3:]:
            version = committed.get(transaction)
            status = "not committed" if version is None else "committed"
            assert lake.transactions.outcome(transaction) == (status, version)
        lake.at().nodes()


@pytest.mark.timeout(240 + 60 * DEEP)
def test_a_killed_writer_loses_nothing_and_leaves_no_half_of_a_commit(tmp_path: Path) -> None:
    chosen = random.Random(1)
    doubtful = kills = acknowledged = 0
    for number in range(2 * DEEP):
        killed = Killed(tmp_path / f"lake{number}")
        for name in ("left", "right"):
            killed.lake.create_namespace(name)

        def transact(txn: tl.Transaction) -> None:
            increment(txn, "left")
            increment(txn, "right")

        for _ in range(15):
            killed.round(transact, chosen.randrange(5), chosen.uniform(0, 25))
            killed.check()
            kills += 1
        committed = killed.committed()
        for done, version in enumerate(sorted(committed.values()), 1):
            at = killed.lake.at(version)
            assert (count(at, "left"), count(at, "right")) == (done, done)
        assert count(killed.lake, "left") == len(committed)
        doubtful += len(committed.keys() - killed.acknowledged.keys())
        acknowledged += len(killed.acknowledged)
    assert acknowledged > kills
    print(f"{kills} kills, {doubtful} commits done and not acknowledged")


@pytest.mark.timeout(240 + 60 * DEEP)
def test_a_killed_writer_leaves_both_tables_of_a_transaction_with_its_rows_or_none(tmp_path: Path) -> None:
    chosen = random.Random(2)
    for number in range(DEEP):
        killed = Killed(tmp_path / f"lake{number}")
        killed.lake.create_namespace("ns")
        for name in ("ns.left", "ns.right"):
            killed.lake.create_table(name, ROWS)

        def transact(txn: tl.Transaction) -> None:
            rows = pa.table({"number": [row_of(txn.id)]}, schema=ROWS)
            txn.table("ns.left").append(rows)
            txn.table("ns.right").append(rows)

        for _ in range(8):
            killed.round(transact, chosen.randrange(4), chosen.uniform(0, 100))
            killed.check()
        wanted = sorted(row_of(transaction) for transaction in killed.committed())
        assert wanted
        lake = tl.open(killed.root)
        for name in ("ns.left", "ns.right"):
            assert sorted(lake.table(name).scan().to_arrow()["number"].to_pylist()) == wanted
        lake.table("ns.left").append(pa.table({"number": [1]}, schema=ROWS))


@pytest.mark.timeout(240 + 60 * DEEP + 3 * SOAK_SECONDS)
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_processes_that_commit_at_once_lose_no_increment(tmp_path: Path, where: str) -> None:
    if where == "disk":
        root = str(tmp_path / "lake")
        soak(tl.create(root, order=4), lambda: tl.open(root), commits=15 * DEEP)
        return
    with s3_server.serve() as server:
        root, options = f"s3://{server.new_bucket()}/lake", server.storage_options
        lake = tl.create(root, order=4, storage_options=options)
        soak(lake, lambda: tl.open(root, storage_options=options), commits=4 * DEEP)


def test_eight_processes_on_tables_of_their_own_never_fail(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("ns")
    commits = 10 * DEEP
    names = [f"ns.t{number}" for number in range(8)]
    for name in names:
        lake.create_table(name, ROWS)

    def work(pipe: int, name: str) -> None:
        own = tl.open(lake.uri, durability="none")
        for position in range(commits):
            txn = own.begin()
            txn.alter_table(name, {"position": str(position)})
            os.write(pipe, f"committed {txn.commit()}\n".encode())

    before = lake.version
    children = [start(lambda pipe, name=name: work(pipe, name)) for name in names]
    versions = sorted(int(version) for _, reading in children for _, version in said(reading))
    for child, _ in children:
        child.join(PATIENCE_SECONDS * DEEP)
        assert child.exitcode == 0
    assert versions == list(range(before + 1, before + 1 + len(names) * commits))
    assert all(lake.table(name).properties["position"] == str(commits - 1) for name in names)


def soak(lake: tl.Lakehouse, reopen: Callable[[], tl.Lakehouse], commits: int) -> None:
    """Four processes with two threads each: alternate transactions count in a table of the process and in a shared one.

    Each thread makes `commits` of them, or runs for `SOAK_SECONDS`.
    """
    end = time.monotonic() + SOAK_SECONDS
    workers = [f"w{number}" for number in range(4)]
    for name in ("hot", *workers):
        lake.create_namespace(name)

    def work(pipe: int, worker: str) -> None:
        own = reopen()
        # Two threads of a process share its counter as well, and now and then a root.
        threads = [threading.Thread(target=count_up, args=(own, pipe, worker, thread)) for thread in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def is_on(number: int) -> bool:
        return time.monotonic() < end if SOAK_SECONDS else number < commits

    def count_up(own: tl.Lakehouse, pipe: int, worker: str, thread: int) -> None:
        try:
            for number in itertools.takewhile(is_on, itertools.count()):
                names = [worker, "hot"] if (number + thread) % 2 else [worker]
                add(own, names)
                os.write(pipe, f"added {' '.join(names)}\n".encode())
        except BaseException:
            os.write(pipe, f"failed {traceback.format_exc()!r}\n".encode())

    children = [start(lambda pipe, worker=worker: work(pipe, worker)) for worker in workers]
    expected = dict.fromkeys(("hot", *workers), 0)
    transactions = 0
    for child, reading in children:
        for _, names in said(reading):
            transactions += 1
            for name in names.split():
                expected[name] += 1
        child.join(PATIENCE_SECONDS * DEEP)
        assert child.exitcode == 0
    if SOAK_SECONDS:
        assert all(expected.values())
        print(f"{transactions} transactions in {SOAK_SECONDS:.0f} s")
    else:
        assert expected == {"hot": 4 * commits, **dict.fromkeys(workers, 2 * commits)}
    fresh = reopen()
    assert {name: count(fresh, name) for name in expected} == expected
    log = fresh.log(None)
    assert [entry.version for entry in log] == list(range(fresh.version, -1, -1))
    committed = [one.id for entry in log for one in entry.transactions]
    assert len(committed) == len(set(committed)) == len(expected) + transactions
    fresh.at().nodes()


def add(lake: tl.Lakehouse, names: list[str]) -> None:
    """Add to a counter until a commit succeeds, because a conflict adds nothing."""
    while True:
        txn = lake.begin()
        for name in names:
            increment(txn, name)
        try:
            txn.commit()
            return
        except tl.CommitConflict:
            continue
        except tl.CommitStateUnknown:
            if lake.transactions.outcome(txn.id).status == "committed":
                return


# The intent queue


PROCESSES = 6
COMMITS = 25


def add_namespaces(root: str, process: int, properties_decide: bool) -> None:
    lake = tl.open(root, durability="none")
    for number in range(COMMITS):
        transaction = lake.begin(message=f"process {process}")
        transaction.create_namespace(f"p{process}_{number}")
        if properties_decide:
            transaction.commit()
        else:
            transaction.commit(coordination="queue")


@pytest.mark.parametrize("properties_decide", [True, False], ids=["lakehouse", "call"])
def test_processes_with_the_intent_queue_all_commit(tmp_path: Path, properties_decide: bool) -> None:
    properties = {"commit.coordination": "queue"} if properties_decide else None
    root = str(tmp_path / "lake")
    lake = tl.create(root, name="busy", properties=properties, durability="none")
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=add_namespaces, args=(root, process, properties_decide)) for process in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE_SECONDS)
    assert [writer.exitcode for writer in writers] == [0] * PROCESSES
    assert len(lake.namespaces()) == PROCESSES * COMMITS
    committed = Counter(change.transaction.id for change in lake.changes(since=0))
    assert len(committed) == PROCESSES * COMMITS
    assert set(committed.values()) == {1}
    assert not list((tmp_path / "lake" / "_queue").glob("*"))


def test_an_unknown_coordination_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"commit\.coordination|coordination"):
        tl.create(str(tmp_path / "lake"), properties={"commit.coordination": "hope"})
    lake = tl.create(str(tmp_path / "lake"))
    transaction = lake.begin()
    transaction.create_namespace("ns")
    with pytest.raises(InvalidArgument, match="coordination"):
        transaction.commit(coordination="hope")  # type: ignore[arg-type]
