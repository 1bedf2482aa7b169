"""The one place where PyIceberg's errors become ours: wrong input is `InvalidArgument`, the rest passes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import ValidationError, ValidationException
from pyparsing import ParseBaseException

from trinitylake.errors import InvalidArgument, TrinityLakeError


@contextmanager
def translated(subject: str = "") -> Iterator[None]:
    """Raise `InvalidArgument` for what PyIceberg and Arrow refuse in the block, `subject` at the head of the message.

    PyIceberg says `ValueError` and `TypeError` for a column it does not know, a filter it cannot read and data
    that does not fit; Arrow's `ArrowInvalid` is a `ValueError` too. Errors of storage are left alone.
    """
    try:
        yield
    except TrinityLakeError:
        raise
    except (ValueError, TypeError, ValidationError, ValidationException, ParseBaseException) as error:
        raise InvalidArgument(f"{subject}: {error}" if subject else str(error)) from error
