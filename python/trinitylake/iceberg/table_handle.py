"""The PyIceberg tables that a catalog of one version hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadTable

if TYPE_CHECKING:
    from trinitylake.iceberg.bound_catalog import BoundCatalog


class FrozenCatalogTable(ReadAheadTable):
    """A table from a catalog that shows one version. Writing ends before the first file: `InvalidArgument`."""

    catalog: BoundCatalog

    def transaction(self) -> NoReturn:
        self.catalog.refuse_write()
