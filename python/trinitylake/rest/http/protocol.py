"""HTTP on a connection, with limits for clients that send their headers slowly or without end."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS_SIZE_BYTES = 64 << 10
HEADERS_TIMEOUT_SECONDS = 15.0
#: For which a connection may be idle. Longer than most clients and proxies keep theirs, so that they close it: a
#: request that meets a server which has just closed is reset, and its client cannot tell whether it was heard.
KEEP_ALIVE_SECONDS = 75


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol; a connection on which a request does not get past its headers in time is closed."""

    headers_timeout_seconds: ClassVar[float] = HEADERS_TIMEOUT_SECONDS
    _timer: asyncio.TimerHandle | None = None
    _pending_size_bytes = 0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers and not self.transport.is_closing():
            self._pending_size_bytes += len(data)
            if self._pending_size_bytes > MAX_HEADERS_SIZE_BYTES:
                self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
                self.transport.close()

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._in_headers = True
        self._timer = self.loop.call_later(self.headers_timeout_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        self._in_headers = False
        self._pending_size_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
