"""Errors, grouped by what the caller should do next.

Every error is a `TrinityLakeError` and has a `kind`, a word in snake_case that does not change, so that programs can
use it (the command line prints it with `--json`, `docs/reference/errors.md` lists all). The message is for people and
may change. The Rust core raises these classes by name. All errors can be pickled, so that an engine's executors can
send them to its driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from trinitylake.printable import printable  # not lazily: a process without file descriptors cannot import

#: Longest message of an error, in characters.
_MAX_CHARACTERS = 10_000


class Winner(NamedTuple):
    """A committed transaction that won a conflict."""

    version: int
    transaction_id: str
    message: str
    author: str

    def __str__(self) -> str:
        author = f" by {self.author}" if self.author else ""
        return f"version {self.version}{author} ({self.message or self.transaction_id})"


class TrinityLakeError(Exception):
    """Base class of all errors of TrinityLake."""

    kind: ClassVar[str] = "error"

    def __init__(self, message: str = "") -> None:
        if len(message) > _MAX_CHARACTERS:  # the message quotes a long name or value
            message = f"{message[: _MAX_CHARACTERS - 1000]} … {message[-900:]}"
        super().__init__(message)

    @property
    def message(self) -> str:
        """The message without the class name."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        # A message may quote untrusted text, and Python prints it to a terminal.
        return printable(self.message, keep="\n\t")


class ObjectNotFound(TrinityLakeError, LookupError):
    """A namespace, table or view does not exist in the version that was read."""

    kind = "object_not_found"


class ObjectAlreadyExists(TrinityLakeError):
    """An object of that name exists; a table and a view cannot share a name."""

    kind = "object_already_exists"


class NamespaceNotEmpty(TrinityLakeError):
    """A namespace with tables, views or nested namespaces can only be dropped with `cascade=True`."""

    kind = "namespace_not_empty"


class InvalidName(TrinityLakeError, ValueError):
    """A name is empty, too long in bytes, or contains a forbidden character (format §4)."""

    kind = "invalid_name"


class InvalidLocation(TrinityLakeError, ValueError):
    """A path or URI is not fully qualified or is outside of the lakehouse (format §2)."""

    kind = "invalid_location"


class InvalidArgument(TrinityLakeError, ValueError):
    """An argument has a wrong type or value."""

    kind = "invalid_argument"


class CommitConflict(TrinityLakeError):
    """Another transaction committed a conflicting change first. Run the transaction again on the new version.

    `keys` are the conflicting objects, such as `"table nyc.flights"`; `winners` are the transactions that committed
    first.
    """

    kind = "commit_conflict"

    def __init__(self, message: str = "", *, keys: Sequence[str] = (), winners: Sequence[Winner] = ()) -> None:
        super().__init__(message)
        self.keys: list[str] = list(keys)
        self.winners: list[Winner] = [Winner(*winner) for winner in winners]


class ProducerFenced(TrinityLakeError):
    """Another writer took over the producer. End this writer; it must not write rows of this producer any more."""

    kind = "producer_fenced"


class RefusedObject(NamedTuple):
    """An object that cannot be registered, and the kind and message of the error."""

    kind: str
    name: str
    error_kind: str
    message: str


class RegistrationFailed(TrinityLakeError):
    """Some objects cannot be registered; `objects` lists them with reasons. Nothing was committed."""

    kind = "registration_failed"

    def __init__(self, message: str = "", *, objects: Sequence[RefusedObject] = ()) -> None:
        super().__init__(message)
        self.objects: list[RefusedObject] = [RefusedObject(*one) for one in objects]

    @classmethod
    def of(cls, objects: Sequence[RefusedObject], count: int | None = None) -> RegistrationFailed:
        """The error for `count` objects, of which `objects` are the first; the message names at most ten."""
        count = len(objects) if count is None else count
        lines = [f"{one.kind} {one.name}: {one.message}" for one in objects[:10]]
        more = [f"and {count - len(lines)} more"] if count > len(lines) else []
        text = "\n  ".join([f"{count} objects cannot be registered, and nothing was committed:", *lines, *more])
        return cls(text, objects=objects)


class CommitStateUnknown(TrinityLakeError):
    """The outcome of the commit is unknown, and nothing was deleted. Look for it in `lake.log()` before a retry."""

    kind = "commit_state_unknown"


class TransactionExpired(TrinityLakeError):
    """The transaction was open for so long that garbage collection may have deleted its files."""

    kind = "transaction_expired"


class CheckFailed(TrinityLakeError):
    """A check of the transaction failed. Nothing was committed; correct the data."""

    kind = "check_failed"


class TransactionClosed(TrinityLakeError):
    """A transaction was used after it had been committed or rolled back."""

    kind = "transaction_closed"


class VersionNotFound(TrinityLakeError, LookupError):
    """No version has that number, or there was no version yet at that time."""

    kind = "version_not_found"


class VersionExpired(TrinityLakeError, LookupError):
    """The version has expired, so its files may be deleted."""

    kind = "version_expired"


class CorruptFile(TrinityLakeError):
    """A file of the lakehouse is damaged or has the content of another file. `path` is relative to the root."""

    kind = "corrupt_file"

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(message)
        self.path: str = path


class UnsupportedVersion(TrinityLakeError):
    """The lakehouse was written by a newer major version of the format than this library reads."""

    kind = "unsupported_version"


class StorageError(TrinityLakeError):
    """The storage failed. `retryable` tells whether the same call may succeed later."""

    kind = "storage_error"

    def __init__(self, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable: bool = retryable


class PermissionDenied(TrinityLakeError, PermissionError):
    """The storage refused access with the given credentials."""

    kind = "permission_denied"


class NotALakehouse(TrinityLakeError):
    """The root contains no lakehouse. Create one with `trinitylake.create`."""

    kind = "not_a_lakehouse"


class LakehouseMoved(TrinityLakeError):
    """The lakehouse is not at its recorded root. It is read-only until `Lakehouse.relocate` records the new root."""

    kind = "lakehouse_moved"
