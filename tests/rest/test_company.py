"""Requests that commit in company: several by one call of the core, and none of them the concern of another."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client, running, wait_for
from rest.shop import with_tables
from trinitylake import _core
from trinitylake.lakehouse.commit_steps import MAY_WAIT, CommitPause, Steps, run_alone
from trinitylake.rest.errors import RestError
from trinitylake.rest.http import company as company_module
from trinitylake.rest.http.company import Company
from trinitylake.rest.http.threads import Threads
from trinitylake.tables.table_turns import turns

NAMES = [f"shop.t{number}" for number in range(8)]
named: ContextVar[str] = ContextVar("named", default="nobody")


def set_property(client: Client, table: str, value: str, **more: Any) -> Any:
    updates = [{"action": "set-properties", "updates": {"value": value}}]
    namespace, name = table.split(".")
    return client("POST", f"/v1/namespaces/{namespace}/tables/{name}", {"updates": updates, **more})


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    """Eight tables, on a disk that is waited for."""
    return with_tables(tl.create(str(tmp_path / "shop"), durability="fsync"), *NAMES)


class Gate:
    """In the place of the line of a company: holds all commits up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[int] = []
        self.has_begun, self._is_open = threading.Event(), threading.Event()
        self._line = _core.CommitLine()
        self._kept: list[Any] = []
        self._answers: list[Any] = []
        monkeypatch.setattr(_core, "CommitLine", lambda: self)

    def hold(self) -> None:
        pass

    def add(self, company: list[Any]) -> None:
        if company:
            self.calls.append(len(company))
            self._kept += company
            self.has_begun.set()

    def take(self, waits: bool) -> list[Any]:
        if not self._is_open.is_set():
            time.sleep(0.001)
            return []
        answers, self._answers = self._answers, []
        return answers or self._line.take(waits)

    def wake(self) -> None:
        self._line.wake()

    def open(self) -> None:
        """Who came first is committed, then all others together."""
        self._line.add(self._kept[:1])
        while not self._answers:
            self._answers = self._line.take(True)
        self._line.add(self._kept[1:])
        self._is_open.set()


def test_those_who_come_while_one_waits_for_the_disk_are_one_version(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen clients made thirteen versions of sixteen commits, each on a thread that woke up 35 times."""
    gate, before = Gate(monkeypatch), shop.version
    with running(shop) as server, ThreadPoolExecutor(8) as threads:
        client = Client(server)
        first = threads.submit(set_property, client, NAMES[0], "first")
        assert gate.has_begun.wait(30)
        others = [threads.submit(set_property, client, name, "other") for name in NAMES[1:]]
        wait_for(lambda: sum(gate.calls) == 8)
        gate.open()
        assert [one.result().code for one in [first, *others]] == [200] * 8
    assert shop.version == before + 2
    assert {shop.table(name).properties["value"] for name in NAMES[1:]} == {"other"}
    assert len(shop.log(limit=1)[0].transactions) == 7


def test_what_fails_in_a_company_is_told_to_its_client_alone(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose requirement failed, and one without a table, came between two that were fine."""
    gate = Gate(monkeypatch)
    wrong = {"requirements": [{"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}]}
    with running(shop) as server, ThreadPoolExecutor(8) as threads:
        client = Client(server)
        first = threads.submit(set_property, client, NAMES[0], "first")
        assert gate.has_begun.wait(30)
        asked = [
            threads.submit(set_property, client, NAMES[1], "fine"),
            threads.submit(set_property, client, NAMES[2], "wrong", **wrong),
            threads.submit(set_property, client, "shop.missing", "wrong"),
            threads.submit(set_property, client, NAMES[3], "fine"),
        ]
        wait_for(lambda: sum(gate.calls) == 3 and sum(one.done() for one in asked) == 2)
        gate.open()
        assert [one.result().code for one in [first, *asked]] == [200, 200, 409, 404, 200]
    assert "value" not in shop.table(NAMES[2]).properties


def test_a_core_that_raises_is_told_to_all_and_the_next_are_answered(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody had thought of ended the thread, and each later commit waited for ever. Another one left the
    line held, and who was in it waited until somebody else came.
    """

    class Line(Gate):
        is_held = False

        def hold(self) -> None:
            self.is_held = True
            self._line.hold()

        def add(self, company: list[Any]) -> None:
            if company and not self.calls:
                self.calls.append(1)
                raise tl.StorageError("out of order")
            self._line.add(company)
            self.is_held = False

    line = Line(monkeypatch)
    line._is_open.set()
    with running(shop) as server:
        client = Client(server)
        assert set_property(client, NAMES[0], "lost").code in (500, 503)
        assert not line.is_held
        assert set_property(client, NAMES[0], "there").code == 200
    assert shop.table(NAMES[0]).properties["value"] == "there"


def test_a_line_without_a_thread_is_told_as_any_other_want_of_threads(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was committed, and the answer was 500, which clients take for a commit whose outcome nobody knows."""

    class Line(Gate):
        def add(self, company: list[Any]) -> None:
            if company:
                raise OSError("cannot start a thread for commits")

    Line(monkeypatch)._is_open.set()
    with running(shop) as server:
        answer = set_property(Client(server), NAMES[0], "lost")
    assert (answer.code, answer.error) == (503, "ServiceUnavailableException")
    assert "value" not in shop.table(NAMES[0]).properties


def test_who_has_to_wait_for_the_turn_of_a_table_holds_nobody_up(shop: tl.Lakehouse) -> None:
    """Another program had the turn of a table, and commits to all others waited for it, thirty seconds."""
    with running(shop) as server, ThreadPoolExecutor(2) as threads:
        client = Client(server)
        with turns.taken([shop.table(NAMES[0]).id]):
            slow = threads.submit(set_property, client, NAMES[0], "slow")
            wait_for(lambda: server._app._threads._pool._work_queue.qsize() == 0 and not slow.done())
            began = time.monotonic()
            assert [set_property(client, name, "quick").code for name in NAMES[1:]] == [200] * 7
            assert not slow.done()
        assert slow.result().code == 200
        assert time.monotonic() - began < 25
        assert set_property(client, NAMES[0], "again").code == 200  # its turn was given back


def test_many_commits_to_one_table_all_land(shop: tl.Lakehouse) -> None:
    def set_own(number: int) -> int:
        updates = [{"action": "set-properties", "updates": {f"value.{number}": "there"}}]
        return client("POST", "/v1/namespaces/shop/tables/t0", {"updates": updates}).code

    with running(shop) as server, ThreadPoolExecutor(16) as threads:
        client = Client(server)
        codes = list(threads.map(set_own, range(48)))
    assert codes == [200] * 48
    properties = shop.table(NAMES[0]).properties
    assert [properties.get(f"value.{number}") for number in range(48)] == ["there"] * 48


def test_each_request_sees_what_was_committed_before_it_came(shop: tl.Lakehouse) -> None:
    """One look for the newest version serves all requests that have come by then, and none that came later."""
    with running(shop) as server:
        client = Client(server)
        for number in range(5):
            shop.create_table(f"shop.new{number}", {"id": "long"})
            assert set_property(client, f"shop.new{number}", "there").code == 200
            shop.drop_table(f"shop.new{number}")
            assert set_property(client, f"shop.new{number}", "gone").code == 404


def in_a_company(run: Callable[[Company], Any]) -> Any:
    """The outcome of a coroutine that is given a company of its own."""

    async def all_of_it() -> Any:
        threads = Threads(4)
        company = Company(threads)
        try:
            return await run(company)
        finally:
            company.end()
            threads.end()

    return asyncio.run(all_of_it())


def test_each_request_keeps_its_context_wherever_it_goes_on() -> None:
    """Spans of one request were those of another that was run by the same thread."""

    def steps(name: str) -> Steps[list[str]]:
        found = [named.get()]
        named.set(name)
        yield MAY_WAIT
        found.append(named.get())
        yield MAY_WAIT
        return [*found, named.get()]

    async def run(company: Company) -> list[list[str]]:
        named.set("the loop")
        return await asyncio.gather(*(company.run(steps(f"request {number}")) for number in range(8)))

    assert in_a_company(run) == [["the loop", f"request {n}", f"request {n}"] for n in range(8)]


def test_who_is_cancelled_before_the_first_step_never_begins() -> None:
    """A request that was answered with "send it again" since the server ends was committed a moment later."""
    goes_on, has_begun, done = threading.Event(), threading.Event(), []

    def first() -> Steps[None]:
        has_begun.set()
        goes_on.wait(10)
        yield MAY_WAIT
        done.append("first")

    def later(name: str) -> Steps[None]:
        done.append(name)
        yield MAY_WAIT

    async def run(company: Company) -> None:
        tasks = [asyncio.create_task(company.run(first())), asyncio.create_task(company.run(later("second")))]
        while not has_begun.is_set():
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in answers)
        goes_on.set()
        await company.run(later("third"))

    in_a_company(run)
    assert done == ["first", "third"]


def test_who_waits_in_the_line_is_not_held_up_for_long(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client sent many requests that were refused in their first step, so that some were always waiting. The line was
    held for those, again and again, and let go for no longer than its thread needs to wake up: a commit of another
    client took up to 1.8 seconds in the place of 0.2.
    """

    class Line(Gate):
        """One whose thread needs a hundredth of a second to wake up."""

        goes_on_at: float | None = 0.0

        def hold(self) -> None:
            self.goes_on_at = None

        def add(self, company: list[Any]) -> None:
            self._kept += company
            if self.goes_on_at is None:
                self.goes_on_at = time.monotonic() + 0.01

        def take(self, waits: bool) -> list[Any]:
            if self.goes_on_at is None or time.monotonic() < self.goes_on_at:
                return []
            company, self._kept = self._kept, []
            self._line.add(company)
            return self._line.take(bool(company))

    n_refused, line = 0, Line(monkeypatch)

    async def run(company: Company) -> int:
        loop, all_that_came = asyncio.get_running_loop(), []

        def come() -> None:
            all_that_came.append(asyncio.ensure_future(company.run(refused())))

        def refused() -> Steps[None]:
            nonlocal n_refused
            n_refused += 1
            time.sleep(0.001)
            if n_refused < 500 and not is_done.is_set():
                loop.call_soon_threadsafe(come)
            yield from ()

        def commits() -> Steps[int]:
            transaction = shop.begin()
            transaction.create_namespace("quick")
            return (yield from transaction.commit_steps())

        for _ in range(24):
            come()
        is_done = threading.Event()
        await company.run(commits())
        found = n_refused
        is_done.set()
        while not all(one.done() for one in all_that_came):
            await asyncio.sleep(0.01)
        return found

    assert in_a_company(run) < 250
    assert not line._kept
    assert shop.exists("quick")


def test_errors_of_steps_arrive_as_they_are() -> None:
    def fails_after(n_pauses: int, error: str) -> Steps[None]:
        for _ in range(n_pauses):
            yield MAY_WAIT
        raise KeyError(error)

    async def run(company: Company) -> list[object]:
        failing = company.run(fails_after(0, "at once")), company.run(fails_after(1, "later"))
        return await asyncio.gather(*failing, return_exceptions=True)

    assert list(map(repr, in_a_company(run))) == ["KeyError('at once')", "KeyError('later')"]


def test_steps_that_end_after_the_server_are_run_to_their_end(shop: tl.Lakehouse) -> None:
    """A commit that went on elsewhere while its server ended kept the turn of its table for ever."""
    goes_on, done = threading.Event(), threading.Event()

    def steps() -> Steps[int]:
        try:
            yield MAY_WAIT
            goes_on.wait(10)
            transaction = shop.begin()
            transaction.create_namespace("late")
            return (yield from transaction.commit_steps())
        finally:
            done.set()

    async def run(company: Company) -> None:
        task = asyncio.create_task(company.run(steps()))
        await asyncio.sleep(0.05)
        task.cancel()

    in_a_company(run)
    goes_on.set()
    assert done.wait(10)
    wait_for(lambda: shop.exists("late"))


def test_a_company_whose_program_ends_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits at its end for the thread that runs commits, which had something to do as long as clients sent any.
    A program that did not end its server went on for half a minute beside sixteen of them.
    """
    monkeypatch.setattr(company_module, "_LOOK_SECONDS", 0.05)
    n_begun = 0

    async def client(company: Company) -> None:
        def steps() -> Steps[None]:
            nonlocal n_begun
            n_begun += 1
            time.sleep(0.001)
            yield from ()

        while n_begun < 2000:
            await company.run(steps())

    async def run(company: Company) -> list[object]:
        clients = [asyncio.ensure_future(client(company)) for _ in range(24)]
        while n_begun < 50:
            await asyncio.sleep(0.001)
        company._pool.shutdown(wait=False)  # as Python does
        return list(await asyncio.gather(*clients, return_exceptions=True))

    refused = in_a_company(run)
    assert {type(one) for one in refused} == {RestError}
    assert n_begun < 1000


def test_steps_that_are_run_alone_commit_with_the_limits_that_are_given() -> None:
    asked: list[Any] = []

    class Core:
        def commit(self, *given: Any) -> int:
            asked.append(given)
            if len(asked) == 1:
                raise tl.CommitConflict("too late")
            return 7

    def steps() -> Steps[int]:
        yield MAY_WAIT
        try:
            yield CommitPause(Core(), [("a", b"b")])  # type: ignore[arg-type]
        except tl.CommitConflict:
            version = yield CommitPause(Core(), [])  # type: ignore[arg-type]
        result: int = version
        return result

    assert run_alone(steps(), 3, 1.5, "queue") == 7
    assert asked == [(3, 1.5, "queue", [("a", b"b")]), (3, 1.5, "queue", [])]


def begun(shop: tl.Lakehouse, name: str) -> tuple[str, Any, list[Any]]:
    """A transaction as it comes into a line."""
    transaction = shop.begin()
    transaction.create_namespace(name)
    return name, transaction.state(), []


def all_of(line: _core.CommitLine, n_answers: int) -> dict[str, Any]:
    answers: list[tuple[str, Any]] = []
    while len(answers) < n_answers:
        answers += line.take(True)
    return dict(answers)


def test_those_who_come_while_a_line_is_held_are_one_version(shop: tl.Lakehouse) -> None:
    line, before = _core.CommitLine(), shop.version
    for number in range(3):
        line.hold()
        if number:
            time.sleep(0.02)
            assert shop.version == before + number
        line.add([begun(shop, f"{number}.{name}".replace(".", "_")) for name in range(4)])
        versions = all_of(line, 4)
        assert set(versions.values()) == {before + number + 1}
    line.hold()
    held = [begun(shop, f"held_{number}") for number in range(3)]
    late = begun(shop, "late")
    line.add(held)
    all_of(line, 3)
    line.add([late])
    assert all_of(line, 1) == {"late": shop.version}


def test_a_transaction_is_committed_once(shop: tl.Lakehouse) -> None:
    """The core waited for itself. Others in the line were held for ever."""
    line = _core.CommitLine()
    twice, other = begun(shop, "twice"), begun(shop, "other")
    line.hold()
    with pytest.raises(tl.InvalidArgument, match="only once"):
        line.add([twice, twice])
    line.add([other])
    assert all_of(line, 1) == {"other": shop.version}
    assert not shop.exists("twice")
    line.add([twice])
    assert all_of(line, 1) == {"twice": shop.version}


def test_a_line_in_which_nobody_waits_is_not_waited_for(shop: tl.Lakehouse) -> None:
    line = _core.CommitLine()
    assert line.take(True) == []
    line.add([])
    assert line.take(True) == []
    line.add([begun(shop, "one")])
    line.wake()
    assert all_of(line, 1) == {"one": shop.version}


def test_what_waits_in_a_line_that_nobody_has_any_more_is_committed(shop: tl.Lakehouse) -> None:
    line = _core.CommitLine()
    line.add([begun(shop, "before")])
    line.hold()
    del line
    wait_for(lambda: shop.exists("before"))


def test_a_child_has_a_line_of_its_own(shop: tl.Lakehouse) -> None:
    """The thread of a line is not there in a child: who came into the line waited for ever."""
    line = _core.CommitLine()
    line.add([begun(shop, "parent")])
    all_of(line, 1)
    line.hold()
    if (child := os.fork()) == 0:
        line.add([begun(shop, "child")])
        os._exit(0 if all_of(line, 1) == {"child": shop.version} else 1)
    wait_for(lambda: os.waitpid(child, os.WNOHANG) != (0, 0))
    assert shop.exists("child")
    line.add([begun(shop, "afterwards")])
    assert all_of(line, 1) == {"afterwards": shop.version}
