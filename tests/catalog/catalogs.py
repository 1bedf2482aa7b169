"""The catalogs of the behaviour tests, and their differences.

PyIceberg's catalogs are the oracle: they show that an assertion is PyIceberg's behaviour. Where ours differs on
purpose, the test says why.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog

CATALOGS = ("trinitylake", "transaction", "sql", "in-memory")


def is_ours(catalog: Catalog) -> bool:
    """Whether a lakehouse is behind the catalog."""
    return isinstance(catalog, TrinityLakeCatalog)


def is_in_transaction(catalog: Catalog) -> bool:
    """Whether the catalog writes into an open transaction, which has no metadata files yet."""
    return isinstance(catalog, TrinityLakeCatalog) and isinstance(catalog.source, tl.Transaction)
