"""Answers that nobody takes weigh only so much, and not for ever.

One principal opened a hundred connections, sent a small commit to a table with 10 MB of metadata on each, and read
none of the answers: the server grew by 1.3 GB and kept it for as long as they liked. No timer ran, nothing counted
what lay in the buffers of connections, and a thousand were allowed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import trinitylake as tl
from rest.client import TOKEN, Client, running, wait_for
from rest.shop import with_tables
from trinitylake.rest import RestServer, serve
from trinitylake.rest.http import unsent
from trinitylake.rest.http.protocol import BoundedProtocol
from trinitylake.rest.http.unsent import PIECE_SIZE_BYTES, Outgoing, UnsentAnswers

MIB = 1 << 20
PATH = "/v1/namespaces/shop/tables/orders"


class Peer(asyncio.Transport):
    """A transport whose peer takes nothing unless it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0
        self.outgoing: Outgoing
        self.is_closed = self.is_aborted = False
        self.received = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.size_bytes += len(data)
        self.received += bytes(data)
        if self.size_bytes > PIECE_SIZE_BYTES:
            self.outgoing.pause()

    def take(self) -> None:
        """All that is there."""
        self.size_bytes = 0
        self.outgoing.resume()

    def get_write_buffer_size(self) -> int:
        return self.size_bytes

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None: ...


def peer(answers: UnsentAnswers, who: str, seconds: float = 3600.0) -> Peer:
    """A connection of a principal."""
    made = Peer()
    made.outgoing = Outgoing(made, answers, lambda: who, seconds)
    return made


def in_a_loop(work: Callable[[], object]) -> None:
    """Timers need one."""

    async def run() -> None:
        work()

    asyncio.run(run())


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten MiB in all, four of one principal."""
    monkeypatch.setattr(unsent, "MAX_UNSENT_SIZE_BYTES", 10 * MIB)
    monkeypatch.setattr(unsent, "MAX_UNSENT_OF_ONE_SIZE_BYTES", 4 * MIB)


@pytest.mark.usefixtures("budget")
def test_answers_that_one_principal_does_not_take_have_a_budget_and_the_oldest_go() -> None:
    def work() -> None:
        answers = UnsentAnswers()
        other = peer(answers, "ana")
        other.outgoing.write(bytes(MIB))
        peers = [peer(answers, "bob") for _ in range(100)]
        for number, one in enumerate(peers):
            one.outgoing.write(bytes(MIB) + str(number).encode())
            assert answers.size_bytes <= 5 * MIB
        assert [one.is_aborted for one in peers] == [True] * 97 + [False] * 3
        assert not other.is_aborted, "somebody else is cut off"

    in_a_loop(work)


@pytest.mark.usefixtures("budget")
def test_many_principals_share_a_budget_and_who_takes_most_gives_way() -> None:
    def work() -> None:
        answers = UnsentAnswers()
        small = peer(answers, "small")
        small.outgoing.write(bytes(MIB))
        large = [peer(answers, f"who{number}") for number in range(50)]
        for number, one in enumerate(large):
            one.outgoing.write(bytes(3 * MIB) + str(number).encode())
            assert answers.size_bytes <= 10 * MIB
        assert not small.is_aborted
        assert not large[-1].is_aborted

    in_a_loop(work)


@pytest.mark.usefixtures("budget")
def test_an_answer_larger_than_the_budget_waits_alone() -> None:
    def work() -> None:
        answers = UnsentAnswers()
        one = peer(answers, "bob")
        one.outgoing.write(bytes(30 * MIB))
        while one.size_bytes:
            one.take()
        assert len(one.received) == 30 * MIB
        assert not one.is_aborted
        assert answers.size_bytes == 0

    in_a_loop(work)


@pytest.mark.usefixtures("budget")
def test_one_text_that_many_wait_for_counts_once() -> None:
    """It is in memory once: the metadata of one table, for all executors of a job."""

    def work() -> None:
        answers, text = UnsentAnswers(), bytes(MIB)
        peers = [peer(answers, "bob") for _ in range(100)]
        for one in peers:
            one.outgoing.write(text)
        assert answers.size_bytes == MIB
        assert not any(one.is_aborted for one in peers)
        for one in peers:
            one.outgoing.abort()
        assert answers.size_bytes == 0

    in_a_loop(work)


def test_what_waits_comes_in_order_and_the_connection_closes_after_it() -> None:
    def work() -> None:
        one = peer(UnsentAnswers(), "bob")
        parts = [b"a" * 3 * PIECE_SIZE_BYTES, b"b", b"c" * PIECE_SIZE_BYTES * 2]
        for part in parts:
            one.outgoing.write(part)
        one.outgoing.close()
        assert len(one.received) < 3 * PIECE_SIZE_BYTES, "all of it lies in a buffer that nobody counts"
        assert not one.is_closed
        while one.size_bytes:
            one.take()
        assert one.received == b"".join(parts)
        assert one.is_closed

    in_a_loop(work)


def test_who_takes_a_little_from_time_to_time_is_not_cut_off() -> None:
    async def work() -> None:
        slow, silent = (peer(UnsentAnswers(), who, seconds=0.05) for who in ("slow", "silent"))
        for one in (slow, silent):
            one.outgoing.write(bytes(MIB))
        for _ in range(1000):
            slow.size_bytes -= 1
            await asyncio.sleep(0.005)
            if silent.is_aborted:
                break
        assert silent.is_aborted
        assert not slow.is_aborted

    asyncio.run(work())


def test_who_does_not_take_a_small_answer_is_cut_off_too() -> None:
    async def work() -> None:
        silent = peer(UnsentAnswers(), "silent", seconds=0.05)
        silent.outgoing.write(b"head ")
        silent.outgoing.write(b"body")
        for _ in range(1000):
            await asyncio.sleep(0.005)
            if silent.is_aborted:
                break
        assert silent.is_aborted

    asyncio.run(work())


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A table whose metadata has three MiB."""
    with_tables(lake, "shop.orders")
    lake.table("shop.orders").set_properties({"comment": "x" * 3 * MIB})
    return lake


@pytest.fixture
def server(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestServer]:
    """One that soon gives up on who takes nothing."""
    monkeypatch.setattr(BoundedProtocol, "untaken_seconds", 0.5)
    with running(shop, token=TOKEN) as server:
        yield server


def asking(server: RestServer, ask: bytes) -> socket.socket:
    """A connection with a small buffer that has asked and does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(ask)
    return connection


def get() -> bytes:
    return f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


def post(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def until_cut_off(server: RestServer) -> None:
    """Until no connection is left."""
    deadline = time.monotonic() + 30
    while server._server.server_state.connections:
        assert time.monotonic() < deadline, "the server keeps the connection"
        time.sleep(0.02)


@pytest.mark.parametrize("ask", [get(), get() * 5], ids=["one", "several"])
def test_a_client_that_takes_nothing_is_cut_off(server: RestServer, ask: bytes) -> None:
    with asking(server, ask):
        until_cut_off(server)
        assert Client(server)("GET", PATH).code == 200


def test_commits_whose_answers_nobody_reads_keep_no_memory(server: RestServer) -> None:
    answers = type(next_connection(server)).unsent
    connections = [
        asking(server, post({"updates": [{"action": "set-properties", "updates": {"n": str(number)}}]}))
        for number in range(8)
    ]
    most = 0
    deadline = time.monotonic() + 30
    while server._server.server_state.connections and time.monotonic() < deadline:
        most = max(most, answers.size_bytes)
        time.sleep(0.01)
    assert most > MIB, "nothing was counted"
    assert answers.size_bytes == 0
    for connection in connections:
        connection.close()


def next_connection(server: RestServer) -> BoundedProtocol:
    """The server's side of a connection, which is closed then."""
    with asking(server, b""):
        while not (found := [*server._server.server_state.connections]):
            time.sleep(0.01)
    assert isinstance(found[0], BoundedProtocol)
    return found[0]


def test_what_is_written_in_one_go_is_one_packet() -> None:
    """The head of an answer and its body were two system calls, and their client was woken twice."""

    async def run() -> None:
        one = peer(UnsentAnswers(), "ana")
        given: list[bytes] = []
        one.write = given.append  # type: ignore[method-assign]
        one.outgoing.write(b"head ")
        one.outgoing.write(b"body")
        assert given == []
        assert one.outgoing.get_write_buffer_size() == 9
        await asyncio.sleep(0)
        assert given == [b"head body"]
        one.outgoing.write(b"x" * (unsent.PIECE_SIZE_BYTES - 1))
        one.outgoing.write(b"yz")
        assert given[1:] == [b"x" * (unsent.PIECE_SIZE_BYTES - 1)], "no more than a piece is gathered"
        one.outgoing.write(b"w" * (unsent.PIECE_SIZE_BYTES + 1))
        assert b"".join(given[2:]) == b"yz" + b"w" * (unsent.PIECE_SIZE_BYTES + 1), "in order"

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["close", "abort"])
def test_what_was_written_is_sent_before_the_connection_closes_and_not_after_it_broke(ends: str) -> None:
    async def run() -> None:
        one = peer(UnsentAnswers(), "ana")
        given: list[bytes] = []
        one.write = given.append  # type: ignore[method-assign]
        one.outgoing.write(b"the last answer")
        getattr(one.outgoing, ends)()
        assert given == ([b"the last answer"] if ends == "close" else [])
        await asyncio.sleep(0)
        assert len(given) == (ends == "close")

    asyncio.run(run())


def test_an_answer_with_tls_is_whole_though_its_client_took_some_of_it_just_now(
    tls: tuple[dict[str, Path], ssl.SSLContext],
) -> None:
    """A server that waited for no goodbye took room in the system for a sign that all had been sent. Of a client who
    made that room in the same turn of a busy loop, before the loop had written the rest there, it cut off the end."""
    files, trusting = tls
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(files["certificate_file"], files["key_file"])
    made: list[Outgoing] = []

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            assert isinstance(transport, asyncio.Transport)
            made.append(Outgoing(transport, UnsentAnswers(), lambda: "ana", 60))
            made[0].write(bytes(MIB))
            made[0].close()

        def pause_writing(self) -> None:
            made[0].pause()

        def resume_writing(self) -> None:
            made[0].resume()

        def connection_lost(self, exc: Exception | None) -> None:
            made[0].end()

    def connected(port: int) -> ssl.SSLSocket:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", port))
        return trusting.wrap_socket(raw, server_hostname="localhost")

    async def run() -> int:
        loop, aside = asyncio.get_running_loop(), asyncio.to_thread
        server = await loop.create_server(Answering, "127.0.0.1", 0, ssl=own)
        client = await aside(connected, server.sockets[0].getsockname()[1])
        with client:
            size_bytes = 0
            while not made or made[0]._goodbye is None or made[0].get_write_buffer_size():
                size_bytes += len(await aside(client.recv, 1 << 14))
            goodbye = made[0]._goodbye
            assert isinstance(goodbye, asyncio.TimerHandle)
            taken: list[bytes] = []

            def take() -> None:
                while not unsent._has_room(made[0]._transport):
                    taken.append(client.recv(1 << 14))

            # In one turn: a loop that was busy hears both the client and the end of its patience.
            loop.call_at(goodbye.when() - 0.001, take)
            time.sleep(max(goodbye.when() - loop.time(), 0) + 0.01)
            await asyncio.sleep(0.1)
            assert taken
            with suppress(ssl.SSLEOFError, ConnectionResetError):
                while data := await aside(client.recv, 1 << 16):
                    taken.append(data)
        server.close()
        return size_bytes + sum(map(len, taken))

    assert asyncio.run(run()) == MIB


def test_a_connection_with_tls_keeps_no_more_uncounted_than_others(
    lake: tl.Lakehouse, tls: tuple[dict[str, Path], ssl.SSLContext]
) -> None:
    """Asyncio gives a connection with TLS eight times the room: of a thousand whose clients took nothing, each kept a
    MiB that counted for nobody."""
    files, context = tls
    with_tables(lake, "shop.orders")
    lake.table("shop.orders").set_properties({f"p{n}": "v" * 1000 for n in range(8000)})
    server = serve(lake, **files).start()
    try:
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        with context.wrap_socket(raw, server_hostname="localhost") as connection:
            connection.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wait_for(lambda: bool(server._server.server_state.connections))
            (served,) = server._server.server_state.connections
            assert isinstance(served, BoundedProtocol)
            wait_for(lambda: served._outgoing.is_waiting)
            uncounted = []
            for _ in range(50):
                time.sleep(0.01)
                uncounted.append(served._outgoing._transport.get_write_buffer_size())
            assert PIECE_SIZE_BYTES < max(uncounted) < 3 * PIECE_SIZE_BYTES
    finally:
        server.stop()
