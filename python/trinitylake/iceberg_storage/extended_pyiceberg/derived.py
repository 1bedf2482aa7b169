"""What follows from objects that never change, worked out once.

Schemas and partition specs cannot be looked up by their values in less time than most of it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")
_MAX_KNOWN = 128


class Derived(Generic[Result]):
    """Results by the objects that they were made of, which are the same objects when they are asked for again.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        # With the objects, so that no others have their addresses.
        self._known: dict[tuple[int, ...], tuple[tuple[object, ...], Result]] = {}

    def of(self, *objects: object, make: Callable[[], Result]) -> Result:
        """The result for these objects, made if it is not known."""
        key = tuple(map(id, objects))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[key] = (objects, make())
        return found[1]
