"""The one place where this project's errors become PyIceberg's.

An error that PyIceberg has a class for is raised as that class, because its retries and its clean-up go by the class:
after `CommitFailedException` it deletes the manifests it wrote, after `CommitStateUnknownException` it deletes nothing.
What PyIceberg has no class for passes through: a bad location or property, a damaged file, a failing storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def translated(
    *, missing: type[Exception] = NoSuchNamespaceError, taken: type[Exception] = TableAlreadyExistsError
) -> Iterator[None]:
    """Raise PyIceberg's errors for ours in the block.

    Statements look before they write, so `missing` and `taken` are what a race with another writer ends in.
    """
    try:
        yield
    except CommitConflict as error:
        raise CommitFailedException(str(error)) from error
    except CommitStateUnknown as error:
        raise CommitStateUnknownException(str(error)) from error
    except ObjectNotFound as error:
        raise missing(str(error)) from error
    except ObjectAlreadyExists as error:
        raise taken(str(error)) from error
    except NamespaceNotEmpty as error:
        raise NamespaceNotEmptyError(str(error)) from error
