"""A store with the latency of a remote one, in its own process: a PUT takes 60 ms, any other request 20 ms."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tests.stepped_store import READ_MILLIS, WRITE_MILLIS, Request, SteppedStore, _read


class _TimedStore(SteppedStore):
    """Answers each request after its time on the clock of the machine."""

    def run(self, control: Connection) -> None:
        """Serve until the other end of `control` is closed; a message is answered with the requests since the last."""
        threading.Thread(target=self._serve, daemon=True).start()
        self._ready.wait()
        control.send(self.port)
        while True:
            try:
                control.recv()
            except EOFError:
                return
            done, self._requests = self._requests, []
            control.send(Counter(_kind(request) for request in done))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (parsed := await _read(reader)) is not None:
                request = Request(parsed.verb, parsed.key, 0)
                self._requests.append(request)
                await asyncio.sleep((WRITE_MILLIS if request.is_write else READ_MILLIS) / 1000)
                writer.write(self._answer(request, parsed))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def _kind(request: Request) -> str:
    """The verb, for a PUT with the suffix of the file."""
    return f"PUT {request.path.rpartition('.')[2]}" if request.verb == "PUT" else request.verb


def _run(control: Connection) -> None:
    _TimedStore().run(control)


class RemoteStore:
    """The store as its clients see it."""

    def __init__(self, port: int, control: Connection) -> None:
        self.storage_options = {
            "endpoint": f"http://127.0.0.1:{port}",
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": "id",
            "secret_access_key": "secret",
        }
        self._control = control

    def requests(self) -> Counter[str]:
        """The number of requests of each verb since the last call."""
        self._control.send("requests")
        counts: Counter[str] = self._control.recv()
        return counts


@contextmanager
def running() -> Iterator[RemoteStore]:
    """A new, empty store."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield RemoteStore(ours.recv(), ours)
    finally:
        ours.close()
        process.join(10)
