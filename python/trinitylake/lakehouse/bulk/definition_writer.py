"""Writes the definition files of many objects, in this process or on Spark's executors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import pyarrow as pa

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.qualified_names import full_name
from trinitylake.core import KeySizes
from trinitylake.definitions import TableDef, new_namespace_def, parse_given_definition, serialize
from trinitylake.errors import InvalidArgument, InvalidLocation, RefusedObject, StorageError, TrinityLakeError

#: Maximum number of files that are read at the same time.
READ_THREADS = 16
#: Maximum number of objects whose definitions are in memory at the same time.
BATCH_OBJECTS = 1_000

#: Kinds of objects that can be registered.
OBJECT_KINDS = ("namespace", "table", "view")
#: The path of a definition file (format §2) with the kind of its object, for Python, Arrow and Spark.
DEFINITION_PATH = r"^[01]{4}/[01]{4}/[01]{4}/[01]{8}-(namespace|table|view)-[^/\x00-\x1f\x7f]*\.binpb$"


#: The lakehouse, and the base version of a registration.
Opened = tuple[_core.Lakehouse, _core.Version]


class ObjectRow(NamedTuple):
    """One object to be registered.

    Attributes:
        kind: "namespace", "table" or "view".
        namespace, name: the two parts of the full name; `name` is empty for a namespace.
        location: the path of an existing definition file. Without it, a definition is made from the other fields.
        definition: the bytes of the definition.
        metadata_location: the URI of a table's Iceberg metadata file.
        properties: the properties of a namespace.
    """

    kind: str
    namespace: str
    name: str
    location: str | None = None
    definition: bytes | None = None
    metadata_location: str | None = None
    properties: Mapping[str, str] | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> ObjectRow:
        """Make an object from a row, which may lack columns or have nulls."""
        given = {name: columns[name] for name in cls._fields if columns.get(name) is not None}
        if isinstance(given.get("properties"), list):  # Arrow returns maps as lists of pairs
            given["properties"] = dict(given["properties"])
        return cls(**{"kind": "", "namespace": "", "name": "", **given})

    @property
    def full_name(self) -> str:
        return full_name(self.namespace, self.name)

    def refused(self, error: TrinityLakeError) -> RefusedObject:
        """The report that this object cannot be registered because of `error`."""
        return RefusedObject(self.kind, self.full_name, error.kind, str(error))


def require_uncollected(core: _core.Lakehouse, since: _core.Version, paths: pa.StringArray) -> None:
    """Raise `TransactionExpired` if a file does not exist, or if a garbage collection before `since` may delete it.

    Sends no request if there was no garbage collection.
    """
    transaction = core.begin(base=since)
    try:
        transaction.adopt(paths.to_pylist())
    finally:
        transaction.rollback()


@dataclass(frozen=True)
class DefinitionWriter:
    """Builds and writes definitions. It can be pickled for Spark's tasks, with the options of the storage.

    Attributes:
        carried: the storage of the lakehouse, in a form that can be pickled.
        sizes: the maximum sizes of names in keys.
        path_max_size_bytes: the maximum length of the path of a definition file.
        version: the base version of the registration; garbage collections up to this version are checked here.
        file_io_properties: settings of PyIceberg's file access, for metadata outside of the lakehouse.
    """

    carried: StorageForTasks = field(repr=False)
    sizes: KeySizes
    path_max_size_bytes: int
    version: int
    file_io_properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def storage(self) -> _core.Storage:
        return self.carried.storage

    def check(self, rows: list[ObjectRow]) -> list[str | RefusedObject]:
        """Build the definitions without writing them. Returns "" for each row that can be registered, or a report for a
        row that cannot. Raises `StorageError`.
        """
        return [one if isinstance(one, RefusedObject) else "" for one in self.prepare(rows)]

    def prepare(self, rows: Iterable[ObjectRow]) -> Iterator[bytes | RefusedObject | None]:
        """Build the definition of each row, with parallel reads; None for a row with a location."""
        rows = list(rows)
        opened = self._opened() if any(row.kind == "table" and row.location is None for row in rows) else None
        with ThreadPoolExecutor(READ_THREADS) as pool:
            yield from pool.map(partial(self._prepare, opened), rows)

    def locate(self, rows: list[ObjectRow]) -> list[str | RefusedObject]:
        """Write the definitions of rows without a location, and return all locations. Raises `StorageError`."""
        files: list[tuple[str, bytes]] = []
        located: list[str | RefusedObject] = []
        for row, prepared in zip(rows, self.prepare(rows), strict=True):
            if isinstance(prepared, RefusedObject):
                located.append(prepared)
                continue
            if prepared is None:
                located.append(row.location or "")
                continue
            kind = cast("_core.Kind", row.kind)
            path = _core.definition_path(kind, row.namespace, row.name, self.path_max_size_bytes)
            files.append((path, _core.encode_definition_file(path, prepared)))
            located.append(path)
        self.storage.put_many(files)
        return located

    def _opened(self) -> Opened:
        core = _core.Lakehouse.open(self.storage)
        return core, core.version(self.version)

    def _prepare(self, opened: Opened | None, row: ObjectRow) -> bytes | RefusedObject | None:
        try:
            if row.kind not in OBJECT_KINDS:
                raise InvalidArgument(f"unknown kind {row.kind!r}: expected {', '.join(OBJECT_KINDS)}")
            if row.location is not None:
                if re.sub(DEFINITION_PATH, r"\1", row.location) != row.kind:
                    raise InvalidLocation(
                        f"location {row.location!r} is not the path of the definition file of a {row.kind}"
                    )
                return None
            names = None if row.kind == "namespace" else pa.array([row.name])
            _core.encode_keys(cast("_core.Kind", row.kind), pa.array([row.namespace]), names, self.sizes)
            return self._definition(opened, row)
        except StorageError as error:
            if error.retryable:  # the storage is at fault, not this object
                raise
            return row.refused(error)
        except TrinityLakeError as error:
            return row.refused(error)
        except FileNotFoundError as error:
            return row.refused(InvalidArgument(f"the metadata of the table names a file that does not exist: {error}"))

    def _definition(self, opened: Opened | None, row: ObjectRow) -> bytes:
        given = None if row.definition is None else parse_given_definition(row.kind, row.definition)
        if row.kind == "table" and (given is not None or row.metadata_location is not None):
            given = self._table(opened, given if isinstance(given, TableDef) else row.metadata_location or "")
        elif given is None and row.kind == "namespace":
            given = new_namespace_def(None, row.properties)
        if given is None:
            wanted = "location, definition or metadata_location" if row.kind == "table" else "location or definition"
            raise InvalidArgument(f"a {row.kind} needs a {wanted}")
        return serialize(given)

    def _table(self, opened: Opened | None, given: TableDef | str) -> TableDef:
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.tables.registered_table import registered_table

        table = registered_table(LakehouseFileIO(self.storage), given, self.file_io_properties)
        if table.incoming and opened is not None:
            require_uncollected(*opened, pa.array(table.incoming, pa.string()))
        return table.definition
