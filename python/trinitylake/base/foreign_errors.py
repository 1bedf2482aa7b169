"""Converts errors of libraries to errors of this package, so that callers get no other errors.

For an unsuitable input, Arrow, PyIceberg, pydantic and others raise many kinds of errors, such as `KeyError` and
`OverflowError`. Callers get `InvalidArgument` instead. Errors of the caller's own code (an iterator of rows, a
callback, the body of a `with`) are not converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from trinitylake.errors import InvalidArgument, TrinityLakeError

#: Function that returns the error to raise instead of the given error; None keeps the given error.
Mapping: TypeAlias = Callable[[Exception], Exception | None]

#: Packages whose errors are mapped.
_LIBRARIES = frozenset(
    {"trinitylake", "pyiceberg", "pyarrow", "pydantic", "pydantic_core", "pyparsing", "duckdb", "_duckdb"}
    | {"numpy", "pandas", "polars", "fsspec", "zoneinfo", "decimal", "uuid"}
)
#: The last line of the error into which Arrow's C streams, and pydantic while it builds a class, convert a Ctrl-C.
_INTERRUPTED = re.compile(r"\n *KeyboardInterrupt(: )?\n?\Z")
_OF_INPUTS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, NotImplementedError, RecursionError)


class errors_as:
    """Context manager that converts the errors of its block with a mapping function.

    It is a class, because a generator would take several times as long, and each commit uses it.
    """

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (other := self._mapping(error)) is not None:
            raise other from error
        # PyO3 raises this class for a panic in Rust; it is not an `Exception`.
        if error is not None and type(error).__name__ == "PanicException":
            raise InvalidArgument(f"a library written in Rust cannot process these values: {error}") from error


def own_error(error: Exception, subject: str | Callable[[], str] = "") -> TrinityLakeError | None:
    """The `InvalidArgument` for an error of a library, with `subject` before its message; None for other errors.

    Raises `KeyboardInterrupt` for an error into which a library has converted a `KeyboardInterrupt`.
    """
    if isinstance(error, TrinityLakeError):
        return None
    if (own := getattr(error, "as_own", None)) is not None:  # internal errors of this package convert themselves
        made: TrinityLakeError = own()
        return made
    if isinstance(error.__cause__, KeyboardInterrupt) or _INTERRUPTED.search(str(error)):
        raise KeyboardInterrupt from error
    if not _is_of_a_library(error):
        return None
    text = f"no value of {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    if (details := getattr(error, "errors", None)) is not None and "pydantic" in type(error).__module__:
        # `str(error)` would contain links to pydantic's web site.
        text = "; ".join(one["msg"].removeprefix("Value error, ") for one in details())
    # The last argument of Arrow's error names the column.
    if type(error).__module__.partition(".")[0] == "pyarrow" and len(error.args) > 1:
        text = ": ".join(map(str, error.args[::-1]))
    about = subject() if callable(subject) else subject
    return InvalidArgument(f"{about}: {text}" if about else text)


def _is_of_a_library(error: Exception) -> bool:
    """Whether a library raised the error because of its input; not an error of the caller's code or of a storage."""
    if isinstance(error, OSError):
        return False
    if not isinstance(error, _OF_INPUTS):
        return type(error).__module__.partition(".")[0] in ("pyarrow", "pydantic", "pydantic_core") or (
            type(error).__name__
            in ("ValidationError", "ValidationException", "ResolveError", "UnsupportedPyArrowTypeException")
        )
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _LIBRARIES
