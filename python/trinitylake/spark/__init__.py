"""TrinityLake in PySpark: transactions over many tables, full SQL, and a data source that needs neither jar nor server.

    spark = connect("s3://bucket/lake")                        # Spark SQL; the catalog server runs in the driver
    with transaction(spark) as tx:                             # any number of statements, one commit
        spark.sql(f"INSERT INTO {tx}.nyc.flights SELECT …")

    spark.read.format("trinitylake").option("root", uri).load("nyc.flights")     # no jar, no server

Needs PySpark 4.1, which the extra `trinitylake[spark]` installs. PySpark 3.5 is enough for SQL, transactions of SQL
statements and `lake.maintenance.fsck(engine=spark)`. Importing this package starts no JVM.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trinitylake.base.optional_dependencies import not_installed

if find_spec("pyspark") is None:
    raise not_installed("trinitylake.spark", "pyspark")

if TYPE_CHECKING:
    from trinitylake.spark import functions
    from trinitylake.spark.batch_transaction import BatchTransaction, foreach_batch
    from trinitylake.spark.change_read import consume
    from trinitylake.spark.connection import catalog_at, connect, disconnect
    from trinitylake.spark.frames import clustered, write
    from trinitylake.spark.functions import register_functions
    from trinitylake.spark.row_changes import SparkMerge, delete, merge, update
    from trinitylake.spark.source import TrinityLakeDataSource
    from trinitylake.spark.sql_transaction import OutsideTransaction, SparkTransaction, resume, run, transaction
    from trinitylake.spark.table_frames import table

__all__ = [
    "BatchTransaction",
    "OutsideTransaction",
    "SparkMerge",
    "SparkTransaction",
    "TrinityLakeDataSource",
    "catalog_at",
    "clustered",
    "connect",
    "consume",
    "delete",
    "disconnect",
    "foreach_batch",
    "functions",
    "merge",
    "register_functions",
    "resume",
    "run",
    "table",
    "transaction",
    "update",
    "write",
]

# Names by module. A module is imported at the first use, because a Python worker of Spark needs only one or two of
# them.
_NAMES = {
    "batch_transaction": ("BatchTransaction", "foreach_batch"),
    "change_read": ("consume",),
    "connection": ("catalog_at", "connect", "disconnect"),
    "frames": ("clustered", "write"),
    "functions": ("register_functions",),
    "row_changes": ("SparkMerge", "delete", "merge", "update"),
    "source": ("TrinityLakeDataSource",),
    "sql_transaction": ("OutsideTransaction", "SparkTransaction", "resume", "run", "transaction"),
    "table_frames": ("table",),
}
_LAZY = {name: f"trinitylake.spark.{module}" for module, names in _NAMES.items() for name in names}


if find_spec("py4j") is not None:  # PySpark with a JVM, not only a client of Spark Connect
    from trinitylake.spark.pyspark_patches import install

    install()


def __getattr__(name: str) -> Any:
    if name == "functions":
        return import_module("trinitylake.spark.functions")
    if name not in _LAZY:
        raise AttributeError(f"module 'trinitylake.spark' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
