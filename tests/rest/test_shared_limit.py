"""`SharedLimit`: admission and order of waiters, in threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trinitylake.rest.errors import RestError
from trinitylake.rest.limits import SharedLimit
from trinitylake.rest.request import body
from trinitylake.rest.request.body import HEAVY_VALUES, BodyLimits
from waiting import PATIENCE_SECONDS

LARGE_SIZE_BYTES = 15 << 20


def test_the_total_and_the_share_of_an_owner_are_limited() -> None:
    limit = SharedLimit(3, 2)
    with limit.lease("ana"), limit.lease("ana"):
        with pytest.raises(RestError) as caught, limit.lease("ana"):
            pass
        assert caught.value.code == 429
        with limit.lease("bob"), pytest.raises(RestError), limit.lease("cid"):
            pass
        assert limit.n_leases == 2
    assert limit.n_leases == 0
    assert not limit._amounts + limit._n_leases
    assert not limit._waiters


def test_the_only_lease_may_exceed_the_limits() -> None:
    limit = SharedLimit(10, 5)
    with limit.lease("ana", 20), pytest.raises(RestError), limit.lease("bob", 1):
        pass
    with limit.lease("ana", 2), limit.lease("bob", 8), pytest.raises(RestError), limit.lease("ana", 1):
        pass


def test_a_lease_grows_up_to_the_limits() -> None:
    limit = SharedLimit(10, 5)
    with limit.lease("ana", 0) as first, limit.lease("ana", 0) as second, limit.lease("bob", 0) as other:
        first.grow(9)
        with pytest.raises(RestError):
            second.grow(1)
        other.grow(1)
        with pytest.raises(RestError):
            other.grow(1)
    with limit.lease("cid", 10):
        pass


def test_owners_that_wait_are_served_in_turn() -> None:
    """Waiting principals are served in turn, so that a principal with many heavy bodies does not delay all others."""
    order: list[str] = []

    async def one(limits: BodyLimits, owner: str) -> None:
        async with limits.heavy(owner, HEAVY_VALUES):
            order.append(owner)
            await asyncio.sleep(0.01)

    async def all_of_them() -> None:
        limits = BodyLimits()
        many = [asyncio.create_task(one(limits, "many")) for _ in range(5)]
        await asyncio.sleep(0.001)
        await one(limits, "single")
        await asyncio.gather(*many)
        assert not limits._heavy._waiters

    asyncio.run(all_of_them())
    assert order.index("single") <= 2
    assert len(order) == 6


def test_threads_and_coroutines_wait_for_each_other() -> None:
    limit, has_lease, may_end = SharedLimit(1, 1), threading.Event(), threading.Event()

    def in_thread() -> None:
        with limit.lease("thread", wait_seconds=PATIENCE_SECONDS):
            has_lease.set()
            may_end.wait(PATIENCE_SECONDS)

    async def in_coroutine() -> None:
        async with limit.lease_async("coroutine", wait_seconds=PATIENCE_SECONDS):
            assert not thread.running() or may_end.is_set()

    async def end_soon() -> None:
        await asyncio.sleep(0.05)
        may_end.set()

    async def both() -> None:
        await asyncio.gather(in_coroutine(), end_soon())

    with ThreadPoolExecutor(1) as threads:
        thread = threads.submit(in_thread)
        assert has_lease.wait(PATIENCE_SECONDS)
        asyncio.run(both())
        thread.result(PATIENCE_SECONDS)
    assert limit.n_leases == 0


def test_a_waiter_that_is_cancelled_or_late_takes_nothing() -> None:
    limit = SharedLimit(1, 1)

    async def wait(seconds: float) -> None:
        async with limit.lease_async("ana", wait_seconds=seconds):
            pass

    async def cancelled() -> None:
        with limit.lease("bob"):
            task = asyncio.create_task(wait(10))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(RestError):
                await wait(0.01)

    asyncio.run(cancelled())
    assert limit.n_leases == 0
    assert not limit._waiters


def test_large_bodies_wait_and_small_ones_never_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "WAIT_SECONDS", 0.05)

    async def work() -> None:
        limits = BodyLimits()
        async with limits.large("ana", LARGE_SIZE_BYTES):
            with pytest.raises(RestError, match="too many large") as caught:
                await limits.large("ana", LARGE_SIZE_BYTES).__aenter__()
            assert caught.value.code == 503
            others = (limits.large("bob", LARGE_SIZE_BYTES), limits.large("cid", LARGE_SIZE_BYTES))
            async with limits.large("ana", 1000), others[0], others[1]:
                with pytest.raises(RestError, match="too many large"):
                    await limits.large("dan", LARGE_SIZE_BYTES).__aenter__()
        async with limits.heavy("ana", HEAVY_VALUES):
            with pytest.raises(RestError, match="too many large"):
                await limits.heavy("bob", HEAVY_VALUES).__aenter__()
            async with limits.heavy("bob", HEAVY_VALUES - 1):
                pass
        assert limits._large.n_leases == limits._heavy.n_leases == 0

    asyncio.run(work())
