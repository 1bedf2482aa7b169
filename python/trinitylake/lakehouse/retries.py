"""Retries of a statement that lost a race: it starts again on the newest version."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trinitylake.errors import CommitConflict

Result = TypeVar("Result")

#: How often something starts on the latest version before the conflict is its caller's.
STATEMENT_MAX_ATTEMPTS = 10


class OutOfDate(Exception):
    """A statement failed on a version that is not the latest any more, so it says nothing yet."""


def again_after_lost_races(attempt: Callable[[], Result]) -> Result:
    """The result of `attempt`, which begins on the latest version each time; `CommitConflict` of the last one.

    There is no pause: the core waits between its own tries to create a root, and what comes here met changes of the
    same objects, which a pause would not undo.
    """
    for _ in range(STATEMENT_MAX_ATTEMPTS - 1):
        try:
            return attempt()
        except CommitConflict:
            continue
    return attempt()
