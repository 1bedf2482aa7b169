"""A server gives back to the system what large bodies took.

Half an hour of bodies of 15 MiB beside sixteen clients, on a busy machine: the memory of the server rose from 590 to
1,190 MiB and went on rising. Nothing was left behind in Python. The C library keeps for each thread what that thread
has freed, and the bodies were parsed now in this one, now in that.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.rest import RestServer, serve
from trinitylake.rest.http import server as module
from trinitylake.rest.request.call import SEPARATOR, namespace_of

PROGRAM = """
import json, os, threading
import psutil
from trinitylake.rest.freed_memory import give_back_large_blocks

can = give_back_large_blocks()
together = threading.Barrier(12)

def work():
    for _ in range(3):  # what is freed once raises the size from which the library asks the system
        block = b"x" * (15 << 20)
        together.wait()
        del block

before = psutil.Process().memory_info().rss
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([can, psutil.Process().memory_info().rss - before]))
"""


def test_large_blocks_of_many_threads_are_given_back() -> None:
    can, grown = json.loads(subprocess.check_output([sys.executable, "-c", PROGRAM]))
    assert can == (sys.platform == "linux")
    assert not can or grown < 60 << 20


def test_the_process_of_a_server_does_so(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server in a thread of another program does not: the choice is for the whole process."""
    chosen: list[str] = []
    monkeypatch.setattr(module, "give_back_large_blocks", lambda: chosen.append("so"))
    monkeypatch.setattr(module, "keep_what_is_here", lambda: chosen.append("kept"))
    with serve(lake):
        assert chosen == []
    monkeypatch.setattr(RestServer, "run", lambda self: None)
    server = serve(lake)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)  # which would end this process
    server.run_process()
    assert chosen == ["so", "kept"]


def test_garbage_is_not_looked_for_among_what_was_there_when_the_process_began() -> None:
    """Of the time of a server that commits a fifteenth went into looking through modules and their classes."""
    program = (
        "import gc\nfrom trinitylake.rest.freed_memory import keep_what_is_here\nkeep_what_is_here()\n"
        "print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    kept, looked_at = map(int, subprocess.check_output([sys.executable, "-c", program]).split())
    assert kept > 10 * looked_at


class Left:
    """What requests leave behind: objects that refer to each other."""

    def __init__(self) -> None:
        self.itself = self


def test_what_large_bodies_leave_behind_is_collected(http_client: Client) -> None:
    """Commits of nine megabytes each left what they held in transactions and tables that refer to each other, and
    Python's collector counts objects: hundreds of megabytes stayed until there were enough of them."""
    gc.collect()
    gc.disable()
    try:
        left = weakref.ref(Left())
        assert http_client("POST", "/v1/namespaces", b" " * (1 << 20)).code == 400
        assert left() is not None
        for _ in range(3):
            assert http_client("POST", "/v1/namespaces", b" " * (12 << 20)).code == 400
        deadline = time.monotonic() + 10
        while left() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left() is None
    finally:
        gc.enable()


def test_a_commit_leaves_nothing_that_refers_to_itself(lake: tl.Lakehouse) -> None:
    """A transaction had its tables and they had it, so each commit over REST left forty objects that only Python's
    collector frees. It looked through all that is in memory every eight hundred commits, for a tenth of a second, in
    which nothing else ran: an eighth of the time of all commits."""
    with_tables(lake, "shop.orders")
    left: list[object] = []

    def change(color: str) -> int:
        body = {"updates": [{"action": "set-properties", "updates": {"color": color}}]}
        return client("POST", "/v1/namespaces/shop/tables/orders", body).code

    with running(lake) as server:
        client = Client(server)
        change("red")
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(10):
                assert change(str(number)) == 200
            gc.collect()
            # Connections are another matter: clients keep theirs, and this one does not.
            left = [
                one
                for one in gc.garbage
                if type(one).__module__.startswith("trinitylake")
                and not type(one).__module__.startswith("trinitylake.rest.http")
            ]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left


def test_namespaces_that_are_remembered_are_short() -> None:
    """A namespace was remembered with its parts, a thousand of them, however long. Somebody with a token that opens
    nothing sent some of 60 KB: the memory of the server rose by half a MiB with each, and never fell.
    """
    tracemalloc.start()
    try:
        for number in range(40):
            assert len(namespace_of(SEPARATOR.join(f"{number}-{part}" for part in range(5000)))) == 5000
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 1 << 20
    assert namespace_of(f"a{SEPARATOR}b") is namespace_of(f"a{SEPARATOR}b")
