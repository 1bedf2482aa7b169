"""Export of a lakehouse to another root: backups, mirrors, parts of it.

An export is an independent lakehouse. Nodes of the tree and definitions are copied under the same names. Iceberg's
metadata files contain absolute paths and are rewritten (`iceberg_storage/table_export.py`). The versions of an export:

- *minimal*: each export creates one more version at the target, with the tree of one source version. Tables have only
  the snapshots that are current or named by a branch or tag.
- *full*: the target has every kept version of the source, under its number, with all snapshots.

Files are copied first. Then the next root is created if it does not exist. So an interrupted export changes nothing,
and of two concurrent exports one fails. Two nodes with the same path have the same subtree, so a second export finds
the changes by comparing the two trees, without listing files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.qualified_names import Identifier, full_name, namespace_name, split
from trinitylake.core import KeySizes
from trinitylake.definitions import LakehouseDef, parse_lakehouse_def, serialize
from trinitylake.errors import (
    CommitConflict,
    InvalidArgument,
    InvalidLocation,
    LakehouseMoved,
    NotALakehouse,
    ObjectNotFound,
    VersionExpired,
)
from trinitylake.lakehouse.object_copier import (
    KINDS,
    Copied,
    ExportedObject,
    ExportWorkers,
    FileToCopy,
    ObjectCopier,
    OnProgress,
)

Mode: TypeAlias = Literal["minimal", "full"]

#: Properties of the lakehouse definition at the target: the source, mode and part of the export.
FROM_PROPERTY = "trinitylake.exported-from"
MODE_PROPERTY = "trinitylake.exported-mode"
PART_PROPERTY = "trinitylake.exported-part"
#: Property of the transaction of an export: the version of the source.
VERSION_PROPERTY = "trinitylake.exported-version"

_RECORDS = "E==="
#: Maximum number of versions of a mirror that are searched for its last export. Maintenance of a mirror also creates
#: versions.
_MAINTENANCE_VERSIONS = 100


@dataclass(frozen=True)
class Export:
    """Result of an export.

    Attributes:
        root: root of the copy.
        version: number of the latest version of the copy.
        source_version: number of the copied version in this lakehouse.
        files: number of written files.
        size_bytes: size of the written files.
        present: number of files that existed at the target.
        requests: number of requests of this process to the target's storage.
        history_since: the oldest version that a full copy has, with all later ones; None for a minimal copy.
    """

    root: str
    version: int
    source_version: int
    files: int
    size_bytes: int
    present: int
    requests: int
    history_since: int | None


class Part(NamedTuple):
    """The namespaces and tables (or views) to export; if none is named, all objects."""

    namespaces: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        return not self.namespaces and not self.tables

    def has(self, kind: str, namespace: str, name: str) -> bool:
        """Whether an object is exported: it is named, in or below a named namespace, or a named table's namespace."""
        if self.is_all or any(namespace == one or namespace.startswith(one + ".") for one in self.namespaces):
            return True
        if kind == "namespace":
            return any(table.rpartition(".")[0] == namespace for table in self.tables)
        return full_name(namespace, name) in self.tables

    def text(self) -> str:
        """This part as the text of the property `trinitylake.exported-part`; "" for the whole lakehouse."""
        return "" if self.is_all else json.dumps({"namespaces": self.namespaces, "tables": self.tables})


def part_of(namespaces: Iterable[Identifier], tables: Iterable[Identifier], state: _core.Version) -> Part:
    """The part with these names. Raises `ObjectNotFound` for an unknown name."""
    part = Part(
        tuple(sorted({namespace_name(one) for one in namespaces})),
        tuple(sorted({full_name(*split(one)) for one in tables})),
    )
    for namespace in part.namespaces:
        if not state.exists("namespace", namespace):
            raise ObjectNotFound(f"version {state.number} has no namespace {namespace}")
    for table in part.tables:
        if not state.exists("table", *split(table)) and not state.exists("view", *split(table)):
            raise ObjectNotFound(f"version {state.number} has no table or view {table}")
    return part


def export(
    source: _core.Lakehouse,
    target: _core.Storage,
    state: _core.Version,
    *,
    mode: Mode | None = None,
    part: Part = Part(),  # noqa: B008 (a tuple)
    message: str = "",
    author: str = "",
    progress: OnProgress | None = None,
    workers: ExportWorkers | None = None,
) -> Export:
    """Run `Lakehouse.export` for version `state`, on `workers` or in this process."""
    _check_apart(source.storage, target)
    if mode not in ("minimal", "full", None):
        raise InvalidArgument(f'mode must be "minimal" or "full", got {mode!r}')
    if mode == "full" and not part.is_all:
        raise InvalidArgument("a part of a lakehouse is exported without its history: leave mode out")
    there = opened_at(target)
    if mode is None:
        before = "" if there is None else parse_lakehouse_def(there.latest().definition).properties.get(MODE_PROPERTY)
        mode = "minimal" if before == "minimal" or not part.is_all else "full"
    if there is not None:
        _check_is_mirror(source, there, mode, part)
    copy = _Copy(source, target, there, mode, workers or ExportWorkers(progress))
    try:
        if mode == "full":
            version = copy.history(state.number)
        else:
            note = message or f"export of version {state.number}"
            version = copy.one(state, part, note, author)
    except Exception as error:
        try:
            source.storage.check_retained(copy.reads)
        except VersionExpired as expired:  # garbage collection may have deleted files of this version
            raise expired from error
        raise
    requests = sum(count for verb, count in target.counters().items() if not verb.endswith("_bytes"))
    first = _core.Lakehouse.open(target).oldest() if mode == "full" else None
    return Export(target.root, version, state.number, *copy.copied, requests, first)


class _Copy:
    """One export: copies files, then publishes versions.

    Attributes:
        copied: counts of the written files and of the files that the target had already.
        reads: the version that is being copied.
    """

    def __init__(
        self,
        source: _core.Lakehouse,
        target: _core.Storage,
        there: _core.Lakehouse | None,
        mode: Mode,
        workers: ExportWorkers,
    ) -> None:
        self._source = source
        self._target = target
        self._target_lakehouse = there
        self._mode = mode
        self._workers = workers
        # Files without a version show that an earlier export was interrupted.
        self._copier = ObjectCopier(
            StorageForTasks(source.storage),
            StorageForTasks(target),
            keeps_history=mode == "full",
            is_resumed=there is None and any(target.list(f"{bits:04b}/") for bits in range(16)),
            is_same_store=_options(source.storage) == _options(target),
        )
        self.copied = Copied()
        self.reads = 0

    # Versions

    def one(self, state: _core.Version, part: Part, message: str, author: str) -> int:
        """Export the version as the next version at the target."""
        self.reads = state.number
        older = None if self._target_lakehouse is None else self._target_lakehouse.latest()
        definition = self._definition(state, part)
        properties = [(FROM_PROPERTY, self._source.storage.root), (VERSION_PROPERTY, str(state.number))]
        keywords: dict[str, Any] = {"properties": properties, "message": message, "author": author}
        keywords["after"] = None if older is None else older.number
        if part.is_all:
            if older is not None and self._is_same(state, older, definition):
                return older.number
            self._copy_tree(state, older)
            return _core.publish_tree(self._target, definition, self._target_lakehouse, state, **keywords)
        return self._copy_part(state, older, part, definition, keywords)

    def history(self, last: int) -> int:
        """Export all kept versions up to `last`, each under its number."""
        first = self._source.oldest()
        older = None
        if self._target_lakehouse is not None:
            older = self._target_lakehouse.latest()
            if older.number >= first:
                # Raises `CommitConflict` if the version at the target is not a copy of this one.
                here = self._source.version(older.number)
                _core.publish_version(self._target, here, self._definition(here, Part()))
                first = older.number + 1
        for number in range(first, last + 1):
            self.reads = number
            state = self._source.version(number)
            before = older if older is not None and older.number == number - 1 else None
            self._copy_tree(state, before, is_resumed=number == first and self._copier.is_resumed)
            is_gap = before is None and number > 0
            if is_gap and older is None:
                _core.publish_boundary(self._target, number)
            _core.publish_version(self._target, state, self._definition(state, Part()))
            if is_gap and older is not None:
                _core.publish_boundary(self._target, number)
            older = state
        return max(last, older.number) if older is not None else last

    def _is_same(self, state: _core.Version, older: _core.Version, definition: bytes) -> bool:
        return (
            self._target_lakehouse is not None
            and _last_export(self._target_lakehouse) == state.number
            and older.definition == definition
        )

    def _definition(self, state: _core.Version, part: Part) -> bytes:
        """The lakehouse definition at the target, with its root and all former roots."""
        definition = parse_lakehouse_def(state.definition)
        former = [*definition.former_root_uris, definition.root_uri, self._source.storage.root]
        del definition.former_root_uris[:]
        definition.former_root_uris.extend(dict.fromkeys(root for root in former if root and root != self._target.root))
        definition.root_uri = self._target.root
        definition.properties[FROM_PROPERTY] = self._source.storage.root
        definition.properties[MODE_PROPERTY] = self._mode
        definition.properties.pop(PART_PROPERTY, None)
        if not part.is_all:
            definition.properties[PART_PROPERTY] = part.text()
        self._keep_snapshots(definition, state)
        return serialize(definition)

    def _keep_snapshots(self, definition: LakehouseDef, state: _core.Version) -> None:
        for name, path in list(definition.exported_snapshots.items()):
            number = _core.root_version(path)
            if self._mode == "minimal" or number is None or not self._source.oldest() <= number <= state.number:
                del definition.exported_snapshots[name]

    # Trees

    def _copy_tree(self, state: _core.Version, older: _core.Version | None, *, is_resumed: bool | None = None) -> None:
        """Copy the files of version `state`, except files that the version `older` at the target has already."""
        resumes = self._copier.is_resumed if is_resumed is None else is_resumed
        nodes = [FileToCopy(path, None, True) for path in _core.new_node_paths(state, older)]
        self._add(self._workers.files(replace(self._copier, is_resumed=resumes), nodes))
        if older is None:
            self._add(self._workers.version(self._copier, state))
        else:
            self._add(self._workers.objects(self._copier, _changed(state, older)))
        self._copy_records(state, older)

    def _copy_records(self, state: _core.Version, older: _core.Version | None) -> None:
        """Copy the records of committed transactions, so that their ids stay used at the target."""
        wanted = _locations(state, _RECORDS)
        known = set() if older is None else _locations(older, _RECORDS)
        for path in sorted(wanted - known):
            if self._source.storage.exists(path):  # an expiry may have removed the record
                self._add(self._copier.put(path, self._source.storage.get(path)))

    def _copy_part(
        self, state: _core.Version, older: _core.Version | None, part: Part, definition: bytes, keywords: dict[str, Any]
    ) -> int:
        wanted = dict(_part_rows(state, part))
        known = {} if older is None else dict(_part_rows(older, Part()))
        changes = {key: row for key, row in wanted.items() if known.get(key) != row}
        removed = [key for key in known if key not in wanted]
        if older is not None and not changes and not removed and older.definition == definition:
            return older.number
        some = (row._replace(before=known[key].location if key in known else None) for key, row in changes.items())
        self._add(self._workers.objects(self._copier, some))
        if older is None:
            keys = sorted(wanted, key=str.encode)
            objects = pa.array(keys, pa.string()), pa.array([wanted[key].location for key in keys], pa.string())
            return _core.publish_tree(self._target, definition, None, None, objects, **keywords)
        moved: list[tuple[str, str | None]] = [(key, row.location) for key, row in changes.items()]
        moved += [(key, None) for key in removed]
        return _core.publish_tree(self._target, definition, self._target_lakehouse, None, None, moved, **keywords)

    def _add(self, done: Copied) -> None:
        self.copied = self.copied.plus(done)


def _changed(state: _core.Version, older: _core.Version) -> Iterator[ExportedObject]:
    for row in older.diff(state).to_pylist():
        if row["after"] is not None:
            yield ExportedObject(row["kind"], row["after"], row["before"])


def _part_rows(state: _core.Version, part: Part) -> Iterator[tuple[str, ExportedObject]]:
    """Keys and definitions of the objects in a part."""
    sizes = KeySizes.of(parse_lakehouse_def(state.definition))
    for batch in pa.RecordBatchReader.from_stream(state.scan()):
        names = _core.decode_keys(batch.column(0), sizes).to_pylist()
        rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), names, strict=True)
        for key, location, name in rows:
            kind = name["kind"]
            if kind in KINDS and part.has(kind, name["namespace"], name["name"] or ""):
                yield key, ExportedObject(kind, location)


def _locations(state: _core.Version, prefix: str) -> set[str]:
    batches = pa.RecordBatchReader.from_stream(state.scan(prefix))
    return {location for batch in batches for location in batch.column(1).to_pylist()}


def opened_at(target: _core.Storage) -> _core.Lakehouse | None:
    """The lakehouse at the target; None if there is none."""
    try:
        return _core.Lakehouse.open(target)
    except NotALakehouse:
        return None


def _options(storage: _core.Storage) -> tuple[Mapping[str, str], str]:
    """The options and the URI scheme of a storage. Two roots with equal options and scheme are in the same store."""
    root, options, *_ = storage.__getnewargs__()
    return dict(options or {}), root.partition("://")[0]


def _check_apart(source: _core.Storage, target: _core.Storage) -> None:
    """Raise `InvalidLocation` if one root contains the other: the copy would become part of the source."""
    from trinitylake.iceberg_storage.file_io import canonical_uri

    here, there = canonical_uri(source.root), canonical_uri(target.root)
    if here.startswith(there) or there.startswith(here):
        raise InvalidLocation(f"{target.root} and {source.root} are inside each other: export to a separate root")


def _check_is_mirror(source: _core.Lakehouse, there: _core.Lakehouse, mode: Mode, part: Part) -> None:
    """Raise an error unless the lakehouse at the target is an export of this one with the same mode and part."""
    latest = there.latest()
    definition = parse_lakehouse_def(latest.definition)
    root = there.storage.root
    origin = definition.properties.get(FROM_PROPERTY)
    known = {source.storage.root, *source.storage.other_roots}
    if origin is None or origin not in known:
        raise InvalidArgument(f"{root} holds a lakehouse that is not an export of this one: choose another place")
    if not there.is_placed:
        raise LakehouseMoved(f"{root} holds an export that was moved there: export to a new place, or relocate it")
    if definition.properties.get(MODE_PROPERTY) != mode:
        before = definition.properties.get(MODE_PROPERTY)
        raise InvalidArgument(f"{root} holds a {before} export: export with mode={before!r}, or to another place")
    if definition.properties.get(PART_PROPERTY, "") != part.text():
        raise InvalidArgument(f"{root} holds an export of other namespaces or tables: choose another place")
    if mode == "minimal" and _last_export(there) is None:
        raise CommitConflict(
            f"{root} was written to since it was exported, as version {latest.number}: export to another place"
        )


def _last_export(there: _core.Lakehouse) -> int | None:
    """The source version that a mirror shows; None if objects or the definition have changed since the export.

    Maintenance of the mirror also creates versions, but changes neither objects nor the definition.
    """
    latest = there.latest()
    if (number := _exported_version(latest.info)) is not None:
        return number
    for info in there.log(_MAINTENANCE_VERSIONS):
        if (number := _exported_version(info)) is not None:
            exported = there.version(info.version)
            changes = [*exported.diff(latest)["kind"].to_pylist(), *latest.diff(exported)["kind"].to_pylist()]
            is_untouched = exported.definition == latest.definition and not any(kind in KINDS for kind in changes)
            return number if is_untouched else None
    return None


def _exported_version(version: _core.VersionInfo) -> int | None:
    """The source version of a version of the mirror; None if no export created the mirror's version."""
    for transaction in version.transactions:
        if VERSION_PROPERTY in transaction.properties:
            return int(transaction.properties[VERSION_PROPERTY])
    return None
