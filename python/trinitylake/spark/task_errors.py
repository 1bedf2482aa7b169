"""Errors of this library that a task raised, as the driver raises them."""

from __future__ import annotations

from pyspark.errors import PySparkException

from trinitylake.errors import CommitConflict, CorruptFile, InvalidLocation, TrinityLakeError, VersionExpired

#: Those that a caller can do something about.
_TOLD = (CorruptFile, CommitConflict, InvalidLocation, VersionExpired)


def raised_in_task(error: PySparkException) -> TrinityLakeError | None:
    """What a task raised, if Spark's error tells of one of these."""
    lines = str(error).splitlines()
    for kind in _TOLD:
        name = f"{kind.__module__}.{kind.__qualname__}: "
        if found := [line.partition(name)[2] for line in lines if name in line]:
            return kind(found[-1])
    return None
