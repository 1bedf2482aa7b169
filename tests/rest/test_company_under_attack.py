"""Requests that commit together on a few threads: what one of them waits for holds up no other."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.definitions import new_table_def, serialize
from trinitylake.iceberg_storage.federated import federated_properties
from trinitylake.iceberg_storage.metadata import cache
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.lakehouse.commit_steps import MAY_WAIT, MAY_WAIT_WITH_TURN, Steps
from trinitylake.rest.errors import RestError
from trinitylake.rest.http.company import Company
from trinitylake.rest.http.threads import Threads, no_thread
from trinitylake.rest.resources import tables
from trinitylake.rest.state.table_responses import TableResponses
from trinitylake.tables.table_turns import Turns

ORDERS, SMALL = "/v1/namespaces/shop/tables/orders", "/v1/namespaces/shop/tables/small"
SNAPSHOT = {
    "snapshot-id": 1,
    "timestamp-ms": 1,
    "manifest-list": "file:///elsewhere/list.avro",
    "summary": {"operation": "append"},
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """On a disk, and empty."""
    return tl.create(str(tmp_path / "lake"), name="served", durability="none")


@pytest.fixture
def http_client(lake: tl.Lakehouse) -> Iterator[Client]:
    """A client of a server over two tables."""
    with_tables(lake, "shop.orders", "shop.small")
    with running(lake) as server:
        yield Client(server)


def change(**properties: str) -> dict[str, Any]:
    """A body that sets properties."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


def test_who_has_a_turn_finds_a_thread_where_all_others_wait_for_that_turn() -> None:
    """Of 96 requests to one table, 64 waited for their turn and had all threads. The one whose turn it was had met a
    commit of another machine and had to redo its change, which takes a thread: it waited behind those that waited for
    it, 30 seconds each time, and 93 of the 96 had no answer in 90 seconds.
    """
    turn, is_waiting = threading.Lock(), threading.Event()
    turn.acquire()

    def waits() -> Steps[bool]:
        yield MAY_WAIT
        is_waiting.set()
        return turn.acquire(timeout=10)

    def redoes() -> Steps[str]:
        yield MAY_WAIT_WITH_TURN
        turn.release()
        return "redone"

    async def run() -> tuple[bool, str]:
        threads = Threads(1)
        company = Company(threads)
        waiter = asyncio.create_task(company.run(waits()))
        await asyncio.to_thread(is_waiting.wait, 10)
        redone = await company.run(redoes())
        has_turn = await waiter
        company.end()
        threads.end()
        return has_turn, redone

    assert asyncio.run(run()) == (True, "redone")


def test_clients_that_change_the_same_property_at_once_all_get_their_turn(http_client: Client) -> None:
    """Who had lost a race began again and then waited for the turn, so that what it saw was old once more: of 8 clients
    that set one property of one table, each 20th request was answered with 409, after ten attempts.
    """

    def work(number: int) -> set[int]:
        return {http_client("POST", ORDERS, change(color=f"{number} {again}")).code for again in range(12)}

    with ThreadPoolExecutor(8) as threads:
        assert set().union(*threads.map(work, range(8))) == {200}


def test_a_turn_that_is_kept_is_free_for_the_transaction_that_has_it_and_for_nobody_else() -> None:
    turns = Turns()

    def is_free() -> bool:
        with turns.taken(["a"], waits=False) as is_taken:
            return is_taken

    with ThreadPoolExecutor(1) as other:
        with turns.kept(["a"]):
            assert is_free()
            assert not other.submit(is_free).result()
        assert other.submit(is_free).result()
        with turns.taken(["a"]):
            assert not other.submit(is_free).result()


def test_a_table_elsewhere_that_does_not_answer_holds_up_no_commit(lake: tl.Lakehouse) -> None:
    """A commit to a federated table is refused with the place where it lives, which only its catalog knows. That was
    asked by the one thread that begins all commits: while the catalog did not answer, no client could commit anything.
    """
    with_tables(lake, "shop.orders")
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as ends:
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        definition = new_table_def(table_type="federated", format_properties=federated_properties(catalog, "a.b"))
        with lake.transaction() as txn:
            txn.state().create("table", "shop", "elsewhere", serialize(definition))
        server = ends.enter_context(running(lake))
        client = Client(server)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(client, "POST", "/v1/namespaces/shop/tables/elsewhere", change(color="red"))
            connection, _ = silent.accept()
            assert client("POST", ORDERS, change(color="red")).code == 200
            assert not asked.done()
            connection.close()
            silent.close()
            assert asked.result().code >= 400


@pytest.mark.parametrize("is_known", [True, False])
def test_a_change_of_a_large_table_has_a_thread_of_its_own(
    http_client: Client, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Each commit to a table with metadata of some megabytes held up all other commits for as long as it computes."""
    names = []

    def noted(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return commit(*arguments)

    large_table(http_client)
    if not is_known:
        cache.clear()
    commit = StagedTable.commit
    monkeypatch.setattr(StagedTable, "commit", noted)
    monkeypatch.setattr(tables, "inert_change", lambda *body: None)  # else the core makes the small one
    assert http_client("POST", ORDERS, change(color="red")).code == 200
    assert http_client("POST", SMALL, change(color="red")).code == 200
    large, small = names
    assert "commits" not in large
    assert "commits" in small


def test_many_changes_of_a_table_have_a_thread_of_their_own(
    http_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred updates are 16 KB, and took 40 ms and more of the thread that runs all commits."""
    names = []

    def noted(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return commit(*arguments)

    commit = StagedTable.commit
    monkeypatch.setattr(StagedTable, "commit", noted)
    for count in (100, 2):
        updates = [{"action": "set-properties", "updates": {"color": str(number)}} for number in range(count)]
        removal = {"action": "remove-properties", "removals": ["write.metadata.metrics.default"]}
        assert http_client("POST", ORDERS, {"updates": [removal, *updates]}).code == 200
    assert ["commits" in name for name in names] == [False, True]


def large_table(client: Client) -> None:
    """The table has metadata that take a while to read."""
    assert client("POST", ORDERS, change(**{f"p{n}": "v" * 1000 for n in range(300)})).code == 200


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that make answers with tables in them."""
    names: list[str] = []

    def noted(answer: Callable[..., Response]) -> Callable[..., Response]:
        def noting(*arguments: Any) -> Response:
            names.append(threading.current_thread().name)
            return answer(*arguments)

        return noting

    for method in ("of_file", "of_metadata"):
        monkeypatch.setattr(TableResponses, method, noted(getattr(TableResponses, method)))
    return names


def test_a_large_answer_is_made_where_nobody_waits_for_it(http_client: Client, answering: list[str]) -> None:
    """A request with a key was answered from the metadata file that it had committed: 13 MB took 90 ms of the one
    thread that runs all commits, each time that the request was sent.
    """
    key = {"Idempotency-Key": str(uuid.uuid4())}
    large_table(http_client)
    answering.clear()
    first = http_client("POST", ORDERS, change(color="red"), headers=key)
    assert [name for name in answering if "commits" in name] == []
    again = http_client("POST", ORDERS, change(color="red"), headers=key)
    assert [name for name in answering if "commits" in name] == []
    assert again.body == first.body
    small = {"Idempotency-Key": str(uuid.uuid4())}
    answering.clear()
    assert http_client("POST", SMALL, change(color="red"), headers=small).code == 200
    assert all("commits" in name for name in answering), "what takes no time needs no thread of its own"


def test_a_commit_that_was_made_is_not_refused_for_want_of_a_thread_for_its_answer(
    http_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send what was refused with 503 again, as a second commit."""
    large_table(http_client)
    start, n_started = Threads.start, []

    def starts_once(threads: Threads, work: Callable[[], None]) -> None:
        n_started.append(1)
        if len(n_started) > 1:
            raise no_thread()
        start(threads, work)

    with monkeypatch.context() as patch:
        patch.setattr(Threads, "start", starts_once)
        assert http_client("POST", ORDERS, change(color="red")).code == 200
    assert len(n_started) == 2
    assert http_client.table(ORDERS)["properties"]["color"] == "red"


def test_where_no_thread_can_be_begun_a_request_is_refused_and_the_next_ones_are_not(
    http_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine allowed no more threads, for a moment: the exception ended the thread that begins all commits, with the
    mark that it was at work. No commit was answered any more, until the server was started again.
    """
    begin = threading.Thread.start
    assert http_client("POST", ORDERS, change(color="red")).code == 200

    def refuses(thread: threading.Thread) -> None:
        if thread.name.startswith("trinitylake-rest"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    nonsense = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": SNAPSHOT}]}
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert http_client("POST", ORDERS, nonsense).code == 503
        assert http_client("POST", ORDERS, change(color="green")).code == 200
    assert http_client("POST", ORDERS, nonsense).code in (400, 403)
    assert http_client("POST", ORDERS, change(color="blue")).code == 200


def test_work_that_was_refused_for_want_of_a_thread_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's pools keep work that they have no thread for, and say that it failed: a commit that was answered with an
    error was made when the next request came.
    """
    done: list[str] = []

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        threads = Threads(1)
        company = Company(threads)

        def steps(what: str) -> Steps[None]:
            yield MAY_WAIT
            done.append(what)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            for refused in (threads.run(done.append, "refused"), company.run(steps("refused"))):
                with pytest.raises(RestError):
                    await refused
        await threads.run(done.append, "taken")
        await company.run(steps("taken"))
        company.end()
        threads.end()

    asyncio.run(run())
    assert done == ["taken", "taken"]


def test_a_request_that_goes_on_after_the_server_has_ended_gives_back_what_it_has() -> None:
    """Its threads had ended with the server, so it stood still for ever, and had the turn of its table: everybody else
    in the process who wrote there waited for 30 seconds.
    """
    given_back = threading.Event()

    async def run() -> None:
        threads = Threads(1)
        company = Company(threads)

        def steps() -> Steps[None]:
            try:
                threads.end()
                company.end()
                yield MAY_WAIT_WITH_TURN
            finally:
                given_back.set()

        with pytest.raises(RestError):
            await asyncio.wait_for(company.run(steps()), 10)

    asyncio.run(run())
    assert given_back.is_set()


@pytest.mark.parametrize("path", [ORDERS.replace("orders", "%FF"), ORDERS.replace("shop", "%FF")])
def test_a_refused_name_is_in_the_audit_log(http_client: Client, caplog: pytest.LogCaptureFixture, path: str) -> None:
    """To say which object a refused write was about its name was decoded once more, so no line was written."""
    with caplog.at_level(logging.INFO, "trinitylake.rest.audit"):
        assert http_client("POST", path, change(a="b")).code == 400
    [names] = [vars(one)["fields"]["names"] for one in caplog.records if one.name == "trinitylake.rest.audit"]
    assert "%FF" in names


def test_a_refused_prefix_is_in_the_audit_log(http_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Whether a request may join others was asked before anything is audited: a write with a prefix that is no UTF-8
    was refused, and the audit log did not tell who had sent it.
    """
    with caplog.at_level(logging.INFO, "trinitylake.rest.audit"):
        assert http_client("POST", "/v1/%FF/namespaces/shop/tables/orders", change(color="red")).code == 400
    assert [record.name for record in caplog.records if "audit" in record.name]
