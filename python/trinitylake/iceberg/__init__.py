"""Iceberg inside a lakehouse: PyIceberg on the lakehouse's storage, tables staged in transactions.

    catalog = trinitylake.iceberg.load("s3://bucket/lake")      # a PyIceberg catalog, in `catalog/`

`io.py` is PyIceberg's file access below the root. `staging.py` is one managed table in one transaction, over
`transaction.py` (PyIceberg's table and transaction), `append.py` and `manifest.py` (appends that can be redone),
`metadata.py` (immutable metadata) and `rules.py` (what may be written). `rebase.py` redoes staged changes on what
somebody else committed first. `external.py` and `federated.py` are tables that live elsewhere.

Importing this package loads none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinitylake.iceberg.catalog import TrinityLakeCatalog, load

__all__ = ["TrinityLakeCatalog", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trinitylake.iceberg import catalog

    value = globals()[name] = getattr(catalog, name)
    return value
