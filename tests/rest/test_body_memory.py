"""Memory of requests is freed after their end."""

from __future__ import annotations

import gc
import time
import weakref

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables


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
