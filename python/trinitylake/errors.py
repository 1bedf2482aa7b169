"""What can go wrong, sorted by what the caller should do next.

Every error is a `TrinityLakeError` and carries `kind`, a stable snake_case word that programs may rely on
(the command line prints it under `--json`, `docs/reference/errors.md` lists it). The message says what, where and which
limit; it is for people and may change. The Rust core raises these classes by name.

All of them survive pickling, so they reach the driver of a distributed engine unharmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from trinitylake.printable import printable  # here, because a process without descriptors cannot load it any more


class Winner(NamedTuple):
    """A committed transaction that another one lost to."""

    version: int
    transaction_id: str
    message: str
    author: str


class TrinityLakeError(Exception):
    """The root of every error that TrinityLake raises on purpose."""

    kind: ClassVar[str] = "error"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text without the class name."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        # What Python prints of it reaches a terminal, and it may quote names, messages and rows of anybody.
        return printable(self.message, keep="\n\t")


class ObjectNotFound(TrinityLakeError, LookupError):
    """A namespace, table or view that was named does not exist in the version that was read."""

    kind = "object_not_found"


class ObjectAlreadyExists(TrinityLakeError):
    """The name is taken: by an object of the same kind, or by a view where a table should go (and the reverse)."""

    kind = "object_already_exists"


class NamespaceNotEmpty(TrinityLakeError):
    """A namespace with tables, views or nested namespaces can only be dropped with `cascade=True`."""

    kind = "namespace_not_empty"


class InvalidName(TrinityLakeError, ValueError):
    """A name that no key can hold: empty, too long in bytes, or with a forbidden character (format §4)."""

    kind = "invalid_name"


class InvalidLocation(TrinityLakeError, ValueError):
    """A path or URI that is not fully qualified, or that leaves the lakehouse (format §2)."""

    kind = "invalid_location"


class InvalidArgument(TrinityLakeError, ValueError):
    """An argument is wrong: a bad option, an unknown isolation level, a wrong type."""

    kind = "invalid_argument"


class CommitConflict(TrinityLakeError):
    """Another transaction committed first and changed the same objects. Start again on the new version.

    `keys` names what conflicted, such as `"table nyc.flights"`; `winners` are the transactions that won.
    """

    kind = "commit_conflict"

    def __init__(self, message: str = "", *, keys: Sequence[str] = (), winners: Sequence[Winner] = ()) -> None:
        super().__init__(message)
        self.keys: list[str] = list(keys)
        self.winners: list[Winner] = [Winner(*winner) for winner in winners]


class RefusedObject(NamedTuple):
    """An object that cannot be registered, and why: `error_kind` is the kind of the error."""

    kind: str
    name: str
    error_kind: str
    message: str


class RegistrationFailed(TrinityLakeError):
    """Some of the objects cannot be registered: `objects` tells which, and why. Nothing was committed."""

    kind = "registration_failed"

    def __init__(self, message: str = "", *, objects: Sequence[RefusedObject] = ()) -> None:
        super().__init__(message)
        self.objects: list[RefusedObject] = [RefusedObject(*one) for one in objects]

    @classmethod
    def of(cls, objects: Sequence[RefusedObject], count: int | None = None) -> RegistrationFailed:
        """For these objects, of which there are `count` in all; the first few are named in the message."""
        count = len(objects) if count is None else count
        lines = [f"{one.kind} {one.name}: {one.message}" for one in objects[:10]]
        more = [f"and {count - len(lines)} more"] if count > len(lines) else []
        text = "\n  ".join([f"{count} objects cannot be registered, and nothing was committed:", *lines, *more])
        return cls(text, objects=objects)


class CommitStateUnknown(TrinityLakeError):
    """The commit may or may not have happened and nothing was deleted. Read the log before trying again."""

    kind = "commit_state_unknown"


class TransactionExpired(TrinityLakeError):
    """The transaction stayed open so long that files it had written may have been collected."""

    kind = "transaction_expired"


class CheckFailed(TrinityLakeError):
    """A check that was added to the transaction does not hold. Nothing was committed; correct the data."""

    kind = "check_failed"


class TransactionClosed(TrinityLakeError):
    """A transaction was used after it had been committed or rolled back."""

    kind = "transaction_closed"


class VersionNotFound(TrinityLakeError, LookupError):
    """No version has that number, or none is old enough for the timestamp."""

    kind = "version_not_found"


class VersionExpired(TrinityLakeError, LookupError):
    """The version existed, but has passed its retention and is gone."""

    kind = "version_expired"


class CorruptFile(TrinityLakeError):
    """A file of the lakehouse is damaged, or is not the file it should be. `path` is relative to the root."""

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
    """Nothing at that root looks like a lakehouse. Create one with `trinitylake.create`."""

    kind = "not_a_lakehouse"


class LakehouseMoved(TrinityLakeError):
    """The lakehouse lies elsewhere than it records. It can be read; `Lakehouse.relocate` lets it be written here."""

    kind = "lakehouse_moved"
