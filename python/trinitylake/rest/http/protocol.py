"""HTTP on a connection, with limits for clients that send slowly or without end, or do not take what they asked for.

Two rules hold whatever a client sends. As long as the server works on no request, a timer runs that the client cannot
start again without a whole request. And of what is neither body nor the end of anything, only so much may come at a
time, be it headers, trailers, or decoration of chunks. Two more hold for answers that are not taken (`unsent.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from trinitylake.rest.http.unsent import PIECE_SIZE_BYTES, Outgoing, UnsentAnswers
from trinitylake.rest.security.guard import PRINCIPAL
from trinitylake.rest.security.principals import Principal

MAX_HEADERS_SIZE_BYTES = 64 << 10
HEADERS_TIMEOUT_SECONDS = 15.0
#: Where it is left, in the scope of a request, that all of it has come.
IS_WHOLE = "trinitylake.is_whole"
#: And that its client sends no more. It may wait for its answer, or have gone away: both look the same.
SENDS_NO_MORE = "trinitylake.sends_no_more"
#: For which a connection may be idle. Longer than most clients and proxies keep theirs, so that they close it: a
#: request that meets a server which has just closed is reset, and its client cannot tell whether it was heard.
KEEP_ALIVE_SECONDS = 75
#: For which a client may take nothing of an answer.
UNTAKEN_SECONDS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol; a connection on which a request does not get past its headers in time is closed.

    So is one on which the rest of a request that has been answered already does not come in time, and one whose client
    takes nothing of an answer for a time. Each server has a subclass of its own, with its budget for answers.
    """

    headers_timeout_seconds: ClassVar[float] = HEADERS_TIMEOUT_SECONDS
    untaken_seconds: ClassVar[float] = UNTAKEN_SECONDS
    unsent: ClassVar[UnsentAnswers]
    is_ending: ClassVar[bool] = False
    _outgoing: Outgoing
    _cycles: deque[RequestResponseCycle]
    _timer: asyncio.TimerHandle | None = None
    _pending_size_bytes = 0
    _in_headers = True
    _has_ended_one = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._cycles = deque()
        transport.set_write_buffer_limits(PIECE_SIZE_BYTES)  # one with TLS keeps eight times as much by default
        self._outgoing = Outgoing(transport, self.unsent, self._who, self.untaken_seconds)
        super().connection_made(self._outgoing)
        self._wait_for_headers()
        if self.is_ending:  # it was not there yet when the others were told
            self.shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: for the answers to what has come. With TLS asyncio ends it in any case."""
        if self._is_idle or self.cycle.more_body or self.scheme == "https":
            self.transport.close()  # when all was given away that waits here
            return self.scheme != "https"
        for cycle in self._cycles:
            cycle.scope[SENDS_NO_MORE] = True  # type: ignore[literal-required]
        self.cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._outgoing.end()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        # Where no request ended in what has just come, all of it is of this one.
        size_bytes = 0 if self._has_ended_one else self._pending_size_bytes
        super().on_message_begin()
        self._stop_waiting()
        self._in_headers = True  # mostly they come in one piece; for the others `data_received` starts the timer
        self._pending_size_bytes = size_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        # One after the body is a trailer: nobody reads those, and the guard has looked at the headers before.
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        self._forget_answered()

    def pause_writing(self) -> None:
        self._outgoing.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._outgoing.resume()
        if not self._outgoing.is_waiting:
            super().resume_writing()

    def on_body(self, body: bytes) -> None:
        self._pending_size_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_size_bytes = 0
        self._has_ended_one = True
        if not self._is_idle:
            self.cycle.scope[IS_WHOLE] = True  # type: ignore[literal-required]
        super().on_message_complete()
        if self._is_idle:  # it was answered before it ended
            self._stop_waiting()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def data_received(self, data: bytes) -> None:
        self._has_ended_one = False
        self._pending_size_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._pending_size_bytes > MAX_HEADERS_SIZE_BYTES:
            if self._is_idle:
                self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
            self.transport.close()
        elif self._timer is None and (self._in_headers or (self._is_idle and self.timeout_keep_alive_task is None)):
            self._start_timer()

    def _who(self) -> str:
        """Whose answer is being sent; "" for a stranger's."""
        self._forget_answered()
        principal = self._cycles[0].scope.get(PRINCIPAL) if self._cycles else None
        return principal.name if isinstance(principal, Principal) else ""

    def _forget_answered(self) -> None:
        """Of requests that were answered whole only the last counts, whose answer may be on its way yet."""
        while len(self._cycles) > 1 and self._cycles[0].response_complete:
            self._cycles.popleft()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is at work, nor one that waits for its turn."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._in_headers = True
        self._start_timer()

    def _start_timer(self) -> None:
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


def protocol_of_one_server() -> type[BoundedProtocol]:
    """The protocol of all connections of one server, which share a budget for answers that wait."""

    class OfOneServer(BoundedProtocol):
        unsent = UnsentAnswers()

    return OfOneServer
