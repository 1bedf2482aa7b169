"""Erasure of rows from the whole history of a table: `lake.erase`.

1. Survey every kept version: find the versions, tags, snapshots and saved transactions that hold matching rows.
2. Commit a version whose tables name no file with matching rows. Tags of versions with such rows are dropped.
3. Rebuild the tree, expire every earlier version, and collect the files that no version references any more.
4. Verify: survey again, and search every file below the root.

Nothing is stored between these steps. A call after a crash surveys again and does what is left.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import TableProperties

from trinitylake import _core
from trinitylake.base.qualified_names import Identifier, full_name, split
from trinitylake.base.timestamps import time_of
from trinitylake.definitions import PREVIOUS_METADATA_LOCATION, parse_lakehouse_def, parse_table_def, serialize
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.metadata import encoder, new_file_stem, read_metadata
from trinitylake.iceberg_storage.metadata_compression import file_bytes, file_suffix
from trinitylake.iceberg_storage.row_erasure import TableEraser
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

    from trinitylake.lakehouse.handle import Handle
    from trinitylake.lakehouse.vacuum import Progress

#: Attempts to commit while other writers change the table.
_MAX_ATTEMPTS = 10
#: Garbage collection keeps younger files, by the clock of the store (`STORE_CLOCK_STEP_MILLIS` in the core).
_COLLECTED_AFTER_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Erasure:
    """Result of `lake.erase`; with `dry_run`, what an erasure would do.

    Attributes:
        table: full name of the table.
        dry_run: whether nothing was changed.
        files: number of matching rows by path of the file that held them, including rows that a delete file hides.
        versions: versions that held matching rows or texts of the filter. If there is one, all versions expire.
        tags: tags of these versions, which are dropped.
        refs: branches and tags inside the tables, other than `main`, at snapshots with matching rows; dropped, too.
        transactions: ids of saved transactions that began before, or that changed the table; rolled back.
        version: the oldest version that is kept, which holds no matching rows; None if no version expired.
        expired: versions that expired.
        deleted: paths of the deleted files.
        searched: number of files that the verification searched.
        remaining: files that still hold matching rows: the reason by path.
        mentions: files and objects that still contain a text of the filter.
        others: files of other tables with rows that match by the column names in the file, and files with a text of the
            filter in another column, such as those of a dead-letter table.
        unreadable: files that could not be searched: the reason by path.
        not_covered: places that are neither searched nor erased.
        certificate: the certificate that `write` stores.
        key: secret key of the certificate, in hexadecimal.
    """

    table: str
    dry_run: bool
    files: dict[str, int]
    versions: tuple[int, ...]
    tags: tuple[str, ...]
    refs: tuple[str, ...]
    transactions: tuple[str, ...]
    version: int | None = None
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
        """Whether every file below the root was searched, and no matching row of the table and no text remains."""
        return self.searched > 0 and not (self.remaining or self.mentions or self.unreadable)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON, and its secret key to `<path>.key`. Neither file may exist."""
        write_certificate(self.certificate, self.key, path)


@dataclass(frozen=True)
class ErasureRequest:
    """Arguments of `Lakehouse.erase`."""

    table: Identifier
    filter: str | BooleanExpression
    reason: str = ""
    drop_tags: bool = False
    roll_back_transactions: bool = False
    grace_millis: int = 0
    author: str = ""
    progress: Progress | None = None


def erase(handle: Handle, request: ErasureRequest, dry_run: bool) -> Erasure:
    """See `Lakehouse.erase`."""
    return _ErasureRun(handle, request).run(dry_run)


class _ErasureRun:
    def __init__(self, handle: Handle, request: ErasureRequest) -> None:
        self._handle = handle
        self._core = handle.core
        self._storage = handle.storage
        self._io = LakehouseFileIO(self._storage)
        self._request = request
        self._name = full_name(*split(request.table))
        self._filter = parse_filter(request.filter)
        self._texts = texts_of(self._filter)
        if TextSearch(self._texts).is_in(f"{request.reason} {request.author}".encode()):
            raise InvalidArgument(
                "the reason or the author contains a value of the filter, which the log would keep: remove it"
            )
        self._eraser = TableEraser(self._io)
        self._found: Survey | None = None
        self._collected_before_millis = 0

    def run(self, dry_run: bool) -> Erasure:
        found = self._survey()
        assert found.search is not None, "a table of the name has a schema"
        transactions = self._transactions(found)
        planned = Erasure(
            table=self._name,
            dry_run=dry_run,
            files={path: rows for path, rows in sorted(found.search.rows.items()) if rows},
            versions=tuple(found.versions),
            tags=tuple(found.tags),
            refs=tuple(found.refs),
            transactions=tuple(transactions),
            not_covered=_not_covered(found.outside),
        )
        if dry_run:
            return planned
        self._check_allowed(planned)
        for id in transactions:
            with Transaction(self._core, self._core.resume(id)) as transaction:
                transaction.rollback()
        if found.versions:
            done = self._verified(self._without_history(found, planned))
        else:
            done = self._verified(self._collected(planned))
            # A row of an inner node that a newer message hides still references files (format §7).
            if done.remaining or done.mentions:
                done = self._verified(self._without_history(found, planned))
        return done

    def _without_history(self, found: Survey, planned: Erasure) -> Erasure:
        """Commit a clean version, expire all versions before it, and collect their files."""
        self._commit(found)
        # In a tree without buffers no node names a former definition, whose files garbage collection would keep.
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

    def _transactions(self, found: Survey) -> list[str]:
        before = found.latest.number + 1 if found.versions else 0
        return saved_transactions(self._core, before, [*found.tables, split(self._request.table)])

    def _check_allowed(self, planned: Erasure) -> None:
        kept = [f"tag {name}" for name in planned.tags] + [f"reference {name}" for name in planned.refs]
        if kept and not self._request.drop_tags:
            raise InvalidArgument(
                f"matching rows of {self._name} are also in {', '.join(kept)}: pass drop_tags=True (--drop-tags) to "
                "drop these tags and references"
            )
        if planned.transactions and not self._request.roll_back_transactions:
            raise InvalidArgument(
                f"matching rows may be in saved transactions: {', '.join(planned.transactions)}; commit these, or pass "
                "roll_back_transactions=True (--roll-back-transactions)"
            )

    def _message(self) -> str:
        return f"erase rows of {self._name}" + (f": {self._request.reason}" if self._request.reason else "")

    def _commit(self, found: Survey) -> None:
        """Commit a version whose tables name no file with matching rows. Raises `CommitConflict`."""
        for _ in range(_MAX_ATTEMPTS):
            # The lock stops other threads. If another process commits first, the files written so far are used again.
            with suppress(CommitConflict), table_locks.reserved(found.ids):
                self._try_to_commit(found)
                return
        raise CommitConflict(
            f"other writers changed table {self._name} during each of {_MAX_ATTEMPTS} attempts to erase rows: "
            "erase again"
        )

    def _try_to_commit(self, found: Survey) -> None:
        assert found.search is not None, "a table with matching rows was searched"
        earlier = [self._io.path_of(file.file_path) for files in self._eraser.written.values() for file in files]
        with self._handle.begin(message=self._message(), author=self._request.author) as transaction:
            state = transaction._state()
            state.adopt(earlier)
            for namespace, name in found.tables:
                data = state.base.read("table", namespace, name)
                if data is None or (definition := parse_table_def(data)).id not in found.ids:
                    raise CommitConflict(f"table {full_name(namespace, name)} was dropped or replaced: erase again")
                path = metadata_path(definition, full_name(namespace, name))
                metadata = read_metadata(self._io, self._io.uri_of(path), path)
                if found.search.snapshots(metadata):
                    name_metadata(definition, self._stored(self._eraser.erased(metadata, found.search)))
                    definition.format_properties.pop(PREVIOUS_METADATA_LOCATION, None)
                    state.replace("table", namespace, name, serialize(definition))
            self._drop_tags(transaction, found)

    def _stored(self, metadata: TableMetadata) -> str:
        folder = metadata.properties.get(TableProperties.WRITE_METADATA_PATH) or f"{metadata.location}/metadata"
        path = self._io.path_of(f"{folder.rstrip('/')}/{new_file_stem(None)}{file_suffix(metadata.properties)}")
        self._io.put(path, file_bytes(encoder.encode(metadata), path), overwrite=False)
        return path

    def _drop_tags(self, transaction: Transaction, found: Survey) -> None:
        definition = parse_lakehouse_def(transaction._lakehouse_definition)
        for tag in found.tags:
            definition.exported_snapshots.pop(tag, None)
        if found.tags:
            transaction._state().set_lakehouse_definition(serialize(definition))

    def _why_kept(self, file: ListedFile) -> str:
        if file.modified_millis < self._collected_before_millis:
            return (
                "a kept tag or a transaction still references it: drop the tag or end the transaction, and erase again"
            )
        until = time_of(file.modified_millis + self._request.grace_millis)
        return f"vacuum deletes it from {until:%Y-%m-%d %H:%M:%S} UTC on"

    def _remove_empty_folders(self) -> None:
        """Remove empty partition folders on a local disk, because their names contain values."""
        for table in self._found.searched if self._found is not None else ():
            folder = self._io.local_path(table.folder.rstrip("/"))
            for place, _, _ in os.walk(folder, topdown=False) if folder is not None else ():
                if "=" in os.path.basename(place):
                    with suppress(OSError):  # it is not empty
                        os.rmdir(place)

    def _verified(self, done: Erasure) -> Erasure:
        found = self._survey()
        # A text in a definition of the latest version is also in the versions before; `mentions` reports it instead.
        remaining = {
            _core.root_path(number): f"version {number} is kept: a tag or transaction was saved during the erasure"
            for number in (found.versions if not found.texts else [])
        }
        mentions = [f"{one} in version {found.latest.number}" for one in found.texts]
        others, unreadable, searched = [], {}, 0
        for one in search_files(self._storage, self._filter, found):
            searched += 1
            path = one.file.path
            if one.problem:
                unreadable[path] = one.problem
            elif one.rows and one.is_of_table:
                remaining[path] = f"{one.described()}; {self._why_kept(one.file)}"
            elif path in done.files:
                remaining[path] = "the file is outside of the table's folder, where vacuum deletes nothing: delete it"
            elif one.rows:
                others.append(path)
            elif one.has_text:
                mentions.append(path)
            elif one.has_text_in_rows:
                others.append(path)
            if self._request.progress is not None:
                self._request.progress("searched", searched)
        named = tables_that_name(found.latest, self._io, set(remaining)) if remaining else {}
        for path, table in named.items():
            remaining[path] = f"table {table} uses the file: erase the rows in that table, too"
        fields = {
            "reason": self._request.reason,
            "author": self._request.author,
            "table_ids": sorted(found.ids),
            "erased_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": done.version,
            "expired_versions": list(done.expired),
            "dropped_tags": list(done.tags),
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


def _not_covered(outside: list[str]) -> tuple[str, ...]:
    names = ": " + ", ".join(outside) if outside else ""
    return (
        "copies outside of the lakehouse: exports, backups, results of queries, snapshots of disks, object versions "
        "that the store keeps",
        f"external and federated tables, whose files belong to other catalogs{names}",
        "transactions that are open in other processes and are not saved",
    )
