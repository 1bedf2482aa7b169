"""The PyIceberg tables that the catalog hands out.

A `CatalogTable` is what PyIceberg calls a table: metadata as it was when it was loaded, and a catalog to commit to. Its
transactions are those of staged tables, without deep copies and with appends that can be redone; each works on a frozen
view, so two threads that share a handle meet in `commit_table`, like two handles. After a commit the handle moves on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from trinitylake.iceberg.transaction import StagedIcebergTable, StagedTransaction

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier

    from trinitylake.iceberg.catalog.bound_catalog import BoundCatalog


class CatalogTable(StagedIcebergTable):
    """A managed table from a catalog that can be written to.

    Attributes:
        added_files: the data files of the appends of one transaction, by the id of its snapshot.
    """

    def __init__(
        self, identifier: Identifier, metadata: TableMetadata, metadata_location: str, io: FileIO, catalog: Catalog
    ) -> None:
        super().__init__(identifier, metadata, metadata_location, io, catalog)

    def transaction(self) -> StagedTransaction:
        return CatalogTransaction(self)

    def _autocommit(self) -> StagedTransaction:
        return CatalogTransaction(self, autocommit=True)

    @staticmethod
    def _check_uuid(current_metadata: TableMetadata, new_metadata: TableMetadata) -> None:
        """Raises `CommitFailedException`, which writers expect, for another table that has the name now."""
        if current_metadata.table_uuid != new_metadata.table_uuid:
            raise CommitFailedException(
                f"Table UUID does not match: {current_metadata.table_uuid} was dropped, and {new_metadata.table_uuid} "
                "has its name: load the table again"
            )


class FrozenCatalogTable(Table):
    """A table from a catalog that shows one version. Writing ends before the first file: `InvalidArgument`."""

    catalog: BoundCatalog

    def transaction(self) -> NoReturn:
        self.catalog.refuse_write()


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
