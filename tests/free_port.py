"""Free ports for servers that another process starts later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port on loopback that the system assigns neither to connections nor to other servers."""
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are in use")
