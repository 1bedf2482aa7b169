"""The request and the result of a vacuum (format §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.timestamps import time_of

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.base.markup import Markup

#: Maximum number of deleted, and of unknown, paths in a report, unless the caller requests all.
EXAMPLES = 1000
#: Callback with "marked" or "swept", and the number of files so far.
Progress = Callable[[str, int], object]


class VacuumRequest(NamedTuple):
    """The arguments of `LakehouseMaintenance.vacuum`.

    Attributes:
        examples: maximum number of deleted, and of unknown, paths in the report.
    """

    grace_millis: int | None
    dry_run: bool
    examples: int
    note: CommitInfo
    progress: Progress | None


class Files(NamedTuple):
    """A number of files and their total size."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files that a vacuum deleted, or with `dry_run` would delete, and files that it kept.

    Attributes:
        version: the new version, which keeps open transactions from committing the deleted files. None in a dry run, or
            if there was nothing to delete.
        before: the time, by the clock of the store, from which files were too young to be deleted.
        dry_run: whether nothing was deleted.
        deleted: deleted files by kind, such as "data files" or "tree nodes".
        deleted_by_table: deleted files of tables, by the folder of the table.
        kept: files that a kept version, a tag or an open saved transaction reaches, and internal files, by kind.
        young: unreachable files that are too young.
        unknown: files below the root that no release of this format writes; they are not deleted.
        foreign: files below the root that belong to an external or federated table; they are not deleted.
        deleted_paths, unknown_paths: paths of deleted and of unknown files: the first thousand, or with `paths=True`
            all.
    """

    version: int | None
    before: datetime
    dry_run: bool
    deleted: dict[str, Files]
    deleted_by_table: dict[str, Files]
    kept: dict[str, Files]
    young: Files
    unknown: Files
    foreign: Files
    deleted_paths: list[str] = field(repr=False)
    unknown_paths: list[str] = field(repr=False)

    @property
    def total_deleted(self) -> Files:
        """All deleted files."""
        return sum_of(self.deleted.values())

    @property
    def total_kept(self) -> Files:
        """All reachable files."""
        return sum_of(self.kept.values())

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from trinitylake.base.markup import framed, heading

        done = "would delete" if self.dry_run else "deleted"
        total = f"{done} {self.total_deleted.files:,} files, {self.total_deleted.size_bytes:,} bytes"
        left = {"too young": self.young, "of unknown origin": self.unknown, "of other tables": self.foreign}
        return framed(
            heading("vacuum", "", total), files_table(done, self.deleted), files_table("kept", {**self.kept, **left})
        )


def files_table(caption: str, counts: Mapping[str, Files]) -> Markup:
    """Numbers and sizes of files by kind as an HTML table; kinds without files are left out."""
    from trinitylake.base.markup import table

    rows = [(kind, f"{one.files:,}", f"{one.size_bytes:,}") for kind, one in counts.items() if one.files]
    return table(("kind", "files", "bytes"), rows, caption=caption, numbers=(1, 2))


def vacuumed(found: _core.GcReport, dry_run: bool) -> Vacuumed:
    """The `Vacuumed` with the core's result."""
    return Vacuumed(
        found.version,
        time_of(found.before_millis),
        dry_run,
        {kind: Files(*count) for kind, *count in found.deleted},
        {folder: Files(*count) for folder, *count in found.deleted_by_folder},
        {kind: Files(*count) for kind, *count in found.kept},
        Files(*found.young),
        Files(*found.unknown),
        Files(*found.foreign),
        found.deleted_paths,
        found.unknown_paths,
    )


def sum_of(counts: Iterable[Files]) -> Files:
    counted = list(counts)
    return Files(sum(one.files for one in counted), sum(one.size_bytes for one in counted))
