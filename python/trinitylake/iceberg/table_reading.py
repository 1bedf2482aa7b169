"""The PyIceberg table for a definition, of each kind of table and each kind of source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from trinitylake.definitions import EXTERNAL, MANAGED, TableDef, parse_table_def
from trinitylake.errors import CorruptFile
from trinitylake.iceberg.identifiers import object_tuple
from trinitylake.iceberg.table_handle import FrozenCatalogTable
from trinitylake.iceberg_storage.extended_pyiceberg.catalog_table import CatalogTable
from trinitylake.iceberg_storage.external_tables import load_external
from trinitylake.iceberg_storage.federated_tables import open_federated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.tables.table_definition import metadata_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

    from trinitylake.iceberg.configuration import Source


def open_table(
    catalog: Catalog,
    source: Source,
    new_io: Callable[[], LakehouseFileIO],
    namespace: str,
    name: str,
    data: bytes,
    file_io_properties: Mapping[str, str],
    guarded: Callable[[FileIO], FileIO] = lambda io: io,
    federated: Callable[[TableDef], Table] = open_federated,
) -> Table:
    """The table that the definition `data` describes, to be written through `catalog`.

    A federated table is the other catalog's own, unless `source` is frozen: then it can only be read, as it is now.
    `guarded` gives the file access by which an external table is read, given PyIceberg's, and `federated` opens tables
    of other catalogs.

    Raises `CorruptFile` for a damaged definition or a managed table whose metadata is damaged or gone, and what
    `load_external` and `open_federated` raise.
    """
    definition = parse_table_def(data)
    identifier = object_tuple(namespace, name)
    if definition.table_type == EXTERNAL:
        return load_external(definition, file_io_properties, identifier, guarded)
    if definition.table_type != MANAGED:
        there = federated(definition)
        if isinstance(source, LakehouseVersion):
            return FrozenCatalogTable(identifier, there.metadata, there.metadata_location, there.io, catalog)
        return there
    if isinstance(source, Transaction):
        staged = source._staged_tables.open(namespace, name, data)._open_staged()
        return CatalogTable(identifier, staged.metadata, staged.table.metadata_location, staged.io, catalog)
    io = new_io()
    metadata, uri = read_managed(io, definition, f"{namespace}.{name}")
    if isinstance(source, LakehouseVersion):
        return FrozenCatalogTable(identifier, metadata, uri, io, catalog)
    return CatalogTable(identifier, metadata, uri, io, catalog)


def read_managed(io: LakehouseFileIO, definition: TableDef, name: str) -> tuple[TableMetadata, str]:
    """Metadata of a managed table, and the URI of its file. Raises `CorruptFile`."""
    path = metadata_path(definition, name)
    uri = io.uri_of(path)
    try:
        return read_metadata(io, uri, path, table_id=definition.id), uri
    except FileNotFoundError as error:
        raise CorruptFile(f"{path}: the metadata file of table {name} is missing", path=path) from error
