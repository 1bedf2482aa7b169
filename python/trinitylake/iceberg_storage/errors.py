"""Errors of PyIceberg and Arrow about a table as ours, with the table in the message (`base/foreign_errors.py`)."""

from __future__ import annotations

from collections.abc import Callable

from trinitylake.base.foreign_errors import errors_as, own_error
from trinitylake.errors import CorruptFile


def translated(subject: str | Callable[[], str] = "") -> errors_as:
    """Convert errors of libraries in the block to ours, with `subject` at the head of the message.

    Where the subject is a table, a file that is missing raises `CorruptFile`; other errors of storage are left alone.
    """

    def mapped(error: Exception) -> Exception | None:
        if isinstance(error, FileNotFoundError) and callable(subject):
            hint = "`fsck --files` names the newest version that has all files of the table"
            return CorruptFile(f"{subject()}: {error}; {hint}", path=getattr(error, "path", ""))
        return own_error(error, subject)

    return errors_as(mapped)
