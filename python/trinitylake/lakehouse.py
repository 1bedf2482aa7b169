"""The lakehouse: opening it, reading its latest version, writing to it, looking into its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from trinitylake import _core
from trinitylake.bulk_statements import BulkStatements
from trinitylake.errors import CommitConflict, InvalidArgument, InvalidLocation, NotALakehouse, ObjectAlreadyExists
from trinitylake.log import (
    Diff,
    LogEntry,
    Outcome,
    SavedTransaction,
    TransactionChanges,
    changes_of,
    diff_of,
    log_entry,
    millis_of,
    time_of,
)
from trinitylake.settings import FormatSettings, Isolation, check_isolation, default_isolation, new_lakehouse_def
from trinitylake.statements import Statements
from trinitylake.transaction import Transaction
from trinitylake.view_at import ViewAt

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.stats import Stats
    from trinitylake.table import Table

Durability = Literal["fsync", "none"]
Result = TypeVar("Result")

#: How often a single statement starts again after a lost race.
STATEMENT_MAX_ATTEMPTS = 10


def create(
    uri: str,
    *,
    name: str = "",
    properties: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    **settings: Unpack[FormatSettings],
) -> Lakehouse:
    """Create a lakehouse: its version 0, without any object.

    Args:
        uri: the root: a local path, `file://`, `memory://`, `s3://`, `gs://`, `az://` or `abfss://` (format §2).
        name: for people.
        properties: anything that should travel with the lakehouse.
        exist_ok: open the lakehouse, as it is, if there is one.
        storage_options: credentials, region, endpoint and the like, for the storage. Never written anywhere.
        durability: on local disk "fsync" (the default) survives a power loss, "none" only a crash of the process.
        **settings: see `trinitylake.settings.FormatSettings`; `order` and `node_file_max_size_bytes` among them.

    Raises:
        ObjectAlreadyExists: there is a lakehouse, and not `exist_ok`.
        InvalidLocation: the URI is not fully qualified.
        InvalidArgument: for a bad setting, or a storage that cannot create a file only if it is absent.
    """
    from trinitylake.definitions import serialize

    definition = serialize(new_lakehouse_def(name, properties, settings))
    storage = _storage(uri, storage_options, durability)
    try:
        return Lakehouse(_core.Lakehouse.create(storage, definition))
    except ObjectAlreadyExists:
        if not exist_ok:
            raise
        return Lakehouse(_core.Lakehouse.open(storage))


def open(
    uri: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
) -> Lakehouse:
    """Open a lakehouse.

    Args:
        uri, storage_options, durability: as for `create`.
        cache_size_bytes: memory for decoded tree nodes.

    Raises:
        NotALakehouse: there is none at `uri`.
        UnsupportedVersion: it was written by a newer major version of the format.
    """
    storage = _storage(uri, storage_options, durability)
    try:
        return Lakehouse(_core.Lakehouse.open(storage, cache_size_bytes))
    except NotALakehouse as error:
        raise NotALakehouse(f"{storage.root}: {error}") from None


class Lakehouse(BulkStatements, Statements):
    """An open lakehouse, from `create` or `open`. Safe to share between threads.

    Reading methods answer from the latest version, looked up with one request at each call; `at(...)` keeps one
    version still. Statements called here, and writes to tables opened here, are each a transaction of their own,
    started again on the newer version if another writer was faster.
    """

    def __init__(self, core: _core.Lakehouse) -> None:
        self._core = core
        self._storage = core.storage
        self._isolation_of: tuple[bytes, Isolation] = (b"", "snapshot")

    # What it is

    @property
    def uri(self) -> str:
        """The root, fully qualified, with a `/` at its end."""
        return self._storage.root

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self._core.latest().number

    @property
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6): every setting; also the `config` of `trinitylake.core`'s encoders."""
        from trinitylake.definitions import parse_lakehouse_def

        return parse_lakehouse_def(self._core.latest().definition)

    @property
    def name(self) -> str:
        """The name it was given, or ""."""
        return self.definition.name

    @property
    def properties(self) -> dict[str, str]:
        """The properties it was given."""
        return dict(self.definition.properties)

    def stats(self) -> Stats:
        """Counts of objects and tree nodes in the latest version."""
        return self.at().stats()

    # Writing

    def begin(
        self,
        *,
        isolation: Isolation | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Begin a transaction on the latest version, to be ended with its `commit` or `rollback`.

        Args:
            isolation: "snapshot" fails on what both wrote, "serializable" also on what this one read and another
                wrote; the lakehouse's default if not given.
            message, author, properties: kept in the log.
            id: of `[A-Za-z0-9._-]{1,100}`: makes the commit exactly-once, because an id commits only once ever.
        """
        base = self._core.latest()
        return Transaction(
            self._core,
            self._core.begin(
                isolation=self._default_isolation(base) if isolation is None else check_isolation(isolation),
                id=id,
                message=message,
                author=author,
                properties=properties,
                base=base,
            ),
        )

    def transaction(
        self,
        *,
        isolation: Isolation | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Transaction:
        """`begin`, to be written in a `with` statement: commits at its end, rolls back on an exception."""
        return self.begin(isolation=isolation, message=message, author=author, id=id, properties=properties)

    # Transactions that outlive their process

    def resume(self, id: str) -> Transaction:
        """Go on with a transaction that `Transaction.save` handed over, in any process.

        One that has been committed says so: its `commit` answers with the version again.

        Raises:
            ObjectNotFound: none was saved under that id, or it was rolled back.
            TransactionExpired: it was saved too long ago.
            CommitConflict: it was committed, and then undone by a rollback, which is the winner.
        """
        return Transaction(self._core, self._core.resume(id))

    def transactions(self) -> list[SavedTransaction]:
        """The saved transactions that can be resumed, by id."""
        return [
            SavedTransaction(
                id=saved.id,
                isolation=saved.isolation,
                message=saved.message,
                author=saved.author,
                properties=dict(saved.properties),
                base_version=saved.base_version,
                began_at=time_of(saved.began_at_millis),
                expires_at=time_of(saved.expire_at_millis),
                times_saved=saved.sequence,
            )
            for saved in self._core.saved_transactions()
        ]

    def outcome(self, transaction_id: str) -> Outcome:
        """What became of a transaction, after a `CommitStateUnknown` or the death of its process."""
        return Outcome(*self._core.outcome(transaction_id))

    def rollback(self, version: int, *, message: str = "", author: str = "") -> int:
        """Make a new version with the content of an older one; returns its number. History stays as it is.

        Transactions that committed since are undone, and their ids stay used.

        Raises `VersionNotFound` or `VersionExpired`.
        """
        return self._core.rollback(version, message, author)

    def expire(self, *, before: int | datetime | None = None, dry_run: bool = False) -> list[int]:
        """Delete old versions; returns their numbers, ascending.

        Without `before`, those that retention no longer keeps (`maximum_version_age_millis`,
        `minimum_versions_to_keep`); else all older than that version or moment. With `dry_run` nothing is deleted.
        A saved transaction that can still be resumed keeps the version it began on and all since. Ids of
        transactions that committed in what is deleted can be used again.
        Files that only they reached are for `vacuum`.
        """
        if isinstance(before, datetime):
            before = self._core.version_at(millis_of(before)).number
        return self._core.expire(before, dry_run)

    # History

    def at(self, *, version: int | None = None, timestamp: datetime | str | None = None) -> ViewAt:
        """One version, frozen: the one of that number, the newest at `timestamp`, or the latest if neither is given.

        `timestamp` is a datetime or ISO 8601 text; without a time zone it is local time.

        Raises:
            VersionNotFound: there is no such version, or none that old.
            VersionExpired: it has passed its retention.
        """
        if version is not None and timestamp is not None:
            raise InvalidArgument("give a version or a timestamp, not both")
        if version is not None:
            return ViewAt(self._storage, self._core.version(version))
        if timestamp is not None:
            return ViewAt(self._storage, self._core.version_at(millis_of(_datetime(timestamp))))
        return ViewAt(self._storage, self._core.latest())

    def log(self, limit: int | None = 20, *, before: int | None = None) -> list[LogEntry]:
        """The newest versions, newest first; all that are retained if `limit` is None; older than `before` if given."""
        return [log_entry(info) for info in self._core.log(limit, before)]

    def diff(self, before: int, after: int | None = None) -> Diff:
        """Objects that differ between two versions; `after` is the latest if not given.

        The cost is in proportion to the change, not to the size of the lakehouse. Raises as `at` does.
        """
        older = self._core.version(before)
        newer = self._core.latest() if after is None else self._core.version(after)
        return diff_of(older.number, newer.number, older.diff(newer).to_pylist())

    def changes(self, since: int, until: int | None = None) -> Iterator[TransactionChanges]:
        """What each transaction changed, in commit order, from the version after `since` to the latest or `until`.

        The feed for whoever follows the lakehouse: go on with the `version` of the last entry that was seen. Versions
        are read as the iterator advances. Raises `VersionExpired` if `since` is older than what is kept.
        """
        last = self._core.latest().number if until is None else until
        previous = self._core.version(since)
        for number in range(since + 1, last + 1):
            version = self._core.version(number)
            yield from changes_of(version.info, version.changes(previous).to_pylist())
            previous = version

    # What the shared halves need

    def _state(self) -> _core.Version:
        return self._core.latest()

    def _table(self, namespace: str, name: str, definition: bytes) -> Table:
        from trinitylake.autocommit_table import AutocommitTable

        return AutocommitTable(self, namespace, name, definition)

    def _execute(self, statement: Callable[[Transaction], Result], *, replayable: bool = True) -> Result:
        """Run a statement in a transaction of its own, on newer versions again as long as it loses races."""
        attempts = STATEMENT_MAX_ATTEMPTS if replayable else 1
        while True:
            attempts -= 1
            try:
                with self.begin() as transaction:
                    return statement(transaction)
            except CommitConflict:
                if not attempts:
                    raise

    def _default_isolation(self, version: _core.Version) -> Isolation:
        definition = version.definition
        if self._isolation_of[0] != definition:
            from trinitylake.definitions import parse_lakehouse_def

            self._isolation_of = definition, default_isolation(parse_lakehouse_def(definition))
        return self._isolation_of[1]

    def __repr__(self) -> str:
        return f"Lakehouse({self.uri!r})"


def _storage(uri: str, options: Mapping[str, str] | None, durability: Durability | None) -> _core.Storage:
    try:
        return _core.Storage(uri, options, durability)
    except UnicodeEncodeError as error:  # the name of a folder that is not UTF-8, as `os.listdir` gives it
        raise InvalidLocation(f"{uri!r} is not a valid location: UTF-8 cannot hold it ({error.reason})") from None


def _datetime(timestamp: datetime | str) -> datetime:
    if isinstance(timestamp, datetime):
        return timestamp
    try:
        return datetime.fromisoformat(timestamp)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"expected a datetime or ISO 8601 text, got {timestamp!r}") from error
