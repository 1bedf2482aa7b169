"""PyIceberg tables for definitions: managed, external and federated, from any source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from pyiceberg.table import Table

from trinitylake.definitions import EXTERNAL, MANAGED, TableDef, parse_table_def
from trinitylake.errors import CorruptFile
from trinitylake.iceberg.identifiers import object_tuple
from trinitylake.iceberg_storage.extended_pyiceberg.catalog_table import CatalogTable
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadTable
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

    from trinitylake.iceberg.bound_catalog import BoundCatalog
    from trinitylake.iceberg.configuration import Source


class FrozenCatalogTable(ReadAheadTable):
    """A table of one version. Writing raises `InvalidArgument` before a file is written."""

    catalog: BoundCatalog

    def transaction(self) -> NoReturn:
        self.catalog.refuse_write()


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
    """The table of the definition `data`, which writes through `catalog`.

    A federated table is that of the other catalog; from a single version it is read-only and shows its present state.
    `guarded` wraps the file access for external tables, and `federated` opens tables of other catalogs.

    Raises `CorruptFile` for a damaged definition and for damaged or missing metadata, and as `load_external` and
    `open_federated` do.
    """
    definition = parse_table_def(data)
    identifier = object_tuple(namespace, name)
    if definition.table_type == EXTERNAL:
        return load_external(definition, file_io_properties, identifier, guarded)
    if definition.table_type != MANAGED:
        table = federated(definition)
        if isinstance(source, LakehouseVersion):
            return FrozenCatalogTable(identifier, table.metadata, table.metadata_location, table.io, catalog)
        return table
    if isinstance(source, Transaction):
        staged = source._staged_tables.open(namespace, name, data)._open_staged()
        return CatalogTable(identifier, staged.metadata, staged.table.metadata_location, staged.io, catalog)
    io = new_io()
    metadata, uri = read_managed(io, definition, f"{namespace}.{name}")
    if isinstance(source, LakehouseVersion):
        return FrozenCatalogTable(identifier, metadata, uri, io, catalog)
    return CatalogTable(identifier, metadata, uri, io, catalog)


def read_managed(io: LakehouseFileIO, definition: TableDef, name: str) -> tuple[TableMetadata, str]:
    """Metadata of a managed table and the URI of its file. Raises `CorruptFile`."""
    path = metadata_path(definition, name)
    uri = io.uri_of(path)
    try:
        return read_metadata(io, uri, path, table_id=definition.id), uri
    except FileNotFoundError as error:
        raise CorruptFile(f"{path}: the metadata file of table {name} is missing", path=path) from error
