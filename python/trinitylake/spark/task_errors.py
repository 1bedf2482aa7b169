"""Errors of this library that a task raised, as the driver raises them."""

from __future__ import annotations

from pyspark.errors import PySparkException

from trinitylake.errors import CommitConflict, CorruptFile, InvalidLocation, TrinityLakeError, VersionExpired

#: Errors that a caller can act on.
_TRANSLATED = (CorruptFile, CommitConflict, InvalidLocation, VersionExpired)


def raised_in_task(error: PySparkException) -> TrinityLakeError | None:
    """The error that a task raised, if it is one that a caller can act on."""
    lines = str(error).splitlines()
    for kind in _TRANSLATED:
        name = f"{kind.__module__}.{kind.__qualname__}: "
        if found := [line.partition(name)[2] for line in lines if name in line]:
            return kind(found[-1])
    return None
