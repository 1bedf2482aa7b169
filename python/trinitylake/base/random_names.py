"""Random names, for what nobody else may give a name to again.

The system is asked for many at a time. To ask it gives up Python's lock, and where many threads wait for that, a thread
that gives it up waits for all the others.
"""

from __future__ import annotations

import os
import threading

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


def random_uuid_text() -> str:
    """A UUID of version 4 as text, of which nobody makes the same again."""
    taken = bytearray(_bytes.take())
    taken[6] = taken[6] & 0x0F | 0x40  # RFC 9562, version and variant
    taken[8] = taken[8] & 0x3F | 0x80
    digits = taken.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
