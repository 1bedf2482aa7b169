"""Checks and converts the options of `format("trinitylake")`, which Spark passes as strings with lower-case names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, get_args

from trinitylake.base.arguments import moment
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.lakehouse import open as open_lakehouse
from trinitylake.spark.secret_settings import checked_storage_options

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.tables.table import Table

Metadata = Literal["log", "objects", "files", "changes", "count"]

#: Prefix of the name of a storage option, such as `storage.aws_region`.
STORAGE_PREFIX = "storage."
#: Options that Spark itself adds.
_OF_SPARK = {"path", "checkpointlocation", "queryname", "serialization.format"}

#: Number of attempts to add a read or a write to a transaction that other processes save at the same time.
SAVE_ATTEMPTS = 10
#: Default size of the data files of one read task.
SPLIT_SIZE_BYTES = 128 << 20
#: Options that are whole numbers, with their minimum.
_LEAST = {"version": 0, "since": 0, "split_size_bytes": 1, "max_versions_per_trigger": 1, "max_files_per_trigger": 1}
_SWITCH = ("true", "false")
#: Options with a fixed set of values.
_CHOICES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("merge_schema", "pushdown", "changes", "ignore_changes"), _SWITCH),
    "durability": ("fsync", "none"),
    "partition_overwrite_mode": ("static", "dynamic"),
    "metadata": get_args(Metadata),
}


@dataclass(frozen=True)
class Options:
    """Options of a reader, writer or stream; `docs/spark.md` describes them.

    The driver replaces `@FILE` and `env:NAME` in `storage` by their values. Executors get the values, which are never
    stored.
    """

    root: str
    table: str = ""
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    durability: Literal["fsync", "none"] | None = None
    version: int | None = None
    timestamp: str | None = None
    txn: str | None = None
    id: str | None = None
    columns: str | None = None
    filter: str | None = None
    partition_overwrite_mode: Literal["static", "dynamic"] | None = None
    partition_by: str | None = None
    merge_schema: bool = False
    pushdown: bool = False
    metadata: Metadata | None = None
    since: int | None = None
    split_size_bytes: int = SPLIT_SIZE_BYTES
    max_versions_per_trigger: int | None = None
    max_files_per_trigger: int | None = None
    changes: bool = False
    ignore_changes: bool = False
    message: str = ""
    author: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Parse Spark's options. Raises `InvalidArgument` for unknown, malformed or contradictory options."""
        given = {name.lower(): value for name, value in options.items()}
        storage = {
            name[len(STORAGE_PREFIX) :]: given.pop(name) for name in list(given) if name.startswith(STORAGE_PREFIX)
        }
        path = given.get("path", "")
        given = {name.replace("_", ""): value for name, value in given.items() if name not in _OF_SPARK}
        table = given.pop("table", "") or path
        root = given.pop("root", "") or os.environ.get("TRINITYLAKE_ROOT", "")
        if not root:
            raise InvalidArgument('no lakehouse: set option("root", "<uri>") or TRINITYLAKE_ROOT')
        for name, alias in (("version", "versionAsOf"), ("timestamp", "timestampAsOf")):
            if (value := given.pop(alias.lower(), None)) is not None:
                if name in given:
                    raise InvalidArgument(f"{name} and {alias} are the same option: give only one")
                given[name] = value
        names = {name.replace("_", ""): name for name in cls.__dataclass_fields__ if name != "storage"}
        if unknown := sorted(given.keys() - names.keys()):
            near = [names[one] for name in unknown for one in difflib.get_close_matches(name, names, n=1)]
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names.values())}"
            raise InvalidArgument(f"unknown option {', '.join(unknown)}; {hint}")
        values: dict[str, Any] = {names[key]: _converted(names[key], value) for key, value in given.items()}
        parsed = cls(root=root, table=table, storage=checked_storage_options(storage), **values)
        if len([one for one in (parsed.version, parsed.timestamp, parsed.txn) if one is not None]) > 1:
            raise InvalidArgument("give only one of the options version, timestamp and txn")
        if parsed.timestamp is not None:
            zoned(parsed.timestamp)
        if parsed.filter is not None and parsed.partition_overwrite_mode == "dynamic":
            raise InvalidArgument(
                "filter and partitionOverwriteMode=dynamic both choose the replaced rows: give only one"
            )
        return parsed

    @property
    def table_name(self) -> str:
        """The full name of the table. Raises `InvalidArgument` if the options name no table."""
        if not self.table:
            raise InvalidArgument('no table: write load("namespace.table") or save("namespace.table")')
        return self.table

    def open(self) -> Lakehouse:
        """Open the lakehouse; each process opens it itself."""
        return open_lakehouse(self.root, storage_options=self.storage or None, durability=self.durability)

    def reading(self, lake: Lakehouse) -> LakehouseVersion:
        """The version to read. Raises `VersionNotFound` and `VersionExpired`."""
        return lake.at(self.version if self.timestamp is None else zoned(self.timestamp))

    def open_table(self) -> Table:
        """The table to read. Raises `ObjectNotFound`."""
        lake = self.open()
        if self.txn is not None:
            return lake.resume(self.txn).table(self.table_name)
        return self.reading(lake).table(self.table_name)

    def record_scan(self, filter: BooleanExpression) -> None:
        """If the options name a serializable transaction, record in it that the rows that match `filter` were read.

        Raises `CommitConflict` if other processes saved the transaction first in each attempt.
        """
        for attempts_left in reversed(range(SAVE_ATTEMPTS if self.txn is not None else 0)):
            transaction = self.open().resume(str(self.txn))
            if transaction.isolation != "serializable" or transaction.version is not None:
                return
            transaction.table(self.table_name).scan(filter)
            try:
                transaction.save()
            except CommitConflict:
                if not attempts_left:
                    raise
            else:
                return


def zoned(timestamp: datetime | str) -> datetime:
    """The time of a version. Raises `InvalidArgument` without a time zone: each Spark session has its own."""
    time = moment(timestamp, "timestamp")
    if time.tzinfo is None:
        raise InvalidArgument(
            f"the time {timestamp} needs a time zone, such as 2013-01-31T09:00:00Z or 2013-01-31T09:00-05:00: in "
            "Spark SQL a time without one is in the zone of the session, in TrinityLake in UTC"
        )
    return time


def options_for(
    root: str | PathLike[str],
    table: str,
    txn: str | Transaction | None,
    id: str | None,
    message: str,
    author: str,
    storage_options: Mapping[str, str] | None,
    durability: Literal["fsync", "none"] | None,
) -> Options:
    """The options for the arguments of a writing function of this package."""
    attempt = txn if txn is None or isinstance(txn, str) else txn._attempt
    named = {"txn": attempt, "id": id, "message": message, "author": author, "durability": durability}
    return Options.parse(source_options(root, table, storage_options, **named))


def source_options(
    root: str | PathLike[str], table: str, storage_options: Mapping[str, str] | None, **given: object
) -> dict[str, str]:
    """The arguments of a function as options of the data source, without arguments that are None."""
    options = {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
    options |= {name: str(value) for name, value in given.items() if value is not None}
    return {**options, "root": fspath(root), "table": table}


def _converted(name: str, value: str) -> str | int | bool:
    """Convert the value of an option. Raises `InvalidArgument` for an invalid value."""
    if name in _LEAST:
        if not value.strip().isdecimal() or int(value) < _LEAST[name]:
            raise InvalidArgument(f"option {name} must be a whole number of at least {_LEAST[name]}, got {value!r}")
        return int(value)
    if name not in _CHOICES:
        return value
    if (choice := value.lower()) not in _CHOICES[name]:
        raise InvalidArgument(f"option {name} must be one of {', '.join(_CHOICES[name])}, got {value!r}")
    return choice == "true" if _CHOICES[name] is _SWITCH else choice
