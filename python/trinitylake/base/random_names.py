"""Random names, for what nobody else may give a name to again.

The system is asked for many at a time. To ask it gives up Python's lock, and where many threads wait for that, a thread
that gives it up waits for all the others.
"""

from __future__ import annotations

import os
import threading
import uuid

_SIZE_BYTES = 16
_NAMES = 256


class _Bytes:
    """Random bytes of the system, none given out twice. Safe to share between threads; a forked child has its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = b""
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._left = b""

    def take(self) -> bytes:
        """Sixteen of them."""
        with self._lock:
            if not self._left:
                self._left = os.urandom(_SIZE_BYTES * _NAMES)
            taken, self._left = self._left[:_SIZE_BYTES], self._left[_SIZE_BYTES:]
        return taken


_bytes = _Bytes()


def random_hex() -> str:
    """Thirty-two hexadecimal digits."""
    return _bytes.take().hex()


def random_uuid() -> uuid.UUID:
    """A UUID of version 4, of which nobody makes the same again."""
    return uuid.UUID(bytes=_bytes.take(), version=4)
