"""Conversion between Python's times and milliseconds since the epoch, in which versions record times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(millis: int) -> datetime:
    """Milliseconds since the epoch as a time in UTC, exactly."""
    return EPOCH + timedelta(milliseconds=millis)


def millis_of(time: datetime) -> int:
    """The inverse of `time_of`, rounded down. A time without a zone is in UTC.

    At the ends of the calendar, where Python cannot convert it to UTC, the zone is ignored.
    """
    try:
        instant = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        instant = time.replace(tzinfo=UTC)
    return (instant - EPOCH) // timedelta(milliseconds=1)
