"""A read-only table of one version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from trinitylake import _core
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.definitions import EXTERNAL, MANIFEST_LIST, Schema, TableDef, parse_table_def, serialize
from trinitylake.errors import CorruptFile, InvalidArgument
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadOnlyCatalog, ReadOnlyTable
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata import cache, cache_key, read_metadata
from trinitylake.tables.change_feed.table_versions import TableState
from trinitylake.tables.table import Table
from trinitylake.tables.table_definition import metadata_path


class FrozenTable(Table):
    """A read-only table. Its Iceberg metadata is read at first use, and again after unpickling."""

    def __init__(
        self, storage: _core.Storage, namespace: str, name: str, definition: bytes, version: int | None
    ) -> None:
        super().__init__(namespace, name, parse_table_def(definition))
        self._storage = storage
        self._version = version
        self._opened: IcebergTable | None = None

    @property
    def schema(self) -> Schema:
        """The columns, in TrinityLake's types. Raises as `Table.schema` does."""
        if self._definition.HasField("schema") and self.type != "federated":
            return Schema.from_definition(self._definition.schema, tuple(self._definition.primary_keys))
        return super().schema

    def _shown_version(self) -> int:
        assert self._version is not None
        return self._version

    def _iceberg(self) -> IcebergTable:
        definition, opened = self._definition, self._opened
        if opened is None:
            opened = self._open_managed() if self.type == "managed" else open_elsewhere(definition)
            if self._definition is definition:  # otherwise another thread has set a newer definition
                self._opened = opened
        return opened

    def _history(self) -> tuple[_core.Lakehouse, _core.Version]:
        core = _core.Lakehouse.open(self._storage)
        return core, core.version(self._shown_version())

    def _past(self, state: TableState) -> IcebergTable:
        return table_of_state(self._storage, state)

    def _open_managed(self) -> IcebergTable:
        check_kept = None if self._version is None else partial(self._storage.check_retained, self._version)
        io = LakehouseFileIO(self._storage, check_kept=check_kept)
        uri, metadata = metadata_of(io, self._definition, self.name, reads_rows=True)
        return self._handle((*self._namespace.split("."), self._name), metadata, uri, io)

    def _handle(
        self, identifier: tuple[str, ...], metadata: TableMetadata, uri: str, io: LakehouseFileIO
    ) -> IcebergTable:
        refusal = "write through a transaction, or through the table itself and not `.iceberg`"
        catalog = ReadOnlyCatalog(f"table {self.name} is read-only here: {refusal}")
        return ReadOnlyTable(identifier, metadata, uri, io, catalog)

    def __reduce__(self) -> tuple[Callable[..., FrozenTable], tuple[Any, ...]]:
        return FrozenTable, (self._storage, self._namespace, self._name, serialize(self._definition), self._version)

    def _writing(self, note: CommitInfo = NO_COMMIT_INFO) -> AbstractContextManager[IcebergTable]:
        raise InvalidArgument(
            f"table {self.name} is read-only here: it belongs to version {self._version}; write in a transaction"
        )


def metadata_of(
    io: LakehouseFileIO, definition: TableDef, name: str, *, reads_rows: bool = False
) -> tuple[str, TableMetadata]:
    """URI and content of the metadata file of a managed table. With `reads_rows`, the manifest list is fetched too.

    Raises `CorruptFile` if the definition names no metadata file, or if the file is damaged or missing.
    """
    path = metadata_path(definition, name)
    uri = io.uri_of(path)
    if reads_rows and cache.get(cache_key(io, uri)) is None:
        io.begin_to_fetch(definition.format_properties.get(MANIFEST_LIST, ""))
    try:
        return uri, read_metadata(io, uri, table_id=definition.id)
    except FileNotFoundError as error:
        raise CorruptFile(f"{path}: the metadata file of table {name} is missing", path=path) from error


def table_of_state(storage: _core.Storage, state: TableState) -> IcebergTable:
    return FrozenTable(storage, *state.key, serialize(state.definition), state.version)._iceberg()


def open_elsewhere(definition: TableDef) -> IcebergTable:
    """The PyIceberg table of an external or federated table (format §9)."""
    if definition.table_type == EXTERNAL:
        from trinitylake.iceberg_storage.external_tables import load_external

        return load_external(definition)
    from trinitylake.iceberg_storage.federated_tables import open_federated

    return open_federated(definition)
