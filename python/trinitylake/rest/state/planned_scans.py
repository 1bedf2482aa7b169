"""Parts of scan plans that clients have not fetched yet."""

from __future__ import annotations

import threading
from collections import OrderedDict

PLANS_MAX_SIZE_BYTES = 32 << 20
#: What a plan, and each of its parts, takes besides the bytes of the parts: objects, and the places of them.
_PLAN_SIZE_BYTES, _PART_SIZE_BYTES = 1024, 128


class PlannedScans:
    """The parts of plans that are still to be asked for, compressed, so that they are not planned again.

    The least recently used plan is dropped first; its next part is then planned anew. Safe to share between threads.
    """

    def __init__(self, max_size_bytes: int = PLANS_MAX_SIZE_BYTES) -> None:
        self._plans: OrderedDict[tuple[str, ...], dict[int, bytes]] = OrderedDict()
        self._size_bytes = 0
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def put(self, key: tuple[str, ...], parts: dict[int, bytes]) -> None:
        """Keep the parts of a plan, by the number of their first file."""
        size_bytes = _size_bytes(parts)
        if size_bytes > self._max_size_bytes // 2:
            return
        with self._lock:
            self._size_bytes += size_bytes - _size_bytes(self._plans.pop(key, None))
            self._plans[key] = parts
            while self._size_bytes > self._max_size_bytes:
                _, dropped = self._plans.popitem(last=False)
                self._size_bytes -= _size_bytes(dropped)

    def get(self, key: tuple[str, ...], start: int) -> tuple[bytes, int | None] | None:
        """A part, and the number of the one after it, if there is any; None for one that is not kept."""
        with self._lock:
            parts = self._plans.get(key, {})
            if (part := parts.get(start)) is None:
                return None
            self._plans.move_to_end(key)
            return part, min((one for one in parts if one > start), default=None)


def _size_bytes(parts: dict[int, bytes] | None) -> int:
    return 0 if parts is None else _PLAN_SIZE_BYTES + sum(_PART_SIZE_BYTES + len(part) for part in parts.values())
