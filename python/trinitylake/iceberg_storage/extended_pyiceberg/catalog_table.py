"""A PyIceberg table that is committed through the catalog of a lakehouse.

A handle holds the metadata that was loaded, and after its commit the new metadata. Each transaction works on its own
copy of the table, so two threads that share a handle conflict only in `commit_table`, like two handles.
"""

from __future__ import annotations

from pyiceberg.table import Table

from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedIcebergTable, StagedTransaction


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
