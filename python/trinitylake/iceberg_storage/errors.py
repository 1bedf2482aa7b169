"""Converts errors of PyIceberg and Arrow to ours, and names the table in the message (`base/foreign_errors.py`)."""

from __future__ import annotations

from collections.abc import Callable

from trinitylake.base.foreign_errors import errors_as, own_error
from trinitylake.errors import CorruptFile


def translated(subject: str | Callable[[], str] = "") -> errors_as:
    """Context manager that converts errors of libraries to ours, with `subject` at the beginning of the message.

    If `subject` is a function, it returns the name of a table, and a missing file raises `CorruptFile`. Other errors of
    the storage are unchanged.
    """

    def mapped(error: Exception) -> Exception | None:
        if isinstance(error, FileNotFoundError) and callable(subject):
            hint = "`fsck --files` names the newest version that has all files of the table"
            return CorruptFile(f"{subject()}: {error}; {hint}", path=getattr(error, "path", ""))
        return own_error(error, subject)

    return errors_as(mapped)
