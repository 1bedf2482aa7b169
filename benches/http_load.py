"""HTTP client with several busy connections, in its own process: `python -m benches.http_load`.

It reads a JSON document from standard input: `port`; `requests`, for each connection a list of requests (method, path
and body); and `repeats`. It writes a JSON document with the total duration in seconds, and with the median and the 99th
percentile of a request.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop


class _Connection(asyncio.Protocol):
    """Connection that sends the next request when the previous one is answered."""

    def __init__(self, requests: list[bytes], repeats: int) -> None:
        self.seconds: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests * repeats
        self._received = b""
        self._missing_size_bytes = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests[len(self.seconds)])

    def data_received(self, data: bytes) -> None:
        # The client shares the processors with the server, so it reads only the length of a body.
        if self._missing_size_bytes:
            self._missing_size_bytes -= len(data)
        else:
            self._received += data
            head_size_bytes = self._received.find(b"\r\n\r\n")
            if head_size_bytes < 0:
                return
            head = self._received[:head_size_bytes].lower()
            if not head.startswith((b"http/1.1 200", b"http/1.1 204")):
                self.done.set_exception(RuntimeError(self._received[:2000].decode()))
                return
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._missing_size_bytes = int(length or 0) + head_size_bytes + 4 - len(self._received)
            self._received = b""
        if self._missing_size_bytes:
            return
        self.seconds.append(time.perf_counter() - self._sent_at)
        if len(self.seconds) == len(self._requests):
            self.done.set_result(None)
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or RuntimeError("the server closed the connection"))


def _bytes(method: str, path: str, body: str) -> bytes:
    length = f"Content-Length: {len(body.encode())}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{body}".encode()


async def _run(task: dict[str, object]) -> dict[str, object]:
    port, repeats, per_connection = task["port"], task["repeats"], task["requests"]
    assert isinstance(port, int)
    assert isinstance(repeats, int)
    assert isinstance(per_connection, list)
    loop = asyncio.get_running_loop()
    prepared = [[_bytes(*request) for request in requests] for requests in per_connection]
    start = time.perf_counter()
    connections = [
        (await loop.create_connection(lambda requests=requests: _Connection(requests, repeats), "127.0.0.1", port))[1]
        for requests in prepared
    ]
    await asyncio.gather(*(connection.done for connection in connections))
    seconds = time.perf_counter() - start
    each = sorted(one for connection in connections for one in connection.seconds)
    return {
        "seconds": seconds,
        "requests": len(each),
        "median": each[len(each) // 2],
        "percentile_99": each[int(len(each) * 0.99)],
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_run(json.load(sys.stdin)))))
