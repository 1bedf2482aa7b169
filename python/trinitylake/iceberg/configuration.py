"""Configuration of a catalog: the properties of the call, and PyIceberg's configuration for the catalog's name.

    root           the root of the lakehouse; synonyms: `uri`, `warehouse`
    version        a version number; the catalog shows that version, read-only
    timestamp      an ISO 8601 string; the catalog shows the latest version at that time, read-only
    transaction    the id of a saved transaction, which is resumed
    durability     "fsync" or "none", as for `trinitylake.open`
    s3.*, gcs.*, adls.*, client.*    credentials and endpoints, in PyIceberg's names; also for external tables
    storage.*      any other option of the storage, without the prefix

PyIceberg passes only the arguments of the call to a catalog that it loads by `py-catalog-impl`, so the configuration
files and environment variables are read here. Arguments of the call override them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias
from weakref import WeakValueDictionary

from pyiceberg.utils.config import Config

from trinitylake import _core
from trinitylake.base.arguments import moment
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.opening import open
from trinitylake.lakehouse.transaction import Transaction

#: The state that a catalog is bound to: the latest version, one version, or an open transaction.
Source: TypeAlias = Lakehouse | LakehouseVersion | Transaction

_ROOT_PROPERTIES = ("root", "uri", "warehouse")
_STORAGE_PREFIXES = ("s3.", "gcs.", "adls.", "client.")
_OWN_STORAGE_PREFIX = "storage."

#: Open transactions of this process to which catalogs are bound, by root and id.
_OPEN_HERE: WeakValueDictionary[tuple[str, str], Transaction] = WeakValueDictionary()


def configured(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """PyIceberg's configuration of a catalog, overridden by `properties`.

    Raises `InvalidArgument` for a property that is not a string, number or boolean.
    """
    found = Config().get_catalog_config(name) or {}
    merged: dict[str, str] = {}
    for key, value in {**found, **properties}.items():
        if value is None:
            continue
        if isinstance(value, bool | int | float):  # a number in YAML
            value = str(value).lower()
        if not isinstance(value, str):
            raise InvalidArgument(f"the property {key!r} of catalog {name!r} must be a string, got {value!r}")
        merged[key] = value
    return merged


def storage_options(properties: Mapping[str, str], options: Mapping[str, str] | None) -> dict[str, str]:
    """The options of the storage in the properties of a catalog, overridden by `options`."""
    found = {key: value for key, value in properties.items() if key.startswith(_STORAGE_PREFIXES)}
    own = {
        key.removeprefix(_OWN_STORAGE_PREFIX): value
        for key, value in properties.items()
        if key.startswith(_OWN_STORAGE_PREFIX)
    }
    return {**found, **own, **(options or {})}


def bind(
    name: str,
    properties: Mapping[str, str],
    lakehouse: Lakehouse | None,
    version: int | str | None,
    timestamp: datetime | str | None,
    transaction: Transaction | str | None,
    options: Mapping[str, str] | None,
) -> Source:
    """The lakehouse, version or transaction that the arguments choose.

    Raises `InvalidArgument` for contradicting arguments or without a root, and the errors of `open`, `at` and `resume`.
    """
    if sum(choice is not None for choice in (version, timestamp, transaction)) > 1:
        raise InvalidArgument("choose a version, a timestamp or a transaction, not several of them")
    root = next((properties[key] for key in _ROOT_PROPERTIES if properties.get(key)), None)
    if isinstance(transaction, Transaction):
        _check_same_lakehouse(transaction, lakehouse.uri if lakehouse is not None else root)
        return transaction
    if lakehouse is None:
        if root is None:
            raise InvalidArgument(
                f"catalog {name!r} needs the root of a lakehouse: pass root=…, or set it in PyIceberg's configuration "
                f"file or in the environment variable PYICEBERG_CATALOG__{name.upper()}__ROOT"
            )
        durability = properties.get("durability")
        if durability not in (None, "fsync", "none"):
            raise InvalidArgument(f"durability is 'fsync' or 'none', not {durability!r}")
        lakehouse = open(
            root,
            storage_options=storage_options(properties, options),
            durability=durability,  # type: ignore[arg-type]
        )
    if transaction is not None:
        here = _OPEN_HERE.get((lakehouse.uri, transaction))
        return here if here is not None and here.is_open else lakehouse.resume(transaction)
    if version is not None:
        return lakehouse.at(_number(version))
    if timestamp is not None:
        return lakehouse.at(moment(timestamp, "timestamp"))
    return lakehouse


def properties_of(source: Source) -> dict[str, str]:
    """Properties that open the same source in this process.

    Some clients, such as polars when it writes, create the catalog again from its class and properties. Without these
    properties they would write to the latest version instead of the transaction.
    """
    found = {"root": source._storage.root}
    if isinstance(source, LakehouseVersion):
        found["version"] = str(source.version)
    elif isinstance(source, Transaction):
        found["transaction"] = source.id
        _OPEN_HERE[source._storage.root, source.id] = source
    return found


def _number(version: int | str) -> int:
    try:
        return int(version)
    except ValueError as error:
        raise InvalidArgument(f"a version is a whole number, not {version!r}") from error


def _check_same_lakehouse(transaction: Transaction, root: str | None) -> None:
    own = transaction._storage.root
    if root is not None and _core.normalize_root(root) != own:
        raise InvalidArgument(f"transaction {transaction.id} belongs to the lakehouse {own!r}, not to {root!r}")
