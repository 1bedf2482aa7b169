"""A PyIceberg catalog over a lakehouse, and the statements of Iceberg clients, which the REST server uses as well.

    catalog = trinitylake.iceberg.load("s3://bucket/lake")

Importing this package does not import PyIceberg.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinitylake.iceberg.catalog import TrinityLakeCatalog, load

__all__ = ["TrinityLakeCatalog", "load"]

# Imported on first use: name -> module.
_LAZY = {"TrinityLakeCatalog": "trinitylake.iceberg.catalog", "load": "trinitylake.iceberg.catalog"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
