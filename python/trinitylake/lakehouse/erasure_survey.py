"""Finds the versions, tags, snapshots and saved transactions that hold rows which match a filter."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.expressions import BooleanExpression, EqualTo, In, LiteralPredicate, Or, SetPredicate, StartsWith
from pyiceberg.table.metadata import TableMetadata

from trinitylake import _core
from trinitylake.base.qualified_names import Identifier, full_name, split
from trinitylake.base.version_reference import versions_after
from trinitylake.core import decode_keys
from trinitylake.definitions import MANAGED, TableDef, parse_lakehouse_def, parse_table_def
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.row_search import RowSearch, predicates
from trinitylake.lakehouse.file_search import FileFinding, FileSearch, SearchedTable, TextSearch, all_files
from trinitylake.lakehouse.history import tagged_versions
from trinitylake.tables.table_definition import metadata_path

if TYPE_CHECKING:
    from trinitylake.lakehouse.reader import Kind

#: Shorter strings occur by chance in other places, so these are searched only in the columns of the filter.
MIN_TEXT_LENGTH = 4
#: Maximum number of files that are read at the same time.
_PARALLEL_READS = 16
#: Kind, namespace and name of an object.
_Key = tuple["Kind", str, str]


@dataclass
class Survey:
    """Places that hold matching rows, or strings of the filter (`texts_of`).

    Attributes:
        latest: the latest version.
        versions: numbers of the kept versions with matching rows, ascending, including tagged ones.
        texts_in: numbers of the kept versions with a string of the filter in the root (such as a message) or in a
            definition.
        tags: tags, with the numbers of their versions.
        tables: namespace and name, in the latest version, of the tables that have or had the searched name.
        metadata_paths: paths of the metadata files of these tables in all kept versions.
        texts: objects whose definition in the latest version contains a string of the filter.
        outside: external and federated tables of the latest version, whose files are not searched.
        searched: the folders that the tables in `tables` have or had, for the search of single files.
        ids: ids of the tables that have or had the searched name.
        search: the search for the rows; None if no kept version has the table.
    """

    latest: _core.Version
    versions: list[int] = field(default_factory=list)
    texts_in: list[int] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    tables: list[tuple[str, str]] = field(default_factory=list)
    metadata_paths: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    searched: list[SearchedTable] = field(default_factory=list)
    ids: frozenset[str] = frozenset()
    search: RowSearch | None = None

    def tags_of(self, versions: Container[int]) -> list[str]:
        return [tag for tag, number in self.tags.items() if number in versions]


def texts_of(filter: BooleanExpression) -> list[str]:
    """The strings in a filter that no row may contain after the erasure.

    Empty if the filter has AND or NOT, because other rows may then keep these strings.
    """

    def is_any(part: BooleanExpression) -> bool:
        return isinstance(part, EqualTo | In | StartsWith) or (
            isinstance(part, Or) and is_any(part.left) and is_any(part.right)
        )

    if not is_any(filter):
        return []
    values: list[object] = []
    for one in predicates(filter):
        if isinstance(one, SetPredicate):
            values += [literal.value for literal in one.literals]
        elif isinstance(one, LiteralPredicate):
            values.append(one.literal.value)
    return [value for value in values if isinstance(value, str) and len(value) >= MIN_TEXT_LENGTH]


def survey(
    core: _core.Lakehouse,
    io: LakehouseFileIO,
    name: Identifier,
    filter: BooleanExpression,
    known_ids: Iterable[str] = (),
    search: RowSearch | None = None,
) -> Survey:
    """Search every kept version.

    Args:
        core: the lakehouse.
        io: the file access of the lakehouse.
        name: a name that the table has in a kept version.
        filter: the rows to find.
        known_ids: ids of tables that had the name in a version that is not kept any more.
        search: the search of an earlier survey, whose results are reused.

    Raises:
        ObjectNotFound: no kept version has a table of this name, and no id is known.
        InvalidArgument: the table is not managed, or lacks the columns of the filter in every kept version.
    """
    return _Surveyor(core, io, name, filter).run(frozenset(known_ids), search)


class _Surveyor:
    def __init__(self, core: _core.Lakehouse, io: LakehouseFileIO, name: Identifier, filter: BooleanExpression) -> None:
        self._core = core
        self._io = io
        self._name = split(name)
        self._filter = filter
        self._texts = TextSearch(texts_of(filter))
        self._definitions: dict[str, TableDef] = {}
        self._outside: set[str] = set()

    def run(self, known_ids: frozenset[str], search: RowSearch | None) -> Survey:
        latest = self._core.latest()
        tags = tagged_versions(latest)
        oldest = self._core.oldest()
        tagged = {number: self._core.tag(tag) for tag, number in tags.items() if number < oldest}
        first = self._core.version(oldest)
        versions = [*(tagged[number] for number in sorted(tagged)), first, *versions_after(self._core, first, latest)]
        ids = self._ids(versions, known_ids)
        states = self._states(versions, ids)
        tables = self._searched([state.tables for state in states], search)
        found = Survey(
            latest,
            tags=tags,
            metadata_paths=tables.paths,
            texts=sorted(states[-1].texts),
            outside=sorted(self._outside),
            searched=tables.searched,
            ids=ids,
            search=tables.search,
        )
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            have_texts = pool.map(self._is_text_in_root, versions)
            for version, state, has_text in zip(versions, states, have_texts, strict=True):
                if any(tables.has_rows[one] for one in state.tables.values()):
                    found.versions.append(version.number)
                if has_text or state.texts:
                    found.texts_in.append(version.number)
        found.tables = [(namespace, name) for _, namespace, name in states[-1].tables]
        return found

    def _is_text_in_root(self, version: _core.Version) -> bool:
        """Whether the root of a version, which includes the commit message, contains a string of the filter."""
        return bool(self._texts) and self._texts.is_in_file(self._io.storage.get(_core.root_path(version.number)))

    def _states(self, versions: list[_core.Version], ids: frozenset[str]) -> list[_State]:
        """For each version, the searched tables and the objects whose definition contains a string of the filter."""
        states: list[_State] = []
        tables: dict[_Key, str] = {}
        texts: set[str] = set()
        previous: _core.Version | None = None
        for version in versions:
            changed, removed = _changes(previous, version)
            for key in removed:
                tables.pop(key, None)
                texts.discard(_shown(key))
                self._outside.discard(full_name(*key[1:]))
            for (key, location), data in zip(changed.items(), self._contents(version, changed), strict=True):
                texts.discard(_shown(key))
                tables.pop(key, None)
                if self._texts.is_in(data):
                    texts.add(_shown(key))
                if key[0] != "table":
                    continue
                table = parse_table_def(data, location)
                if table.table_type != MANAGED:
                    self._outside.add(full_name(*key[1:]))
                elif table.id in ids:
                    self._definitions[location] = table
                    tables[key] = location
            states.append(_State(dict(tables), set(texts)))
            previous = version
        return states

    def _contents(self, version: _core.Version, objects: Iterable[_Key]) -> list[bytes]:
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return [data or b"" for data in pool.map(lambda key: version.read(*key), objects)]

    def _ids(self, versions: list[_core.Version], known_ids: frozenset[str]) -> frozenset[str]:
        """The ids of all tables that have the name in a kept version, and `known_ids`."""
        key: _Key = ("table", *self._name)
        locations = {location: version for version in versions if (location := version.locate(*key)) is not None}
        named = [parse_table_def(version.read(*key) or b"", location) for location, version in locations.items()]
        if not named and not known_ids:
            raise ObjectNotFound(f"no kept version has a table {full_name(*self._name)}")
        if any(one.table_type != MANAGED for one in named):
            raise InvalidArgument(
                f"table {full_name(*self._name)} is external or federated in a kept version: erase the rows in the "
                "catalog to which it belongs"
            )
        return known_ids | {one.id for one in named}

    def _searched(self, states: list[dict[_Key, str]], search: RowSearch | None) -> _SearchedTables:
        """Search the metadata of each definition once, the newest definition first."""
        newest_first = [location for tables in reversed(states) for location in tables.values()]
        if not newest_first:
            return _SearchedTables(None, {}, [], set())
        read = {location: self._metadata(location) for location in dict.fromkeys(newest_first)}
        schemas = [schema for metadata in read.values() for schema in reversed(metadata.schemas)]
        search = RowSearch(self._io, self._filter, schemas, search)
        has_rows = {location: bool(search.snapshots(metadata)) for location, metadata in read.items()}
        folders = {self._io.path_of(one.location.rstrip("/")) + "/": one for one in reversed(read.values())}
        searched = [SearchedTable(folder, metadata, search) for folder, metadata in folders.items()]
        return _SearchedTables(search, has_rows, searched, {self._path(location) for location in read})

    def _metadata(self, location: str) -> TableMetadata:
        uri = self._io.uri_of(self._path(location))
        return read_metadata(self._io, uri, table_id=self._definitions[location].id, is_cached=False)

    def _path(self, location: str) -> str:
        return metadata_path(self._definitions[location], full_name(*self._name))


class _State(NamedTuple):
    """Searched tables of one version with their locations, and objects whose definition has a string of the filter."""

    tables: dict[_Key, str]
    texts: set[str]


class _SearchedTables(NamedTuple):
    search: RowSearch | None
    has_rows: dict[str, bool]
    searched: list[SearchedTable]
    paths: set[str]


def _changes(previous: _core.Version | None, version: _core.Version) -> tuple[dict[_Key, str], list[_Key]]:
    """Locations of new and changed definitions, and removed objects; if `previous` is None, every object is new."""
    if previous is None:
        kinds: tuple[Kind, ...] = ("namespace", "table", "view")
        listed = ((kind, row) for kind in kinds for row in version.list(kind).to_pylist())
        return {(kind, row["namespace"], row["name"]): row["location"] for kind, row in listed}, []
    rows = [((row["kind"], row["namespace"], row["name"]), row) for row in previous.diff(version).to_pylist()]
    changed = {key: row["after"] for key, row in rows if row["after"] is not None}
    return changed, [key for key, row in rows if row["after"] is None]


def tables_that_name(version: _core.Version, io: LakehouseFileIO, paths: set[str]) -> dict[str, str]:
    """The paths that a managed table of the version lists as data or delete files, with the name of the table."""
    found: dict[str, str] = {}
    for namespace, name in version.names("table"):
        definition = parse_table_def(version.read("table", namespace, name) or b"")
        if definition.table_type != MANAGED:
            continue
        metadata = read_metadata(io, io.uri_of(metadata_path(definition, full_name(namespace, name))))
        manifests = {one.manifest_path: one for snapshot in metadata.snapshots for one in read_list(io, snapshot)}
        files = (io.path_of(entry.data_file.file_path) for one in manifests.values() for entry in read_entries(io, one))
        found |= dict.fromkeys(paths.intersection(files), full_name(namespace, name))
    return found


def search_files(storage: _core.Storage, filter: BooleanExpression, found: Survey) -> Iterator[FileFinding]:
    """Search every file below the root."""
    search = FileSearch(storage, filter, found.searched, TextSearch(texts_of(filter)))
    with ThreadPoolExecutor(_PARALLEL_READS, "trinitylake-erase") as pool:
        yield from pool.map(search.finding, all_files(storage))


def _shown(key: _Key) -> str:
    kind, namespace, name = key
    return f"{kind} {full_name(namespace, name) if name else namespace}"


def saved_transactions(core: _core.Lakehouse, before: int, changed: Iterable[tuple[str, str]]) -> list[str]:
    """The ids of saved transactions that began before version `before`, or that changed a table in `changed`."""
    tables, ids = set(changed), []
    for saved in core.saved_transactions():
        transaction = core.resume(saved.id)
        keys = decode_keys(transaction.written_keys()["key"], parse_lakehouse_def(transaction.base.definition))
        written = {(row["namespace"], row["name"]) for row in keys.to_pylist() if row["kind"] == "table"}
        if saved.base_version < before or written & tables:
            ids.append(saved.id)
    return ids
