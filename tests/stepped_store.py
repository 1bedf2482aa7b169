"""An S3 server with a simulated clock, which advances only while all clients wait. So waiting times are exact.

A read takes 20 ms of the simulated clock, a write 60 ms. When all threads of the clients sleep, the clock advances to
the time of the next answer. So the measured time of a statement does not depend on how busy the machine is: a statement
of 160 ms has waited for two writes and two reads, one after the other.

Clients are the threads of this process, and those of the processes that are listed in `watch`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import ClassVar, NamedTuple
from xml.sax.saxutils import escape

WRITE_MILLIS = 60
READ_MILLIS = 20
#: How many times in succession all clients must be seen asleep, and the pause between two looks.
LOOKS = 4
PAUSE_SECONDS = 0.002


@dataclass
class Request:
    """A request, with times in milliseconds of the simulated clock."""

    verb: str
    path: str
    began: int
    ended: int = -1
    status: int = 0
    size_bytes: int = 0

    @property
    def is_write(self) -> bool:
        return self.verb in ("PUT", "DELETE")


class _Parsed(NamedTuple):
    verb: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class _Pending:
    request: Request
    parsed: _Parsed
    due: int
    answer: asyncio.Future[bytes]


@dataclass(repr=False)
class Trace:
    """Requests of a statement, in order.

    Attributes:
        millis: duration by the simulated clock.
    """

    requests: list[Request] = field(default_factory=list)
    began: int = 0
    millis: int = 0

    @property
    def put_rounds(self) -> float:
        """The duration in multiples of the time of a write."""
        return self.millis / WRITE_MILLIS

    @property
    def counts(self) -> Counter[str]:
        return Counter(request.verb for request in self.requests)

    def fetched(self, suffix: str = "") -> Counter[str]:
        """How many times each file whose name ends with the suffix was read, completely or in part."""
        return Counter(one.path for one in self.requests if one.verb in ("GET", "RANGE") and one.path.endswith(suffix))

    def asked(self, *verbs: str) -> list[str]:
        """The paths of the requests with one of these verbs."""
        return [one.path for one in self.requests if one.verb in verbs]

    def __repr__(self) -> str:
        lines = [f"{self.millis} ms, {self.put_rounds:.2f} writes, {dict(self.counts)}"]
        for one in self.requests:
            times = f"{one.began - self.began:5d} to {one.ended - self.began if one.ended >= 0 else '…':>5}"
            lines.append(f"  {times}  {one.verb:6} {one.status:3} {one.size_bytes:7d}  {one.path}")
        return "\n".join(lines)


class SteppedStore:
    """The server. `running` starts it."""

    #: Threads of all such servers in this process; they are not clients.
    _threads: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.now = 0
        self.watch: list[int] = [os.getpid()]
        self._requests: list[Request] = []
        self._pending: list[_Pending] = []
        self._arrivals = 0
        self._loop = asyncio.new_event_loop()
        self._is_running = True
        self._ready = threading.Event()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": "id",
            "secret_access_key": "secret",
            "max_retries": "0",
        }

    @contextmanager
    def trace(self) -> Iterator[Trace]:
        """A `Trace` of the requests within the block, complete when the block ends."""
        self.settle()
        trace = Trace()
        start = len(self._requests)
        began = self.now
        yield trace
        trace.began, trace.millis = began, self.now - began
        self.settle()
        trace.requests = [one for one in self._requests[start:]]

    def settle(self) -> None:
        """Wait until no request is open, also those that a statement sent in the background."""
        while True:
            arrivals = self._arrivals
            if self._asleep(but=threading.get_native_id()) and not self._pending and arrivals == self._arrivals:
                return

    def _serve(self) -> None:
        self._threads.add(threading.get_native_id())
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        connections = asyncio.all_tasks(self._loop)
        for connection in connections:
            connection.cancel()
        self._loop.run_until_complete(asyncio.gather(*connections, return_exceptions=True))
        self._loop.close()

    def _tick(self) -> None:
        """Advance the clock whenever all clients sleep."""
        self._threads.add(threading.get_native_id())
        while self._is_running:
            arrivals = self._arrivals
            if not self._pending:
                time.sleep(PAUSE_SECONDS)
            elif self._asleep() and arrivals == self._arrivals:
                done = threading.Event()
                self._loop.call_soon_threadsafe(self._answer_next, done)
                done.wait()
            else:
                time.sleep(PAUSE_SECONDS / 4)  # a client is running, and needs the processor

    def _asleep(self, but: int = 0) -> bool:
        for look in range(LOOKS):
            if look:
                time.sleep(PAUSE_SECONDS)
            if any(_is_busy(process, self._threads | {but}) for process in self.watch):
                return False
        return True

    def _answer_next(self, done: threading.Event) -> None:
        if self._pending:
            self.now = min(one.due for one in self._pending)
            due = [one for one in self._pending if one.due == self.now]
            self._pending = [one for one in self._pending if one.due != self.now]
            for one in due:
                one.request.ended = self.now
                one.answer.set_result(self._answer(one.request, one.parsed))
        self._loop.call_soon(done.set)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (parsed := await _read(reader)) is not None:
                verb = parsed.verb
                if verb == "GET":
                    verb = "LIST" if not parsed.key else "RANGE" if "range" in parsed.headers else "GET"
                request = Request(verb, parsed.key or parsed.query.get("prefix", ""), self.now)
                request.size_bytes = len(parsed.body)
                millis = WRITE_MILLIS if request.is_write else READ_MILLIS
                pending = _Pending(request, parsed, self.now + millis, self._loop.create_future())
                self._requests.append(request)
                self._pending.append(pending)
                self._arrivals += 1
                writer.write(await pending.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, request: Request, parsed: _Parsed) -> bytes:
        status, headers, body = self._result(parsed)
        request.status = status
        if request.verb in ("GET", "RANGE"):
            request.size_bytes = len(body)
        headers.setdefault("Content-Length", str(len(body)))
        headers["Date"] = formatdate(usegmt=True)  # the time of this machine, like the dates of files
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {status} -\r\n{head}\r\n".encode() + (b"" if parsed.verb == "HEAD" else body)

    def _result(self, parsed: _Parsed) -> tuple[int, dict[str, str], bytes]:
        key = (parsed.bucket, parsed.key)
        if parsed.verb == "PUT":
            if parsed.headers.get("if-none-match") == "*" and key in self.objects:
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = parsed.body
            return 200, {"ETag": _tag(parsed.body)}, b""
        if parsed.verb == "DELETE":
            self.objects.pop(key, None)
            return 204, {}, b""
        if not parsed.key:
            return 200, {"Content-Type": "application/xml"}, self._listing(parsed.bucket, parsed.query)
        if (data := self.objects.get(key)) is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"ETag": _tag(data), "Last-Modified": formatdate(usegmt=True)}
        if parsed.verb == "HEAD":
            return 200, headers | {"Content-Length": str(len(data))}, b""
        if (wanted := parsed.headers.get("range")) is None:
            return 200, headers, data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1 if first and last else len(data), len(data))
        if start >= len(data):
            return 416, {}, b"<Error><Code>InvalidRange</Code></Error>"
        return 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    def _listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        keys = sorted(key for at, key in self.objects if at == bucket and key.startswith(prefix) and key > after)
        entries, folders = [], dict[str, None]()
        for key in keys:
            rest, delimiter, _ = key[len(prefix) :].partition("/")
            if delimiter and query.get("delimiter") == "/":
                folders[f"{prefix}{rest}/"] = None
                continue
            data = self.objects[bucket, key]
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{_tag(data)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        entries += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>".encode()


@contextmanager
def running() -> Iterator[SteppedStore]:
    """Run a store on a free port of loopback."""
    store = SteppedStore()
    threads = [threading.Thread(target=one, daemon=True) for one in (store._serve, store._tick)]
    for thread in threads:
        thread.start()
    store._ready.wait()
    try:
        yield store
    finally:
        store._is_running = False
        threads[1].join()
        store._loop.call_soon_threadsafe(store._loop.stop)
        threads[0].join()


async def _read(reader: asyncio.StreamReader) -> _Parsed | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    verb, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
    return _Parsed(verb, bucket, key, dict(urllib.parse.parse_qsl(query)), headers, body)


def _tag(data: bytes) -> str:
    return f'"{hash(data) & 0xFFFFFFFFFFFF:012x}"'


def _is_busy(process: int, but: set[int]) -> bool:
    """Whether a thread of a process runs, or waits for a processor or a disk.

    It is called some thousand times a second, so it uses only system calls.
    """
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:
        return False
    return any(_state(process, task) in b"RD" for task in tasks if int(task) not in but)


def _state(process: int, task: str) -> bytes:
    """The state of a thread as a letter of `/proc`; `S` if the thread has ended."""
    try:
        file = os.open(f"/proc/{process}/task/{task}/stat", os.O_RDONLY)
    except OSError:
        return b"S"
    try:
        # The name of the program precedes the state, in parentheses, and can contain any characters.
        return os.read(file, 1024).rpartition(b")")[2].split(None, 1)[0]
    except (OSError, IndexError):
        return b"S"
    finally:
        os.close(file)
