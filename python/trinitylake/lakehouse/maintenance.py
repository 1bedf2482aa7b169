"""Maintenance of a lakehouse: `lake.maintenance`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple, cast

from trinitylake.base.arguments import (
    checked,
    checked_as,
    flag,
    version_number,
    version_reference,
    versions,
    whole_number,
)
from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.base.qualified_names import split
from trinitylake.base.timestamps import time_of
from trinitylake.base.version_reference import VersionReference, version_before
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.bulk.engines import engine_module
from trinitylake.lakehouse.handle import Handle, retry_conflicts
from trinitylake.lakehouse.history import Expired, VersionLog
from trinitylake.lakehouse.maintenance_policy import (
    LOG_TABLE,
    MaintainedTables,
    MaintenanceReport,
    TreeCompaction,
    maintain_tables,
    policy_of,
)
from trinitylake.lakehouse.vacuum_report import EXAMPLES, Progress, Vacuumed, VacuumRequest, vacuumed

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.fsck import FsckReport, OnProgress, Versions
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.relocation import OnProgress as RelocationProgress
    from trinitylake.lakehouse.relocation import Relocation
    from trinitylake.lakehouse.stats import Stats


#: Steps of maintenance, as the first words of their lines in the log.
STEPS = ("compact", "expire snapshots", "vacuum")
LAST_STEPS_MAX_VERSIONS = 1_000
#: Maximum number of attempts to compact the tree, if other writers roll back or register objects at the same time.
_COMPACTION_ATTEMPTS = 3
#: Columns of the log table (property `maintenance.log-table`), which has one row for each transaction.
_LOG_COLUMNS = {
    "version": "bigint",
    "created_at": "timestamptz",
    "transaction_id": "varchar",
    "author": "varchar",
    "message": "varchar",
    "summary": "varchar",
    "rollback_from": "bigint",
}


class LastStep(NamedTuple):
    """The newest version that a step of maintenance committed.

    Attributes:
        step: one of `STEPS`; "compact" is a compaction of a table or of the tree.
        version, created_at, author, message: the version's number, time, author and message in the log.
    """

    step: str
    version: int
    created_at: datetime
    author: str
    message: str


class LakehouseMaintenance:
    """Expiry, garbage collection, compaction, checks and statistics of a lakehouse: `lake.maintenance`.

    `message` and `author` of every method are stored in the log with the versions that the method creates.
    """

    __slots__ = ("_handle", "_tables")

    def __init__(self, handle: Handle, tables: Reader) -> None:
        self._handle = handle
        self._tables = tables

    @checked
    def run(
        self,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        message: str = "",
        author: str = "",
        engine: SparkSession | None = None,
    ) -> MaintenanceReport:
        """Run the steps of the lakehouse's policy: compact tables and the tree, expire versions, vacuum files.

        This calls `compact()` and `expire_snapshots()` of `table.maintenance` for every managed table, then `compact`,
        `expire` and `vacuum` of the lakehouse. The policy is stored in the lakehouse, and `lake.alter` changes it:

        - The settings `maximum_version_age_millis` and `minimum_versions_to_keep` determine how long versions are kept.
        - The properties `maintenance.compact`, `maintenance.expire-snapshots`, `maintenance.compact-tree`,
          `maintenance.expire` and `maintenance.vacuum` turn a step off if they are "false".
        - `maintenance.compact.min-files` and `maintenance.compact.min-deleted-percent` are arguments of the compaction
          of tables, `maintenance.grace` (such as "2 days") is an argument of `vacuum`.

        A table's own properties `maintenance.compact`, `maintenance.compact.min-files` and
        `maintenance.compact.min-deleted-percent` override those of the lakehouse. A table that cannot be maintained is
        reported as skipped, and the other tables are maintained.

        Args:
            dry_run: report what would be done, and change nothing.
            progress: as for `vacuum`, and with "compacted".
            message: by default "maintenance".
            engine: a Spark session for `vacuum`; the other steps run in this process.

        Raises `InvalidArgument` for an unknown or malformed property, and otherwise as `expire` and `vacuum` do.
        """
        note = CommitInfo(message or "maintenance", author)
        tables = maintain_tables(self._handle.definition, self._tables, note, dry_run=dry_run, progress=progress)
        return self._run_steps(tables, note, dry_run, progress, engine)

    def _run_steps(
        self,
        tables: MaintainedTables,
        note: CommitInfo,
        dry_run: bool = False,
        progress: Progress | None = None,
        engine: SparkSession | None = None,
    ) -> MaintenanceReport:
        """Run the steps that follow the maintenance of tables."""
        policy = policy_of(self._handle.definition.properties)
        log = note._asdict()
        tree = self.compact(dry_run=dry_run, **log) if policy.compact_tree else None
        expired = self.expire(dry_run=dry_run, **log) if policy.expire else None
        vacuumed = None
        if policy.vacuum:
            vacuumed = self.vacuum(grace=policy.grace, dry_run=dry_run, progress=progress, engine=engine, **log)
        return MaintenanceReport(
            tables.compacted, tables.snapshots_expired, tables.skipped, policy, tree, expired, vacuumed
        )

    def last_steps(self) -> list[LastStep]:
        """The newest version of each maintenance step in the log, whichever process ran it; the newest step first.

        Only the newest `LAST_STEPS_MAX_VERSIONS` versions are searched. A step that had nothing to do, and `expire`,
        commit no version, so they are not found.
        """
        found: dict[str, LastStep] = {}
        for info in self._handle.core.log(LAST_STEPS_MAX_VERSIONS):
            created_at = time_of(info.created_at_millis)
            for one in info.transactions:
                for step in (step for step in STEPS if f"\n{step} " in f"\n{one.summary}"):
                    found.setdefault(step, LastStep(step, info.version, created_at, one.author, one.message))
        return list(found.values())

    @checked_as(files=flag)
    def stats(self, *, files: bool = False, progress: Progress | None = None) -> Stats:
        """Count objects and tree nodes in the latest version; with `files`, also all files by purpose.

        With `files`, numbers and sizes of files are by kind and by table, and include small data files, files of older
        versions, and files that `expire` and `vacuum` would delete. For this, every node, definition, metadata file and
        manifest that a version reaches is read once, and all files are listed once.

        Args:
            files: whether to measure the files.
            progress: as for `vacuum`.

        Raises `CorruptFile` with `files` if a reachable file is damaged or missing.
        """
        from trinitylake.lakehouse.stats import file_stats, stats_of

        counted = stats_of(self._handle.core.latest())
        if not files:
            return counted
        from trinitylake.iceberg_storage.data_files.file_sizes import SMALL_FILE_SIZE_BYTES

        usage = self._handle.core.usage(self.expire(dry_run=True).oldest, SMALL_FILE_SIZE_BYTES, progress)
        return replace(counted, files=file_stats(usage))

    @checked_as(before=version_reference, older_than=milliseconds, keep=functools.partial(whole_number, minimum=1))
    def expire(
        self,
        *,
        before: VersionReference | None = None,
        older_than: Duration | None = None,
        keep: int | None = None,
        dry_run: bool = False,
        message: str = "",
        author: str = "",
    ) -> Expired:
        """Delete old versions; returns their numbers, ascending, and sizes.

        A saved transaction that can still be resumed keeps its base version and all later ones. A saved transaction
        that can no longer be resumed is rolled back if its base version is deleted, and its files are deleted. A tag
        keeps its version. Ids of transactions that committed in deleted versions can be used again. `vacuum` deletes
        the files that only these versions reached.

        Args:
            before: expire all versions before this one regardless of their age. A reference as for `lake.at`, such as
                14, "tag:q3" or "2 weeks ago".
            older_than: a timedelta or a string such as "7 days", instead of the setting `maximum_version_age_millis`.
                Ages are measured by the clock of the store, not of this machine.
            keep: the least number of versions to keep, instead of `minimum_versions_to_keep`. Without `older_than`,
                exactly this many are kept regardless of their age. A version with its own maximum age
                (`maximum_version_age_millis_overrides`) is kept until that age, with all later versions.
            dry_run: report what would be deleted, and delete nothing.

        Raises `InvalidArgument` for `before` with `older_than` or `keep`, or if it is after the latest version.
        """
        if before is not None and (older_than is not None or keep is not None):
            raise InvalidArgument("give `before`, or `older_than` and `keep`, not both")
        oldest: int | None = None
        if isinstance(before, int) and before >= 0:
            oldest = version_number(before, "before")
        elif before is not None:
            oldest = max(version_before(self._handle.core, before), 0)
        age = cast("int | None", 0 if keep is not None and older_than is None else older_than)
        if (log_table := self._handle.definition.properties.get(LOG_TABLE, "")) and not dry_run:
            expiring = Expired(*self._handle.core.expire(oldest, age, keep, True, message, author))
            if not expiring:
                return expiring
            _append_log(self._handle, log_table, expiring.oldest, CommitInfo(message, author))
            oldest, age, keep = expiring.oldest, None, None  # expire only versions whose log was appended
        return Expired(*self._handle.core.expire(oldest, age, keep, dry_run, message, author))

    @checked_as(grace=milliseconds, paths=flag)
    def vacuum(
        self,
        *,
        grace: Duration | None = None,
        dry_run: bool = False,
        paths: bool = False,
        progress: Progress | None = None,
        message: str = "",
        author: str = "",
        engine: SparkSession | None = None,
    ) -> Vacuumed:
        """Delete files that no kept version, no tag and no open saved transaction reaches.

        These are files that only versions deleted by `expire` reached, and files of writers that died or rolled back:
        tree nodes, definitions, files of managed tables, records of transactions, temporary files. Files of external
        and federated tables are kept, and so are all files that this format does not write.

        `vacuum` commits a version, so that an open transaction that began longer ago than `grace` fails with
        `TransactionExpired` instead of committing deleted files. A process that runs it may be killed at any moment,
        and several processes may run it at the same time (format §7).

        Args:
            grace: a timedelta or a string such as "1 day": files younger than this by the clock of the store are kept.
                The default is the setting `txn_ttl_millis`, so that no transaction that can be resumed is affected.
                Files younger than the oldest open saved transaction are always kept.
            dry_run: report what would be deleted, and delete nothing.
            paths: report the paths of all deleted and of all unknown files, not only the first thousand of each.
            progress: called from time to time with "marked" or "swept", and the number of files.
            engine: a Spark session whose executors read, list and delete, for a lakehouse with more files than one
                machine can handle; the same files are deleted.

        Raises:
            CorruptFile: a reachable file is damaged or missing, so the files that it reaches are unknown; nothing was
                deleted.
            CommitConflict: other writers were faster in each attempt to commit a version.
        """
        examples = sys.maxsize if paths else EXAMPLES
        if engine is not None:
            request = VacuumRequest(cast("int | None", grace), dry_run, examples, CommitInfo(message, author), progress)
            done: Vacuumed = engine_module(engine, "vacuum").vacuum(engine, self._handle.core, request)
            return done
        found = self._handle.core.vacuum(cast("int | None", grace), dry_run, examples, progress, message, author)
        return vacuumed(found, dry_run)

    @checked_as(force=flag)
    def compact(
        self, *, force: bool = False, dry_run: bool = False, message: str = "", author: str = ""
    ) -> TreeCompaction:
        """Rebuild the tree of the latest version with full leaves and empty buffers, so that readers read fewer files.

        The new version has the same objects, including those of concurrent commits. Without `force`, nothing is done if
        a new tree would save no node, or if it would save less than a fifth of the nodes and buffers hold few changes.
        `vacuum` deletes the old nodes. `table.maintenance.compact` compacts the data files of a table.

        Raises `CommitConflict` if other writers rolled back or registered objects during each attempt.
        """
        core = self._handle.core
        version, before, after = retry_conflicts(
            lambda: core.compact(force, dry_run, message, author), _COMPACTION_ATTEMPTS
        )
        return TreeCompaction(version, *(value for pair in zip(before, after, strict=True) for value in pair))

    @checked_as(version=versions, files=flag, data=flag)
    def fsck(
        self,
        version: Versions = None,
        *,
        files: bool = False,
        data: bool = False,
        repair: bool = False,
        dry_run: bool = False,
        message: str = "",
        author: str = "",
        engine: SparkSession | None = None,
        progress: OnProgress | None = None,
        certificate: str | PathLike[str] | None = None,
        filter: str | BooleanExpression | None = None,
        key: str | PathLike[str] | None = None,
    ) -> FsckReport:
        """Check the rules of the format: roots, nodes, definitions, the hint, the boundary, saved transactions.

        Files that several versions share are read once. Memory use does not depend on the sizes of files.

        Args:
            version: a number, a range such as `(3, 7)`, or "all" for all kept and tagged versions and the files that no
                version references; by default the latest version.
            files: check also that the files of managed tables exist with the recorded sizes: metadata, manifests, data
                files, statistics.
            data: check also the content of these tables' Parquet files: their checksums and row counts. It reads every
                data file once, and includes `files`.
            repair: first repair the latest version, by committing a new one from what can be read. Nothing is deleted.
                Stop all writers before.
            dry_run: report what would be repaired, and write nothing.
            engine: a Spark session whose executors check the files of tables.
            progress: called from time to time with the numbers of checked versions, of all versions, and of files read.
            certificate: path of a certificate of `Erasure.write`; also check that the files that it lists do not exist.
            filter: the filter of that erasure; also search all files for matching rows and for strings of the filter.
            key: path of the certificate's key; also check that the certificate is unchanged and has this filter.

        Raises `VersionNotFound` or `VersionExpired` for versions that do not exist, and `InvalidArgument` for a file
        that is not a certificate, or if it has another key or filter.
        """
        from trinitylake.lakehouse.fsck import fsck, with_certificate

        storage = self._handle.storage
        report = fsck(
            storage,
            version=version,
            files=files,
            data=data,
            repair=repair,
            dry_run=dry_run,
            message=message,
            author=author,
            progress=progress,
            new_check=None if engine is None else engine_module(engine, "fsck").check_on(engine),
        )
        if certificate is not None:
            report = with_certificate(report, storage, certificate, filter, key)
        if report.repair is not None and report.repair.version is not None:
            self._handle.reopen(storage)
        return report

    @checked
    def relocate(
        self,
        *,
        rewrite: bool = True,
        former: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
        dry_run: bool = False,
        message: str = "",
        author: str = "",
        progress: RelocationProgress | None = None,
    ) -> Relocation:
        """Record the present root, after the lakehouse was moved or copied; until then it is read-only.

        This commits one version. Afterwards a file whose recorded URI is below a former root is read below the present
        root, also in older versions, and never at the former root. Other engines do not follow this rule. So by default
        those Iceberg files of managed tables that contain URIs of files are rewritten: metadata, manifest lists,
        manifests, and position deletes in Parquet. Data files, equality deletes and statistics contain no URIs.

        Args:
            rewrite: False leaves the files of tables as they are: fast, and enough for this library and its server.
            former: former roots, for a lakehouse that has not recorded them.
            dry_run: report what would be done, and write nothing.
            progress: called from time to time with the numbers of tables that were read, and of all of them.

        A second call leaves files unchanged that name the present root. Tables that cannot be read are skipped and
        reported. If the call fails, nothing has changed.

        Raises:
            CommitConflict: another writer relocated the lakehouse, or changed a table that is rewritten.
            InvalidLocation: a former root is not a valid root.
        """
        from trinitylake.lakehouse.relocation import relocate, storage_with

        roots = cast("tuple[str, ...]", former)
        done = relocate(
            self._handle,
            rewrite=rewrite,
            former=roots,
            dry_run=dry_run,
            message=message,
            author=author,
            on_progress=progress,
        )
        if roots and not dry_run:
            self._handle.reopen(storage_with(self._handle.storage, done.former_roots))
        return done


def _append_log(handle: Handle, name: str, oldest_kept: int, note: CommitInfo) -> None:
    """Append the log entries of versions before `oldest_kept` to the table `name`, which is created if it is missing.

    Versions that the table already has are skipped. The transaction is serializable, so that two concurrent runs do not
    append the same entries.
    """
    oldest = handle.core.oldest()
    entries = list(VersionLog(handle.core, oldest_kept))
    message = note.message or f"keep the log of versions {oldest} to {oldest_kept - 1}"

    def attempt() -> None:
        with handle.begin(isolation="serializable", message=message, author=note.author) as transaction:
            transaction.create_namespace(split(name)[0], exist_ok=True)
            table = (
                transaction.table(name) if transaction.exists(name) else transaction.create_table(name, _LOG_COLUMNS)
            )
            present = set(table.scan(f"version >= {oldest}", ["version"]).to_arrow()["version"].to_pylist())
            rows = [
                {
                    "version": entry.version,
                    "created_at": entry.created_at,
                    "transaction_id": one.id,
                    "author": one.author,
                    "message": one.message,
                    "summary": one.summary,
                    "rollback_from": entry.rollback_from,
                }
                for entry in reversed(entries)
                for one in entry.transactions
                if entry.version not in present
            ]
            if rows:
                table.append(rows)

    retry_conflicts(attempt)
