"""Many objects at once, in one version: registration of objects, and the import of another catalog.

`definition_writer.py` writes definition files, here or on executors; `registration.py` registers objects on this
machine, or by an engine (`engines.py`); `catalog_import.py` turns another catalog into objects; `statements.py` offers
both on a lakehouse, of which `target.py` says what they need. Importing this package loads none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinitylake.lakehouse.bulk.catalog_import import CatalogImport, import_catalog
    from trinitylake.lakehouse.bulk.registration import register
    from trinitylake.lakehouse.bulk.registration_options import Registration

__all__ = ["CatalogImport", "Registration", "import_catalog", "register"]

# Loaded when they are first asked for: name -> module.
_LAZY = {
    "CatalogImport": "trinitylake.lakehouse.bulk.catalog_import",
    "Registration": "trinitylake.lakehouse.bulk.registration_options",
    "import_catalog": "trinitylake.lakehouse.bulk.catalog_import",
    "register": "trinitylake.lakehouse.bulk.registration",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
