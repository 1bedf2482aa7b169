"""Errors of this library in one line, where Spark would print the traceback of its worker process as well.

Spark sends an error of a Python worker to its JVM as text, with the traceback unless the environment variable
`SPARK_HIDE_TRACEBACK` is set. The process ends after an error, so the variable is set only for errors that the caller
can act on: an error of another kind is a fault, and keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trinitylake.errors import TrinityLakeError

_Class = TypeVar("_Class", bound=type)


def one_line_errors(kind: _Class) -> _Class:
    """Class decorator for what Spark calls in its workers: data sources, readers and writers."""
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
