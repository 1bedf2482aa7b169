"""Check of a lakehouse against the rules of its format, and repair of its newest version.

The core reads roots, trees, definitions and the other files of the format, each once over all versions, and returns the
definitions of tables. This module checks that the files of these tables exist, with their sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from trinitylake import _core
from trinitylake.base.arguments import versions
from trinitylake.base.qualified_names import full_name, split
from trinitylake.definitions import EXTERNAL, MANAGED, parse_table_def
from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.handle import Handle
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.object_history import changes_of_object
from trinitylake.lakehouse.object_rollback import roll_back_objects

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from trinitylake.definitions import TableDef
    from trinitylake.iceberg_storage.table_files import NamedFiles

FindingKind: TypeAlias = Literal[
    "missing", "damaged", "misplaced", "broken", "hint", "erased", "dangling", "unreferenced"
]
#: Versions to check: the latest (None), one, a range that includes both ends, or all.
Versions: TypeAlias = int | tuple[int, int] | Literal["all"] | None
#: Callback with the numbers of checked versions, of all versions to check, and of read files.
OnProgress: TypeAlias = Callable[[int, int, int], object]
#: Namespace, name, location and bytes of the definition of a table.
FoundTable: TypeAlias = tuple[str, str, str, bytes]

#: Maximum number of tables whose files are checked concurrently.
_PARALLEL_TABLES = 16
#: Kinds of findings that do not make a lakehouse unsound.
HARMLESS = ("dangling", "unreferenced")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one file.

    Attributes:
        kind: "missing": the file is referenced and does not exist; "damaged": its content is unreadable or wrong;
            "misplaced": it has the wrong path; "broken": files contradict each other; "hint": the hint file names no
            version; "erased": a certificate of an erasure lists the file as deleted, or the file contains erased
            values; "dangling": a view reads a table that does not exist; "unreferenced": no kept version reaches the
            file. "dangling" and "unreferenced" are not damage.
        path: path of the file below the root.
        message: a description of the problem.
        versions: checked versions that are affected, ascending.
        affected: the affected objects, or the range of names of affected objects.
    """

    kind: FindingKind
    path: str
    message: str
    versions: tuple[int, ...] = ()
    affected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repair:
    """Result of the repair by `fsck(repair=True)`; with `dry_run`, what a repair would do.

    Attributes:
        version: the newest version that the repair created; None if it created no version.
        saved: descriptions of the objects that were recovered.
        lost: descriptions of the objects that were not recovered, or only in an older state.
    """

    version: int | None
    saved: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class FsckReport:
    """Result of `fsck`.

    Attributes:
        versions, nodes, definitions: numbers of versions, tree nodes and definitions that were read.
        files: number of tables' files that were checked; 0 without the arguments `files` and `data`.
        findings: the problems, sorted by path.
        repair: result of the repair that ran before the check; None if no repair was requested.
    """

    versions: int
    nodes: int
    definitions: int
    files: int
    findings: tuple[Finding, ...] = ()
    repair: Repair | None = field(default=None)

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage; dangling views and unreferenced files do not count."""
        return all(finding.kind in HARMLESS for finding in self.findings)


def fsck(
    storage: _core.Storage,
    *,
    version: Versions = None,
    files: bool = False,
    data: bool = False,
    repair: bool = False,
    dry_run: bool = False,
    message: str = "",
    author: str = "",
    progress: OnProgress | None = None,
    new_check: Callable[[_core.Storage, bool], TableCheck] | None = None,
) -> FsckReport:
    """Run `LakehouseMaintenance.fsck`. Files are read from the storage, never from the caches of a handle.

    `new_check` creates the check of the files of tables, by default one in this process.
    """
    storage, new_check = storage.uncached(), new_check or TableCheck
    made: int | None = None
    saved: list[str] = []
    lost: list[str] = []
    if repair or dry_run:
        made, saved, lost = _core.repair(storage, not repair or dry_run, message, author)
    tables = new_check(storage, data) if files or data else None
    report, incomplete = _checked(storage, version, tables, progress)
    found = [_newest_whole_version(storage, *table) for table in incomplete]
    if not repair and not dry_run:
        hints = {
            f"table {full_name(*name)}": one.hint
            for one, names in zip(found, incomplete.values(), strict=True)
            for name in names
        }
        findings = [
            replace(one, message=f"{one.message}; {hints[one.affected[0]]}")
            if one.affected and one.affected[0] in hints
            else one
            for one in report.findings
        ]
        return replace(report, findings=tuple(findings))
    whole = [one for one in found if one.version is not None]
    if whole and not _core.Lakehouse.open(storage).is_placed:
        lost += [f"table {one.name}: relocate the moved lakehouse, then repair again" for one in whole]
        found, whole = [one for one in found if one.version is None], []
    if whole and not dry_run:
        made = _roll_back_tables(storage, whole, message, author) or made
        report, _ = _checked(storage, version, new_check(storage, data) if files or data else None, progress)
    saved += [f"table {one.name} as of version {one.version}" for one in whole]
    lost += [f"table {one.name}: {one.loss}" for one in found]
    return replace(report, repair=Repair(made, tuple(saved), tuple(lost)))


def with_certificate(
    report: FsckReport,
    storage: _core.Storage,
    certificate: str | PathLike[str],
    filter: str | BooleanExpression | None,
    key: str | PathLike[str] | None,
) -> FsckReport:
    """Add findings for files that an erasure should have deleted. Raises the errors of `check_certificate`."""
    from trinitylake.lakehouse.erasure_certificate import check_certificate

    problems = check_certificate(_core.Lakehouse.open(storage.uncached()), certificate, filter, key)
    found = [Finding("erased", path, problem) for path, problem in sorted(problems.items())]
    return replace(report, findings=(*found, *report.findings))


def _checked(
    storage: _core.Storage, version: Versions, tables: TableCheck | None, progress: OnProgress | None
) -> tuple[FsckReport, dict[tuple[str, str], set[tuple[str, str]]]]:
    """Check without repair.

    Returns the report, and the tables whose current snapshot lacks files, each with all names of the same table.
    """
    scope, first, last = _scope(version)
    check = _core.Fsck(storage, scope, first, last, tables is not None)
    findings: list[Finding] = []
    while (step := check.next()) is not None:
        found, managed = step
        findings += [
            Finding(cast("FindingKind", one.kind), one.path, one.message, tuple(one.versions), tuple(one.affected))
            for one in found
        ]
        if tables is not None and managed:
            findings += tables.check_all(managed)
        if progress is not None:
            versions, total, nodes, definitions = check.counts()
            progress(versions, total, nodes + definitions + (tables.looked_for if tables is not None else 0))
    versions, _, nodes, definitions = check.counts()
    findings += _dangling_views(storage, None if scope != "range" else last)
    once = sorted(set(findings), key=lambda finding: (finding.path, finding.message))
    report = FsckReport(versions, nodes, definitions, tables.looked_for if tables is not None else 0, tuple(once))
    if tables is None or not tables.incomplete:
        return report, {}
    latest = _core.Lakehouse.open(storage).latest()
    return report, {
        name: tables.names[id]
        for id in sorted(tables.incomplete)
        for name in tables.names[id]
        if "missing" in (_current_problems(storage, latest, *name, id) or ())
    }


def _dangling_views(storage: _core.Storage, number: int | None) -> list[Finding]:
    """Findings about the views of one version, by default the latest; none without DuckDB."""
    from trinitylake.lakehouse.view_check import problems_of_views

    found = []
    try:
        lake = _core.Lakehouse.open(storage)
        version = lake.latest() if number is None else lake.version(number)
        for name, message in problems_of_views(LakehouseVersion(storage, version)):
            location = version.locate("view", *split(name)) or ""
            found.append(Finding("dangling", location, message, (version.number,), (f"view {name}",)))
    except TrinityLakeError:  # another finding reports the damage
        return []
    return found


class TableCheck:
    """Checks the files of managed tables; manifests that several definitions share are read once.

    Attributes:
        looked_for: number of checked files.
        names: the namespaces and names that managed tables have in the checked versions, by the id of the table.
        incomplete: ids of tables with missing files, including files that the current snapshot does not need.
    """

    def __init__(self, storage: _core.Storage, reads_data: bool) -> None:
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.iceberg_storage.table_files import NamedFiles

        self._io = LakehouseFileIO(storage)
        self._named: NamedFiles = NamedFiles(self._io, reads_data)
        self.looked_for = 0
        self.names: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self.incomplete: set[str] = set()

    def check_all(self, tables: Sequence[FoundTable]) -> list[Finding]:
        """Findings about the files of tables."""
        with ThreadPoolExecutor(_PARALLEL_TABLES) as pool:
            found = [finding for some in pool.map(self._check, tables) for finding in some]
        self.looked_for = self._named.looked_for
        return found

    def _check(self, table: FoundTable) -> list[Finding]:
        from trinitylake.tables.table_definition import metadata_path

        namespace, name, location, data = table
        try:
            definition = parse_table_def(data, location)
            if definition.table_type == EXTERNAL:
                return list(self._external(full_name(namespace, name), definition))
            if definition.table_type != MANAGED:
                return []
            path = metadata_path(definition, location)
            self.names[definition.id].add((namespace, name))
        except TrinityLakeError as error:
            return [Finding("damaged", location, str(error), affected=(full_name(namespace, name),))]
        found = list(self._named.problems(path, definition.id))
        if any(kind == "missing" for kind, _, _ in found):
            self.incomplete.add(definition.id)
        affected = (f"table {full_name(namespace, name)}",)
        return [Finding(cast("FindingKind", kind), where, message, affected=affected) for kind, where, message in found]

    def _external(self, name: str, definition: TableDef) -> Iterator[Finding]:
        """A finding if an external table's metadata, outside of the lakehouse, names a file of the lakehouse.

        An external table that cannot be read is not reported.
        """
        from trinitylake.iceberg_storage.external_tables import first_inside, load_external

        try:
            inside = first_inside(load_external(definition), self._io)
        except (TrinityLakeError, OSError, ValueError):
            return
        if inside is not None:
            message = "external metadata outside of the lakehouse names it, which vacuum cannot know: drop that table"
            yield Finding("misplaced", self._io.path_of(inside), message, affected=(f"table {name}",))


def _scope(version: Versions) -> tuple[str, int, int]:
    match None if version is None else versions(version, "version"):
        case None:
            return "latest", 0, 0
        case "all":
            return "all", 0, 0
        case (first, last):
            return "range", first, last
        case one:
            return "range", one, one


# Repair of tables whose current rows lack files: a rollback to the newest version in which these files exist. Files can
# be missing because an engine that got no response to its commit deleted the data files of the commit
# (docs/operate/fsck.md). A table is rolled back only if files of its current snapshot are missing: if only an older
# snapshot, a tag or statistics lack files, the current rows can be read, and a rollback would lose newer rows.


@dataclass(frozen=True, slots=True)
class _IncompleteTable:
    """A table of the latest version whose current snapshot lacks files.

    Attributes:
        name: the full name.
        version: the newest version in which all files of its current snapshot exist; None if no kept version has them.
        former_name: the full name in that version.
    """

    name: str
    version: int | None = None
    former_name: str = ""

    @property
    def hint(self) -> str:
        """The next step, for the finding of fsck."""
        if self.version is None:
            return "no kept version has all files of the table's current snapshot"
        return (
            f"version {self.version} is the newest whose current snapshot of the table has all its files: "
            "`fsck --files --repair` rolls the table back to it"
        )

    @property
    def loss(self) -> str:
        """The changes that a repair loses, for its report."""
        return self.hint if self.version is None else f"its changes since version {self.version}"


def _newest_whole_version(storage: _core.Storage, namespace: str, name: str) -> _IncompleteTable:
    """Find the newest version in which the table's current snapshot has all its files, also under a former name."""
    lake = _core.Lakehouse.open(storage)
    table = full_name(namespace, name)
    try:
        for change in changes_of_object(lake, (*namespace.split("."), name)):
            former_name = change.former_name or change.name
            if _current_problems(storage, lake.version(change.version - 1), *split(former_name)) == []:
                return _IncompleteTable(table, change.version - 1, former_name)
    except TrinityLakeError:  # older versions have expired, or cannot be read
        pass
    return _IncompleteTable(table)


def _roll_back_tables(
    storage: _core.Storage, tables: Iterable[_IncompleteTable], message: str, author: str
) -> int | None:
    """Roll each table back to `table.version`. Returns the newest new version; None if no table was rolled back."""
    handle, made = Handle(_core.Lakehouse.open(storage)), None
    for table in tables:
        if table.version is not None:
            past = LakehouseVersion(storage, handle.core.version(table.version))
            own = f"repair: roll back {table.name} to version {table.version}, the newest that has all its files"
            made = roll_back_objects(handle, past, [table.former_name], message or own, author).version
    return made


def _current_problems(
    storage: _core.Storage, version: _core.Version, namespace: str, name: str, id: str | None = None
) -> list[str] | None:
    """Kinds of the problems with files that a scan of a table reads; None if `version` has no such managed table."""
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.table_files import NamedFiles
    from trinitylake.tables.table_definition import metadata_path

    if (data := version.read("table", namespace, name)) is None:
        return None
    definition = parse_table_def(data)
    if definition.table_type != MANAGED or id not in (None, definition.id):
        return None
    path = metadata_path(definition, full_name(namespace, name))
    named = NamedFiles(LakehouseFileIO(storage))
    return [kind for kind, _, _ in named.problems(path, definition.id, current_only=True)]
