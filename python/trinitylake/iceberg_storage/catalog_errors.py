"""The one place where this project's errors become PyIceberg's.

An error that PyIceberg has a class for is raised as that class, because its retries and its clean-up go by the class:
after `CommitFailedException` it deletes the manifests it wrote, after `CommitStateUnknownException` it deletes nothing.
What PyIceberg has no class for passes through: a bad location or property, a damaged file, a failing storage.
"""

from __future__ import annotations

from types import TracebackType

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)

from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
)


class translated:
    """Raise PyIceberg's errors for ours in the block.

    Statements look before they write, so `missing` and `taken` are what a race with another writer ends in. A class,
    since a generator takes several times as long, in each commit.
    """

    __slots__ = ("_missing", "_taken")

    def __init__(
        self, *, missing: type[Exception] = NoSuchNamespaceError, taken: type[Exception] = TableAlreadyExistsError
    ) -> None:
        self._missing = missing
        self._taken = taken

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        match error:
            case None:
                return
            case CommitConflict():
                raise CommitFailedException(str(error)) from error
            case CommitStateUnknown():
                raise CommitStateUnknownException(str(error)) from error
            case ObjectNotFound():
                raise self._missing(str(error)) from error
            case ObjectAlreadyExists():
                raise self._taken(str(error)) from error
            case NamespaceNotEmpty():
                raise NamespaceNotEmptyError(str(error)) from error
