"""Durations as strings, such as "7 days", "36 h" or "1 week 2 days"."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, TypeAlias

from trinitylake.errors import InvalidArgument

#: A `timedelta`, or a string such as "7 days".
Duration: TypeAlias = timedelta | str

_UNITS = (
    ("week", 7 * 24 * 3600 * 1000, ("w", "wk", "week", "weeks")),
    ("day", 24 * 3600 * 1000, ("d", "day", "days")),
    ("hour", 3600 * 1000, ("h", "hr", "hour", "hours")),
    ("minute", 60 * 1000, ("m", "min", "minute", "minutes")),
    ("second", 1000, ("s", "sec", "second", "seconds")),
    ("millisecond", 1, ("ms", "millisecond", "milliseconds")),
)
_MILLIS = {spelling: millis for _, millis, spellings in _UNITS for spelling in spellings}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
#: The format stores milliseconds in 64 bits.
_MAX_MILLIS = (1 << 62) - 1


def milliseconds(value: Any, what: str = "a duration") -> int:
    """Milliseconds of a `timedelta` or of a string such as "7 days" or "1 week 2 days". Raises `InvalidArgument`."""
    if isinstance(value, timedelta):
        millis = value // timedelta(milliseconds=1)
    elif isinstance(value, str):
        text = value.strip().lower()
        parts = _PART.findall(text)
        if not parts or _PART.sub("", text).strip(" ,") or any(unit not in _MILLIS for _, unit in parts):
            raise InvalidArgument(f'{what} must be a timedelta or a string such as "7 days" or "36 h", got {value!r}')
        millis = round(sum(float(number) * _MILLIS[unit] for number, unit in parts))
    else:
        raise InvalidArgument(f'{what} must be a timedelta or a string such as "7 days", got {value!r}')
    if not 0 <= millis <= _MAX_MILLIS:
        raise InvalidArgument(f"{what} must be between 0 and 100 million years, got {value!r}")
    return millis


def duration_text(millis: int) -> str:
    """A duration in words with its two largest units, such as "2 days 3 hours"."""
    parts: list[str] = []
    for name, size, _ in _UNITS:
        count, millis = divmod(millis, size)
        if count:
            parts.append(f"{count} {name}{'' if count == 1 else 's'}")
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 seconds"
