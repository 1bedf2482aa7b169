"""An S3 server in memory with a delay for each request, which records the times of requests to count dependent rounds.

It implements the requests of the core's client, and does not verify signatures.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: Typical durations of requests to Amazon S3 in its own region.
WRITE_SECONDS, READ_SECONDS = 0.060, 0.020
#: Time between two bytes of a slow answer, so short that no read timeout is reached.
DRIP_SECONDS = 0.1


@dataclass
class Request:
    """A request, with the times of its arrival and answer by `time.monotonic`."""

    verb: str
    key: str
    begin: float
    end: float = 0.0


def _no_fault(key: str) -> str:
    return ""


@dataclass
class SlowS3:
    """The server of the bucket `slow`, with its files and all requests so far."""

    write_seconds: float = WRITE_SECONDS
    read_seconds: float = READ_SECONDS
    files: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)  # parts of keys that cannot be written
    dripping: set[str] = field(default_factory=set)  # parts of paths whose answers come a byte at a time
    #: Called with the key of each write: "refuse" it, let it "fail", "lose" its reply, or "" for none of these.
    on_put: Callable[[str], str] = _no_fault
    in_headers: bool = False  # and those of which the headers already do
    lock: threading.Lock = field(default_factory=threading.Lock)
    gathering: threading.Barrier | None = None
    port: int = 0

    def uri(self, name: str) -> str:
        """The root of a lakehouse."""
        return f"s3://slow/{name}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options for this server."""
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": "key",
            "secret_access_key": "secret-of-nobody",
            "region": "us-east-1",
        }

    @property
    def pyiceberg_properties(self) -> dict[str, str]:
        """The storage options under PyIceberg's names."""
        return {
            "s3.endpoint": self.options["endpoint"],
            "s3.region": self.options["region"],
            "s3.access-key-id": self.options["access_key_id"],
            "s3.secret-access-key": self.options["secret_access_key"],
        }

    @contextmanager
    def answering_together(self, files: int) -> Iterator[None]:
        """Answer requests for files other than roots in groups of `files`, after all requests of a group have arrived.

        Raises `AssertionError` if the client sends one request after the other, because then the group never becomes
        full.
        """
        self.gathering = threading.Barrier(files, timeout=60)
        try:
            yield
            assert not self.gathering.broken, f"files were not sent {files} at a time"
        finally:
            self.gathering = None

    @contextmanager
    def watched(self) -> Iterator[list[Request]]:
        """A list that contains the requests that ended within the block, after the block."""
        before = len(self.requests)
        requests: list[Request] = []
        yield requests
        with self.lock:
            requests += self.requests[before:]


def rounds(requests: list[Request], *verbs: str) -> int:
    """The number of dependent requests: the longest chain in which each began after the answer to the previous one."""
    chain, end = 0, float("-inf")
    for one in sorted((one for one in requests if one.verb in verbs), key=lambda one: one.end):
        if one.begin >= end:
            chain, end = chain + 1, one.end
    return chain


@contextmanager
def slow_s3(write_seconds: float = WRITE_SECONDS, read_seconds: float = READ_SECONDS) -> Iterator[SlowS3]:
    """Run a server on a free port."""
    s3 = SlowS3(write_seconds, read_seconds)
    handler = type("Handler", (_Handler,), {"s3": s3})
    server = _Server(("127.0.0.1", 0), handler)
    s3.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that was killed
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    s3: SlowS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self._timed("put", self.s3.write_seconds) as key:
            with self.s3.lock:
                fault = self.s3.on_put(key)
                is_taken = key in self.s3.files and self.headers.get("If-None-Match") == "*"
                is_denied = fault == "refuse" or any(part in key for part in self.s3.denied)
                if not is_taken and not is_denied and fault != "fail":
                    self.s3.files[key] = (body, time.time())
            self._gather(key)
            self._wait(self.s3.write_seconds / 2)
        if fault == "lose":
            self.close_connection = True
        elif fault == "fail":
            self._answer(500, _error("InternalError"))
        elif is_denied:
            self._answer(403, _error("AccessDenied"))
        else:
            self._answer(412, _error("PreconditionFailed")) if is_taken else self._answer(200, etag=key)

    def do_DELETE(self) -> None:
        with self._timed("delete", self.s3.write_seconds) as key:
            with self.s3.lock:
                self.s3.files.pop(key, None)
            self._wait(self.s3.write_seconds / 2)
        self._answer(204)

    def do_HEAD(self) -> None:
        self._read("head")

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" not in query:
            self._read("get")
            return
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("start-after", [""])[0]
        with self._timed("list", self.s3.read_seconds):
            with self.s3.lock:
                found = sorted(
                    (key, *one) for key, one in self.s3.files.items() if key.startswith(prefix) and key > after
                )
            self._wait(self.s3.read_seconds / 2)
        if delimiter:
            found = [one for one in found if delimiter not in one[0][len(prefix) :]]
        self._answer(200, _listing(found))

    def _read(self, verb: str) -> None:
        with self._timed(verb, self.s3.read_seconds) as key:
            with self.s3.lock:
                found = self.s3.files.get(key)
            self._wait(self.s3.read_seconds / 2)
        if found is None:
            self._answer(404, _error("NoSuchKey"))
            return
        data, modified = found
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, data, etag=key, modified=modified)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        content_range = f"bytes {begin}-{end}/{len(data)}"
        self._answer(206, data[begin : end + 1], etag=key, modified=modified, content_range=content_range)

    @contextmanager
    def _timed(self, verb: str, seconds: float) -> Iterator[str]:
        key = unquote(urlsplit(self.path).path).removeprefix("/slow").lstrip("/")
        request = Request(verb, key, time.monotonic())
        self._wait(seconds / 2)
        yield key
        request.end = time.monotonic()
        with self.s3.lock:
            self.s3.requests.append(request)

    def _gather(self, key: str) -> None:
        if self.s3.gathering is not None and not key.rsplit("/", 1)[-1].startswith("_"):
            with suppress(threading.BrokenBarrierError):
                self.s3.gathering.wait()

    @staticmethod
    def _wait(seconds: float) -> None:
        time.sleep(seconds)

    def _answer(
        self, status: int, body: bytes = b"", *, etag: str = "", modified: float | None = None, content_range: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if etag:
            self.send_header("ETag", f'"{abs(hash(etag)):x}"')
        if modified is not None:
            self.send_header("Last-Modified", formatdate(modified, usegmt=True))
        if content_range:
            self.send_header("Content-Range", content_range)
        is_dripping = any(part in self.path for part in self.s3.dripping)
        if is_dripping and self.s3.in_headers:
            self.flush_headers()
            self._drip(b"X-Padding: " + b"x" * 100_000)
            return
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_dripping:
            self._drip(body)
        else:
            self.wfile.write(body)

    def _drip(self, data: bytes) -> None:
        with suppress(OSError):  # the client has disconnected
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(DRIP_SECONDS)


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _listing(found: list[tuple[str, bytes, float]]) -> bytes:
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>x</ETag><LastModified>"
        f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(modified))}</LastModified></Contents>"
        for key, data, modified in found
    )
    rows = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>{rows}"
    return f"<ListBucketResult>{rows}</ListBucketResult>".encode()
