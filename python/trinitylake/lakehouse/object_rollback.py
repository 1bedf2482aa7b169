"""Rollback of single objects to their state in an earlier version, all in one commit.

A dropped object gets its former definition file again, under its former name or a given free name. An existing object
gets its former definition under its present name. Objects are identified by id: the keys that differ between the two
versions show whether an object still exists, and under which name. If an object still exists and a new name is given
for it, the result is a copy with a new id; the copy of a managed table has new metadata, which refers to the same
files.

The sequence numbers of the producers of a table are rolled back with its rows. Otherwise rows that are sent again
would be taken for duplicates.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinitylake.base.qualified_names import Identifier, namespace_name, split
from trinitylake.definitions import (
    MANAGED,
    PREVIOUS_METADATA_LOCATION,
    SHARED_FOLDERS,
    TableDef,
    object_id,
    parse_definition,
    read_definition,
    serialize,
)
from trinitylake.errors import InvalidArgument, ObjectAlreadyExists, ObjectNotFound
from trinitylake.lakehouse.handle import retry_conflicts
from trinitylake.lakehouse.object_history import ObjectKey
from trinitylake.tables.ingestion.producers import PRODUCERS
from trinitylake.tables.stored_position import StoredPosition, positions_in

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.lakehouse.handle import Handle
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.lakehouse.reader import Kind
    from trinitylake.lakehouse.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ObjectRollback:
    """The result of `lake.rollback` of single objects.

    Attributes:
        version: the new version, or the latest one if nothing changed.
        as_of: the version whose state the objects got.
        names: full names of the objects that were restored or changed, sorted.
        copies: those of `names` that are copies, because the object still exists under another name.
    """

    version: int
    as_of: int
    names: tuple[str, ...]
    copies: tuple[str, ...] = ()


def roll_back_objects(
    handle: Handle,
    past: LakehouseVersion,
    objects: Iterable[Identifier] | Mapping[Identifier, Identifier],
    message: str,
    author: str,
) -> ObjectRollback:
    """Restore the state of objects in `past`, all in one commit, for `Lakehouse.rollback`."""
    if not isinstance(objects, Iterable):
        raise InvalidArgument(f"objects must be names, or a mapping of names to new names, got {objects!r}")
    renamed = dict(objects) if isinstance(objects, Mapping) else {}
    moves: list[tuple[ObjectKey, ObjectKey, bool]] = []
    for identifier in [objects] if isinstance(objects, str) else objects:
        kind = past._kind(identifier)
        if kind is None:
            name = identifier if isinstance(identifier, str) else ".".join(identifier)
            raise ObjectNotFound(f"version {past.version} has no namespace, table or view {name}")
        to = renamed.get(identifier)
        found = _namespace_moves(past, identifier, to) if kind == "namespace" else _move(kind, identifier, to)
        moves += [(source, target, to is not None) for source, target in found]
    if not moves:
        raise InvalidArgument("name the objects to roll back")
    names = ", ".join(target.full_name for _, target, _ in moves[:3]) + (", …" if len(moves) > 3 else "")
    message = message or f"roll back {names} to version {past.version}"

    def attempt() -> ObjectRollback:
        with handle.begin(message=message, author=author) as transaction:
            run = _Rollback(transaction, past, handle.storage)
            for source, target, is_renamed in moves:
                run.roll_back(source, target, is_renamed)
        version = transaction.version if transaction.version is not None else transaction.base_version
        return ObjectRollback(version, past.version, tuple(sorted(run.rolled_back)), tuple(sorted(run.copies)))

    return retry_conflicts(attempt)


def _move(kind: Kind, identifier: Identifier, to: Identifier | None) -> Iterator[tuple[ObjectKey, ObjectKey]]:
    source = ObjectKey(kind, *split(identifier))
    yield source, source if to is None else ObjectKey(kind, *split(to))


def _namespace_moves(
    past: LakehouseVersion, identifier: Identifier, to: Identifier | None
) -> Iterator[tuple[ObjectKey, ObjectKey]]:
    """Old and new keys of a namespace, the namespaces below it, and all tables and views in them."""
    above = namespace_name(identifier)
    new = above if to is None else namespace_name(to)

    def moved(name: str) -> str:
        return new + name[len(above) :]

    namespaces = [above, *past.namespaces(above)]
    for namespace in namespaces:
        yield ObjectKey("namespace", namespace, ""), ObjectKey("namespace", moved(namespace), "")
    state = past._state()
    kinds: tuple[Kind, Kind] = ("table", "view")
    for kind in kinds:
        for namespace in namespaces:
            for name in state.list(kind, namespace).column(1).to_pylist():
                yield ObjectKey(kind, namespace, name), ObjectKey(kind, moved(namespace), name)


class _Rollback:
    """One attempt, in one transaction.

    Attributes:
        rolled_back: full names of the objects that were restored or changed.
        copies: those of `rolled_back` that are copies.
    """

    def __init__(self, transaction: Transaction, past: LakehouseVersion, storage: _core.Storage) -> None:
        self._core = transaction._state()
        self._past = past._state()
        self._version = past.version
        self._storage = storage
        self._core.depend_on_version(self._past)
        self._present: dict[tuple[Kind, str], ObjectKey] | None = None
        self.rolled_back: list[str] = []
        self.copies: list[str] = []

    def roll_back(self, source: ObjectKey, target: ObjectKey, is_renamed: bool) -> None:
        location = self._past.locate(*source)
        if location is None:
            raise ObjectNotFound(f"version {self._version} has no {source.kind} {source.full_name}")
        id = self._id(source.kind, location)
        base = self._core.base
        at_target = base.locate(*target)
        if at_target is not None:
            if self._id(target.kind, at_target) == id:
                self._put_back(target, location, id)
                return
            if source.kind == "namespace":
                return  # the objects can be restored in another namespace of this name
            raise ObjectAlreadyExists(
                f"{target.kind} {target.full_name} is another object now; roll back the object of version "
                f"{self._version} under another name: objects={{OLD: NEW}}"
            )
        present = self._present_name(source, id)
        if present is None:
            self._put_back(target, location, id)
        elif is_renamed:
            self._copy(source, target, location)
        else:
            # The object was renamed: restore its state under its present name.
            self._put_back(present, location, id)

    def _put_back(self, target: ObjectKey, location: str, id: str) -> None:
        if self._core.put_back(*target, location):
            self.rolled_back.append(target.full_name)
            if target.kind == "table":
                self._put_back_producers(id)

    def _put_back_producers(self, table_id: str) -> None:
        """Restore the sequence numbers of the producers of a table, because they belong to its rows."""
        before = positions_in(self._past, PRODUCERS, table_id)
        for namespace, now in positions_in(self._core.base, PRODUCERS, table_id).items():
            if before.get(namespace) != now:
                StoredPosition(self._core, namespace, table_id).store(before.get(namespace))

    def _copy(self, source: ObjectKey, target: ObjectKey, location: str) -> None:
        definition = parse_definition(source.kind, read_definition(self._storage, location), location)
        definition.id = str(uuid.uuid4())
        if isinstance(definition, TableDef) and definition.table_type == MANAGED:
            self._copy_metadata(definition, target, location)
        self._core.create(*target, serialize(definition))
        self.rolled_back.append(target.full_name)
        self.copies.append(target.full_name)

    def _copy_metadata(self, definition: TableDef, target: ObjectKey, location: str) -> None:
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.iceberg_storage.initial_metadata import cloned_metadata
        from trinitylake.iceberg_storage.locations import default_location
        from trinitylake.tables.table_definition import metadata_path, name_metadata

        io = LakehouseFileIO(self._storage)
        folder = default_location(io, target.namespace, target.name, definition.id)
        path, origin = cloned_metadata(io, metadata_path(definition, location), definition.id, folder)
        name_metadata(definition, path)
        shared = [*definition.format_properties.get(SHARED_FOLDERS, "").splitlines(), origin]
        definition.format_properties[SHARED_FOLDERS] = "\n".join(dict.fromkeys(shared))
        definition.format_properties.pop(PREVIOUS_METADATA_LOCATION, None)

    def _present_name(self, source: ObjectKey, id: str) -> ObjectKey | None:
        """The present key of a past object, also if the object was renamed; None if it does not exist any more."""
        base = self._core.base
        at_source = base.locate(*source)
        if at_source is not None and self._id(source.kind, at_source) == id:
            return source
        if self._present is None:
            rows = self._past.diff(base).to_pylist()
            self._present = {
                (row["kind"], self._id(row["kind"], row["after"])): ObjectKey(
                    row["kind"], row["namespace"], row["name"]
                )
                for row in rows
                if row["after"] is not None
            }
        return self._present.get((source.kind, id))

    def _id(self, kind: Kind, location: str) -> str:
        return object_id(kind, read_definition(self._storage, location), location)
