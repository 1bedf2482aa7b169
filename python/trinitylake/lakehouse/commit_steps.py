"""Work that ends in a commit, in steps: it pauses where it commits, and before it may have to wait for others.

Whoever runs it decides what a pause is. A thread that has nothing else to do waits (`run_alone`). A server goes on with
other requests, and commits several of them by one call (`trinitylake/rest/http/company.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.lakehouse.settings import Coordination

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CommitPause:
    """The core is to commit a transaction, and what it says of that is sent back: a version, or clashes.

    Attributes:
        core: the transaction.
        files: that are handed over with it.
    """

    core: _core.Transaction
    files: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class MayWait:
    """What comes next may wait: for somebody who has the turn of a table, for files, for a function of a user.

    Attributes:
        has_turn: others may wait for the turn of a table that it has. It does not wait for one, and must not wait for a
            thread that one of those others has.
    """

    has_turn: bool = False


MAY_WAIT = MayWait()
MAY_WAIT_WITH_TURN = MayWait(has_turn=True)

Pause = CommitPause | MayWait
#: What is run step by step. It has its own context (`contextvars`), so it may go on in another thread.
Steps = Generator[Pause, Any, Result]


def in_steps(outcome: Result | Steps[Result]) -> Steps[Result]:
    """What a function returns that may be one of steps."""
    if isinstance(outcome, GeneratorType):  # a class, where `Generator` asks for methods
        result: Result = yield from outcome
        return result
    return cast(Result, outcome)


def run_alone(
    steps: Steps[Result],
    max_attempts: int | None = None,
    timeout_seconds: float | None = None,
    coordination: Coordination | None = None,
) -> Result:
    """All steps, on this thread, with limits for each commit; returns what they return, and raises what they raise."""
    go_on: Callable[[], Pause] = steps.__next__
    try:
        while True:
            pause = go_on()
            if not isinstance(pause, CommitPause):
                go_on = steps.__next__
                continue
            try:
                outcome = pause.core.commit(max_attempts, timeout_seconds, coordination, pause.files)
            except BaseException as error:
                go_on = _raising(steps, error)
            else:
                go_on = _sending(steps, outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


def _raising(steps: Steps[Result], error: BaseException) -> Callable[[], Pause]:
    return lambda: steps.throw(error)


def _sending(steps: Steps[Result], outcome: int | _core.Clashes) -> Callable[[], Pause]:
    return lambda: steps.send(outcome)
