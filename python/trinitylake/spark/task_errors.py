"""Errors of this library in Spark's worker processes: how a worker shows them, and how the driver raises them.

Spark sends an error of a Python worker to the JVM as text, with the traceback unless the environment variable
`SPARK_HIDE_TRACEBACK` is set. The variable is set only for this library's own errors, whose message is enough for the
caller. It cannot affect later errors, because the process ends. Any other error is a fault, and keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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

_Class = TypeVar("_Class", bound=type)
#: Errors of tasks that the driver raises again as errors of the same class.
_TRANSLATED = (CorruptFile, CommitConflict, InvalidArgument, InvalidLocation, VersionExpired)
#: Errors of Spark about an expression, or a value that it cannot convert.
_OF_USER = (AnalysisException, ParseException, ArithmeticException, NumberFormatException, DateTimeException)


def raised_in_task(error: PySparkException) -> TrinityLakeError | None:
    """The error that a task raised, if it is of a class in `_TRANSLATED`; otherwise None."""
    lines = str(error).splitlines()
    for kind in _TRANSLATED:
        name = f"{kind.__module__}.{kind.__qualname__}: "
        if found := [line.partition(name)[2] for line in lines if name in line]:
            return kind(found[-1])
    return None


def error_of_user(error: PySparkException, what: str) -> TrinityLakeError | None:
    """The error that a task raised, or an error about the user's expression or value, in one line; otherwise None."""
    if (own := raised_in_task(error)) is not None:
        return own
    return InvalidArgument(f"{what}: {str(error).strip().splitlines()[0]}") if isinstance(error, _OF_USER) else None


def one_line_errors(kind: _Class) -> _Class:
    """Class decorator for data sources, readers and writers, whose methods Spark calls in its workers."""
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _wrapped(member))
    return kind


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_traceback():
            result = method(*args, **kwargs)
        return _items(result) if isinstance(result, Iterator) else result

    return run


def _items(rows: Iterator[Any]) -> Iterator[Any]:
    with _without_traceback():
        yield from rows


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except TrinityLakeError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
