"""Base class of catalogs with the private methods that PyIceberg calls, and a table that is committed through one.

A handle holds the metadata that was loaded, and after its commit the new metadata. Each transaction works on its own
copy of the table, so two threads that share a handle conflict only in `commit_table`, like two handles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, StagedTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties

from trinitylake.iceberg_storage.extended_pyiceberg.transaction import (
    CreatingTransaction,
    StagedIcebergTable,
    StagedTransaction,
)


class KeepsOldMetadata:
    """Mixin for catalogs that keep older metadata files; must precede PyIceberg's class among the bases."""

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Do nothing: older versions of the lakehouse need their metadata files."""


class ExtendedCatalog(KeepsOldMetadata, MetastoreCatalog, ABC):
    """A catalog that leaves commits to its subclass, and never deletes old metadata files."""

    @abstractmethod
    def stage_table(self, *arguments: Any, **options: Any) -> StagedTable:
        """Staged table for `create_table_transaction`, which is not in the catalog before the commit."""

    def create_table_transaction(self, *arguments: Any, **options: Any) -> CreateTableTransaction:
        """Begin a transaction that creates a table and its first rows. The arguments are as for `stage_table`."""
        return CreatingTransaction(self.stage_table(*arguments, **options))

    def _create_staged_table(self, *arguments: Any, **options: Any) -> StagedTable:
        return self.stage_table(*arguments, **options)

    def iceberg_schema(self, schema: Schema | pa.Schema, properties: Properties = EMPTY_DICT) -> Schema:
        """Convert a PyIceberg or pyarrow schema to a PyIceberg schema, for a table with these properties."""
        version = properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION)
        return self._convert_schema_if_needed(schema, int(version))  # type: ignore[arg-type]

    def properties_summary(
        self, present: Properties, removals: set[str] | None, updates: Properties
    ) -> PropertiesUpdateSummary:
        """Summary of updated, removed and missing properties. Raises `ValueError` for a property in both arguments."""
        summary, _ = self._get_updated_props_and_update_summary(present, removals, updates)
        return summary


class CatalogTable(StagedIcebergTable):
    """A managed table from a catalog that can be written to."""

    def _begin(self, autocommit: bool) -> StagedTransaction:
        return CatalogTransaction(self, autocommit)


class CatalogTransaction(StagedTransaction):
    """Changes of one table that are committed together through its catalog."""

    def __init__(self, origin: CatalogTable, autocommit: bool = False) -> None:
        super().__init__(
            CatalogTable(origin.name(), origin.metadata, origin.metadata_location, origin.io, origin.catalog),
            autocommit,
        )
        self._origin = origin

    def commit_transaction(self) -> Table:
        """Commit to the catalog. Returns the handle that began the transaction, with the new metadata."""
        before = self._table.metadata
        super().commit_transaction()
        if self._table.metadata is not before:
            self._origin.metadata = self._table.metadata
            self._origin.metadata_location = self._table.metadata_location
        return self._origin
