"""A table that is committed through a catalog: what PyIceberg calls a table.

Metadata as it was when it was loaded, and a catalog to commit to. Its transactions are those of staged tables, without
deep copies and with appends that can be redone; each works on a frozen view, so two threads that share a handle meet in
`commit_table`, like two handles. After a commit the handle moves on.
"""

from __future__ import annotations

from pyiceberg.table import Table

from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedIcebergTable, StagedTransaction


class CatalogTable(StagedIcebergTable):
    """A managed table from a catalog that can be written to.

    Attributes:
        added_files: the data files of the appends of one transaction, by the id of its snapshot.
    """

    def transaction(self) -> StagedTransaction:
        return CatalogTransaction(self)

    def autocommit_transaction(self) -> StagedTransaction:
        return CatalogTransaction(self, autocommit=True)


class CatalogTransaction(StagedTransaction):
    """Changes of one table, committed through its catalog together."""

    def __init__(self, origin: CatalogTable, autocommit: bool = False) -> None:
        frozen = CatalogTable(origin.name(), origin.metadata, origin.metadata_location, origin.io, origin.catalog)
        super().__init__(frozen, frozen.added_files, autocommit)
        self._origin = origin

    def commit_transaction(self) -> Table:
        """Commit the changes to the catalog; returns the table that the transaction was begun on, moved on."""
        before = self._table.metadata
        super().commit_transaction()
        if self._table.metadata is not before:
            self._origin.metadata = self._table.metadata
            self._origin.metadata_location = self._table.metadata_location
        return self._origin
