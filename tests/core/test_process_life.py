"""Processes: fork, threads, Ctrl-C at random moments, pickling, imports."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import s3_server
import trinitylake as tl
from trinitylake import core
from trinitylake.errors import Winner
from waiting import PATIENCE_SECONDS

ROWS = pa.table({"id": [1, 2, 3]})
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server() -> Iterator[s3_server.S3Server]:
    with s3_server.serve() as server:
        yield server


@pytest.fixture(params=["disk", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on disk that this process has used."""
    if request.param == "disk":
        lake = tl.create(str(tmp_path / "lake"), order=4)
    else:
        server: s3_server.S3Server = request.getfixturevalue("server")
        lake = tl.create(f"s3://{server.new_bucket()}/lake", order=4, storage_options=server.storage_options)
    lake.create_namespace("nyc")
    lake.create_table("nyc.t", ROWS).append(ROWS)
    return lake


def in_child(work: Callable[[], Any]) -> Any:
    """Result of `work` in a forked child. An error of the child fails the test, with its traceback."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send((work(), None))
        except BaseException:
            sender.send((None, traceback.format_exc()))

    child = FORK.Process(target=run)
    child.start()
    try:
        assert receiver.poll(PATIENCE_SECONDS), "the forked child is stuck"
        result, error = receiver.recv()
        child.join(PATIENCE_SECONDS)
    finally:
        child.kill()
    assert error is None, error
    return result


@contextmanager
def threads_at_work(work: Callable[[int, int], object]) -> Iterator[None]:
    """Repeat work in three threads during the block. `work` gets the numbers of its thread and of the repetition."""
    stop = threading.Event()

    def repeat(worker: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            work(worker, number)

    threads = [threading.Thread(target=repeat, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("nyc.t").scan().to_arrow()["id"].to_pylist())


# Fork


def test_a_forked_child_reads_and_commits_and_the_parent_continues(lake: tl.Lakehouse) -> None:
    def work() -> tuple[list[str], int, list[int]]:
        found = lake.namespaces()
        lake.create_namespace("from_child")
        lake.table("nyc.t").append({"id": [4]})
        return found, lake.version, ids(lake)

    before = lake.version
    assert in_child(work) == (["nyc"], before + 2, [1, 2, 3, 4])
    assert lake.namespaces() == ["from_child", "nyc"]
    lake.create_namespace("from_parent")
    assert (lake.version, ids(lake)) == (before + 3, [1, 2, 3, 4])


def test_a_child_of_a_child_works_too(lake: tl.Lakehouse) -> None:
    def work() -> list[str]:
        lake.create_namespace("child")

        def deeper() -> list[str]:
            lake.create_namespace("grandchild")
            return lake.namespaces()

        pid = os.fork()
        if pid == 0:
            try:
                deeper()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        return lake.namespaces()

    assert in_child(work) == ["child", "grandchild", "nyc"]
    assert lake.namespaces() == ["child", "grandchild", "nyc"]


def test_parent_and_children_commit_at_the_same_time(lake: tl.Lakehouse) -> None:
    def commit(worker: int) -> None:
        for number in range(6):
            lake.create_namespace(f"w{worker}.n{number}")

    children = [FORK.Process(target=commit, args=(worker,)) for worker in (1, 2, 3)]
    for child in children:
        child.start()
    commit(0)
    for child in children:
        child.join(PATIENCE_SECONDS)
        assert child.exitcode == 0
    made = [f"w{worker}.n{number}" for worker in range(4) for number in range(6)]
    assert lake.namespaces() == sorted(["nyc", *made])
    committed = [one.id for entry in lake.log(None) for one in entry.transactions]
    assert len(committed) == len(set(committed))


def test_a_transaction_that_the_child_committed_is_not_committed_twice(lake: tl.Lakehouse) -> None:
    """Parent and child have the same open transaction, with the same id."""
    transaction = lake.begin()
    transaction.create_namespace("once")
    version = in_child(transaction.commit)
    try:
        assert transaction.commit() == version
    except tl.CommitConflict as conflict:
        assert conflict.keys == ["namespace once"]  # noqa: PT017 - either answer is right
    assert [entry.version for entry in lake.log() if transaction.id in [one.id for one in entry.transactions]] == [
        version
    ]


def test_a_fork_while_other_threads_are_busy_leaves_the_child_free(tmp_path: Path) -> None:
    """A lock that another thread holds at the fork is never released in the child."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("nyc")

    def busy(worker: int, number: int) -> None:
        lake.at().namespaces()
        if worker == 0:
            lake.create_namespace(f"busy{number}")

    with threads_at_work(busy):
        for number in range(10):

            def work(number: int = number) -> bool:
                fresh = tl.open(lake.uri, durability="none")
                fresh.create_namespace(f"child{number}")
                return fresh.exists(f"child{number}")

            assert in_child(work)
    assert [name for name in lake.namespaces() if name.startswith("child")] == sorted(f"child{n}" for n in range(10))


def test_a_child_forked_while_others_commit_through_its_handle_commits_too(tmp_path: Path) -> None:
    """The child inherited a commit queue whose leader is a thread of the parent, and waited for this leader forever."""
    lake = tl.create(str(tmp_path / "lake"))
    with threads_at_work(lambda worker, number: lake.create_namespace(f"w{worker}.n{number}")):
        for number in range(7):
            made = in_child(lambda number=number: lake.create_namespace(f"child{number}"))
            assert made.name == f"child{number}"
    assert [name for name in lake.namespaces() if name.startswith("child")] == [f"child{n}" for n in range(7)]


def test_a_child_forked_while_others_use_the_store_has_connections_of_its_own(server: s3_server.S3Server) -> None:
    """A child used the connections of its parent, and each process read responses to the other; or it waited for a lock
    of the cache or of the store that a thread of its parent held at the fork.
    """
    lake = tl.create(f"s3://{server.new_bucket()}/lake", order=4, storage_options=server.storage_options)
    lake.create_namespace("nyc")
    for number in range(4):
        lake._storage.put(f"files/{number}", str(number).encode() * 1000)

    def read(number: int) -> bool:
        return bytes(lake._storage.get(f"files/{number}")) == str(number).encode() * 1000

    wrong: list[int] = []

    def busy(worker: int, _: int) -> None:
        if not read(worker) or not lake.exists("nyc"):
            wrong.append(worker)

    def work() -> list[bool]:
        return [read(number % 4) and lake.at().namespaces() == ["nyc"] for number in range(12)]

    with threads_at_work(busy):
        for _ in range(5):
            assert in_child(work) == [True] * 12
    assert not wrong
    assert all(read(number) for number in range(4)), "the parent's connections still work"


# Threads


def test_many_threads_share_a_handle(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), order=3, durability="none", properties={"root.buffer-size-bytes": "500"})
    lake.create_namespace("nyc")
    lake.create_table("nyc.t", ROWS).append(ROWS)
    start = threading.Barrier(12)

    def work(worker: int) -> None:
        start.wait()
        for number in range(8):
            if worker % 3 == 0:
                lake.create_namespace(f"w{worker}.n{number}")
                assert lake.exists(f"w{worker}.n{number}"), "what is committed is seen at once"
            elif worker % 3 == 1:
                frozen = lake.at()
                names = frozen.namespaces()
                assert frozen.namespaces() == names == sorted(names)
                assert {row["path"] for row in frozen.nodes().to_pylist()}
                assert ids(lake) == [1, 2, 3]
            else:
                entries = lake.log(5)
                assert [entry.version for entry in entries] == list(
                    range(entries[0].version, entries[0].version - len(entries), -1)
                )
                lake.diff(max(0, entries[0].version - 3), entries[0].version)

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(work, range(12))) == [None] * 12
    assert lake.namespaces() == sorted(
        ["nyc", *(f"w{worker}.n{number}" for worker in (0, 3, 6, 9) for number in range(8))]
    )
    tl.open(lake.uri).at().nodes()


def test_threads_that_read_one_frozen_version_all_read_the_same(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), order=3, durability="none", properties={"root.buffer-size-bytes": "500"})
    with lake.transaction() as txn:
        for number in range(60):
            txn.create_namespace(f"n{number:03}")
    frozen = tl.open(lake.uri, cache_size_bytes=1 << 12).at()
    names = [f"n{number:03}" for number in range(60)]

    def read(_: int) -> bool:
        return frozen.namespaces() == names and all(frozen.exists(name) for name in names)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(40)))


# Ctrl-C

INTERRUPTED_COMMITS = """
import os, random, signal, sys, threading, time
import trinitylake as tl

root, seed = sys.argv[1], int(sys.argv[2])
lake = tl.create(root, order=3, durability="none", properties={"root.buffer-size-bytes": "500"})
chosen = random.Random(seed)
sure, unsure, interrupts = set(), set(), 0
for round in range(25):
    delay = chosen.random() * 0.01
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    name, number = "", 0
    try:
        timer.start()
        while True:
            name = f"r{round}.n{number}"
            with lake.transaction(message=name) as txn:
                txn.create_namespace(name)
                txn.create_namespace(name + ".twin")
            sure.add(name)
            name, number = "", number + 1
    except KeyboardInterrupt:
        interrupts += 1
        if name:
            unsure.add(name)
    timer.join()
    # The handle can still be used, and a new handle reads the same.
    found = set(lake.namespaces())
    assert found == set(tl.open(root).namespaces()), round
    whole = {name for name in found if not name.endswith(".twin")}
    assert found == whole | {name + ".twin" for name in whole}, "both names of a commit, or none"
    assert sure <= whole <= sure | unsure, (round, sure - whole, whole - sure - unsure)
assert interrupts == 25
fresh = tl.open(root)
log = fresh.log(None)
assert [entry.version for entry in log] == list(range(len(log) - 1, -1, -1))
assert {entry.message for entry in log if entry.message} == {n for n in fresh.namespaces() if not n.endswith(".twin")}
for version in range(0, len(log), 10):
    fresh.at(version).nodes()
print("whole", len(sure), len(unsure))
"""

INTERRUPTED_READS = """
import os, random, signal, sys, threading
import trinitylake as tl

root, seed = sys.argv[1], int(sys.argv[2])
lake = tl.create(root, order=3, durability="none", properties={"root.buffer-size-bytes": "500"})
names = sorted(f"n{number:03}" for number in range(200))
with lake.transaction() as txn:
    for name in names:
        txn.create_namespace(name, {"name": name})
chosen = random.Random(seed)
for round in range(25):
    timer = threading.Timer(chosen.random() * 0.02, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            reader = tl.open(root, cache_size_bytes=0)
            reader.namespaces()
            reader.at().nodes()
            list(reader.at()._state().scan())
            reader.log(None)
            lake.namespace(names[round])
    except KeyboardInterrupt:
        pass
    timer.join()
    assert lake.namespaces() == names
    assert lake.namespace(names[round]).properties == {"name": names[round]}
print("whole")
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("code", [INTERRUPTED_COMMITS, INTERRUPTED_READS], ids=["commits", "reads"])
def test_ctrl_c_at_any_moment_leaves_the_lakehouse_whole(tmp_path: Path, code: str, seed: int) -> None:
    command = [sys.executable, "-c", code, str(tmp_path / "lake"), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("whole")


WAITING = """
import sys
import trinitylake as tl

options = {"endpoint": sys.argv[1], "allow_http": "true", "region": "x", "access_key_id": "a", "secret_access_key": "b"}
options["timeout"] = "1 hour"
try:
    tl.open("s3://bucket/lake", storage_options=options)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_the_wait_for_a_store_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen([sys.executable, "-c", WAITING, endpoint], stdout=subprocess.PIPE, text=True) as process:
            try:
                connection, _ = silent.accept()
                with connection:
                    process.send_signal(signal.SIGINT)
                    printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                process.kill()
    assert (process.returncode, printed.strip()) == (0, "interrupted")


def test_ctrl_c_in_a_commit_to_a_slow_store_is_heard_when_the_outcome_is_known(server: s3_server.S3Server) -> None:
    """The store is slow to create the root."""
    root = f"s3://{server.new_bucket()}/lake"
    lake = tl.create(root, storage_options=server.storage_options)
    code = (
        "import sys, signal, trinitylake as tl\n"
        "txn = tl.open(sys.argv[1]).begin(message='interrupted')\n"
        "txn.create_namespace('nyc')\n"
        "try:\n"
        "    txn.commit()\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print(tl.open(sys.argv[1]).namespaces(), txn.is_open)\n"
    )
    interrupted: list[subprocess.Popen[str]] = []
    with server.slow(core.root_path(1), 1.0, lambda: interrupted[0].send_signal(signal.SIGINT)):
        interrupted.append(
            subprocess.Popen(
                [sys.executable, "-c", code, root],
                env={**os.environ, **server.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        printed, errors = interrupted[0].communicate(timeout=PATIENCE_SECONDS)
    assert printed.strip() == "['nyc'] False", errors
    assert [entry.message for entry in lake.log()] == ["interrupted", ""]


def test_a_process_killed_by_the_default_signal_leaves_the_lakehouse_whole(tmp_path: Path) -> None:
    """SIGTERM does not unwind the stack: acknowledged commits exist, and the next process continues."""
    code = (
        "import sys, trinitylake as tl\n"
        "lake = tl.create(sys.argv[1], order=3, durability='none', exist_ok=True)\n"
        "number = 0\n"
        "while True:\n"
        "    name = f'p{sys.argv[2]}.n{number}'\n"
        "    lake.create_namespace(name)\n"
        "    print(name, flush=True)\n"
        "    number += 1\n"
    )
    acknowledged: set[str] = set()
    for round in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lake"), str(round)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(5 + round):
            acknowledged.add(process.stdout.readline().strip())
        process.send_signal(signal.SIGTERM)
        # `communicate` would miss the lines that `readline` has already buffered.
        acknowledged |= set(process.stdout.read().split())
        process.wait(PATIENCE_SECONDS)
        lake = tl.open(str(tmp_path / "lake"))
        # The signal may have truncated the last line, or stopped the process before it acknowledged a commit.
        whole = {name for name in acknowledged if name in lake.namespaces()}
        assert len(whole) >= len(acknowledged) - 1 - round
        assert len(lake.namespaces()) - len(whole) <= round + 1
        assert lake.version == len(lake.namespaces())
        lake.at().nodes()


# Pickling


def test_results_of_a_lakehouse_can_be_pickled(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("nyc", {"owner": "ops"})
    expected_words = [
        lake.log(),
        lake.diff(0),
        lake.maintenance.stats(),
        lake.namespace("nyc"),
        lake.properties,
        tl.Schema([tl.Column("id", "bigint", nullable=False), tl.Column("tags", "list<varchar>")], "id"),
        core.KeySizes(1, 2, 3),
        core.encode_namespace_keys(["nyc"]),
    ]
    for one in expected_words:
        assert pickle.loads(pickle.dumps(one)) == one
    for function in (core.optimize_paths, core.decode_keys, core.read_node, tl.open):
        assert pickle.loads(pickle.dumps(function)) is function
    lost = tl.CommitConflict("lost", keys=["table a.t"], winners=[Winner(3, "id", "message", "author")])
    assert pickle.loads(pickle.dumps(lost)).winners == lost.winners


def test_pickled_storage_opens_again_in_a_task(tmp_path: Path) -> None:
    """A task that writes parts of a tree has only the pickled storage with its options."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake._storage.put("a/b", b"written here")
    assert in_child(lambda: bytes(pickle.loads(pickle.dumps(lake._storage)).get("a/b"))) == b"written here"


# Importing

IMPORTING = """
import os

def threads():
    return len(os.listdir("/proc/self/task"))

def sockets():
    kinds = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            kinds.append(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:
            pass
    return [kind for kind in kinds if kind.startswith(("socket:", "anon_inode:"))]

before = threads(), sockets()
import trinitylake as tl
assert (threads(), sockets()) == before, "importing"
storage = tl._core.Storage("s3://bucket/lake", {"region": "us-east-1"})
assert (threads(), sockets()) == before, "naming a storage"
import trinitylake.core, trinitylake.cli  # pyarrow starts threads of its own
before = threads(), sockets()
tl.core.optimize_paths(["a"] * 1000)
tl.core.decode_keys(tl.core.encode_table_keys("a", ["t"]))
assert (threads(), sockets()) == before, "core functions"
tl.create("memory://x")
assert threads() > before[0], "the first request does need threads: this is what would have been seen"
"""


def test_importing_starts_no_thread_and_opens_no_socket() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
