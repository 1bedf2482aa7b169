"""Errors of this library that a task raised, as the driver raises them."""

from __future__ import annotations

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    PySparkException,
)

from trinitylake.errors import (
    CommitConflict,
    CorruptFile,
    InvalidArgument,
    InvalidLocation,
    TrinityLakeError,
    VersionExpired,
)

#: Errors that a caller can act on.
_TRANSLATED = (CorruptFile, CommitConflict, InvalidArgument, InvalidLocation, VersionExpired)
#: Errors of Spark about an expression, or a value that it cannot convert.
_OF_USER = (AnalysisException, ParseException, ArithmeticException, NumberFormatException, DateTimeException)


def raised_in_task(error: PySparkException) -> TrinityLakeError | None:
    """The error that a task raised, if it is one that a caller can act on."""
    lines = str(error).splitlines()
    for kind in _TRANSLATED:
        name = f"{kind.__module__}.{kind.__qualname__}: "
        if found := [line.partition(name)[2] for line in lines if name in line]:
            return kind(found[-1])
    return None


def error_of_user(error: PySparkException, what: str) -> TrinityLakeError | None:
    """The error that a task raised, or an error about an expression or value in one line; None for others."""
    if (own := raised_in_task(error)) is not None:
        return own
    return InvalidArgument(f"{what}: {str(error).strip().splitlines()[0]}") if isinstance(error, _OF_USER) else None
