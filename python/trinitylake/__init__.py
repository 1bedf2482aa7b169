"""TrinityLake: a lakehouse that consists only of files, with transactions over any number of tables.

    import trinitylake as tl

    lake = tl.create("s3://bucket/lake")
    with lake.transaction(message="load") as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.flights", data).append(data)
    lake.table("nyc.flights").scan(filter="month = 1").to_arrow()

Importing this package imports only the errors, starts no thread and opens no connection.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trinitylake import errors
from trinitylake.errors import (
    CheckFailed,
    CommitConflict,
    CommitStateUnknown,
    CorruptFile,
    InvalidArgument,
    InvalidLocation,
    InvalidName,
    LakehouseMoved,
    NamespaceNotEmpty,
    NotALakehouse,
    ObjectAlreadyExists,
    ObjectNotFound,
    PermissionDenied,
    ProducerFenced,
    RegistrationFailed,
    StorageError,
    TransactionClosed,
    TransactionExpired,
    TrinityLakeError,
    UnsupportedVersion,
    VersionExpired,
    VersionNotFound,
)

if TYPE_CHECKING:
    from trinitylake import core, iceberg, rest, spark
    from trinitylake.definitions import Column, Schema, list_of, map_of, struct_of
    from trinitylake.lakehouse import Lakehouse, create, open
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.lakehouse.restore import restore
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.lakehouse.view import View
    from trinitylake.tables.table import Table

    __version__: str

__all__ = [
    "CheckFailed",
    "Column",
    "CommitConflict",
    "CommitStateUnknown",
    "CorruptFile",
    "InvalidArgument",
    "InvalidLocation",
    "InvalidName",
    "Lakehouse",
    "LakehouseMoved",
    "LakehouseVersion",
    "NamespaceNotEmpty",
    "NotALakehouse",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "PermissionDenied",
    "ProducerFenced",
    "RegistrationFailed",
    "Schema",
    "StorageError",
    "Table",
    "Transaction",
    "TransactionClosed",
    "TransactionExpired",
    "TrinityLakeError",
    "UnsupportedVersion",
    "VersionExpired",
    "VersionNotFound",
    "View",
    "__version__",
    "core",
    "create",
    "errors",
    "iceberg",
    "list_of",
    "map_of",
    "open",
    "rest",
    "restore",
    "spark",
    "struct_of",
]

# Modules of the names that are imported at their first use.
_LAZY = {
    "Column": "trinitylake.definitions",
    "Lakehouse": "trinitylake.lakehouse",
    "Schema": "trinitylake.definitions",
    "Table": "trinitylake.tables.table",
    "Transaction": "trinitylake.lakehouse.transaction",
    "View": "trinitylake.lakehouse.view",
    "LakehouseVersion": "trinitylake.lakehouse.lakehouse_version",
    "create": "trinitylake.lakehouse",
    "list_of": "trinitylake.definitions",
    "map_of": "trinitylake.definitions",
    "open": "trinitylake.lakehouse",
    "restore": "trinitylake.lakehouse.restore",
    "struct_of": "trinitylake.definitions",
}
_LAZY_MODULES = ("_core", "core", "iceberg", "lakehouse", "rest", "spark")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    elif name in _LAZY_MODULES:
        value = import_module(f"trinitylake.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("trinitylake")
    else:
        raise AttributeError(f"module 'trinitylake' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
