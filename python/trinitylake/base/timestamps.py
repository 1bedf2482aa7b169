"""Conversion between Python's times and the milliseconds since 1970 (UTC) in which files record times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(millis: int) -> datetime:
    """Milliseconds since 1970 as an exact time in UTC."""
    return EPOCH + timedelta(milliseconds=millis)


def millis_of(time: datetime) -> int:
    """The inverse of `time_of`, rounded down. A time without a zone is in UTC.

    The zone is ignored at the first and last hours of Python's calendar, where a conversion to UTC is impossible.
    """
    try:
        instant = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        instant = time.replace(tzinfo=UTC)
    return (instant - EPOCH) // timedelta(milliseconds=1)
