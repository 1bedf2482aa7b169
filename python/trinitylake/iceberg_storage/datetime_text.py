"""Parses dates and times of any year in SQL's notation, such as `2020-01-01 12:00` or `2020-01-01T12:00:00.5Z`.

**A time without a zone is in UTC**, whatever the zone of the machine.
"""

from __future__ import annotations

import re
from datetime import date

from pyiceberg.types import (
    DateType,
    IcebergType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

_MOMENT = re.compile(
    r"([+-]?\d{4,6})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?"
    r"\s?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?",
    re.IGNORECASE,
)
_EPOCH = date(1970, 1, 1).toordinal()
#: The calendar repeats after this number of years, which have this number of days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


def units_since_epoch(text: str, type: IcebergType) -> int:
    """Parse a date or timestamp to the number that Iceberg stores: days, microseconds or nanoseconds since 1970.

    Raises `ValueError` for a string that is not a value of the type, and for a time zone if the type has none.
    """
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a {type}: write it as 2020-01-01 or 2020-01-01T12:00:00.5")
    year, month, day, hour, minute, second, fraction, utc, sign, zone_hours, zone_minutes = match.groups()
    days = _days(int(year), int(month), int(day), text)
    if isinstance(type, DateType):
        if hour is not None or utc or sign:
            raise ValueError(f"{text!r} is not a date: it has a time")
        return days
    if (utc or sign) and isinstance(type, TimestampType | TimestampNanoType):
        raise ValueError(f"{text!r} has a time zone, but a {type} has none")
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{text!r} is not a {type}: a day has 24 hours of 60 minutes of 60 seconds")
    digits = 9 if isinstance(type, TimestampNanoType | TimestamptzNanoType) else 6
    parts = (fraction or "").ljust(9, "0")
    if parts[digits:].strip("0"):
        raise ValueError(f"{text!r} has more than {digits} digits of a second, which is the limit of a {type}")
    away = (int(zone_hours or 0) * 60 + int(zone_minutes or 0)) * (-60 if sign == "-" else 60)
    total_seconds = days * 86_400 + hours * 3600 + minutes * 60 + seconds - away
    return int(total_seconds * 10**digits + int(parts[:digits]))


def is_moment(type: IcebergType) -> bool:
    """Whether values of a type are dates or timestamps."""
    return isinstance(type, DateType | TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType)


def _days(year: int, month: int, day: int, text: str) -> int:
    """Days since the epoch of a day in any year. Python supports only the years 1 to 9999."""
    like = 2000 + year % _CYCLE_YEARS
    try:
        ordinal = date(like, month, day).toordinal()
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid day: {error}") from None
    return ordinal - _EPOCH + (year - like) // _CYCLE_YEARS * _CYCLE_DAYS
