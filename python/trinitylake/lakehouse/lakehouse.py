"""The handle of an open lakehouse: its latest version, its transactions, its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload
from weakref import WeakValueDictionary

from trinitylake import _core
from trinitylake.base.arguments import checked, checked_as, flag, texts, version_reference
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.base.markup import framed, heading, pairs, shown
from trinitylake.base.qualified_names import Identifier
from trinitylake.base.version_reference import (
    VersionReference,
    check_order,
    find_version,
    version_before,
    versions_after,
)
from trinitylake.errors import CommitConflict, NotALakehouse
from trinitylake.lakehouse.bulk.engines import engine_module
from trinitylake.lakehouse.handle import Handle
from trinitylake.lakehouse.history import (
    Changes,
    Diff,
    Log,
    LogEntry,
    LogFilter,
    TransactionChanges,
    VersionLog,
    changes_of,
    diff_of,
    log_entry,
    log_table,
    tags_by_version,
)
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.reader import first_names
from trinitylake.lakehouse.settings import Isolation
from trinitylake.lakehouse.statements import Statements
from trinitylake.lakehouse.tags import Tags
from trinitylake.lakehouse.transaction import Transaction, warn_in_block
from trinitylake.lakehouse.transactions import Transactions

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import SparkSession

    from trinitylake._core import Storage, Version
    from trinitylake._core import Transaction as CoreTransaction
    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.bulk.catalog_import import CatalogImport
    from trinitylake.lakehouse.bulk.registration import Progress as RegistrationProgress
    from trinitylake.lakehouse.bulk.registration import Registration
    from trinitylake.lakehouse.erasure import Erasure
    from trinitylake.lakehouse.export import Export, Mode
    from trinitylake.lakehouse.maintenance import LakehouseMaintenance
    from trinitylake.lakehouse.object_copier import OnProgress as OnExportProgress
    from trinitylake.lakehouse.object_history import ObjectChange
    from trinitylake.lakehouse.object_rollback import ObjectRollback
    from trinitylake.lakehouse.transaction_rows import TransactionRowChanges
    from trinitylake.lakehouse.vacuum_report import Progress as OnFiles
    from trinitylake.tables.table import Table
    from trinitylake.tables.transaction_table import TransactionTable

#: Maximum number of versions that the html repr of a lakehouse shows.
NEWEST_SHOWN = 5
Result = TypeVar("Result")


class Lakehouse(Statements):
    """An open lakehouse, from `create` or `open`. Safe to share between threads.

    Reading methods read the latest version, which each call looks up with one request; `at(...)` returns a fixed
    version. Each statement on this object, and each write to a table opened from it, is a separate transaction. If
    another writer was faster, the transaction is repeated on the newer version.

    Unpickling a handle opens the lakehouse again, by root and options. All handles of one lakehouse that a process
    unpickles are the same object, so that their commits can share versions.
    """

    def __init__(self, core: _core.Lakehouse, cache_size_bytes: int | None = None) -> None:
        self._handle = Handle(core, cache_size_bytes)

    # The lakehouse itself

    @property
    def uri(self) -> str:
        """URI of the root, fully qualified, with a `/` at its end."""
        return self._storage.root

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self._core.latest().number

    @property
    def _definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6), with all settings; the encoders of `trinitylake.core` take it, too."""
        return self._handle.definition

    @property
    def name(self) -> str:
        """The name of the lakehouse, or ""."""
        return self._definition.name

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the lakehouse."""
        return dict(self._definition.properties)

    @property
    def maintenance(self) -> LakehouseMaintenance:
        """`run`, `expire`, `vacuum`, `compact`, `fsck`, `stats`, `relocate`."""
        from trinitylake.lakehouse.maintenance import LakehouseMaintenance

        return LakehouseMaintenance(self._handle, self)

    @property
    def tags(self) -> Tags:
        """Named versions: `create`, `list`, `drop`."""
        return Tags(self._handle)

    # Transactions

    @property
    def transactions(self) -> Transactions:
        """Saved transactions and outcomes: `list`, `outcome`, `is_committed`."""
        return Transactions(self._handle)

    def begin(
        self,
        *,
        isolation: Isolation | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
        restart: bool = False,
    ) -> Transaction:
        """Begin a transaction on the latest version.

        In a `with` statement it commits at the end of the block, and rolls back on an exception. Otherwise call
        `commit` or `rollback`. `transaction` is another name of this method.

        Args:
            isolation: "snapshot" fails if a concurrent transaction changed data that this one writes, "serializable"
                also if it changed data that this one reads. The default is the setting of the lakehouse.
            properties: stored in the log.
            id: a name for the transaction that matches `[A-Za-z0-9._-]{1,100}`. Only one transaction with an id can
                commit, so an application can repeat a transaction until it has been committed once.
            restart: discard an earlier attempt with the id, saved or rolled back, and begin again. No process can
                commit the discarded attempt. If the id was committed already, the transaction has that `version`, and
                `commit` returns it.

        Raises `CommitConflict` with `restart` if a rollback undid the commit of the id, or another process saved a
        transaction with the id at the same time.
        """
        return self._handle.begin(
            isolation=isolation, message=message, author=author, id=id, properties=properties, restart=restart
        )

    transaction = begin

    @checked
    def resume(self, id: str, *, allow_checks: str | Iterable[str] = ()) -> Transaction:
        """Continue a transaction that `Transaction.save` stored, in any process.

        If it has been committed, its `commit` returns that version again.

        Args:
            id: id of the transaction, or the name of an attempt, which `Transaction.save` returned.
            allow_checks: functions that may run as checks, as `package.module:function`, or modules, which allow all
                functions in them and in their submodules. The process that saved the transaction chose its checks. A
                check that is a Python function runs in this process, so `commit` refuses it unless it is allowed.

        Raises:
            ObjectNotFound: no transaction was saved under that id, or it was rolled back.
            TransactionExpired: it was saved too long ago.
            CommitConflict: it was committed, and a rollback of the lakehouse has undone it; or the attempt was
                discarded by a restart.
        """
        transaction = Transaction(
            self._core, self._core.resume(id.partition("~")[0]), texts(allow_checks, "allow_checks")
        )
        if "~" in id and transaction._attempt != id and transaction.version is None:
            raise CommitConflict(f"transaction {transaction.id} was begun again, which discarded the attempt {id}")
        return transaction

    # Versions

    @checked_as(version=version_reference)
    def at(self, version: VersionReference | None = None) -> LakehouseVersion:
        """Read-only handle on one version; the latest one without an argument.

        Args:
            version: a number, where a negative one counts back from the latest version; a datetime, a date, an ISO 8601
                string or a string such as "2 hours ago" for the version that was the latest at that time (in UTC if
                no time zone is given); or "tag:NAME" for a tagged version.

        Raises:
            InvalidArgument: the string has none of these forms.
            VersionNotFound: the version does not exist, or no version is that old.
            VersionExpired: the version has expired.
            ObjectNotFound: there is no such tag.
        """
        return LakehouseVersion(self._storage, find_version(self._core, version))

    @overload
    def log(
        self,
        limit: int | None = 20,
        *,
        before: int | None = None,
        of: None = None,
        since: VersionReference | None = None,
        until: VersionReference | None = None,
        author: str = "",
        grep: str = "",
    ) -> Sequence[LogEntry]: ...
    @overload
    def log(
        self,
        limit: int | None = 20,
        *,
        before: int | None = None,
        of: Identifier,
        since: VersionReference | None = None,
        until: VersionReference | None = None,
        author: str = "",
        grep: str = "",
    ) -> list[ObjectChange]: ...
    @checked
    def log(
        self,
        limit: int | None = 20,
        *,
        before: int | None = None,
        of: Identifier | None = None,
        since: VersionReference | None = None,
        until: VersionReference | None = None,
        author: str = "",
        grep: str = "",
    ) -> Sequence[LogEntry] | list[ObjectChange]:
        """The versions, newest first; with `of`, the changes of one object.

        The entry of a version that cannot be read has a `problem`. With `limit=None`, and without `of`, `since`,
        `author` and `grep`, the result is a sequence that reads 256 entries at a time when they are used.

        With `of`, the object is followed by its id, through renames and through a drop that was rolled back. The number
        of requests is proportional to the number of changes of the object, times the logarithm of the number of
        versions. If the tree is a single node, each version is read.

        Args:
            limit: the largest number of entries; None for all.
            before: only versions before this one, for the next page.
            of: the name of a table, view or namespace; if no object has the name now, the last object that had it.
            since: only versions after this one, a reference as for `at`, such as "2 days ago".
            until: only versions up to this one.
            author: only versions with a transaction whose author contains this string, ignoring case.
            grep: only versions with a transaction whose message or summary contains this string, ignoring case.

        Raises `ObjectNotFound` if no kept version has the object.
        """
        if until is not None:
            last = find_version(self._core, until).number
            before = last + 1 if before is None else min(before, last + 1)
        if of is None and since is None and not author and not grep:
            if limit is None:
                return VersionLog(self._core, before)
            return Log((log_entry(info) for info in self._core.log(limit, before)), self._core)
        select = LogFilter(-1 if since is None else version_before(self._core, since), before, author, grep).select
        if of is not None:
            from trinitylake.lakehouse.object_history import changes_of_object

            return list(islice(select(changes_of_object(self._core, of)), limit))
        return Log(islice(select(VersionLog(self._core, before)), limit), self._core)

    @checked_as(before=version_reference, after=version_reference)
    def diff(self, before: VersionReference, after: VersionReference | None = None) -> Diff:
        """Objects that differ between two versions, given as for `at`; `after` is the latest one by default.

        The cost is in proportion to the change, not to the size of the lakehouse. Raises as `at` does.
        """
        older, newer = find_version(self._core, before), find_version(self._core, after)
        return diff_of(older.number, newer.number, older.diff(newer).to_pylist())

    @overload
    def changes(
        self, since: VersionReference, until: VersionReference | None = None, *, rows: Literal[False] = False
    ) -> Iterator[TransactionChanges]: ...

    @overload
    def changes(
        self, since: VersionReference, until: VersionReference | None = None, *, rows: Literal[True]
    ) -> Iterator[TransactionRowChanges]: ...

    @checked_as(rows=flag)
    def changes(
        self, since: VersionReference, until: VersionReference | None = None, *, rows: bool = False
    ) -> Iterator[TransactionChanges]:
        """Changes of each transaction, in commit order, from the version after `since` to the latest or `until`.

        A consumer continues with the `version` of the last entry that it processed. Versions are read as the iterator
        advances. Transactions that shared a version changed different objects, so each can be applied independently.

        Args:
            since: a version as for `at`; its own changes are not included.
            until: the last version.
            rows: return also the changed rows: `entry.rows` has a `TableRowChanges` for each table.

        Raises `VersionExpired` if a version after `since` has expired, and `InvalidArgument` if `until` is older.
        """
        return Changes(lambda: self._changes(since, until, rows))

    def _changes(
        self, since: VersionReference, until: VersionReference | None, rows: bool
    ) -> Iterator[TransactionChanges]:
        previous = find_version(self._core, since)
        last = find_version(self._core, until)
        check_order(previous.number, last.number)
        if rows:
            from trinitylake.lakehouse.transaction_rows import changes_with_rows

            yield from changes_with_rows(self._core, previous, last)
            return
        for version in versions_after(self._core, previous, last):
            yield from changes_of(version.info, version.changes(previous).to_pylist())
            previous = version

    @overload
    def rollback(
        self, version: VersionReference, *, objects: None = None, message: str = "", author: str = ""
    ) -> int: ...

    @overload
    def rollback(
        self,
        version: VersionReference,
        *,
        objects: str | Iterable[Identifier] | Mapping[Identifier, Identifier],
        message: str = "",
        author: str = "",
    ) -> ObjectRollback: ...

    @checked_as(version=version_reference)
    def rollback(
        self,
        version: VersionReference,
        *,
        objects: str | Iterable[Identifier] | Mapping[Identifier, Identifier] | None = None,
        message: str = "",
        author: str = "",
    ) -> int | ObjectRollback:
        """Commit a new version in which all objects, or some, have the state of an older version.

        Without `objects` the new version has the content of the older one; its number is returned. The history is
        kept. Transactions that committed since are undone, and their ids stay used.

        With `objects` only the named objects change, in one ordinary commit. A dropped object is restored with its id.
        An existing object returns to its old state, under its present name if it was renamed. A namespace is restored
        with all namespaces, tables and views that were in it; objects created in it later are kept. No data is copied:
        the tables name the same files as in the older version.

        Args:
            version: as for `at`.
            objects: names that tables, views or namespaces had in that version; or a mapping of these names to new
                ones. If an object gets a new name while it still exists under another one, it is a copy with a new id.

        Raises:
            VersionNotFound, VersionExpired: as for `at`.
            ObjectNotFound: the version has no such object; or the namespace of an object does not exist.
            ObjectAlreadyExists: another object has the name.
            CommitConflict: other writers changed the same objects during each attempt.
        """
        past = self.at(version)
        if objects is None:
            return self._core.rollback(past.version, message, author)
        from trinitylake.lakehouse.object_rollback import roll_back_objects

        return roll_back_objects(self._handle, past, objects, message, author)

    @checked_as(drop_tags=flag, roll_back_transactions=flag, dry_run=flag, grace=milliseconds)
    def erase(
        self,
        table: Identifier,
        filter: str | BooleanExpression,
        *,
        history: Literal["rewrite", "expire"] = "rewrite",
        reason: str = "",
        drop_tags: bool = False,
        roll_back_transactions: bool = False,
        grace: Duration | None = None,
        dry_run: bool = False,
        author: str = "",
        progress: OnFiles | None = None,
    ) -> Erasure:
        """Erase the rows that match a filter from a table, from its whole history and from the storage.

        If a kept version holds such rows, this commits a version without them, removes them from all earlier versions,
        and deletes the files. Then it searches every file below the root for matching rows. After a crash, call it
        again: it completes the erasure. Other tables are searched, but not changed.

        Args:
            table: a managed table, also a dropped one, by any name that it has in a kept version.
            filter: as for `scan`. A column name means every column that has this name in a kept version.
            history: "rewrite" keeps all versions and tags, and replaces the table's metadata files in them. "expire"
                expires all earlier versions, also if only a message or a definition contains a value of the filter.
            reason: stored in the log and in the certificate, so it must not contain personal data.
            drop_tags: with "expire", drop tags of versions with matching rows.
            roll_back_transactions: roll back saved transactions that may hold matching rows.
            grace: keep unreferenced files that are younger than this, such as "1 day". By default none are kept, so
                open transactions that are not saved fail with `TransactionExpired`.
            dry_run: report what holds matching rows, and change nothing.
            author: stored in the log and in the certificate.
            progress: as for `maintenance.vacuum`, and with "rewritten", "replaced" and "searched".

        Raises:
            ObjectNotFound: no kept version has the table.
            InvalidArgument: the table is not managed; no kept version has the columns; a tag or saved transaction
                holds matching rows, and `drop_tags` or `roll_back_transactions` is not set; or the reason contains a
                value of the filter.
            CommitConflict: other writers changed the table during each of ten attempts, or another erasure began.
        """
        from trinitylake.lakehouse.erasure import ErasureRequest, erase

        grace_millis = cast("int | None", grace) or 0
        request = ErasureRequest(
            table, filter, history, reason, drop_tags, roll_back_transactions, grace_millis, author, progress
        )
        return erase(self._handle, request, dry_run)

    # Other lakehouses and catalogs

    @checked_as(version=version_reference)
    def export(
        self,
        target: str | PathLike[str],
        version: VersionReference | None = None,
        *,
        mode: Mode | None = None,
        namespaces: Iterable[Identifier] = (),
        tables: Iterable[Identifier] = (),
        storage_options: Mapping[str, str] | None = None,
        durability: Literal["fsync", "none"] | None = None,
        message: str = "",
        author: str = "",
        progress: OnExportProgress | None = None,
        engine: SparkSession | None = None,
    ) -> Export:
        """Copy the lakehouse to another root, as an independent lakehouse that any Iceberg engine can read.

        A second export to the same target copies the changes since the first, and creates new versions of the copy.
        An interrupted export changes nothing; run it again. The files of external and federated tables are not copied:
        these tables refer to the same files in the copy.

        Args:
            target: an empty root, or one with an earlier export of this lakehouse.
            version: the version to copy, as for `at`. A tagged version cannot expire during a long export.
            mode: "full" copies all kept versions up to that one, under their numbers, with all snapshots; "minimal"
                one version, and the current snapshots of its tables. By default the mode of an earlier export to the
                target; else "full", or "minimal" with `namespaces` or `tables`.
            namespaces: only these namespaces, with all objects in and below them.
            tables: only these tables and views, and their namespaces.
            storage_options: options for the target's storage. They are never stored.
            durability: durability of the target, as for `create`.
            message, author: stored in the log of the copy.
            progress: called from time to time with the number of objects copied, and of objects found so far.
            engine: a Spark session whose executors copy the files, for a lakehouse that is too large for one machine;
                the copy has the same files.

        Raises:
            InvalidLocation: the target is inside this lakehouse, or this lakehouse is inside the target.
            InvalidArgument: the target holds other files, or an export of another mode or part.
            CommitConflict: another process wrote to the target, or exports to it at the same time.
            CorruptFile: a file is missing or damaged; see `maintenance.fsck`.
        """
        from trinitylake.lakehouse.export import export, part_of

        state = find_version(self._core, version)
        return export(
            self._core,
            _core.Storage(str(target), storage_options, durability),
            state,
            mode=mode,
            part=part_of(namespaces, tables, state),
            message=message,
            author=author,
            progress=progress,
            workers=None if engine is None else engine_module(engine, "export").Executors(engine, progress),
        )

    def register(
        self,
        objects: Any,
        *,
        message: str = "",
        author: str = "",
        replace: bool = False,
        dry_run: bool = False,
        engine: SparkSession | None = None,
        file_io_properties: Mapping[str, str] | None = None,
    ) -> Registration:
        """Add any number of objects in one version, by building a new tree.

        Args:
            objects: Arrow data, or with `engine` also a Spark DataFrame, in any order. The columns are `kind`
                ("namespace", "table" or "view"), `namespace` and `name` (null or "" for a namespace), and for each
                object one of `location` (path below the root of an existing definition file, which is not opened),
                `definition` (bytes of the definition; a table's definition names its metadata file),
                `metadata_location` (URI of a table's Iceberg metadata file: below the root the table becomes managed,
                otherwise external) and `properties` (of a namespace; a map, which may be null).
            replace: replace objects that exist, as if they were dropped and created.
            dry_run: run all checks of a registration, and write nothing.
            engine: a Spark session whose executors write the definitions and the leaves of the tree.
            file_io_properties: settings of PyIceberg's file access, for metadata outside of the lakehouse.

        Raises:
            RegistrationFailed: definitions of some objects cannot be made; the error names all of them.
            ObjectAlreadyExists: an object is given twice, or exists without `replace`; a view has the name of a table.
            ObjectNotFound: the namespace of an object neither exists nor is among the objects.
            InvalidName: a name is longer than keys allow, or not a valid name.
            InvalidArgument: a required column is missing, or a column is unknown.
            InvalidLocation: a `location` is not the path of a definition file of the object's kind.
            CommitConflict: with `engine`, if another version was committed meanwhile. Without it, this call retries.
        """
        from trinitylake.lakehouse.bulk.registration import RegistrationOptions, register

        options = RegistrationOptions(message, author, replace, dry_run, file_io_properties or {})
        return register(self._handle, objects, options, engine)

    def import_catalog(
        self,
        catalog: Catalog,
        *,
        namespaces: Iterable[Identifier] | None = None,
        existing: Literal["fail", "skip", "replace"] = "fail",
        message: str = "",
        author: str = "",
        dry_run: bool = False,
        engine: SparkSession | None = None,
        file_io_properties: Mapping[str, str] | None = None,
        progress: RegistrationProgress | None = None,
    ) -> CatalogImport:
        """Import the namespaces, tables and views of a PyIceberg catalog in one version; `rollback` undoes it.

        No files are copied. A table whose metadata is below this root becomes managed, and must no longer be written
        through the other catalog. Any other table becomes external: read-only, in its present state. Another import
        with `existing="replace"` moves it to its latest state. Existing namespaces do not change.

        Args:
            catalog: from `pyiceberg.catalog.load_catalog`.
            namespaces: only these namespaces, with the namespaces nested in them; by default all.
            existing: what to do with tables and views that exist: "fail", "skip" or "replace".
            dry_run: read everything, and commit nothing.
            engine: a Spark session whose executors read the metadata files and build the tree.
            file_io_properties: settings of PyIceberg's file access, in addition to those of the catalog. Not stored.

            progress: called from time to time with the numbers of tables and views that were read, and of all of them.

        Raises `RegistrationFailed` with all objects that cannot be read, and otherwise as `register` does.
        """
        from trinitylake.lakehouse.bulk.catalog_import import import_catalog
        from trinitylake.lakehouse.bulk.registration import RegistrationOptions

        options = RegistrationOptions(message, author, existing == "replace", dry_run, file_io_properties or {})
        return import_catalog(self._handle, catalog, options, namespaces, existing, engine, progress)

    # Implementations of the abstract methods of `Reader` and `Statements`

    @property
    def _core(self) -> _core.Lakehouse:
        return self._handle.core

    @property
    def _storage(self) -> Storage:
        return self._handle.storage

    def _state(self) -> Version:
        return self._core.latest()

    def _execute(
        self, statement: Callable[[Transaction], Result], note: CommitInfo = NO_COMMIT_INFO, base: Version | None = None
    ) -> Result:
        return self._handle.execute(statement, note, base)

    def _begin_statement(self, note: CommitInfo) -> Transaction:
        warn_in_block(self._core)
        return self.begin(message=note.message, author=note.author)

    def _compact(self, table: Identifier, target_file_size_bytes: int | None = None) -> None:
        """Compact one table by the maintenance policy. Raises `CommitConflict` if another compaction committed first.

        Args:
            target_file_size_bytes: size of the new files; None for the target size of the table.
        """
        from trinitylake.lakehouse.maintenance_policy import policy_of

        with self.begin(message="compact") as transaction:
            found = transaction.table(table)
            policy = policy_of(self.properties).of_table(found.properties)
            if policy.compact:
                found.maintenance.compact(
                    min_files=policy.min_files,
                    min_deleted_percent=policy.min_deleted_percent,
                    target_file_size_bytes=target_file_size_bytes,
                )

    def _recent_version(self) -> Version | None:
        return self._core.recently_latest()

    def _begin_entry(self, note: CommitInfo) -> CoreTransaction:
        return self._handle.begin_entry(note)

    def _state_for(self, kind: Literal["namespace", "table", "view"], namespace: str, name: str) -> Version:
        return self._core.latest_for(kind, namespace, name)

    def _at(self, reference: VersionReference) -> LakehouseVersion:
        return self.at(reference)

    def _at_one_moment(self) -> LakehouseVersion:
        return self.at()

    def _table(self, namespace: str, name: str, definition: bytes, state: object) -> Table:
        from trinitylake.tables.autocommit_table import AutocommitTable

        return AutocommitTable(self, namespace, name, definition, cast("Version", state).number)

    def _afterwards(self, namespace: str, name: str, table: Table) -> Table:
        from trinitylake.definitions import serialize
        from trinitylake.tables.autocommit_table import AutocommitTable

        version = cast("TransactionTable", table)._committed_version
        return AutocommitTable(self, namespace, name, serialize(table._definition), version)

    @shown
    def _repr_html_(self) -> str:
        """HTML for notebooks: first namespaces and newest versions. Reads a few files."""
        latest = self._core.latest()
        # The cache may still have the root of a lakehouse that was deleted.
        if not self._storage.exists(_core.root_path(latest.number)):
            raise NotALakehouse(f"{self.uri}: the lakehouse does not exist any more")
        entries = [log_entry(info) for info in self._core.log(NEWEST_SHOWN, None)]
        return framed(
            heading("lakehouse", self.name, self.uri),
            pairs([("version", f"{latest.number:,}"), ("namespaces", first_names(latest, "namespace"))]),
            log_table(entries, tags_by_version(self._core)),
        )

    def __reduce__(self) -> tuple[Callable[..., Lakehouse], tuple[Storage, int | None]]:
        return reopened_lakehouse, (self._storage, self._handle.cache_size_bytes)

    def __repr__(self) -> str:
        return f"Lakehouse({self.uri!r})"


#: Handles in use that were unpickled.
_UNPICKLED: WeakValueDictionary[object, Lakehouse] = WeakValueDictionary()


def reopened_lakehouse(storage: _core.Storage, cache_size_bytes: int | None = None) -> Lakehouse:
    """Unpickle a handle: open the lakehouse, or return the open handle of its storage. Raises `NotALakehouse`."""
    root, options, durability, other_roots = storage.__getnewargs__()
    opened_by = (root, frozenset((options or {}).items()), durability, tuple(other_roots), cache_size_bytes)
    if (arrived := _UNPICKLED.get(opened_by)) is not None:
        return arrived
    try:
        core = _core.Lakehouse.open(storage, cache_size_bytes)
    except NotALakehouse as error:
        hint = ": a lakehouse in memory exists in one process" if root.startswith("memory:") else ""
        raise NotALakehouse(f"{root}: {error}{hint}") from None
    lake = _UNPICKLED[opened_by] = Lakehouse(core, cache_size_bytes)
    return lake
