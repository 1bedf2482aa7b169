"""The Rust core. Paths are relative to the lakehouse root; definitions are protobuf bytes; kinds are
"namespace", "table", "view". Every call releases the GIL while it waits. Errors are the classes of
`trinitylake.errors`."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, final

Kind: TypeAlias = Literal["namespace", "table", "view"]
Isolation: TypeAlias = Literal["snapshot", "serializable"]

@final
class Storage:
    def __new__(
        cls,
        root: str,
        options: Mapping[str, str] | None = None,
        durability: Literal["fsync", "none"] | None = None,
        other_roots: Sequence[str] = ...,
    ) -> Self: ...
    # Can be pickled, with its options, for tasks in other processes.
    def __getnewargs__(self) -> tuple[str, Mapping[str, str] | None, Literal["fsync", "none"] | None, list[str]]: ...
    @property
    def root(self) -> str: ...  # canonical, fully qualified, ends in "/"
    # Roots that the lakehouse had before, as far as it records them: what is named below them lies below `root`.
    @property
    def other_roots(self) -> list[str]: ...
    def get(self, path: str) -> bytes: ...
    def get_range(self, path: str, offset: int, length: int) -> bytes: ...
    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...  # at once; (offset, length)
    # The last bytes of a file, at most so many, and the size of the whole file.
    def get_end(self, path: str, max_size_bytes: int) -> tuple[bytes, int]: ...
    # Fetch files in the background, as `get_end` does, so that they are at hand when they are read. No file raises.
    def read_ahead(self, paths: Sequence[str], max_size_bytes: int) -> None: ...
    # The same storage without the cache of immutable files, for checks of the stored files.
    def uncached(self) -> Storage: ...
    # Replaces a file with this content, for an erasure of rows; False if it has another content.
    def replace(self, path: str, before: bytes, after: bytes) -> bool: ...
    # The newest known garbage collection deleted older files. Part of the keys of caches, because an erasure of rows
    # replaces files before it.
    @property
    def collected_before_millis(self) -> int: ...
    # VersionExpired if a version of the lakehouse at this root is kept neither by the boundary nor by a name.
    def check_retained(self, version: int) -> None: ...
    def size(self, path: str) -> int: ...
    def exists(self, path: str) -> bool: ...
    def put(self, path: str, data: bytes) -> None: ...  # if absent, else ObjectAlreadyExists
    # A file of a transaction, part by part; None where files are put whole, as on object stores. ObjectAlreadyExists.
    def begin(self, path: str) -> FileInParts | None: ...
    def put_many(self, files: Sequence[tuple[str, bytes]]) -> None: ...  # in parallel
    def list(self, prefix: str) -> list[tuple[str, int, int]]: ...  # path, size in bytes, modified millis
    def delete(self, path: str) -> None: ...
    def delete_unneeded(self, paths: Sequence[str]) -> None: ...  # in parallel, as far as possible
    def counters(self) -> dict[str, int]: ...  # requests and bytes by verb since the handle was made

@final
class FileInParts:
    # What is not finished is removed when it is dropped, by the process that began it.
    def write(self, part: bytes) -> None: ...
    def finish(self) -> None: ...  # with the files of the transaction from now on
    def discard(self) -> None: ...

@final
class S3Settings:
    """How to reach S3, as storage options in any spelling say it, and where they are silent the environment.

    `InvalidArgument` for options that no store knows, or that contradict each other.
    """

    def __new__(cls, storage_options: Mapping[str, str]) -> Self: ...
    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    region: str | None
    endpoint: str | None  # None for AWS
    is_bucket_in_host: bool  # and not in the path

# Whether the file of a path or URI has a random id in its name, and so one content for ever.
def is_named_once(path: str) -> bool: ...

# The schemes of one and the same store, and how a root spells it: "s3a" and "s3n" are "s3".
def scheme_spellings() -> dict[str, str]: ...
def iceberg_properties(root: str, storage_options: Mapping[str, str]) -> dict[str, str]: ...

@final
class TransactionInfo:
    id: str
    isolation: str
    message: str
    author: str
    began_at_version: int
    properties: dict[str, str]
    summary: str

@final
class VersionInfo:
    version: int
    created_at_millis: int
    rollback_from: int | None
    problem: str | None  # why the version cannot be read; nothing else is known of it then
    transactions: list[TransactionInfo]

@final
class Version:
    """The lakehouse as one version left it: frozen, safe to share between threads."""

    @property
    def number(self) -> int: ...
    @property
    def info(self) -> VersionInfo: ...
    @property
    def definition(self) -> bytes: ...  # LakehouseDef
    def locate(self, kind: Kind, namespace: str, name: str = "") -> str | None: ...  # path of the definition file
    def exists(self, kind: Kind, namespace: str, name: str = "") -> bool: ...
    def locate_keys(
        self, keys: Any
    ) -> Any: ...  # Arrow string array of keys -> Arrow string array of locations, null = absent
    def read(self, kind: Kind, namespace: str, name: str = "") -> bytes | None: ...
    # Whether the root contains a definition file, so that reading it makes no request.
    def holds_definition(self, path: str) -> bool: ...
    def read_many(self, kind: Kind, names: Sequence[tuple[str, str]]) -> builtins.list[bytes | None]: ...
    # Arrow record batch (namespace, name, location), sorted. Namespaces: namespace = parent (None = all,
    # "a" = everything below "a."), column `name` is empty. Tables, views: namespace is exact (None = all).
    def list(self, kind: Kind, namespace: str | None = None, limit: int | None = None) -> Any: ...
    # Namespace and name of each, as `list` lists them; loads no Arrow.
    def names(
        self, kind: Kind, namespace: str | None = None, limit: int | None = None
    ) -> builtins.list[tuple[str, str]]: ...
    # Arrow stream (key, location) of every object in key order; columns=["key"] leaves out the location.
    # Either below a prefix, or from `start` on and before `end`; the first `limit` of them.
    def scan(
        self,
        prefix: str = "",
        columns: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
    ) -> Any: ...
    # Arrow record batch (kind, namespace, name, before, after): before null = added, after null = removed.
    def diff(self, newer: Version) -> Any: ...
    # What this version changed: the same columns after `transaction`, a position in `info.transactions`.
    def changes(self, previous: Version) -> Any: ...
    # Arrow record batch (path, parent, height, n_keys, n_messages, size_bytes, first_key, last_key), root first.
    def nodes(self) -> Any: ...

@final
class ConflictingTable:
    """A table written by this transaction and by one that committed first."""

    namespace: str
    name: str
    winner_location: str  # definition now in the tree
    version: int  # version of the winner

@final
class Conflicts:
    """What others did meanwhile that can be resolved: tables that both changed, and what was watched."""

    tables: builtins.list[ConflictingTable]
    watched: builtins.list[str]  # named as in CommitConflict.keys

@final
class Transaction:
    """Reads see the base version plus own writes and are recorded (keys, ranges, absences)."""

    @property
    def id(self) -> str: ...
    @property
    def isolation(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...  # what it began with, for the log
    @property
    def base(self) -> Version: ...
    # Files created through it are written behind: they are there, and last, when the transaction is committed or saved.
    @property
    def storage(self) -> Storage: ...
    def written_keys(self) -> Any: ...  # Arrow: key
    def exists(self, kind: Kind, namespace: str, name: str = "") -> bool: ...
    def read(self, kind: Kind, namespace: str, name: str = "") -> bytes | None: ...
    # The definition of a table whose reads the caller tracks; only its absence counts as a read.
    def open_table(self, namespace: str, name: str) -> bytes | None: ...
    def list(self, kind: Kind, namespace: str | None = None, limit: int | None = None) -> Any: ...
    # Namespace and name of each, as `list` lists them; loads no Arrow.
    def names(
        self, kind: Kind, namespace: str | None = None, limit: int | None = None
    ) -> builtins.list[tuple[str, str]]: ...
    # Arrow record batch (key): the first `limit` with a prefix from `start` on, in key order. Reads that range.
    def keys(self, prefix: str, start: str, limit: int) -> Any: ...
    # Writes check the rules that keep the lakehouse whole (namespace exists, names free, namespace empty)
    # and raise ObjectNotFound, ObjectAlreadyExists, NamespaceNotEmpty, InvalidName.
    # From here on it may name files that only `source` reaches: VersionExpired if that is not kept any more.
    def depend_on_version(self, source: Version) -> None: ...
    # Gives an object the definition file that an earlier version names; False if it has that already.
    def put_back(self, kind: Kind, namespace: str, name: str, location: str) -> bool: ...
    def create(self, kind: Kind, namespace: str, name: str, definition: bytes) -> None: ...
    def replace(self, kind: Kind, namespace: str, name: str, definition: bytes) -> None: ...
    def drop(self, kind: Kind, namespace: str, name: str = "") -> None: ...
    def rename(self, kind: Kind, namespace: str, name: str, new_namespace: str, new_name: str) -> None: ...
    # The recorded root and former roots stay as they are; those in `definition` are ignored.
    def set_lakehouse_definition(self, definition: bytes) -> None: ...
    # Describes its change of a table for the log, in plain ASCII: verb, rows added, removed, updated, what follows the
    # name.
    def describe(self, namespace: str, name: str, changes: Sequence[tuple[str, int, int, int, str]]) -> None: ...
    # What the log says of it, or would if it were committed as it stands.
    @property
    def summary(self) -> str: ...
    # Files that were written before this transaction began, and perhaps before its base. TransactionExpired if one is
    # so old that it may have been collected.
    def adopt(self, paths: Sequence[str], since_base: bool = False) -> None: ...
    # Asked when a file is missing that it reads: VersionExpired if its base is not kept any more, TransactionExpired if
    # its own files may have been collected.
    def check_retained(self) -> None: ...
    # LakehouseMoved where nothing may be written: to be asked before files are.
    def check_writable(self) -> None: ...
    # Records the root at which the lakehouse was opened, and keeps its former ones; `former` are more of them. From
    # here on this transaction may write. False if all that is recorded already.
    def relocate(self, former: Sequence[str] = ...) -> bool: ...
    # The committed version, or conflicts to resolve: `rebase` each of the tables, then `begin_watch` and read again if
    # anything watched was changed, then commit again. `files` are handed over first, as by `storage.put_many`.
    # `companions` are transactions without writes whose changes are part of this one: committed with it, or not at all.
    def commit(
        self,
        max_attempts: int | None = None,
        timeout_seconds: float | None = None,
        coordination: str | None = None,
        files: Sequence[tuple[str, bytes]] = ...,
        companions: Sequence[Transaction] = ...,
        queued: QueuedAppends | None = ...,  # its rows and those of others are in this transaction
        replaces_first: bool = ...,  # it takes the place of the first companion in the log
    ) -> int | Conflicts: ...
    def rebase(self, conflict: ConflictingTable, definition: bytes) -> None: ...
    # From here to `end_watch` all reads are watched, on the newest version that this transaction was compared with,
    # which becomes its base; earlier watches end.
    def begin_watch(self) -> None: ...
    def end_watch(self) -> None: ...
    # Roll back for all processes; `CommitConflict` if it was committed, or another process has saved it since.
    def rollback(self) -> None: ...
    @property
    def has_writes(self) -> bool: ...  # without changes of tables that Python has staged
    @property
    def has_chosen_id(self) -> bool: ...  # chosen by the user, or it was saved
    @property
    def is_unknown(self) -> bool: ...  # its commit ended without an answer
    @property
    def files_are_unreachable(self) -> bool: ...  # it is over, and no version can ever refer to what it wrote
    # Saved for another process to resume; the number of times. CommitConflict if another one went on with it.
    def save(self, attachment: bytes, checks: Sequence[str]) -> int: ...
    @property
    def sequence(self) -> int: ...  # how often it was saved
    @property
    def committed_version(self) -> int | None: ...
    @property
    def attachment(self) -> bytes: ...
    @property
    def checks(self) -> builtins.list[str]: ...

@final
class SavedTransaction:
    id: str
    isolation: str
    message: str
    author: str
    properties: dict[str, str]
    base_version: int
    began_at_millis: int
    expire_at_millis: int
    sequence: int

# Appends of a process to one table that wait for a process that appends their rows (format §8).
@final
class QueuedAppends:
    # At its turn: rows of others as Arrow IPC streams, which the caller appends with its own, in one transaction. None
    # if a version contains the own ones, which are committed then.
    def wait(self) -> list[bytes] | None: ...
    def refuse(self, positions: list[int]) -> None: ...  # rows of others that do not fit: their owners commit them
    # Aborts the own ones for all processes. The version if one contains them.
    def withdraw(self) -> int | None: ...

@final
class Lakehouse:
    @staticmethod
    def create(storage: Storage, definition: bytes, cache_size_bytes: int | None = None) -> Lakehouse: ...
    @staticmethod
    def open(storage: Storage, cache_size_bytes: int | None = None) -> Lakehouse: ...
    @property
    def storage(self) -> Storage: ...  # with the lakehouse's `other_roots`
    # Whether the lakehouse lies where it records, or has never recorded a place; else it can only be read.
    @property
    def is_placed(self) -> bool: ...
    def latest(self) -> Version: ...  # one request when nothing changed
    # The same, with the definition of an object fetched at the same time.
    def latest_for(self, kind: Kind, namespace: str, name: str) -> Version: ...
    def recently_latest(self) -> Version | None: ...  # the latest version as of a few seconds ago; no request
    def version(self, number: int) -> Version: ...  # VersionNotFound, VersionExpired
    # Ascending, read in parallel; both numbers are included.
    def versions(self, first: int, last: int) -> list[Version]: ...  # VersionNotFound, VersionExpired
    def version_at(self, timestamp_millis: int) -> Version: ...  # newest version created at or before
    def log(self, limit: int, before: int | None = None) -> list[VersionInfo]: ...  # newest first
    # Versions after `oldest`, up to `newest`, that changed an object, the newest first, with its locations before and
    # after.
    def key_history(
        self, kind: Kind, namespace: str, name: str, newest: int, oldest: int, limit: int
    ) -> list[tuple[int, str | None, str | None]]: ...
    def oldest(self) -> int: ...  # the oldest version that is kept
    @property
    def loss(self) -> tuple[str, str] | None: ...  # path and message, if the roots of newer versions are missing
    def begin(
        self,
        isolation: Isolation = "snapshot",
        id: str | None = None,
        message: str = "",
        author: str = "",
        properties: Mapping[str, str] | None = None,
        base: Version | None = None,
        restart: bool = False,  # discard an attempt of the id that was not committed; `base` has no meaning then
    ) -> Transaction: ...

    # `transactions` are the entries of the appends in the log, without writes.
    def queue_appends(
        self, id: str, table: tuple[str, str], transactions: Sequence[Transaction], rows: bytes
    ) -> QueuedAppends: ...
    @property
    def has_queue(self) -> bool: ...  # whether commits of several processes may share a version
    @property
    def is_contended(self) -> bool: ...  # whether other processes commit at this time

    # ObjectNotFound, TransactionExpired, CommitConflict if it was committed and undone
    def resume(self, id: str) -> Transaction: ...
    def saved_transactions(self) -> list[SavedTransaction]: ...
    # ("committed", version), ("undone", version), ("not committed", None) or ("unknown", None)
    def outcome(
        self, id: str
    ) -> tuple[Literal["committed", "undone", "rolled back", "not committed", "unknown"], int | None]: ...
    # Whether a version that is kept committed that chosen id, undone or not: one look-up in the latest tree.
    def is_committed(self, id: str) -> bool: ...
    def rollback(self, number: int, message: str = "", author: str = "") -> int: ...  # the new version
    # Versions deleted (or, dry, that would be), ascending, and the size of their roots; the oldest version that is
    # kept, and the size of the roots that are. `before` None = what retention no longer keeps: that of the settings,
    # or another age and count.
    def expire(
        self,
        before: int | None = None,
        maximum_age_millis: int | None = None,
        minimum_versions: int | None = None,
        dry_run: bool = False,
        message: str = "",
        author: str = "",
    ) -> tuple[list[int], int, int, int]: ...
    # Delete unreachable files older than the grace (`txn_ttl_millis` if None), by the store's clock. At most `examples`
    # paths of each kind are returned. `on_progress` is called with "marked" or "swept" and a number of files.
    def vacuum(
        self,
        grace_millis: int | None = None,
        dry_run: bool = False,
        examples: int = 0,
        on_progress: Callable[[str, int], object] | None = None,
        message: str = "",
        author: str = "",
    ) -> GcReport: ...
    # A collection whose work an engine shares among its executors; as `vacuum`, up to the mark.
    def begin_distributed_gc(
        self, grace_millis: int | None = None, dry_run: bool = False, message: str = "", author: str = ""
    ) -> DistributedGc: ...
    # Files below the root by purpose: one mark, one listing. Versions below `expiring_before` count as expiring.
    # `on_progress` as for `vacuum`.
    def usage(
        self,
        expiring_before: int = 0,
        small_file_size_bytes: int = 0,
        on_progress: Callable[[str, int], object] | None = None,
    ) -> Usage: ...
    # The version with a tag (`exported_snapshots` of the latest version); ObjectNotFound
    def tag(self, name: str) -> Version: ...
    # Rebuild the tree of the latest version, if worthwhile or forced: the new version, and nodes, messages and bytes of
    # the tree before and after. In a dry run, or if not worthwhile: None, and the numbers of a rebuilt tree.
    def compact(
        self, force: bool = False, dry_run: bool = False, message: str = "", author: str = ""
    ) -> tuple[int | None, tuple[int, int, int], tuple[int, int, int]]: ...
    # One commit that adds many objects whose definition files exist already, or replaces them too.
    # Arrow stream (kind, namespace, name, location). Dry, it raises what it would raise, and commits nothing: None.
    # `since` is a version that was seen before the definitions were written: TransactionExpired if garbage was
    # collected since.
    def register(
        self,
        objects: Any,
        message: str = "",
        author: str = "",
        replace: bool = False,
        dry_run: bool = False,
        since: Version | None = None,
    ) -> int | None: ...
    # One commit after `base` with the tree of `n_rows` rows whose parts `LeafWriter`s returned, in any order:
    # Arrow stream (number, path, text, location). They hold the objects of `base` too; CommitConflict if another
    # version came first.
    # `registered` is for the log: namespaces, tables and views that are new.
    def register_parts(
        self,
        base: Version,
        n_rows: int,
        parts: Any,
        message: str = "",
        author: str = "",
        registered: tuple[int, int, int] = ...,
    ) -> int: ...

@final
class GcReport:
    """What `Lakehouse.vacuum` found. Counts are files and bytes, by the kind of file or the folder of a table."""

    version: int | None
    before_millis: int
    deleted: list[tuple[str, int, int]]
    deleted_by_folder: list[tuple[str, int, int]]
    kept: list[tuple[str, int, int]]
    young: tuple[int, int]
    unknown: tuple[int, int]
    foreign: tuple[int, int]
    deleted_paths: list[str]
    unknown_paths: list[str]
    roots: int

# What files that are reached name, as (sort, name): "root" is a version's number, "node", "table", "metadata",
# "external metadata", "manifest list" and "manifest" are files to be read, in this order, "kept" other files, "folder"
# and "foreign" folders of tables. A record batch of sort and name.
def gc_links(storage: Storage, sorts: Any, names: Any) -> Any: ...

# Places below the root for others to walk through, about as many as wanted, and the files that are in none of
# them: a record batch as those of `Walk`.
def split_walk(storage: Storage, wanted: int) -> tuple[list[tuple[str, str | None]], Any]: ...

# Deletes files except those that must stay; returns the number of deleted files.
def delete_garbage(storage: Storage, paths: Any, fresh: bytes) -> int: ...

@final
class DistributedGc:
    """One machine's part of a collection: by the store's clock, which files may go; below which version all have
    expired; the versions that are roots; of how many folders a report tells."""

    before_millis: int
    oldest: int
    roots: list[int]
    max_reported_folders: int
    # After all roots were marked, and before each lot of files is deleted: makes the version of the fence the first
    # time, and marks what was committed since. That version, and what must stay, for `delete_garbage`.
    def fence(self, has_roots: bool) -> tuple[int, bytes]: ...
    # After all was deleted that was to be, and not in a dry run: it is not under way any more (format §7). `knows_all`:
    # a judge called no file unknown or foreign.
    def end(self, knows_all: bool) -> None: ...

@final
class Walk:
    """A walk through places, folders ending in `/` with the path after which they are listed: batches of path,
    size_bytes and modified_millis."""

    def __new__(cls, storage: Storage, places: list[tuple[str, str | None]]) -> Self: ...
    def next(self) -> Any: ...

@final
class Classifier:
    """Says what becomes of files: path, size, time, and what the mark says of each: "reached", or "foreign" or "table"
    for the folder that it lies in, or "". Returns verdict ("kept", "young", "garbage", "foreign", "unknown"), kind and
    the folder of a table."""

    def __new__(cls, storage: Storage, before_millis: int, oldest: int) -> Self: ...
    def classify(self, paths: Any, sizes: Any, times: Any, marks: Any) -> Any: ...

@final
class Usage:
    """What `Lakehouse.usage` found, files and bytes: of all by what holds them and kind; of the folders of tables.

    Rows of `by_folder` are the folder ("" for files in none), namespace and name of the latest version's table there,
    what holds the files ("latest", "history", "expiring", "garbage", "young"), their kind, and how many they are.
    """

    version: int
    by_kind: list[tuple[str, str, int, int]]
    by_folder: list[tuple[str, tuple[str, str] | None, str, str, int, int]]
    small: list[tuple[str, int, int]]
    unknown: tuple[int, int]
    foreign: tuple[int, int]

@final
class LeafWriter:
    """Writes the leaves that lie within the rows of one process, of a tree of `n_rows` rows in all."""

    def __new__(cls, storage: Storage, definition: bytes, n_rows: int, first_row: int) -> Self: ...
    # Arrow stream (text, location), ascending, to Arrow record batch (number, path, text, location): each leaf that
    # was written, with the row after it, null after the last leaf.
    def write(self, objects: Any) -> Any: ...
    # The same columns: rows of leaves that begin before these rows or end after them, by number, without a path.
    def finish(self) -> Any: ...

@final
class Finding:
    """What is wrong with one file. Kinds: missing, damaged, misplaced, broken, hint, unreferenced."""

    kind: str
    path: str
    message: str
    versions: list[int]
    affected: list[str]

@final
class Fsck:
    """A check of one version, a range of them or all, part by part."""

    def __new__(
        cls, storage: Storage, scope: str, first: int = 0, last: int = 0, wants_tables: bool = False
    ) -> Self: ...
    # Findings, and definitions of tables as (namespace, name, location, bytes); None at the end.
    def next(self) -> tuple[list[Finding], list[tuple[str, str, str, bytes]]] | None: ...
    # Versions that are checked, versions in all, nodes and definitions that were read.
    def counts(self) -> tuple[int, int, int, int]: ...

# The version that was made, what was saved, and what could not be.
def repair(
    storage: Storage, dry_run: bool = False, message: str = "", author: str = ""
) -> tuple[int | None, list[str], list[str]]: ...

# Copies files to the same paths: how many were copied, their bytes, how many were there already.
def copy_files(
    source: Storage, target: Storage, files: Sequence[tuple[str, int | None]], is_resumed: bool, is_same_store: bool
) -> tuple[int, int, int]: ...

# Node files below the root of a version that the tree of an older one, perhaps in another store, does not have.
def new_node_paths(newer: Version, older: Version | None = None) -> list[str]: ...

# Publishes the next version at another place, or the first one: the tree of `source`, or one of `objects` (keys and
# locations, ascending), or the latest one there with `changes` (key, location or None). CommitConflict if others came
# first.
def publish_tree(
    storage: Storage,
    definition: bytes,
    target: Lakehouse | None = None,
    source: Version | None = None,
    objects: tuple[Any, Any] | None = None,
    changes: Sequence[tuple[str, str | None]] | None = None,
    properties: Sequence[tuple[str, str]] = ...,
    message: str = "",
    author: str = "",
    after: int | None = None,
) -> int: ...

# Publishes a version at another place under its own number. CommitConflict if there is another one.
def publish_version(storage: Storage, source: Version, definition: bytes) -> None: ...
def publish_boundary(storage: Storage, version: int) -> None: ...

# Waits for hints that are still being written, for the end of a process.
def finish_background_tasks(timeout_seconds: float) -> None: ...

# Whether a Parquet file may contain each of these values, as an array of booleans. `filter` is a Bloom filter with its
# header. None if the filter cannot be read, or does not apply to values of this type.
def bloom_filter_may_hold(filter: bytes, values: Any) -> Any | None: ...
def optimize_paths(paths: Any) -> Any: ...
def optimize_path(path: str) -> str: ...
def root_path(version: int) -> str: ...
def root_version(path: str) -> int | None: ...

# Fresh and optimized (format §3).
def definition_path(kind: Kind, namespace: str, name: str, max_size_bytes: int = 200) -> str: ...

# The content of the definition file at a path, with its checksum and its path; and back, `CorruptFile` where either of
# them is wrong (format §6).
def encode_definition_file(path: str, definition: bytes) -> bytes: ...
def decode_definition_file(path: str, file: bytes) -> bytes: ...
def encode_keys(kind: Kind, namespaces: Any, names: Any | None, sizes: tuple[int, int, int]) -> Any: ...
def decode_keys(keys: Any, sizes: tuple[int, int, int]) -> Any: ...  # record batch (kind, namespace, name)

# Keys without padding, in the same order: first character of the key + namespace + " " + name.
def unpadded_keys(keys: Any, sizes: tuple[int, int, int]) -> Any: ...
def check_unpadded_keys(texts: Any, sizes: tuple[int, int, int]) -> None: ...  # InvalidName for those of no key

# Directory of a managed table below the root: "<namespace>/<table>-<8 hex digits of id>", every segment safe.
def managed_table_folder(namespace: str, name: str, id: str) -> str: ...
def check_name(name: str, max_size_bytes: int) -> None: ...
def normalize_root(uri: str) -> str: ...

@final
class NodeFile:
    path: str
    height: int | None
    n_keys: int
    order: int
    system: dict[str, str]
    table: Any  # record batch (key, value, pnode), exactly `order` rows
    buffer: Any  # record batch (key, value, txn)
    def search(
        self, key: str
    ) -> tuple[str, str | None]: ...  # ("message" | "row" | "child" | "absent", value or child)

def read_node(data: bytes, path: str = "") -> NodeFile: ...
def merge_messages(buffers: Sequence[Any]) -> Any: ...  # newest last; one row per key, sorted
