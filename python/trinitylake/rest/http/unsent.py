"""Answers that wait in memory until their clients take them, and what is done about clients that do not.

Whoever asks and never reads would have the server keep each answer for as long as they like. So the bytes that wait are
counted, in all and for each principal, and a connection of which nothing is taken for a time is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

#: Of answers that wait, in all, and for one principal. One that is larger waits alone.
MAX_UNSENT_SIZE_BYTES = 256 << 20
MAX_UNSENT_OF_ONE_SIZE_BYTES = 128 << 20
#: What is given to the transport at a time: it keeps about as much again, so a connection has 128 KiB uncounted,
#: and 192 KiB with TLS.
PIECE_SIZE_BYTES = 64 << 10
#: For which a client who has all that it was sent may leave the end of TLS without an answer.
GOODBYE_SECONDS = 0.5
#: How often in that time he must be found to have it: room in the system may be such that was made just now.
GOODBYE_LOOKS = 10

logger = logging.getLogger("trinitylake.rest")


class _Texts:
    """Texts in memory. One that several clients wait for is there once."""

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        self.size_bytes = 0

    def add(self, text: bytes) -> None:
        if not self._users[id(text)]:
            self.size_bytes += len(text)
        self._users[id(text)] += 1

    def remove(self, text: bytes) -> None:
        self._users[id(text)] -= 1
        if not self._users[id(text)]:
            del self._users[id(text)]
            self.size_bytes -= len(text)


class UnsentAnswers:
    """The answers of one server that wait, with their budgets. For one event loop."""

    def __init__(self) -> None:
        self._all = _Texts()
        self._of_each: dict[str, _Texts] = {}
        #: Those with an answer that waits, and whose it is; who took something last is last.
        self._waiting: dict[Outgoing, str] = {}

    @property
    def size_bytes(self) -> int:
        """Of all that waits."""
        return self._all.size_bytes

    def add(self, connection: Outgoing, who: str, text: bytes) -> None:
        """An answer waits. Where it is one too many, those that have waited for longest are cut off."""
        self._all.add(text)
        self._of_each.setdefault(who, _Texts()).add(text)
        self._waiting.pop(connection, None)
        self._waiting[connection] = who
        while self._of_each[who].size_bytes > MAX_UNSENT_OF_ONE_SIZE_BYTES and self._cut_one_off(connection, who):
            pass
        while self._all.size_bytes > MAX_UNSENT_SIZE_BYTES and self._cut_one_off(connection):
            pass

    def remove(self, who: str, text: bytes) -> None:
        """It waits no longer."""
        self._all.remove(text)
        texts = self._of_each[who]
        texts.remove(text)
        if not texts.size_bytes:
            del self._of_each[who]

    def progressed(self, connection: Outgoing) -> None:
        """Its client has taken something."""
        if (who := self._waiting.pop(connection, None)) is not None:
            self._waiting[connection] = who

    def forget(self, connection: Outgoing) -> None:
        """Nothing of it waits."""
        self._waiting.pop(connection, None)

    def _cut_one_off(self, kept: Outgoing, who: str | None = None) -> bool:
        """Cut off one connection, but not that which came: of a principal, or of whoever has most.

        It is the one that has waited for longest. Returns whether there was one.
        """
        others = [one for one, owner in self._waiting.items() if one is not kept and who in (None, owner)]
        if not others:
            return False
        found = max(others, key=lambda one: self._of_each[self._waiting[one]].size_bytes)  # the first, if some are even
        found.cut_off("too many answers wait for their clients")
        return True


class Outgoing(asyncio.Transport):
    """A transport that is given large answers piece by piece, as their client takes them.

    Args:
        transport: the connection.
        unsent: what is kept here counts there.
        who: whose answer comes next, for whom it counts; "" for a stranger's.
        timeout_seconds: for which a client may take nothing; it is cut off within twice that.
    """

    def __init__(
        self, transport: asyncio.Transport, unsent: UnsentAnswers, who: Callable[[], str], timeout_seconds: float
    ) -> None:
        super().__init__()
        self._transport = transport
        self._unsent = unsent
        self._who = who
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._small: list[bytes | bytearray | memoryview] = []
        self._small_size_bytes = 0
        self._offset = 0
        self._is_paused = self._is_closing = False
        self._given_size_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._goodbye: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether there is something here that the transport was not given."""
        return bool(self._waiting)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or self.is_closing():
            return
        if len(data) <= PIECE_SIZE_BYTES and not self._waiting:
            self._gather(data)
            return
        self._give_small()
        text = bytes(data)  # the same object, if it is bytes
        who = self._who()
        self._waiting.append((who, text))
        self._unsent.add(self, who, text)
        self._go_on()
        self._watch()

    def _gather(self, data: bytes | bytearray | memoryview) -> None:
        """Give it away with what follows at once: the head of an answer and its body are one packet, and one call."""
        if self._small_size_bytes + len(data) > PIECE_SIZE_BYTES:
            self._give_small()
        if not self._small:
            asyncio.get_running_loop().call_soon(self._give_small)
        self._small.append(data)
        self._small_size_bytes += len(data)

    def _give_small(self) -> None:
        data = b"".join(self._small)
        self._small.clear()
        self._small_size_bytes = 0
        if data and not self._transport.is_closing():
            self._give(data)
            self._watch()

    def _watch(self) -> None:
        """Look after a while whether anything was taken, if something waits."""
        if self._timer is None and (self._waiting or self._transport.get_write_buffer_size()):
            self._look_later(self._taken_size_bytes)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def pause(self) -> None:
        """The transport has enough."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._is_paused = False
        self._go_on()

    def close(self) -> None:
        """Close as soon as all was given away."""
        self._give_small()
        self._is_closing = True
        if self._waiting:
            self._transport.pause_reading()
        else:
            self._close()

    def abort(self) -> None:
        self._is_closing = True
        self.end()
        self._transport.abort()

    def cut_off(self, reason: str) -> None:
        """End a connection whose client does not take its answer."""
        logger.warning("a connection of %s is cut off: %s", self._who() or "a stranger", reason)
        self.abort()

    def _close(self) -> None:
        self._transport.close()
        # With TLS that is a question, for whose answer asyncio waits 30 seconds: an idle client does not hear it.
        if self._goodbye is None and not self._has_ended and self._transport.get_extra_info("sslcontext") is not None:
            self._wait_for_goodbye(GOODBYE_LOOKS)

    def _wait_for_goodbye(self, looks: int) -> None:
        pause = GOODBYE_SECONDS / GOODBYE_LOOKS
        self._goodbye = asyncio.get_running_loop().call_later(pause, self._look_for_goodbye, looks)

    def _look_for_goodbye(self, looks: int) -> None:
        if self._transport.get_write_buffer_size() or not _has_room(self._transport):
            self._wait_for_goodbye(GOODBYE_LOOKS)
        elif looks > 1:
            self._wait_for_goodbye(looks - 1)
        else:
            self._transport.abort()

    def end(self) -> None:
        """Nothing more can be sent."""
        self._has_ended = True
        if self._goodbye is not None:
            self._goodbye.cancel()
        while self._waiting:
            self._unsent.remove(*self._waiting.popleft())
        self._small.clear()
        self._small_size_bytes = self._offset = 0
        self._unsent.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        waiting = self._small_size_bytes + sum(len(text) for _, text in self._waiting)
        return self._transport.get_write_buffer_size() + waiting - self._offset

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """Give away pieces as long as the transport takes them."""
        while self._waiting and not self._is_paused and not self._transport.is_closing():
            _, text = self._waiting[0]
            piece = text[self._offset : self._offset + PIECE_SIZE_BYTES]
            self._offset += len(piece)
            if self._offset == len(text):
                self._unsent.remove(*self._waiting.popleft())
                self._offset = 0
            self._unsent.progressed(self)
            self._give(piece)
        if not self._waiting:
            self._unsent.forget(self)
            if self._is_closing:
                self._close()

    def _give(self, data: bytes | bytearray | memoryview) -> None:
        self._given_size_bytes += len(data)
        self._transport.write(data)

    @property
    def _taken_size_bytes(self) -> int:
        return self._given_size_bytes - self._transport.get_write_buffer_size()

    def _look_later(self, taken_size_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_seconds, self._look, taken_size_bytes)

    def _look(self, taken_before_size_bytes: int) -> None:
        self._timer = None
        taken = self._taken_size_bytes
        if not self._waiting and not self._transport.get_write_buffer_size():
            return
        if taken == taken_before_size_bytes:
            self.cut_off(f"nothing of an answer was taken in {self._timeout_seconds:g} seconds")
        else:
            self._look_later(taken)


def _has_room(transport: asyncio.Transport) -> bool:
    """Whether the system takes more: then it mostly has all that was given, of which TLS tells a part."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(socket.fileno(), selectors.EVENT_WRITE)
        return bool(selector.select(0))
