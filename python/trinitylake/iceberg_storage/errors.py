"""Conversion of errors: of libraries to ours, with the name of the table, and of ours to PyIceberg's.

PyIceberg decides by the class of an error whether to retry and what to delete. After `CommitFailedException` it deletes
the manifests that it wrote, after `CommitStateUnknownException` nothing. Errors without a counterpart in PyIceberg, for
example for an invalid location, a damaged file or a failing storage, are not converted.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)

from trinitylake.base.foreign_errors import errors_as, own_error
from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptFile,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
)


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


class TableConflict(Exception):
    """Staged changes cannot be rebased. `requirement` says which requirement of Iceberg the newer metadata breaks."""

    def __init__(self, requirement: str) -> None:
        super().__init__(requirement)
        self.requirement = requirement

    def as_own(self) -> CommitConflict:
        """Convert to the public error."""
        return CommitConflict(f"the table changed meanwhile: {self.requirement}")


class RowConflict(TableConflict):
    """The rows of a statement conflict, or do not fit the newer schema, so the statement must run again."""


def pyiceberg_errors(
    *, missing: type[Exception] = NoSuchNamespaceError, taken: type[Exception] = TableAlreadyExistsError
) -> errors_as:
    """Context manager that converts our errors to PyIceberg's: a missing object to `missing`, a used name to `taken`.

    Statements check names before they write, so `missing` and `taken` are raised only after a race with another writer.
    """

    def mapped(error: Exception) -> Exception | None:
        match error:
            case CommitConflict():
                return CommitFailedException(str(error))
            case CommitStateUnknown():
                return CommitStateUnknownException(str(error))
            case ObjectNotFound():
                return missing(str(error))
            case ObjectAlreadyExists():
                return taken(str(error))
            case NamespaceNotEmpty():
                return NamespaceNotEmptyError(str(error))
        return None

    return errors_as(mapped)
