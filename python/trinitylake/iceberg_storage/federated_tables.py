"""Federated tables: tables of another catalog under a name in this lakehouse (format §9).

Reads and writes go directly to the other catalog. **There is no isolation**: a write is visible in the other catalog at
once, is not part of the transaction of the lakehouse, and cannot be rolled back or reached by time travel.

`TableDef.format_properties` describes how to open the catalog. It has properties for `pyiceberg.catalog.load_catalog`,
and two properties with the reserved prefix `trinitylake.`:

    trinitylake.catalog   the name of the catalog in PyIceberg's configuration; "federated" if not given
    trinitylake.table     the table in the other catalog: namespace parts and name, joined with dots

Secrets are never stored. Put them into PyIceberg's configuration file or the environment under the catalog's name,
together with their address: `PYICEBERG_CATALOG__PARTNER__URI=…` and `…__TOKEN=…`. A principal that may write
definitions may name any catalog and any address. **So configured secrets are never sent to an address that a definition
names**: for a configured catalog, only `warehouse` is taken from the definition, and only if it is not configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config, merge_config

from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.base.secret_values import is_secret
from trinitylake.definitions.trinitylake_pb2 import TableDef
from trinitylake.errors import InvalidArgument, ObjectNotFound, StorageError, TrinityLakeError
from trinitylake.iceberg_storage.extended_pyiceberg.federated_catalog import FederatedRestCatalog
from trinitylake.iceberg_storage.pyiceberg_patches import configuration_at_start

CATALOG_PROPERTY = OWN_PROPERTY_PREFIX + "catalog"
TABLE_PROPERTY = OWN_PROPERTY_PREFIX + "table"
DEFAULT_CATALOG_NAME = "federated"

#: Properties that a definition may set for a configured catalog.
_CHOSEN_BY_DEFINITION = ("warehouse",)
_CATALOG_CODE_PROPERTIES = (
    "py-catalog-impl",
    "py-io-impl",
    "write.py-location-provider.impl",
    "auth",
    "rest.auth.impl",
)


def federated_properties(catalog_properties: Mapping[str, str], table: str, catalog: str = "") -> dict[str, str]:
    """The properties that the definition of a federated table stores.

    Args:
        catalog_properties: properties for `load_catalog`, without secrets; `name`, if given, is the catalog's name.
        table: the table in the other catalog, such as "sales.orders".
        catalog: the catalog's name in PyIceberg's configuration.

    Raises:
        InvalidArgument: for a property that looks like a secret, that names code to load, or that is reserved.
    """
    properties = dict(catalog_properties)
    name = catalog or properties.pop("name", "") or DEFAULT_CATALOG_NAME
    for key, value in properties.items():
        if key.startswith(OWN_PROPERTY_PREFIX):
            raise InvalidArgument(
                f"the property {key!r} is reserved: names under {OWN_PROPERTY_PREFIX!r} are set by the lakehouse"
            )
        _check(key, value)
    if not table or not all(table.split(".")):
        raise InvalidArgument(f"{table!r} does not name a table of the other catalog")
    return {**properties, CATALOG_PROPERTY: name, TABLE_PROPERTY: table}


def stored_properties(source: TableDef | Mapping[str, str]) -> tuple[dict[str, str], str, str]:
    """The catalog's properties in a definition, the table's name in that catalog, and the catalog's name.

    Raises `InvalidArgument` as `federated_properties`.
    """
    stored = dict(source.format_properties if isinstance(source, TableDef) else source)
    table = stored.pop(TABLE_PROPERTY, "")
    name = stored.pop(CATALOG_PROPERTY, DEFAULT_CATALOG_NAME)
    federated_properties(stored, table, name)
    return stored, table, name


def open_federated(source: TableDef | Mapping[str, str], properties: Mapping[str, str] | None = None) -> Table:
    """Open the PyIceberg table of the other catalog for reading and writing, without isolation (see this module).

    Args:
        source: the definition of a federated table, or its `format_properties`.
        properties: more properties for `load_catalog`, such as credentials. They are not stored.

    Raises:
        ObjectNotFound: if the other catalog does not have the table.
        InvalidArgument: for properties that must not be stored or do not describe a catalog, and for a catalog whose
            configuration has no address although the definition has one.
        StorageError: the other catalog does not answer in time, or its answer is too large or not a table.
        PermissionDenied: the other catalog redirects to another address.
    """
    stored, table, name = stored_properties(source)
    try:
        catalog = _catalog(name, {**_allowed_properties(name, stored), **(properties or {})})
    except TrinityLakeError:
        raise
    except (ValueError, ImportError) as error:
        raise InvalidArgument(f"cannot open the catalog {name!r} of table {table}: {error}") from error
    try:
        return catalog.load_table(tuple(table.split(".")))
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise ObjectNotFound(f"the catalog {name!r} has no table {table}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StorageError(f"the catalog {name!r} returned invalid metadata for table {table}: {reason}") from error


def _catalog(name: str, properties: dict[str, str]) -> Catalog:
    """The catalog with this name and its configuration. A REST catalog is used only at the given address."""
    configuration: dict[str, Any] = merge_config(dict(configuration_at_start(name)), cast(RecursiveDict, properties))
    is_http = str(configuration.get("uri", "")).startswith("http") and "py-catalog-impl" not in configuration
    if configuration.get("type", "rest" if is_http else "") == "rest":
        return FederatedRestCatalog(name, **configuration)
    return load_catalog(name, **properties)


def _allowed_properties(name: str, stored: Mapping[str, str]) -> dict[str, str]:
    """The properties of a definition that apply to the catalog: all of them if the catalog is not configured.

    Raises `InvalidArgument` if the configuration has no address, because it may have a token for another address.
    """
    # The configuration that `load_catalog` uses, and the present environment.
    configured = {**configuration_at_start(name), **(Config().get_catalog_config(name) or {})}
    if not configured:
        return dict(stored)
    if "uri" in stored and "uri" not in configured:
        raise InvalidArgument(
            f"the catalog {name!r} is configured without an address, and the definition names {stored['uri']!r}: "
            f"configure its uri as well (PYICEBERG_CATALOG__{name.upper()}__URI), if the configured "
            "credentials may be sent to that address"
        )
    return {key: value for key, value in stored.items() if key in _CHOSEN_BY_DEFINITION and key not in configured}


def _check(key: str, value: str) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"properties map strings to strings, got {key!r}: {value!r}")
    if key in _CATALOG_CODE_PROPERTIES or key.startswith("auth."):
        raise InvalidArgument(
            f"the property {key!r} would load code or sign in from a stored definition: "
            "set it in PyIceberg's configuration"
        )
    if is_secret(key, value):
        raise InvalidArgument(
            f"the property {key!r} looks like a secret, and all readers of the lakehouse can read its definitions: "
            "pass it at run time, through the environment (PYICEBERG_CATALOG__<NAME>__<PROPERTY>) or PyIceberg's "
            "configuration file"
        )
