"""What a lakehouse lets go, tidies up and counts: the methods of `Lakehouse` for its upkeep."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, cast

from trinitylake.base.arguments import (
    checked_as,
    flag,
    version_or_moment,
    whole_number,
)
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.base.log_note import LogNote
from trinitylake.errors import (
    InvalidArgument,
    VersionExpired,
    VersionNotFound,
)
from trinitylake.lakehouse.bulk.engines import collector_of
from trinitylake.lakehouse.history import (
    Expired,
)
from trinitylake.lakehouse.lakehouse_part import LakehousePart
from trinitylake.lakehouse.tree_compaction import TreeCompaction, compact_tree
from trinitylake.lakehouse.vacuum import EXAMPLES, Asked, Progress, Vacuumed, vacuumed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.stats import Stats


class Housekeeping(LakehousePart):
    """Counting, letting go and tidying up."""

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

    @checked_as(before=version_or_moment, older_than=milliseconds, keep=functools.partial(whole_number, minimum=1))
    def expire(
        self,
        *,
        before: int | datetime | date | str | None = None,
        older_than: Duration | None = None,
        keep: int | None = None,
        dry_run: bool = False,
        message: str = "",
        author: str = "",
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

            message: for the log, of the versions that it makes to remove records of transactions; there may be none.
            author: for the log.

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
        return Expired(*self.core.expire(oldest, age, keep, dry_run, message, author))

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
            message: for the log, of the versions that it makes.
            author: for the log.
            engine: a Spark session whose executors read, list and delete, for a lakehouse with more files than one
                machine can go through; what is deleted is the same, file for file.

        Raises:
            CorruptFile: something that is reached is damaged or missing, so nobody can tell what else it reaches;
                nothing was deleted.
            CommitConflict: others committed so often that it could not.
        """
        examples = sys.maxsize if paths else EXAMPLES
        if engine is not None:
            collector = collector_of(engine)
            asked = Asked(cast("int | None", grace), dry_run, examples, LogNote(message, author), progress)
            return collector.vacuum(engine, self.core, asked)
        found = self.core.vacuum(cast("int | None", grace), dry_run, examples, progress, message, author)
        return vacuumed(found, dry_run)

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
