"""Checking, mending and copying a lakehouse: what a lakehouse offers to those who look after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Literal

from trinitylake import _core
from trinitylake.base.arguments import checked, checked_as, flag, versions
from trinitylake.base.qualified_names import Identifier
from trinitylake.lakehouse.bulk.engines import exporter_of
from trinitylake.lakehouse.lakehouse_part import LakehousePart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.export import Export, Mode
    from trinitylake.lakehouse.exported_objects import OnProgress as OnExportProgress
    from trinitylake.lakehouse.fsck import FsckReport, OnProgress, Versions


class Safekeeping(LakehousePart):
    """Consistency checks, repairs and exports."""

    @checked_as(version=versions, data=flag)
    def fsck(
        self,
        version: Versions = None,
        *,
        data: bool = False,
        repair: bool = False,
        dry_run: bool = False,
        author: str = "",
        progress: OnProgress | None = None,
    ) -> FsckReport:
        """Check the rules of the format: roots, nodes, definitions, the hint, the boundary, saved transactions.

        Files that several versions share are read once. Memory does not grow with the sizes of files.

        Args:
            version: the newest if not given, one, a range such as `(3, 7)`, or "all": those that are kept and named
                snapshots, and what no version refers to any more.
            data: look also for the files of managed tables: metadata, manifests, data files, statistics, each with the
                size that is recorded.
            repair: mend the newest version first, by making another one out of what is left. Nothing is deleted. Stop
                all who write before.
            dry_run: say what would be mended, and write nothing.
            author: of that version, for the log.
            progress: is called from time to time, with how many versions are checked, how many there are, and how many
                files were read.

        Raises `VersionNotFound` or `VersionExpired` for versions that are not there.
        """
        from trinitylake.lakehouse.fsck import fsck

        report = fsck(
            self.storage, version=version, data=data, repair=repair, dry_run=dry_run, author=author, progress=progress
        )
        if report.repair is not None and report.repair.version is not None:  # what this handle knew is out of date
            self.core = _core.Lakehouse.open(self.storage)
        return report

    @checked
    def export(
        self,
        target: str | PathLike[str],
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        mode: Mode = "minimal",
        namespaces: Iterable[Identifier] = (),
        tables: Iterable[Identifier] = (),
        storage_options: Mapping[str, str] | None = None,
        durability: Literal["fsync", "none"] | None = None,
        message: str = "",
        author: str = "",
        progress: OnExportProgress | None = None,
        engine: SparkSession | None = None,
    ) -> Export:
        """Copy the lakehouse to another root, where it is a lakehouse of its own that any Iceberg engine can read.

        A second export to the same place copies what changed since, and makes the next version there. One that is
        interrupted changes nothing there; run it again. Tables that lie elsewhere, external and federated ones, are
        named there as they are here.

        Args:
            target: where to: an empty place, or one where an earlier export of this lakehouse lies.
            version: the one to copy; the latest if not given.
            timestamp: or the moment, as for `at`.
            snapshot: or the name of a snapshot, which keeps the version however long the export takes.
            mode: "minimal" copies one version, and the current snapshots of its tables; "full" all versions up to that
                one, under their numbers, with all snapshots.
            namespaces: only these, and what is in them and below.
            tables: only these tables and views, and their namespaces.
            storage_options: for the target. Never written anywhere.
            durability: of the target, as for `create`.
            message: for the log there.
            author: for the log there.
            progress: is called from time to time, with how many objects are copied, and how many are known of.
            engine: a Spark session whose executors copy, for a lakehouse that is too much for one machine; the copy is
                the same, file for file.

        Raises:
            InvalidLocation: the target lies in this lakehouse, or the other way round.
            InvalidArgument: at the target lies something else, or an export of another mode or part.
            CommitConflict: somebody else wrote to the target, or exports to it at the same time.
            CorruptFile: a file is missing or damaged; `fsck` tells more.
        """
        from trinitylake.lakehouse.export import export, part_of

        state = self.at(version=version, timestamp=timestamp, snapshot=snapshot).state()
        return export(
            self.core,
            _core.Storage(str(target), storage_options, durability),
            state,
            mode=mode,
            part=part_of(namespaces, tables, state),
            message=message,
            author=author,
            progress=progress,
            workers=None if engine is None else exporter_of(engine).workers(engine, progress),
        )
