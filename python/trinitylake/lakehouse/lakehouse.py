"""The lakehouse: opening it, reading its latest version, writing to it, looking into its history."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, cast, overload
from weakref import WeakValueDictionary

from trinitylake import _core
from trinitylake.base.arguments import (
    checked,
    checked_as,
    text_mapping,
    texts,
)
from trinitylake.base.log_note import NO_NOTE, LogNote
from trinitylake.base.markup import framed, pairs, shown
from trinitylake.errors import (
    NotALakehouse,
    ObjectAlreadyExists,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake.lakehouse.bulk.statements import BulkStatements
from trinitylake.lakehouse.history import (
    Outcome,
    SavedTransaction,
    log_entry,
    names_of_versions,
    time_of,
)
from trinitylake.lakehouse.housekeeping import Housekeeping
from trinitylake.lakehouse.own_folders import require_no_own_folder
from trinitylake.lakehouse.past_versions import PastVersions
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
from trinitylake.lakehouse.statements import Statements
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.lakehouse.undo import Undo
from trinitylake.lakehouse.upkeep import Upkeep, upkeep
from trinitylake.lakehouse.vacuum import Progress
from trinitylake.lakehouse.view_at import ViewAt
from trinitylake.reopening import allow_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.definitions import LakehouseDef
    from trinitylake.lakehouse.relocation import Relocation
    from trinitylake.tables.table import Table
    from trinitylake.tables.transaction_table import TransactionTable

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


class Lakehouse(BulkStatements, Safekeeping, PastVersions, Housekeeping, Undo, Statements):
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
        return self.begin_checked(isolation, message, author, id, properties)

    def begin_checked(
        self,
        isolation: Isolation | None,
        message: str,
        author: str,
        id: str | None,
        properties: Mapping[str, str] | None,
        base: _core.Version | None = None,
    ) -> Transaction:
        """`begin` with arguments that are known to be what they should be: a server begins thousands a second.

        `base` is the newest version, where somebody has looked for it since the caller was asked to begin.
        """
        if base is None:
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
    def upkeep(
        self,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        message: str = "",
        author: str = "",
        engine: SparkSession | None = None,
    ) -> Upkeep:
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
            message: for the log, of all versions that it makes; "upkeep" by default.
            author: for the log.
            engine: as for `vacuum`, which is what executors do of it.

        Raises `InvalidArgument` for a property that is misspelt, and otherwise as `expire` and `vacuum` do.
        """
        return upkeep(self, LogNote(message or "upkeep", author), dry_run=dry_run, progress=progress, engine=engine)

    # Versions with names

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

    def _table(self, namespace: str, name: str, definition: bytes, state: _core.Version | _core.Transaction) -> Table:
        from trinitylake.tables.autocommit_table import AutocommitTable

        seen = cast("_core.Version", state)
        return AutocommitTable(self, namespace, name, definition, seen.number, seen)

    def _afterwards(self, namespace: str, name: str, table: Table) -> Table:
        from trinitylake.definitions import serialize
        from trinitylake.tables.autocommit_table import AutocommitTable

        version = cast("TransactionTable", table).committed_version
        return AutocommitTable(self, namespace, name, serialize(table.definition), version)

    def execute(
        self,
        statement: Callable[[Transaction], Result],
        note: LogNote = NO_NOTE,
        base: _core.Version | None = None,
    ) -> Result:
        bases = [] if base is None else [base]

        def attempt() -> Result:
            while bases:
                with suppress(OutOfDate):
                    return self._execute_on(bases.pop(), statement, note)
            with self.begin(message=note.message, author=note.author) as transaction:
                return statement(transaction)

        return again_after_lost_races(attempt)

    def _recent_version(self) -> _core.Version | None:
        return self.core.lately()

    def _begin_on(self, base: _core.Version, note: LogNote) -> _core.Transaction:
        isolation = self._default_isolation(base)
        return self.core.begin(isolation=isolation, message=note.message, author=note.author, base=base)

    def _execute_on(self, base: _core.Version, statement: Callable[[Transaction], Result], note: LogNote) -> Result:
        """Raises `OutOfDate`, with the transaction rolled back, if it fails and `base` is not the latest version."""
        try:
            with Transaction(self.core, self._begin_on(base, note)) as transaction:
                try:
                    return statement(transaction)
                except Exception as error:
                    with suppress(TrinityLakeError):  # the first error says more than a look that fails as well
                        if self.core.latest().number != base.number:
                            raise OutOfDate from error
                    raise
        except TransactionExpired as error:  # by its commit: `base` has expired
            raise OutOfDate from error

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
