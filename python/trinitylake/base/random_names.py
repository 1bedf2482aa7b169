"""Random names, for what nobody else may give a name to again.

The system is asked for many at a time. To ask it gives up Python's lock, and where many threads wait for that, a thread
that gives it up waits for all the others.
"""

from __future__ import annotations

import os

_SIZE_BYTES = 16
_NAMES = 256


class _Bytes:
    """Random bytes of the system, none given out twice. Safe to share between threads; a forked child has its own."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._left: list[bytes] = []

    def take(self) -> bytes:
        """Sixteen of them."""
        while True:
            try:
                return self._left.pop()  # nobody else is given these: a list gives each of its items out once
            except IndexError:
                many = os.urandom(_SIZE_BYTES * _NAMES)
                self._left = [many[start : start + _SIZE_BYTES] for start in range(0, len(many), _SIZE_BYTES)]


_bytes = _Bytes()


def random_hex() -> str:
    """Thirty-two hexadecimal digits."""
    return _bytes.take().hex()


def random_uuid_text() -> str:
    """A UUID of version 4 as text, of which nobody makes the same again."""
    taken = _bytes.take()
    digits = taken.hex()
    variant = "89ab"[taken[8] & 3]  # RFC 9562, after the version
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
