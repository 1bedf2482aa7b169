"""Maintenance of one table: compaction, rewriting of manifests, and expiry of snapshots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table as IcebergTable

from trinitylake.base.arguments import checked_as, texts, whole_number
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.snapshot_retention import Retention, retained, retained_of_refs
from trinitylake.iceberg_storage.table_file_io import own_files
from trinitylake.tables.compaction import CompactResult, compact

Result = TypeVar("Result")

#: Partitions with fewer small files are not compacted.
MIN_FILES = 5
_AT_LEAST_ONE = functools.partial(whole_number, minimum=1)
_PERCENT = functools.partial(whole_number, minimum=0)


class Write(Protocol):
    """Runs one write on a table, and repeats it after a lost race."""

    def __call__(self, operation: Callable[[IcebergTable], Result], *, note: CommitInfo = NO_COMMIT_INFO) -> Result: ...


class RewriteManifestsResult(NamedTuple):
    """The number of manifests of a table, before and after."""

    manifests_before: int
    manifests_after: int


class TableMaintenance:
    """Maintenance of one table: `table.maintenance`.

    Outside of a transaction each call commits at once, and is repeated after a lost race. No file is deleted, because
    older versions need the files. `lake.maintenance.vacuum` deletes unreachable files.
    """

    def __init__(self, write: Write, subject: Callable[[], str], shared_folders: Callable[[], Sequence[str]]) -> None:
        self._write = write
        self._subject = subject
        self._shared_folders = shared_folders

    @checked_as(target_file_size_bytes=_AT_LEAST_ONE, min_files=_AT_LEAST_ONE, min_deleted_percent=_PERCENT)
    def compact(
        self,
        filter: str | BooleanExpression | None = None,
        *,
        target_file_size_bytes: int | None = None,
        min_files: int = MIN_FILES,
        min_deleted_percent: int = 0,
        sort_by: str | Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
        message: str = "",
        author: str = "",
    ) -> CompactResult:
        """Merge small data files into larger ones, and apply delete files.

        Files of concurrent appends are not compacted. Only statements that delete rows of the same files conflict.
        Outside of a transaction, the compaction is repeated after a conflict.

        Args:
            filter: only files that may hold matching rows are compacted.
            target_file_size_bytes: size of the new files; by default the table's `write.target-file-size-bytes`, or
                96 MiB. Files of less than three quarters of this size are small.
            min_files: partitions with fewer small files are skipped.
            min_deleted_percent: apply the delete files of a data file if they delete at least this percentage of its
                rows, or if there are more than ten. Equality deletes, and delete files of several data files, are
                always applied.
            sort_by: columns, such as `"at desc"`. All files are rewritten and sorted by these columns, so that filters
                on them read fewer files. At most 128 MiB of files of a partition, or 256 MiB of their rows in memory,
                are sorted together.
            dry_run: return the number of files to merge, and change nothing. After a change of partitioning a real run
                may also merge small files of the partitions to which it moves rows.
            progress: called with the number of files read, and of all files.
            message, author: commit info for the log. Not allowed in a transaction, which has its own commit info.

        Raises `InvalidArgument` for a table that is not managed, an invalid filter, and an unknown column in `sort_by`;
        `InvalidLocation` for a table with files outside of its folder, which its readers may not be allowed to read.
        """
        matching = AlwaysTrue() if filter is None else parse_filter(filter)
        order = () if sort_by is None else texts(sort_by, "sort_by")

        def operation(iceberg: IcebergTable) -> CompactResult:
            with translated(self._subject):
                report = progress or (lambda done, total: None)
                return compact(
                    iceberg,
                    matching,
                    target_file_size_bytes,
                    min_files,
                    min_deleted_percent,
                    order,
                    report,
                    dry_run,
                    self._shared_folders(),
                )

        return self._write(operation, note=CommitInfo(message, author))

    def rewrite_manifests(self, *, message: str = "", author: str = "") -> RewriteManifestsResult:
        """Rewrite the manifests in the target size, with the data files of a partition in the same manifest.

        TrinityLake's own statements merge manifests, so this is useful for tables that engines have filled. Raises
        `InvalidArgument` for a table that is not managed, and `InvalidLocation` for manifests outside of its folder.
        """

        def operation(iceberg: IcebergTable) -> RewriteManifestsResult:
            with translated(self._subject):
                shared = self._shared_folders()
                before = _manifests(iceberg, shared)
                if before == 0:
                    return RewriteManifestsResult(0, 0)
                with iceberg.transaction() as change:
                    if not hasattr(change, "rewrite_manifests"):
                        raise InvalidArgument("only the manifests of managed tables are rewritten")
                    change.rewrite_manifests()
                return RewriteManifestsResult(before, _manifests(iceberg, shared))

        return self._write(operation, note=CommitInfo(message, author))

    @checked_as(keep=_AT_LEAST_ONE)
    def expire_snapshots(
        self,
        *,
        keep: int | None = None,
        older_than: datetime | Duration | None = None,
        message: str = "",
        author: str = "",
    ) -> list[int]:
        """Remove snapshots from the table's own metadata. Returns their ids.

        Heads of branches and tagged snapshots remain. Without arguments, the properties of the table decide which
        snapshots are removed, as in every commit.

        Args:
            keep: the number of newest snapshots of each branch to keep, regardless of their age.
            older_than: remove only snapshots before this time, or older than a duration such as "7 days".

        Raises `InvalidArgument` for a number below 1 or a time without a zone.
        """
        if isinstance(older_than, datetime) and older_than.tzinfo is None:
            raise InvalidArgument(f"older_than needs a time zone, got {older_than!r}")
        age = None if older_than is None or isinstance(older_than, datetime) else milliseconds(older_than, "older_than")

        def operation(iceberg: IcebergTable) -> list[int]:
            metadata = iceberg.metadata
            staying = (
                retained(metadata) if keep is None and older_than is None else retained_of_refs(metadata, keep or 1)
            )
            if older_than is not None:
                moment = older_than if isinstance(older_than, datetime) else datetime.now().astimezone()
                limit = int(moment.timestamp() * 1000) - (age or 0)
                staying |= {one.snapshot_id for one in metadata.snapshots if one.timestamp_ms >= limit}
            return self._expire_all_but(iceberg, staying)

        return self._write(operation, note=CommitInfo(message, author))

    def expire_as_versions(
        self, minimum_versions_to_keep: int, maximum_version_age_millis: int, *, message: str = "", author: str = ""
    ) -> list[int]:
        """Remove snapshots of `main` by the retention of versions, unless properties of the table set their retention.

        Returns their ids. Vacuum keeps replaced files as long as a snapshot in the metadata references them.
        """

        def operation(iceberg: IcebergTable) -> list[int]:
            now_millis = int(datetime.now().timestamp() * 1000)
            unset = Retention(max(minimum_versions_to_keep, 1), maximum_version_age_millis)
            return self._expire_all_but(iceberg, retained(iceberg.metadata, unset, now_millis))

        return self._write(operation, note=CommitInfo(message, author))

    def _expire_all_but(self, iceberg: IcebergTable, staying: set[int]) -> list[int]:
        going = [one.snapshot_id for one in iceberg.metadata.snapshots if one.snapshot_id not in staying]
        if going:
            with translated(self._subject):
                iceberg.maintenance.expire_snapshots().by_ids(going).commit()
        return going


def _manifests(iceberg: IcebergTable, shared_folders: Sequence[str]) -> int:
    snapshot = iceberg.current_snapshot()
    if snapshot is None:
        return 0
    io = own_files(iceberg.io, iceberg.metadata, shared_folders)
    manifests = snapshot.manifests(io)
    for manifest in manifests:
        io.new_input(manifest.manifest_path)  # a manifest of another table would reveal its files
    return len(manifests)
