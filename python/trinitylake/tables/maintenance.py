"""`table.maintenance`: what keeps a table fast to read and its metadata small. Each is one snapshot, or one commit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from trinitylake.base.arguments import checked_as, texts, whole_number
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.snapshot_retention import Retention, retained, retained_of_refs
from trinitylake.iceberg_storage.table_file_io import own_files
from trinitylake.tables.compaction import CompactResult, compact
from trinitylake.tables.filters import parse_filter

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

Result = TypeVar("Result")

#: Fewer small files than this in a partition are left alone.
MIN_FILES = 5
_AT_LEAST_ONE = functools.partial(whole_number, minimum=1)


class Write(Protocol):
    """Runs one write on a table, which may be redone."""

    def __call__(self, operation: Callable[[IcebergTable], Result], *, note: CommitInfo = NO_COMMIT_INFO) -> Result: ...


class RewriteManifestsResult(NamedTuple):
    """How many manifests listed the files of a table, and how many do now."""

    manifests_before: int
    manifests_after: int


class TableMaintenance:
    """The upkeep of one table, from `table.maintenance`.

    Outside of a transaction each call is one of its own, which is redone if others committed meanwhile. No file is
    deleted: older versions need them, and the lakehouse's vacuum deletes those that none needs.
    """

    def __init__(self, write: Write, subject: Callable[[], str]) -> None:
        self._write = write
        self._subject = subject

    @checked_as(target_file_size_bytes=_AT_LEAST_ONE, min_files=_AT_LEAST_ONE)
    def compact(
        self,
        filter: str | BooleanExpression | None = None,
        *,
        target_file_size_bytes: int | None = None,
        min_files: int = MIN_FILES,
        sort_by: str | Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
        message: str = "",
        author: str = "",
    ) -> CompactResult:
        """Put small data files together, and apply files of deleted rows to those that they are about.

        Appends that are committed meanwhile stay beside the new files. It conflicts with nothing but statements that
        delete rows of the same files; outside of a transaction it then begins again.

        Args:
            filter: only files that may hold such rows.
            target_file_size_bytes: how large files become; by default the table's `write.target-file-size-bytes`, or
                96 MiB. Files of less than three quarters of that are small.
            min_files: fewer small files of a partition are left alone.
            sort_by: columns, as `"at desc"`: all files are written anew, sorted by them, at most 128 MiB of files of a
                partition, or 256 MiB of their rows in memory, together. Fewer files need to be read where a filter
                names such a column.
            dry_run: say how many files there are to put together, and do nothing. After a change of partitioning small
                files of partitions that rows come to may be among them in the end.
            progress: is called with files done and files in all.
            message, author: for the log; of an open transaction, what it began with.

        Raises `InvalidArgument` for a table of format version 3 or one that is not managed here, a filter that cannot
        be read, and a column to sort by that is not there; `InvalidLocation` for a table that names files outside of
        its own folder, which may hold rows that its readers must not see.
        """
        matching = AlwaysTrue() if filter is None else parse_filter(filter)
        order = () if sort_by is None else texts(sort_by, "sort_by")

        def operation(iceberg: IcebergTable) -> CompactResult:
            with translated(self._subject):
                report = progress or (lambda done, total: None)
                return compact(iceberg, matching, target_file_size_bytes, min_files, order, report, dry_run)

        return self._write(operation, note=CommitInfo(message, author))

    def rewrite_manifests(self, *, message: str = "", author: str = "") -> RewriteManifestsResult:
        """List the data files in manifests of the target size, those of one partition together.

        Appends merge manifests by themselves, so this is for tables that engines have filled. Raises `InvalidArgument`
        for a table that is not managed here, and `InvalidLocation` for one with manifests outside of its folder.
        """

        def operation(iceberg: IcebergTable) -> RewriteManifestsResult:
            with translated(self._subject):
                before = _manifests(iceberg)
                if before == 0:
                    return RewriteManifestsResult(0, 0)
                with iceberg.transaction() as change:
                    if not hasattr(change, "rewrite_manifests"):
                        raise InvalidArgument("only the manifests of managed tables are rewritten")
                    change.rewrite_manifests()
                return RewriteManifestsResult(before, _manifests(iceberg))

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
        """Take snapshots out of the table's own metadata; returns their ids.

        What branches and tags point to always stays. Without arguments those go that the properties of the table no
        longer keep, which every commit takes out as well.

        Args:
            keep: so many of the newest snapshots of each branch stay, whatever their age.
            older_than: only snapshots from before that moment go, or that are older than that, such as "7 days".

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
            return self._taken_out(iceberg, staying)

        return self._write(operation, note=CommitInfo(message, author))

    def expire_as_versions(
        self,
        minimum_versions_to_keep: int,
        maximum_version_age_millis: int,
        *,
        message: str = "",
        author: str = "",
    ) -> list[int]:
        """Take out the snapshots that the lakehouse would not keep as versions, and no property of the table keeps.

        Only of `main`, and only where the table has no say of its own; returns their ids. Whatever a snapshot has must
        go from the metadata first: files of earlier appends are reached as long as an old snapshot names them.
        """

        def operation(iceberg: IcebergTable) -> list[int]:
            now_millis = int(datetime.now().timestamp() * 1000)
            unset = Retention(max(minimum_versions_to_keep, 1), maximum_version_age_millis)
            return self._taken_out(iceberg, retained(iceberg.metadata, unset, now_millis))

        return self._write(operation, note=CommitInfo(message, author))

    def _taken_out(self, iceberg: IcebergTable, staying: set[int]) -> list[int]:
        going = [one.snapshot_id for one in iceberg.metadata.snapshots if one.snapshot_id not in staying]
        if going:
            with translated(self._subject):
                iceberg.maintenance.expire_snapshots().by_ids(going).commit()
        return going


def _manifests(iceberg: IcebergTable) -> int:
    snapshot = iceberg.current_snapshot()
    if snapshot is None:
        return 0
    io = own_files(iceberg.io, iceberg.metadata)
    manifests = snapshot.manifests(io)
    for manifest in manifests:
        io.new_input(manifest.manifest_path)  # another table's would tell what its files hold
    return len(manifests)
