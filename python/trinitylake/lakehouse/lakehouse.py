"""The lakehouse: opening it, reading its latest version, writing to it, looking into its history."""

from __future__ import annotations

import atexit
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, cast, overload
from weakref import WeakValueDictionary

from trinitylake import _core
from trinitylake.arguments import (
    checked,
    checked_as,
    flag,
    moment,
    text,
    text_mapping,
    texts,
    version_or_moment,
    whole_number,
)
from trinitylake.durations import Duration, milliseconds
from trinitylake.errors import (
    InvalidArgument,
    NotALakehouse,
    ObjectAlreadyExists,
    TrinityLakeError,
    VersionExpired,
    VersionNotFound,
)
from trinitylake.lakehouse import snapshots
from trinitylake.lakehouse.bulk.statements import BulkStatements
from trinitylake.lakehouse.history import (
    Diff,
    Expired,
    Log,
    LogEntry,
    Outcome,
    SavedTransaction,
    TransactionChanges,
    VersionLog,
    changes_of,
    diff_of,
    log_entry,
    millis_of,
    names_of_versions,
    time_of,
)
from trinitylake.lakehouse.own_folders import require_no_own_folder
from trinitylake.lakehouse.pictures import heading, log_picture
from trinitylake.lakehouse.reader import first_names
from trinitylake.lakehouse.retries import OutOfDate, again_after_lost_races
from trinitylake.lakehouse.safekeeping import Safekeeping
from trinitylake.lakehouse.settings import (
    FormatSettings,
    Isolation,
    check_isolation,
    default_isolation,
    new_lakehouse_def,
)
from trinitylake.lakehouse.snapshots import Snapshot
from trinitylake.lakehouse.statements import Statements
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.lakehouse.tree_compaction import TreeCompaction, compact_tree
from trinitylake.lakehouse.undo import Undo
from trinitylake.lakehouse.upkeep import Upkeep, upkeep
from trinitylake.lakehouse.vacuum import EXAMPLES, Progress, Vacuumed, vacuumed
from trinitylake.lakehouse.view_at import ViewAt
from trinitylake.log_note import NO_NOTE, LogNote
from trinitylake.markup import framed, pairs, shown
from trinitylake.reopening import allow_secrets

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.relocation import Relocation
    from trinitylake.lakehouse.stats import Stats
    from trinitylake.tables.table import Table

# Hints that are still being written would be lost, and later readers look longer for the latest version.
atexit.register(_core.finish_background_tasks, 2.0)

Durability = Literal["fsync", "none"]
#: Versions that a notebook shows of a lakehouse.
NEWEST_SHOWN = 5
Result = TypeVar("Result")


@checked
def create(
    uri: str | PathLike[str],
    *,
    name: str = "",
    properties: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    pickle_secrets: bool = False,
    **settings: Unpack[FormatSettings],
) -> Lakehouse:
    """Create a lakehouse: its version 0, without any object.

    Args:
        uri: the root: a local path (text or `pathlib.Path`), `file://`, `memory://`, `s3://`, `gs://`, `az://` or
            `abfss://` (format §2).
        name: for people.
        properties: anything that should travel with the lakehouse.
        exist_ok: open the lakehouse, as it is, if there is one.
        storage_options: credentials, region, endpoint and the like, for the storage. Never written anywhere.
        durability: on local disk "fsync" (the default) survives a power loss, "none" only a crash of the process.
        pickle_secrets: let pickles of the handle, and of what is opened through it, hold the secrets among the storage
            options. Otherwise a pickle names the environment variable that has a secret, and is refused without one.
        **settings: `order`, `node_file_max_size_bytes` and the others of `FormatSettings` (`lakehouse/settings.py`).

    Raises:
        ObjectAlreadyExists: there is a lakehouse, and not `exist_ok`.
        InvalidLocation: the URI is not fully qualified, or leads into one of another lakehouse's own folders.
        InvalidArgument: for a bad setting, or a storage that cannot create a file only if it is absent.
    """
    from trinitylake.definitions import serialize

    definition = serialize(new_lakehouse_def(name, properties, settings))
    if pickle_secrets:
        allow_secrets(storage_options)
    storage = _core.Storage(str(uri), storage_options, durability)
    require_no_own_folder(storage.root, storage_options)
    try:
        return Lakehouse(_core.Lakehouse.create(storage, definition))
    except ObjectAlreadyExists:
        if not exist_ok:
            raise
        return Lakehouse(_core.Lakehouse.open(storage))


@overload
def open(
    uri: str | PathLike[str],
    *,
    version: None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> Lakehouse: ...
@overload
def open(
    uri: str | PathLike[str],
    *,
    version: int,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> ViewAt: ...
@checked
def open(
    uri: str | PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> Lakehouse | ViewAt:
    """Open a lakehouse, or one version of it, which stays as it is.

    Where the newest version is damaged, the lakehouse opens all the same: the versions before it can be read by their
    number, `log` shows the gap, and whatever needs the newest version raises `CorruptFile`. Where its file is missing,
    the newest one that is there is read, with a `RuntimeWarning`, and whatever writes raises `CorruptFile`.

    Args:
        uri: as for `create`.
        version: the number of a version, for the frozen view that `lake.at(version=...)` gives.
        storage_options: as for `create`.
        durability: as for `create`.
        cache_size_bytes: memory for decoded tree nodes.
        pickle_secrets: as for `create`.

    Raises:
        NotALakehouse: there is none at `uri`.
        UnsupportedVersion: it was written by a newer major version of the format.
    """
    if pickle_secrets:
        allow_secrets(storage_options)
    storage = _core.Storage(str(uri), storage_options, durability)
    try:
        lake = Lakehouse(_core.Lakehouse.open(storage, cache_size_bytes), cache_size_bytes)
    except NotALakehouse as error:
        raise NotALakehouse(f"{storage.root}: {error}") from None
    if version is None and lake.core.loss is not None:
        warnings.warn(f"{storage.root}: " + ": ".join(lake.core.loss), RuntimeWarning, stacklevel=3)
    return lake if version is None else lake.at(version=version)


class Lakehouse(BulkStatements, Safekeeping, Undo, Statements):
    """An open lakehouse, from `create` or `open`. Safe to share between threads.

    A pickle of it opens it again, by root and options. Handles of one lakehouse that arrive in a process while another
    one of them is in use are the same, so that their commits can share versions.

    Reading methods answer from the latest version, looked up with one request at each call; `at(...)` keeps one
    version still. Statements called here, and writes to tables opened here, are each a transaction of their own,
    started again on the newer version if another writer was faster.

    Attributes:
        core: the handle of the core, for catalogs, servers and engines.
    """

    def __init__(self, core: _core.Lakehouse, cache_size_bytes: int | None = None) -> None:
        self.core = core
        self._cache_size_bytes = cache_size_bytes
        self._storage = core.storage
        self._isolation_of: tuple[bytes, Isolation] = (b"", "snapshot")

    # What it is

    @property
    def uri(self) -> str:
        """The root, fully qualified, with a `/` at its end."""
        return self.storage.root

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self.core.latest().number

    @property
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6): every setting; also the `config` of `trinitylake.core`'s encoders."""
        from trinitylake.definitions import parse_lakehouse_def

        return parse_lakehouse_def(self.core.latest().definition)

    @property
    def name(self) -> str:
        """The name it was given, or ""."""
        return self.definition.name

    @property
    def properties(self) -> dict[str, str]:
        """The properties it was given."""
        return dict(self.definition.properties)

    @checked_as(files=flag)
    def stats(self, *, files: bool = False, progress: Progress | None = None) -> Stats:
        """Counts of objects and tree nodes in the latest version; with `files` also what all files are there for.

        That is files and bytes by kind and by table, small data files, what older versions hold, and what `expire` and
        `vacuum` would free. For it every node, definition, metadata file and manifest that a version reaches is read
        once, and all files are listed once, as for `vacuum`. Nothing is changed.

        Args:
            files: measure the files, too.
            progress: as for `vacuum`.

        Raises `CorruptFile` with `files` if something that is reached is damaged or missing.
        """
        counted = self.at().stats()
        if not files:
            return counted
        from trinitylake.iceberg_storage.data_file_sizes import SMALL_FILE_SIZE_BYTES
        from trinitylake.lakehouse.file_stats import file_stats

        expiring_before = self.expire(dry_run=True).oldest
        return replace(counted, files=file_stats(self.core.usage(expiring_before, SMALL_FILE_SIZE_BYTES, progress)))

    # Writing

    @checked_as(properties=text_mapping)
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
            message: kept in the log.
            author: kept in the log.
            properties: kept in the log.
            id: of `[A-Za-z0-9._-]{1,100}`: makes the commit exactly-once, because an id commits only once ever.
        """
        base = self.core.latest()
        return Transaction(
            self.core,
            self.core.begin(
                isolation=self._default_isolation(base) if isolation is None else check_isolation(isolation),
                id=id,
                message=message,
                author=author,
                properties=properties,
                base=base,
            ),
        )

    @checked_as(properties=text_mapping)
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

    @checked
    def resume(self, id: str, *, allow_checks: str | Iterable[str] = ()) -> Transaction:
        """Go on with a transaction that `Transaction.save` handed over, in any process.

        One that has been committed says so: its `commit` answers with the version again.

        Args:
            id: of the transaction.
            allow_checks: modules whose functions may run as checks, each with the modules below it, or
                `package.module:function`. Whoever saved the transaction chose its checks; those that are Python
                functions run in this process, so `commit` refuses them unless they are allowed here.

        Raises:
            ObjectNotFound: none was saved under that id, or it was rolled back.
            TransactionExpired: it was saved too long ago.
            CommitConflict: it was committed, and then undone by a rollback, which is the winner.
        """
        allowed = texts(allow_checks, "allow_checks")
        return Transaction(self.core, self.core.resume(id), allowed)

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
            for saved in self.core.saved_transactions()
        ]

    @checked
    def outcome(self, transaction_id: str) -> Outcome:
        """What became of a transaction, after a `CommitStateUnknown` or the death of its process."""
        return Outcome(*self.core.outcome(transaction_id))

    @checked
    def is_used(self, transaction_id: str) -> bool:
        """Whether a transaction with that chosen id is committed in a version that is kept, undone since or not.

        One look-up in the latest version, where `outcome` reads the log. Raises `InvalidName` for what is no id.
        """
        return self.core.is_recorded(transaction_id)

    @checked
    def rollback(self, version: int, *, message: str = "", author: str = "") -> int:
        """Make a new version with the content of an older one; returns its number. History stays as it is.

        Transactions that committed since are undone, and their ids stay used.

        Raises `VersionNotFound` or `VersionExpired`.
        """
        return self.core.rollback(version, message, author)

    @checked_as(before=version_or_moment, older_than=milliseconds, keep=functools.partial(whole_number, minimum=1))
    def expire(
        self,
        *,
        before: int | datetime | date | str | None = None,
        older_than: Duration | None = None,
        keep: int | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Delete old versions; returns their numbers, ascending, with sizes.

        A saved transaction that can still be resumed keeps the version it began on and all since; one that cannot, and
        that began on a version that is deleted, is given up and its files are deleted. A snapshot keeps its version.
        Ids of transactions that committed in what is deleted can be used again. Files that only they reached are for
        `vacuum`.

        Args:
            before: all older than this version, or than the one that was the newest at this moment: a datetime, a date
                or ISO 8601 text; without a time zone it is local time. Their age does not matter then.
            older_than: a timedelta or text such as "7 days", in the place of the setting
                `maximum_version_age_millis`. The store tells how old a version is, whatever the clock of this machine
                says.
            keep: at least so many versions stay, in the place of `minimum_versions_to_keep`. Without `older_than`,
                exactly so many, however young the others are. Versions with an age of their own
                (`maximum_version_age_millis_overrides`) stay for that long, and so do all after them.
            dry_run: say what would be deleted, and delete nothing.

        Raises `InvalidArgument` for `before` together with one of the others, or beyond the latest version.
        """
        if before is not None and (older_than is not None or keep is not None):
            raise InvalidArgument("give `before`, or `older_than` and `keep`, not both")
        if isinstance(before, datetime):
            try:
                before = self._version_at(before).number
            except (VersionNotFound, VersionExpired):  # there is nothing that old, or no more
                before = 0
        oldest = cast("int | None", before)
        age = cast("int | None", 0 if keep is not None and older_than is None else older_than)
        return Expired(*self.core.expire(oldest, age, keep, dry_run))

    @checked_as(grace=milliseconds, paths=flag)
    def vacuum(
        self,
        *,
        grace: Duration | None = None,
        dry_run: bool = False,
        paths: bool = False,
        progress: Progress | None = None,
    ) -> Vacuumed:
        """Delete files that nothing reaches any more: no kept version, no snapshot, no open saved transaction.

        `expire` lets versions go; this deletes what only they reached, and what writers that died or rolled back left
        behind: tree nodes, definitions, files of managed tables, records of transactions, temporary files. Files of
        external and federated tables stay, and so does whatever is not made by this format.

        It makes a version of its own, so that a writer that began before `grace` and did not commit yet fails with
        `TransactionExpired` instead of committing files that are gone. It may be killed at any moment and run again,
        and several may run at once (format §7).

        Args:
            grace: a timedelta or text such as "1 day": younger files stay, by the clock of the store. By default the
                lakehouse's `txn_ttl_millis`, so no transaction that may still be resumed is affected. Open saved
                transactions are never affected: what is younger than the oldest of them stays.
            dry_run: look, and delete nothing.
            paths: tell all paths that are deleted or unknown, not the first thousand of each.
            progress: is called from time to time with "marked" or "swept", and how many files.

        Raises:
            CorruptFile: something that is reached is damaged or missing, so nobody can tell what else it reaches;
                nothing was deleted.
            CommitConflict: others committed so often that it could not.
        """
        examples = sys.maxsize if paths else EXAMPLES
        found = self.core.vacuum(cast("int | None", grace), dry_run, examples, progress)
        return vacuumed(found, dry_run)

    @checked
    def upkeep(self, *, dry_run: bool = False, progress: Progress | None = None) -> Upkeep:
        """Do what the lakehouse's own policy says: put small files together, let go what is no longer kept.

        That is `table.maintenance.compact()` for every managed table, `compact()` for the tree, then `expire`, then
        `vacuum`. The policy travels with the lakehouse: how long versions are kept are the settings
        `maximum_version_age_millis` and `minimum_versions_to_keep`; the properties `upkeep.compact`,
        `upkeep.compact-tree`, `upkeep.expire` and `upkeep.vacuum` ("false" turns one off), `upkeep.compact.min-files`
        and `upkeep.grace` ("2 days", of `vacuum`) say the rest. `lake.alter` changes all of them. A table's own
        properties `upkeep.compact` and `upkeep.compact.min-files` count for that table. What hinders one table is told,
        and the others are gone on with.

        Args:
            dry_run: say what would be done, and do nothing.
            progress: as for `vacuum`, and with "compacted".

        Raises `InvalidArgument` for a property that is misspelt, and otherwise as `expire` and `vacuum` do.
        """
        return upkeep(self, dry_run=dry_run, progress=progress)

    # Versions with names

    @checked
    def snapshot(self, name: str, *, version: int | None = None, message: str = "", author: str = "") -> Snapshot:
        """Give a version a name, by a commit: the latest one, or `version`. It stays until the name is dropped.

        `lake.at(snapshot=name)` reads it, also after the versions around it have expired. The name has 1 to 100 of the
        characters `A-Z a-z 0-9 . _ -`. To give the same version the same name again changes nothing.

        Raises:
            ObjectAlreadyExists: another version has that name.
            VersionNotFound, VersionExpired: there is no such version, or no more.
            InvalidName: for a name with other characters.
        """
        return snapshots.take(self, snapshots.checked_name(name), version, message, author)

    @checked
    def drop_snapshot(self, name: str, *, message: str = "", author: str = "") -> None:
        """Take a name back; its version expires as any other. Raises `ObjectNotFound`."""
        snapshots.drop(self, name, message, author)

    def snapshots(self) -> list[Snapshot]:
        """The versions that have names, by name."""
        return snapshots.listed(self, self.definition)

    def change_definition(self, change: Callable[[LakehouseDef], None], message: str, author: str) -> None:
        """Commit a change of the lakehouse's own definition, made again on the newer one after a lost race."""
        from trinitylake.definitions import parse_lakehouse_def, serialize

        def attempt() -> None:
            with self.begin(message=message, author=author) as transaction:
                definition = parse_lakehouse_def(transaction.lakehouse_definition)
                before = serialize(definition)
                change(definition)
                after = serialize(definition)
                if after != before:
                    transaction.lakehouse_definition = after
                    transaction.state().set_lakehouse_definition(after)

        again_after_lost_races(attempt)

    @checked_as(force=flag)
    def compact(
        self, *, force: bool = False, dry_run: bool = False, message: str = "", author: str = ""
    ) -> TreeCompaction:
        """Build the tree of the latest version anew: full leaves, empty buffers, fewer files for who opens it cold.

        It is a version that changes nothing, and what others commit meanwhile is kept. Nothing is done if there is too
        little to gain (no node, or less than a fifth of them while few changes wait in buffers), unless `force`; with
        `dry_run` nothing is in any case, and the result says how many nodes there would be. The tree alone is meant:
        data files of tables are put together by `table.maintenance.compact`. Old nodes are for `vacuum`.

        Raises `CommitConflict` if others rolled back, or registered objects, again and again.
        """
        return compact_tree(self.core, force, dry_run, message, author)

    @checked
    def relocate(
        self,
        *,
        rewrite: bool = True,
        former: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
        dry_run: bool = False,
        message: str = "",
        author: str = "",
    ) -> Relocation:
        """Record the present root, after the lakehouse was moved or copied; until then it can only be read.

        All of it is one version. Files that are named below a former root are read below the present one from then on,
        in older versions too, and never at the old place. Other engines do not know that, so by default the Iceberg
        files of every managed table that name other files are written anew: metadata, manifest lists, manifests, and
        position deletes in Parquet, whose rows name data files. Data files, equality deletes and statistics name none.

        Args:
            rewrite: False leaves the files of tables as they are: quick, and enough for this library and its server.
            former: roots where a lakehouse lay that has never recorded any, because an older release made it.
            dry_run: read everything, say what would be done, and write nothing.
            message: for the log.
            author: for the log.

        It can be repeated: what names the present root already is left alone. Tables that cannot be read are skipped
        and told. If it breaks off, everything is as before.

        Raises:
            CommitConflict: somebody else relocated the lakehouse, or changed a table that is written anew.
            InvalidLocation: for a bad root.
        """
        from trinitylake.lakehouse.relocation import relocate, storage_with

        roots = cast("tuple[str, ...]", former)
        done = relocate(self, rewrite=rewrite, former=roots, dry_run=dry_run, message=message, author=author)
        if roots and not dry_run:  # what this handle reads may be named below them
            self.core = _core.Lakehouse.open(storage_with(self._storage, done.former_roots))
            self._storage = self.core.storage
        return done

    # History

    @checked_as(snapshot=text)
    def at(
        self,
        *,
        version: int | None = None,
        timestamp: datetime | date | str | None = None,
        snapshot: str | None = None,
    ) -> ViewAt:
        """One version, frozen: of that number, the newest at `timestamp`, of that name, or the latest if none is given.

        `timestamp` is a datetime, a date or ISO 8601 text; without a time zone it is local time.

        Raises:
            VersionNotFound: there is no such version, or none that old.
            VersionExpired: it has passed its retention.
            ObjectNotFound: there is no snapshot of that name.
        """
        if [version, timestamp, snapshot].count(None) < 2:
            raise InvalidArgument("give a version, a timestamp or a snapshot, not several")
        if snapshot is not None:
            return ViewAt(self.storage, self.core.snapshot(snapshot))
        if version is not None:
            return ViewAt(self.storage, self.core.version(version))
        if timestamp is not None:
            return ViewAt(self.storage, self._version_at(moment(timestamp, "timestamp")))
        return ViewAt(self.storage, self.core.latest())

    @overload
    def log(self, limit: int = 20, *, before: int | None = None) -> list[LogEntry]: ...
    @overload
    def log(self, limit: None, *, before: int | None = None) -> VersionLog: ...
    @checked
    def log(self, limit: int | None = 20, *, before: int | None = None) -> list[LogEntry] | VersionLog:
        """The newest versions, newest first; all that are retained if `limit` is None; older than `before` if given.

        One that cannot be read is a gap, told in its `problem`. All of them are a sequence that reads 256 at a time, as
        they are looked at.
        """
        if limit is None:
            return VersionLog(self.core, before)
        return Log((log_entry(info) for info in self.core.log(limit, before)), self.core)

    @checked
    def diff(self, before: int, after: int | None = None) -> Diff:
        """Objects that differ between two versions; `after` is the latest if not given.

        The cost is in proportion to the change, not to the size of the lakehouse. Raises as `at` does.
        """
        older = self.core.version(before)
        newer = self.core.latest() if after is None else self.core.version(after)
        return diff_of(older.number, newer.number, older.diff(newer).to_pylist())

    @checked
    def changes(self, since: int, until: int | None = None) -> Iterator[TransactionChanges]:
        """What each transaction changed, in commit order, from the version after `since` to the latest or `until`.

        The feed for whoever follows the lakehouse: go on with the `version` of the last entry that was seen. Versions
        are read as the iterator advances. Raises `VersionExpired` if `since` is older than what is kept.
        """
        last = self.core.latest().number if until is None else until
        previous = self.core.version(since)
        for number in range(since + 1, last + 1):
            version = self.core.version(number)
            yield from changes_of(version.info, version.changes(previous).to_pylist())
            previous = version

    # What the shared halves need

    @property
    def storage(self) -> _core.Storage:
        return self._storage

    def state(self) -> _core.Version:
        return self.core.latest()

    def _state_for(self, kind: Literal["namespace", "table", "view"], namespace: str, name: str) -> _core.Version:
        return self.core.latest_for(kind, namespace, name)

    def _at_one_moment(self) -> ViewAt:
        return self.at()

    def _table(
        self, namespace: str, name: str, definition: bytes, state: _core.Version | _core.Transaction | None
    ) -> Table:
        from trinitylake.tables.autocommit_table import AutocommitTable

        return AutocommitTable(self, namespace, name, definition, cast("_core.Version | None", state))

    def _afterwards(self, namespace: str, name: str, table: Table) -> Table:
        from trinitylake.definitions import serialize

        return self._table(namespace, name, serialize(table.definition), None)

    def execute(
        self,
        statement: Callable[[Transaction], Result],
        note: LogNote = NO_NOTE,
        base: _core.Version | None = None,
    ) -> Result:
        """Run a statement in a transaction of its own, on newer versions again as long as it loses races.

        With `base` it begins on that version, which was the latest a moment ago, and does not look for a newer one:
        for a statement that does the same on either. What goes wrong on a version that is not the latest any more has
        not happened: the statement runs again on the latest.
        """
        bases = [] if base is None else [base]

        def attempt() -> Result:
            while bases:
                with suppress(OutOfDate):
                    return self._execute_on(bases.pop(), statement, note)
            with self.begin(message=note.message, author=note.author) as transaction:
                return statement(transaction)

        return again_after_lost_races(attempt)

    def execute_at_once(self, statement: Callable[[Transaction], Result], note: LogNote = NO_NOTE) -> Result:
        return self.execute(statement, note, self.core.lately())

    def _execute_on(self, base: _core.Version, statement: Callable[[Transaction], Result], note: LogNote) -> Result:
        """Raises `OutOfDate`, with the transaction rolled back, for what goes wrong where there is a newer version."""
        core = self.core.begin(
            isolation=self._default_isolation(base), message=note.message, author=note.author, base=base
        )
        with Transaction(self.core, core) as transaction:
            try:
                return statement(transaction)
            except Exception as error:
                with suppress(TrinityLakeError):  # what came first says more than a look that fails as well
                    if self.core.latest().number != base.number:
                        raise OutOfDate from error
                raise

    def _version_at(self, time: datetime) -> _core.Version:
        millis = millis_of(time)
        if millis < 0:
            raise VersionNotFound(f"no version is as old as {time.isoformat()}")
        return self.core.version_at(millis)

    def _default_isolation(self, version: _core.Version) -> Isolation:
        definition = version.definition
        if self._isolation_of[0] != definition:
            from trinitylake.definitions import parse_lakehouse_def

            self._isolation_of = definition, default_isolation(parse_lakehouse_def(definition))
        return self._isolation_of[1]

    @shown
    def _repr_html_(self) -> str:
        """The lakehouse in a notebook: its first namespaces and its newest versions. A few files are read."""
        latest = self.core.latest()
        if not self.storage.exists(_core.root_path(latest.number)):  # what a handle remembers would hide that
            raise NotALakehouse(f"{self.uri}: the lakehouse is gone")
        entries = [log_entry(info) for info in self.core.log(NEWEST_SHOWN, None)]
        return framed(
            heading("lakehouse", self.name, self.uri),
            pairs([("version", f"{latest.number:,}"), ("namespaces", first_names(latest, "namespace"))]),
            log_picture(entries, names_of_versions(self.core)),
        )

    def __reduce__(self) -> tuple[Callable[..., Lakehouse], tuple[_core.Storage, int | None]]:
        return reopened_lakehouse, (self.storage, self._cache_size_bytes)

    def __repr__(self) -> str:
        return f"Lakehouse({self.uri!r})"


#: Handles that have arrived by pickle and are in use.
_ARRIVED: WeakValueDictionary[object, Lakehouse] = WeakValueDictionary()


def reopened_lakehouse(storage: _core.Storage, cache_size_bytes: int | None = None) -> Lakehouse:
    """The handle for a storage that has arrived by pickle. Raises `NotALakehouse`."""
    root, options, durability, other_roots = storage.__getnewargs__()
    opened_by = (root, frozenset((options or {}).items()), durability, tuple(other_roots), cache_size_bytes)
    if (arrived := _ARRIVED.get(opened_by)) is not None:
        return arrived
    try:
        core = _core.Lakehouse.open(storage, cache_size_bytes)
    except NotALakehouse as error:
        hint = ": what is in memory is in one process" if root.startswith("memory:") else ""
        raise NotALakehouse(f"{root}: {error}{hint}") from None
    lake = _ARRIVED[opened_by] = Lakehouse(core, cache_size_bytes)
    return lake
