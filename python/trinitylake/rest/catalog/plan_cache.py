"""Cache of the parts of scan plans that clients have not fetched yet."""

from __future__ import annotations

import threading
from collections import OrderedDict

PLANS_MAX_SIZE_BYTES = 32 << 20
#: Memory of a plan and of each part, in addition to the bytes of the parts.
_PLAN_SIZE_BYTES, _PART_SIZE_BYTES = 1024, 128


class PlanCache:
    """LRU cache of the parts of plans that clients have not fetched yet, compressed. Thread-safe.

    A part that was evicted is planned again.
    """

    def __init__(self, max_size_bytes: int = PLANS_MAX_SIZE_BYTES) -> None:
        self._plans: OrderedDict[tuple[str, ...], dict[int, bytes]] = OrderedDict()
        self._size_bytes = 0
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def put(self, key: tuple[str, ...], parts: dict[int, bytes]) -> None:
        """Add the parts of a plan, by the number of their first file."""
        size_bytes = _size_bytes_of(parts)
        if size_bytes > self._max_size_bytes // 2:
            return
        with self._lock:
            self._size_bytes += size_bytes - _size_bytes_of(self._plans.pop(key, None))
            self._plans[key] = parts
            while self._size_bytes > self._max_size_bytes:
                _, evicted = self._plans.popitem(last=False)
                self._size_bytes -= _size_bytes_of(evicted)

    def get(self, key: tuple[str, ...], start: int) -> tuple[bytes, int | None] | None:
        """A part of a plan, and the number of the next part, if any; None if the part is not cached."""
        with self._lock:
            parts = self._plans.get(key, {})
            if (part := parts.get(start)) is None:
                return None
            self._plans.move_to_end(key)
            return part, min((one for one in parts if one > start), default=None)


def _size_bytes_of(parts: dict[int, bytes] | None) -> int:
    return 0 if parts is None else _PLAN_SIZE_BYTES + sum(_PART_SIZE_BYTES + len(part) for part in parts.values())
