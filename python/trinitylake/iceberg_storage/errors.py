"""The one place where PyIceberg's errors become ours: wrong input is `InvalidArgument`, the rest passes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import ValidationError, ValidationException

from trinitylake.errors import CorruptFile, InvalidArgument, TrinityLakeError


@contextmanager
def translated(subject: str | Callable[[], str] = "") -> Iterator[None]:
    """Raise `InvalidArgument` for what PyIceberg and Arrow refuse in the block, `subject` at the head of the message.

    PyIceberg says `ValueError` and `TypeError` for a column it does not know, a filter it cannot read and data
    that does not fit; Arrow's `ArrowInvalid` is a `ValueError` too. Where the subject is a table, a file that is
    missing raises `CorruptFile`; other errors of storage are left alone.
    """
    try:
        yield
    except TrinityLakeError:
        raise
    except FileNotFoundError as error:
        if not callable(subject):
            raise
        raise CorruptFile(f"{subject()}: {error}", path=getattr(error, "path", "")) from error
    except (ValueError, TypeError, ValidationError, ValidationException) as error:
        raise_interrupt(error)
        told = subject() if callable(subject) else subject
        raise InvalidArgument(f"{told}: {error}" if told else str(error)) from error


def raise_interrupt(error: Exception) -> None:
    """Raise `KeyboardInterrupt` for an error of Arrow that was one, in Python code behind a C stream: of that, such a
    stream carries the text alone."""
    if str(error).endswith("\nKeyboardInterrupt\n"):
        raise KeyboardInterrupt from error
