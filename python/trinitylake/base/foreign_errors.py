"""**The rule for errors of libraries: they never leave the package.**

Arrow, PyIceberg, pydantic and others raise what they like for an input that they cannot take, from `KeyError` to
`OverflowError`. What one of them raised, or this package because of it, is `InvalidArgument` for callers. What the
code of callers raised is theirs: rows that are read from them, functions that they give, the body of a `with`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from trinitylake.errors import InvalidArgument, TrinityLakeError

#: Returns the error to raise in the place of another one; None if that is to be raised itself.
Mapping: TypeAlias = Callable[[Exception], Exception | None]

#: The packages whose errors are not those of callers.
_LIBRARIES = frozenset(
    {"trinitylake", "pyiceberg", "pyarrow", "pydantic", "pydantic_core", "pyparsing", "duckdb", "_duckdb"}
    | {"numpy", "pandas", "polars", "fsspec", "zoneinfo", "decimal", "uuid"}
)
_OF_INPUTS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
    RecursionError,
)


class errors_as:
    """Raise other errors for those of the block, as a function says.

    A class, since a generator takes several times as long, in each commit.
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


def own_error(error: Exception, subject: str | Callable[[], str] = "") -> TrinityLakeError | None:
    """What callers get for an error of a library, `subject` at the head of its message; None for any other error.

    Raises `KeyboardInterrupt` for an error of Arrow that was one, in Python code behind a C stream: of that, such a
    stream carries the text alone.
    """
    if isinstance(error, TrinityLakeError):
        return None
    if (own := getattr(error, "as_own", None)) is not None:  # an error between the parts of this package
        made: TrinityLakeError = own()
        return made
    if str(error).endswith("\nKeyboardInterrupt\n"):
        raise KeyboardInterrupt from error
    if not _is_of_a_library(error):
        return None
    text = f"no value of {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    told = subject() if callable(subject) else subject
    return InvalidArgument(f"{told}: {text}" if told else text)


def _is_of_a_library(error: Exception) -> bool:
    """Whether an error is about an input, and neither raised by the code of a caller nor by a storage."""
    if isinstance(error, OSError):
        return False
    if not isinstance(error, _OF_INPUTS):
        return type(error).__module__.partition(".")[0] in ("pyarrow", "pydantic", "pydantic_core") or (
            type(error).__name__ in ("ValidationError", "ValidationException")
        )
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _LIBRARIES
