"""Erasure of rows from the whole history of a table: `lake.erase`.

1. Survey every kept version: find the versions, tags, snapshots and saved transactions that hold matching rows.
2. Commit a version whose tables name no file with matching rows.
3. Replace the content of the table's metadata files in all earlier versions, or expire these versions.
4. Delete the files that no version references any more.
5. Verify: survey again, and search every file below the root.

Nothing is stored between these steps. A call after a crash surveys again and completes the remaining steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

from pyiceberg.expressions import BooleanExpression

from trinitylake import _core
from trinitylake.base.qualified_names import Identifier, full_name, split
from trinitylake.base.timestamps import time_of
from trinitylake.definitions import PREVIOUS_METADATA_LOCATION, parse_lakehouse_def, parse_table_def, serialize
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.metadata import (
    cache,
    encoded,
    metadata_folder,
    metadata_uri,
    new_file_stem,
    read_metadata,
)
from trinitylake.iceberg_storage.metadata_compression import file_bytes
from trinitylake.iceberg_storage.row_erasure import TableEraser, with_new_heads
from trinitylake.lakehouse.erasure_certificate import new_certificate, without_values, write_certificate
from trinitylake.lakehouse.erasure_survey import (
    Survey,
    saved_transactions,
    search_files,
    survey,
    tables_that_name,
    texts_of,
)
from trinitylake.lakehouse.file_search import ListedFile, TextSearch
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.tables.table_definition import metadata_path, name_metadata
from trinitylake.tables.table_locks import table_locks

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from trinitylake.definitions import TableDef
    from trinitylake.lakehouse.handle import Handle
    from trinitylake.lakehouse.vacuum_report import Progress

#: How an erasure treats earlier versions.
History: TypeAlias = Literal["rewrite", "expire"]

#: Maximum number of attempts to commit while other writers change the table.
_MAX_ATTEMPTS = 10
#: Garbage collection keeps files younger than this by the store's clock (`FILE_TIME_PRECISION_MILLIS` in the core).
_COLLECTED_AFTER_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Erasure:
    """Result of `lake.erase`; with `dry_run`, what an erasure would do.

    Attributes:
        table: full name of the table.
        dry_run: whether nothing was changed.
        files: number of matching rows by path of the file that held them, including rows that a delete file hides.
        history: "rewrite" if earlier versions are kept without the rows, "expire" if they expire.
        columns: the columns of the filter, with former names.
        versions: versions that held matching rows; with "expire" also versions that contain a string of the filter.
        tags: the tags of `versions`. They stay with "rewrite", and are dropped with "expire".
        transactions: ids of the saved transactions that were rolled back: they changed the table or, with "expire",
            began before `version`.
        version: the committed version without matching rows, which with "expire" is also the oldest version; None if no
            version had to be committed.
        rewritten: paths of the metadata files of earlier versions whose content was replaced.
        expired: versions that expired.
        deleted: paths of the deleted files.
        searched: number of files that the verification searched.
        remaining: the reasons why files still hold matching rows, by path.
        mentions: files and objects that still contain a string of the filter.
        others: files of other tables with rows that match by column name, and files with a string of the filter in
            another column, such as the files of a dead-letter table.
        unreadable: the reasons why files could not be searched, by path.
        not_covered: descriptions of places that are neither searched nor erased.
        certificate: the certificate that `write` stores.
        key: secret key of the certificate, in hexadecimal.
    """

    table: str
    dry_run: bool
    history: History
    columns: tuple[str, ...]
    files: dict[str, int]
    versions: tuple[int, ...]
    tags: tuple[str, ...]
    transactions: tuple[str, ...]
    version: int | None = None
    rewritten: tuple[str, ...] = field(default=(), repr=False)
    expired: tuple[int, ...] = ()
    deleted: tuple[str, ...] = field(default=(), repr=False)
    searched: int = 0
    remaining: dict[str, str] = field(default_factory=dict)
    mentions: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)
    not_covered: tuple[str, ...] = field(default=(), repr=False)
    certificate: dict[str, Any] = field(default_factory=dict, repr=False)
    key: str = field(default="", repr=False)

    @property
    def is_verified(self) -> bool:
        """Whether every file below the root was searched, and neither `remaining` nor `mentions` has an entry.

        `others` do not count, because other tables or columns may have the same value for an unrelated reason. If the
        reason is the same, erase the rows of that table, too.
        """
        return self.searched > 0 and not (self.remaining or self.mentions or self.unreadable)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON, and its secret key to `<path>.key`. Neither file may exist."""
        write_certificate(self.certificate, self.key, path)


@dataclass(frozen=True)
class ErasureRequest:
    """Arguments of `Lakehouse.erase`."""

    table: Identifier
    filter: str | BooleanExpression
    history: History = "rewrite"
    reason: str = ""
    drop_tags: bool = False
    roll_back_transactions: bool = False
    grace_millis: int = 0
    author: str = ""
    progress: Progress | None = None


def erase(handle: Handle, request: ErasureRequest, dry_run: bool) -> Erasure:
    if request.history not in get_args(History):
        raise InvalidArgument(f"history is 'rewrite' or 'expire', not {request.history!r}")
    return _ErasureRun(handle, request).run(dry_run)


class _ErasureRun:
    def __init__(self, handle: Handle, request: ErasureRequest) -> None:
        self._handle = handle
        self._core = handle.core
        self._storage = handle.storage
        # Without the cache, because another process may have replaced the content of metadata files.
        self._io = LakehouseFileIO(self._storage.uncached())
        self._request = request
        self._name = full_name(*split(request.table))
        self._filter = parse_filter(request.filter)
        self._texts = TextSearch(texts_of(self._filter))
        if self._is_text(f"{request.reason} {request.author}"):
            raise InvalidArgument(
                "the reason or the author contains a value of the filter, which the log would keep: remove it"
            )
        self._erasers: dict[str, TableEraser] = {}
        self._found: Survey | None = None
        self._collected_before_millis = 0
        self._n_files = 0

    def run(self, dry_run: bool) -> Erasure:
        request, found = self._request, self._survey()
        search = found.search
        assert search is not None, "a table of the name has a schema"
        is_expired = request.history == "expire"
        versions = sorted({*found.versions, *(found.texts_in if is_expired else ())})
        transactions = self._transactions(found, found.latest.number + 1 if is_expired and versions else 0)
        planned = Erasure(
            table=self._name,
            dry_run=dry_run,
            history=request.history,
            columns=tuple(search.columns()),
            files={path: rows for path, rows in sorted(search.rows.items()) if rows},
            versions=tuple(versions),
            tags=tuple(found.tags_of(versions)),
            transactions=tuple(transactions),
            mentions=() if is_expired else tuple(_mentions(found)),
            not_covered=_not_covered(found.outside),
        )
        if dry_run:
            return planned
        self._check_allowed(planned)
        for id in transactions:
            with Transaction(self._core, self._core.resume(id)) as transaction:
                transaction.rollback()
        planned = replace(planned, mentions=())
        if not is_expired:
            return self._verified(self._with_history(found, planned))
        if versions:
            return self._verified(self._without_history(found, planned))
        done = self._verified(self._collected(planned))
        # The entries of inner nodes still reference files after newer messages hide these entries (format §7). Only a
        # compaction and an expiry remove such references.
        if done.remaining or done.mentions:
            done = self._verified(self._without_history(found, planned))
        return done

    def _with_history(self, found: Survey, planned: Erasure) -> Erasure:
        """Replace the content of the metadata files of all versions, and delete the files that they named before."""
        leases = [f"erase-{id}" for id in sorted(found.ids)]
        is_interrupted = not {one.id for one in self._core.saved_transactions()}.isdisjoint(leases)
        paths = self._affected(found)
        if not paths and not is_interrupted:
            return self._collected(planned)
        with _Lease(self._handle, leases, self._message(), self._request.author) as lease:
            rewritten: dict[str, None] = {}
            version = None
            for _ in range(_MAX_ATTEMPTS):
                # Oldest state first: the entry of a newer state that removes a file has to name the file's replacement.
                for path in paths:
                    if (metadata := self._metadata(found, path)) is not None:
                        self._erased(found, metadata)
                committed = self._commit(found, rewritten)
                version = version if committed is None else committed
                more = self._replace_metadata(found, paths, lease)
                rewritten |= dict.fromkeys(more)
                if committed is None and not more:
                    break
                found = self._survey()
                paths = self._affected(found)
            else:
                raise self._too_many_changes()
        if rewritten or version is not None:
            time.sleep(_COLLECTED_AFTER_SECONDS)
        return self._collected(replace(planned, version=version, rewritten=tuple(sorted(rewritten))))

    def _without_history(self, found: Survey, planned: Erasure) -> Erasure:
        """Commit a clean version, expire all versions before it, and collect their files."""
        self._commit(found)
        # The compaction empties the buffers of nodes, which could name former definitions; garbage collection would
        # keep the files of these definitions.
        version, _, _ = self._core.compact(True, False, self._message(), self._request.author)
        assert version is not None, "a forced compaction makes a version"
        committed = time.monotonic()
        expired, *_ = self._core.expire(version, None, None, False, self._message(), self._request.author)
        time.sleep(max(0.0, committed + _COLLECTED_AFTER_SECONDS - time.monotonic()))
        return self._collected(replace(planned, version=version, expired=tuple(expired)))

    def _collected(self, done: Erasure) -> Erasure:
        """Delete the files that no version references any more."""
        collected = self._core.vacuum(
            self._request.grace_millis, False, 1 << 40, self._request.progress, self._message(), self._request.author
        )
        self._collected_before_millis = collected.before_millis
        self._remove_empty_folders()
        return replace(done, deleted=(*done.deleted, *collected.deleted_paths))

    def _survey(self) -> Survey:
        known = self._found
        ids, search = (frozenset[str](), None) if known is None else (known.ids, known.search)
        self._found = survey(self._core, self._io, self._request.table, self._filter, ids, search)
        return self._found

    def _transactions(self, found: Survey, before: int) -> list[str]:
        return saved_transactions(self._core, before, [*found.tables, split(self._request.table)])

    def _check_allowed(self, planned: Erasure) -> None:
        if planned.history == "expire" and planned.tags and not self._request.drop_tags:
            raise InvalidArgument(
                f"matching rows of {self._name} are also in {', '.join(f'tag {name}' for name in planned.tags)}: pass "
                'history="rewrite" (--rewrite-history) to keep the tags without these rows, or drop_tags=True '
                "(--drop-tags) to drop the tags"
            )
        if planned.transactions and not self._request.roll_back_transactions:
            raise InvalidArgument(
                f"matching rows may be in saved transactions: {', '.join(planned.transactions)}; commit each "
                "(trinitylake txn commit ID) and erase again, or pass roll_back_transactions=True "
                "(--roll-back-transactions) to discard their changes"
            )

    def _is_text(self, text: str) -> bool:
        return self._texts.is_in(text.encode())

    def _message(self) -> str:
        return f"erase rows of {self._name}" + (f": {self._request.reason}" if self._request.reason else "")

    def _eraser(self, table_id: str) -> TableEraser:
        return self._erasers.setdefault(table_id, TableEraser(self._io, self._is_text, self._count_file))

    def _count_file(self) -> None:
        self._n_files += 1
        if self._request.progress is not None:
            self._request.progress("rewritten", self._n_files)

    def _affected(self, found: Survey) -> list[str]:
        """Paths of the metadata files whose content has to be replaced, oldest state first.

        This includes files in the tables' folders that no kept version names, because entries of inner nodes that newer
        messages hide still reference such files (format §7). A file of this kind is left out if it names deleted files.
        """
        assert found.search is not None, "a table of the name has a schema"
        folders = {self._io.path_of(metadata_folder(one.metadata)) for one in found.searched}
        listed = (path for folder in folders for path, *_ in self._io.storage.list(f"{folder}/"))
        order: list[tuple[int, int, str]] = []
        for path in {*(path for path in listed if path.endswith(".metadata.json")), *found.metadata_paths}:
            if (metadata := self._metadata(found, path)) is None:
                continue
            try:
                is_affected = self._eraser(str(metadata.table_uuid)).is_affected(metadata, found.search)
            except FileNotFoundError:
                if path in found.metadata_paths:
                    raise
                continue
            if is_affected:
                order.append((getattr(metadata, "last_sequence_number", 0), metadata.last_updated_ms, path))
        return [path for *_, path in sorted(order)]

    def _metadata(self, found: Survey, path: str) -> TableMetadata | None:
        """The metadata in a file. None if the file is of another table, or was deleted meanwhile."""
        with suppress(FileNotFoundError):
            metadata = read_metadata(self._io, self._io.uri_of(path), is_cached=False)
            return metadata if str(metadata.table_uuid) in found.ids else None
        return None

    def _erased(self, found: Survey, metadata: TableMetadata) -> TableMetadata:
        assert found.search is not None, "a table of the name has a schema"
        return self._eraser(str(metadata.table_uuid)).erased(metadata, found.search)

    def _replace_metadata(self, found: Survey, paths: list[str], lease: _Lease) -> list[str]:
        """Replace the content of metadata files that no table of the latest version names; returns their paths."""
        latest = self._core.latest()
        current = {self._current(latest, *key)[1] for key in found.tables}
        replaced: list[str] = []
        for path in paths:
            if path in current:
                continue
            try:
                before = self._io.read(path)
            except FileNotFoundError:  # the transaction that wrote the file was rolled back, and deleted it
                continue
            if (metadata := self._metadata(found, path)) is None:
                continue
            erased = self._erased(found, metadata)
            if erased is metadata:
                continue
            lease.check()
            if not self._storage.replace(path, before, file_bytes(encoded(erased), path)):
                raise CommitConflict(f"another process changed {path} during the erasure: erase again")
            replaced.append(path)
            if self._request.progress is not None:
                self._request.progress("replaced", len(replaced))
        # This process forgets the former content now; other processes do after a garbage collection that deletes files.
        if replaced:
            cache.clear()
        return replaced

    def _current(self, version: _core.Version, namespace: str, name: str) -> tuple[TableDef, str]:
        """The definition of a table in a version, and the path of its metadata file."""
        data = version.read("table", namespace, name)
        if data is None or (definition := parse_table_def(data)).id not in self._known_ids:
            raise CommitConflict(f"table {full_name(namespace, name)} was dropped or replaced: erase again")
        return definition, metadata_path(definition, full_name(namespace, name))

    @property
    def _known_ids(self) -> frozenset[str]:
        return frozenset() if self._found is None else self._found.ids

    def _commit(self, found: Survey, replaced: Container[str] = ()) -> int | None:
        """Commit a version whose tables name no file with matching rows, and no metadata file in `replaced`.

        A transaction that began before this version conflicts with it, so the transaction cannot make removed files
        visible again. Returns the version; None if nothing had to be changed. Raises `CommitConflict`.
        """
        for _ in range(_MAX_ATTEMPTS):
            # The locks keep other threads from committing. After a conflict with another process, the next attempt uses
            # the written files again.
            with suppress(CommitConflict), table_locks.reserved(found.ids):
                return self._try_to_commit(found, replaced)
        raise self._too_many_changes()

    def _too_many_changes(self) -> CommitConflict:
        return CommitConflict(
            f"other writers changed table {self._name} during each of {_MAX_ATTEMPTS} attempts to erase rows: "
            "erase again"
        )

    def _try_to_commit(self, found: Survey, replaced: Container[str]) -> int | None:
        keeps_history = self._request.history == "rewrite"
        with self._handle.begin(message=self._message(), author=self._request.author) as transaction:
            state = transaction._state()
            state.adopt(self._io.written_paths)
            for namespace, name in found.tables:
                definition, path = self._current(state.base, namespace, name)
                metadata = read_metadata(self._io, self._io.uri_of(path), is_cached=False)
                erased = self._erased(found, metadata)
                if erased is not metadata or path in replaced:
                    erased = with_new_heads(self._io, erased)
                    if not keeps_history:
                        erased = erased.model_copy(update={"metadata_log": []})
                        definition.format_properties.pop(PREVIOUS_METADATA_LOCATION, None)
                    name_metadata(definition, self._stored(erased))
                    state.replace("table", namespace, name, serialize(definition))
            if not keeps_history:
                self._drop_tags(transaction, found)
        return None if transaction.version == transaction.base_version else transaction.version

    def _stored(self, metadata: TableMetadata) -> str:
        path = self._io.path_of(metadata_uri(metadata, new_file_stem()))
        self._io.put(path, file_bytes(encoded(metadata), path), overwrite=False)
        return path

    def _drop_tags(self, transaction: Transaction, found: Survey) -> None:
        definition = parse_lakehouse_def(transaction._lakehouse_definition)
        tags = found.tags_of({*found.versions, *found.texts_in})
        for tag in tags:
            definition.exported_snapshots.pop(tag, None)
        if tags:
            transaction._state().set_lakehouse_definition(serialize(definition))

    def _why_kept(self, file: ListedFile) -> str:
        if file.modified_millis < self._collected_before_millis:
            return (
                "a kept tag or a transaction still references it: drop the tag or end the transaction, and erase again"
            )
        if saved := [one.id for one in self._core.saved_transactions()]:
            return f"open saved transactions keep it: end {', '.join(saved)}, and erase again"
        until = time_of(file.modified_millis + self._request.grace_millis)
        return f"vacuum deletes it from {until:%Y-%m-%d %H:%M:%S} UTC on"

    def _remove_empty_folders(self) -> None:
        """Remove empty partition folders on a local disk, because their names contain values."""
        for table in self._found.searched if self._found is not None else ():
            folder = self._io.local_path(table.folder.rstrip("/"))
            for place, _, _ in os.walk(folder, topdown=False) if folder is not None else ():
                if "=" in os.path.basename(place):
                    with suppress(OSError):  # the folder is not empty
                        os.rmdir(place)

    def _verified(self, done: Erasure) -> Erasure:
        found = self._survey()
        remaining = {
            _core.root_path(number): f"version {number} holds matching rows: a tag, a transaction or a commit that "
            "began before was completed during the erasure; erase again"
            for number in found.versions
        }
        mentions = _mentions(found)
        mentioned = set(map(_core.root_path, found.texts_in))
        others_with_text: list[str] = []
        others, unreadable, searched = [], {}, 0
        for one in search_files(self._core.storage, self._filter, found):
            searched += 1
            path = one.file.path
            if one.problem:
                unreadable[path] = one.problem
            elif one.rows and one.is_of_table:
                remaining[path] = f"{one.described()}; {self._why_kept(one.file)}"
            elif path in done.files and (done.history == "expire" or not one.is_of_table):
                remaining[path] = "the file is outside of the table's folder, where vacuum deletes nothing: delete it"
            elif one.rows:
                others.append(path)
            elif one.has_text:
                if path not in mentioned:
                    (mentions if one.is_of_table else others_with_text).append(path)
            elif one.has_text_in_rows:
                others.append(path)
            if self._request.progress is not None:
                self._request.progress("searched", searched)
        # Manifests and metadata repeat values of rows, so their mentions count like the rows of their table.
        folders = tuple({f"{path.rpartition('/data/')[0]}/metadata/" for path in others if "/data/" in path})
        for path in others_with_text:
            (others if path.startswith(folders) else mentions).append(path)
        named = tables_that_name(found.latest, self._io, set(remaining)) if remaining else {}
        for path, table in named.items():
            remaining[path] = f"table {table} uses the file: erase the rows in that table, too"
        fields = {
            "reason": self._request.reason,
            "author": self._request.author,
            "table_ids": sorted(found.ids),
            "erased_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "history": done.history,
            "version": done.version,
            "rewritten_files": sorted(map(without_values, done.rewritten)),
            "expired_versions": list(done.expired),
            "dropped_tags": list(done.tags) if done.history == "expire" else [],
            "rolled_back_transactions": list(done.transactions),
            "files_with_rows": len(done.files),
            "deleted_files": sorted(map(without_values, done.deleted)),
            "verification": {
                "is_verified": not (remaining or mentions or unreadable),
                "searched_files": searched,
                "remaining_files": len(remaining),
                "mentions": len(mentions),
                "unreadable_files": len(unreadable),
                "other_files_with_matching_rows": len(others),
            },
            "not_covered": list(done.not_covered),
        }
        certificate, key = new_certificate(self._name, self._filter, fields)
        return replace(
            done,
            searched=searched,
            remaining=remaining,
            mentions=tuple(mentions),
            others=tuple(others),
            unreadable=unreadable,
            certificate=certificate,
            key=key,
        )


class _Lease:
    """Saved transactions that protect the files of an erasure from garbage collection until metadata names the files.

    Garbage collection deletes no file that is younger than an open saved transaction (format §7). A second erasure of
    the table takes the transactions over; then `check` of the first erasure fails.
    """

    def __init__(self, handle: Handle, ids: Sequence[str], message: str, author: str) -> None:
        self._transactions = [handle.begin(id=id, message=message, author=author, restart=True) for id in ids]
        self._saved = 0.0

    def check(self) -> None:
        """Raise `CommitConflict` if another erasure of the table has begun. Sends at most one request per second."""
        if time.monotonic() - self._saved > 1:
            for one in self._transactions:
                one.save()
            self._saved = time.monotonic()

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._transactions:
            one.rollback()


def _mentions(found: Survey) -> list[str]:
    """Descriptions of the places that contain a string of the filter: objects of the latest version or, if there are
    none, the kept versions.
    """
    latest = found.latest.number
    objects = [f"{one} in version {latest}" for one in found.texts]
    # An object of the latest version is usually also in earlier versions, which are then not listed one by one.
    versions = [] if objects else [f"a message or a definition of version {number}" for number in found.texts_in]
    return [*objects, *versions]


def _not_covered(outside: list[str]) -> tuple[str, ...]:
    names = ": " + ", ".join(outside) if outside else ""
    return (
        "copies outside of the lakehouse: exports, backups, results of queries, snapshots of disks, object versions "
        "that the store keeps",
        f"external and federated tables, whose files belong to other catalogs{names}",
        "transactions that are open in other processes and are not saved",
    )
