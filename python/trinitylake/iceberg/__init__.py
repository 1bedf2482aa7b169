"""The lakehouse as a PyIceberg catalog, and the statements behind it, which the REST server runs too.

    catalog = trinitylake.iceberg.load("s3://bucket/lake")

Importing this package loads none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinitylake.iceberg.catalog import TrinityLakeCatalog
    from trinitylake.iceberg.opening import load

__all__ = ["TrinityLakeCatalog", "load"]

# Loaded when they are first asked for: name -> module.
_LAZY = {"TrinityLakeCatalog": "trinitylake.iceberg.catalog", "load": "trinitylake.iceberg.opening"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
