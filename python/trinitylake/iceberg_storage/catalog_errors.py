"""Conversion of this project's errors to those of PyIceberg.

PyIceberg chooses retries and clean-up by the class of an error: after `CommitFailedException` it deletes the manifests
it wrote, after `CommitStateUnknownException` it deletes nothing. Errors without a counterpart in PyIceberg pass
unchanged: a bad location or property, a damaged file, a failing storage.
"""

from __future__ import annotations

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)

from trinitylake.base.foreign_errors import errors_as
from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
)


def translated(
    *, missing: type[Exception] = NoSuchNamespaceError, taken: type[Exception] = TableAlreadyExistsError
) -> errors_as:
    """Raise PyIceberg's errors for ours in the block.

    Statements look before they write, so `missing` and `taken` are what a race with another writer ends in.
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
