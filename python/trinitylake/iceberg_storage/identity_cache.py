"""Cache of results, keyed by the identity of immutable objects.

Hashing or comparing schemas and partition specs by value would take longer than most of the computations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

Result = TypeVar("Result")
_MAX_KNOWN = 128


class IdentityCache(Generic[Result]):
    """Cache of results, keyed by the identity of the objects that they were computed from.

    A result is dropped when one of its objects is freed, so the cache keeps no large schema alive. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[tuple[Callable[[], object], ...], Result]] = {}

    def of(self, *objects: object, make: Callable[[], Result]) -> Result:
        """The cached result for these objects, or else the result of `make`."""
        key = tuple(map(id, objects))
        if (found := self._known.get(key)) is not None:
            for get, one in zip(found[0], objects, strict=True):
                if get() is not one:  # the address of a freed object was used again
                    break
            else:
                return found[1]
        result = make()
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = (tuple(self._held(one, key) for one in objects), result)
        return result

    def _held(self, one: object, key: tuple[int, ...]) -> Callable[[], object]:
        try:
            return ref(one, lambda _: self._known.pop(key, None))
        except TypeError:  # a mapping or a number
            return lambda: one
