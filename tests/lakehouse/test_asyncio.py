"""`lake.aio`: the same methods for asyncio, and the effects of cancelled tasks."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

import trinitylake as tl
from waiting import PATIENCE_SECONDS


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint", "price": "double"}).append({"id": [1, 2], "price": [1.5, 2.5]})
    return lake


def rows(lake: tl.Lakehouse, name: str = "shop.orders") -> list[int]:
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def test_a_chain_of_calls_is_awaited_once(shop: tl.Lakehouse) -> None:
    async def main() -> None:
        found = await shop.aio.table("shop.orders").scan("id > 1").to_arrow()
        assert found.to_pylist() == [{"id": 2, "price": 2.5}]
        assert await shop.aio.tables() == ["shop.orders"]
        assert await shop.aio.version == shop.version
        assert (await shop.aio.table("shop.orders").schema).names == ("id", "price")
        assert await shop.aio.at(2).table("shop.orders").scan().count() == 0
        await shop.aio.create_namespace("more")
        assert await shop.aio.exists("more")

    asyncio.run(main())


def test_async_handles_can_be_reused_for_other_calls(shop: tl.Lakehouse) -> None:
    async def main() -> None:
        table = await shop.aio.table("shop.orders")
        await table.append({"id": [3], "price": [0.0]}, message="third")
        scan = await table.scan("id = 3")
        assert await scan.count() == 1
        query = await shop.aio.sql("SELECT count(*) AS n FROM shop.orders")
        assert await query.columns == ["n"]
        assert await query.fetchone() == (3,)
        assert (await shop.aio.log(1))[0].message == "third"
        async with table.update_schema(message="a note") as update:
            update.add_column("note", StringType())
        assert (await table.schema).names == ("id", "price", "note")

    asyncio.run(main())
    assert shop.log(1)[0].message == "a note"


def test_async_iteration_reads_in_steps(shop: tl.Lakehouse) -> None:
    """Each step of an async iteration waits in a thread, so other tasks run between the steps."""

    async def main() -> list[int]:
        found = []
        async for batch in shop.aio.sql("SELECT id FROM shop.orders ORDER BY id").to_arrow_batch_reader():
            found += batch.column("id").to_pylist()
        async for one in shop.aio.changes(0):
            found.append(one.version)
        return found

    assert asyncio.run(main())[:3] == [1, 2, 1]


def test_async_calls_raise_the_errors_of_the_sync_ones(shop: tl.Lakehouse) -> None:
    async def main() -> None:
        with pytest.raises(tl.ObjectNotFound):
            await shop.aio.table("shop.nothing").scan().to_arrow()
        with pytest.raises(tl.InvalidName):
            await shop.aio.table(7)
        with pytest.raises(AttributeError):
            await shop.aio.no_such_method()

    asyncio.run(main())


def test_a_transaction_commits_at_the_end_of_its_block(shop: tl.Lakehouse) -> None:
    async def main() -> int:
        async with shop.aio.transaction(message="both") as txn:
            await txn.create_table("shop.items", {"id": "bigint"}).append({"id": [7]})
            await txn.table("shop.orders").append({"id": [3], "price": [0.0]})
            assert await txn.sql("SELECT count(*) FROM shop.orders").fetchone() == (3,)
            assert not await shop.aio.exists("shop.items")
        outcome = await shop.aio.transactions.outcome(txn.id)
        assert outcome.status == "committed"
        return int(outcome.version)

    assert asyncio.run(main()) == shop.version
    assert shop.log(1)[0].message == "both"
    assert rows(shop) == [1, 2, 3]
    assert rows(shop, "shop.items") == [7]


def test_an_exception_rolls_back(shop: tl.Lakehouse) -> None:
    async def failing() -> None:
        async with shop.aio.transaction() as txn:
            await txn.table("shop.orders").append({"id": [3], "price": [0.0]})
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await failing()
        begun = await shop.aio.begin()
        await begun.table("shop.orders").append({"id": [4], "price": [0.0]})
        await begun.rollback()

    asyncio.run(main())
    assert rows(shop) == [1, 2]


def test_concurrent_statements_of_a_transaction_run_one_after_the_other(shop: tl.Lakehouse) -> None:
    """Concurrent statements of a transaction run one after the other. A transaction is not thread-safe, and concurrent
    tasks use it from several threads."""
    inside: list[int] = []

    def slowly(number: int) -> Iterator[pa.RecordBatch]:
        inside.append(number)
        time.sleep(0.02)
        assert inside[-1] == number, "another statement began meanwhile"
        yield pa.record_batch({"id": [number], "price": [0.0]})

    async def main() -> None:
        async with shop.aio.transaction() as txn:
            await asyncio.gather(*(txn.table("shop.orders").append(slowly(one)) for one in range(10, 18)))

    asyncio.run(main())
    assert rows(shop) == [1, 2, *range(10, 18)]


def test_many_tasks_commit_concurrently(shop: tl.Lakehouse) -> None:
    async def one(number: int) -> None:
        async with shop.aio.transaction() as txn:
            await txn.create_namespace(f"n{number}")

    async def main() -> None:
        await asyncio.gather(*map(one, range(40)))

    asyncio.run(main())
    assert len(shop.namespaces()) == 41


def test_an_async_iterable_is_appended_as_it_comes(shop: tl.Lakehouse) -> None:
    async def arriving() -> AsyncIterator[pa.RecordBatch]:
        for number in range(10, 14):
            await asyncio.sleep(0.001)
            yield pa.record_batch({"id": [number], "price": [0.0]})

    async def main() -> None:
        await shop.aio.table("shop.orders").append(arriving())

    asyncio.run(main())
    assert rows(shop) == [1, 2, 10, 11, 12, 13]


def test_cancelled_statement_rolls_its_transaction_back(shop: tl.Lakehouse) -> None:
    """A cancelled statement rolls its transaction back. Its thread cannot be stopped, so the rollback at the end of the
    block waits for the statement."""
    begun, may_end = threading.Event(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        begun.set()
        may_end.wait(PATIENCE_SECONDS)
        yield pa.record_batch({"id": [9], "price": [0.0]})

    async def work() -> None:
        async with shop.aio.transaction() as txn:
            await txn.table("shop.orders").append(slowly())

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done(), "the rollback waits for the statement"
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert rows(shop) == [1, 2]


def test_outcome_of_a_cancelled_commit_is_found_by_its_id(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    commit = tl.Transaction.commit

    def slow(self: tl.Transaction, **options: Any) -> int:
        begun.set()
        may_end.wait(PATIENCE_SECONDS)
        return commit(self, **options)

    monkeypatch.setattr(tl.Transaction, "commit", slow)
    ids: list[str] = []

    async def work() -> None:
        async with shop.aio.transaction() as txn:
            ids.append(txn.id)
            await txn.table("shop.orders").append({"id": [9], "price": [0.0]})

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await shop.aio.transactions.outcome(ids[0])).status != "committed"
        may_end.set()
        while (await shop.aio.transactions.outcome(ids[0])).status != "committed":
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert rows(shop) == [1, 2, 9]


def test_rows_of_a_cancelled_task_are_not_appended(shop: tl.Lakehouse) -> None:
    """If a task is cancelled, nothing of its async iterable is appended. Otherwise the first half of the rows would
    look complete."""

    async def main() -> None:
        reached = asyncio.Event()

        async def arriving() -> AsyncIterator[pa.RecordBatch]:
            for number in range(10, 1000):
                if number == 20:
                    reached.set()
                await asyncio.sleep(0.001)
                yield pa.record_batch({"id": [number], "price": [0.0]})

        async def work() -> None:
            await shop.aio.table("shop.orders").append(arriving())

        task = asyncio.create_task(work())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)

    asyncio.run(main())
    assert rows(shop) == [1, 2]


def test_a_call_that_is_not_awaited_warns(shop: tl.Lakehouse) -> None:
    """`lake.aio.create_namespace("a")` without `await`, which has no effect, gives a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shop.aio.create_namespace("forgotten")

        async def main() -> None:
            await shop.aio.table("shop.orders").scan().count()

        asyncio.run(main())
    assert [one.category for one in caught] == [RuntimeWarning]
    assert "never awaited" in str(caught[0].message)
    assert not shop.exists("forgotten")


def test_the_library_imports_asyncio_when_it_is_used() -> None:
    import subprocess
    import sys

    script = "import sys, trinitylake as tl\ntl.create('memory://a').version\nprint('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
