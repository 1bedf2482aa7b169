"""What is worked out of the texts of clients, and not again for those that come often."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

Result = TypeVar("Result")

#: Answers that are kept, and how long the last text of each may be: a client chooses it, and long ones fill memory.
MAX_REMEMBERED, MAX_REMEMBERED_LENGTH = 1024, 250


class Remembered(Generic[Result]):
    """A function of texts that has no other effect. What it raises is not kept."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self._function = function
        self._kept = lru_cache(MAX_REMEMBERED)(function)
        self.forget = self._kept.cache_clear

    def __call__(self, *texts: str) -> Result:
        return (self._kept if len(texts[-1]) <= MAX_REMEMBERED_LENGTH else self._function)(*texts)
