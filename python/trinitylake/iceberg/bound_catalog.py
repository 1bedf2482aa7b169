"""Base class of the catalog, bound to a lakehouse, one version, or an open transaction, and its configuration.

If the catalog is bound to a lakehouse, every write is one commit. If it is bound to one version, writes are refused. If
it is bound to an open transaction, writes become part of the transaction, and the transaction's owner commits.

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

from abc import ABC
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from pyiceberg.utils.config import Config

from trinitylake import _core
from trinitylake.base.arguments import moment
from trinitylake.base.foreign_errors import errors_as
from trinitylake.base.pickling import PickledOption, pickled_options, refuse_transaction, unpickled_options
from trinitylake.errors import InvalidArgument, InvalidName
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import ExtendedCatalog
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
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


Result = TypeVar("Result")


class BoundCatalog(ExtendedCatalog, ABC):
    """A catalog over a lakehouse, one version of it, or an open transaction.

    Args:
        name: name of the catalog in PyIceberg's configuration.
        lakehouse: an open lakehouse; by default the lakehouse at the root in the properties.
        version: the version to show, read-only.
        timestamp: the time of the version to show, read-only: a datetime or an ISO 8601 string.
        transaction: an open transaction, or the id of a saved transaction to resume.
        storage_options: as for `trinitylake.open`; they override properties.
        **properties: properties of the catalog (`bound_catalog.py`).

    Raises:
        InvalidArgument: arguments contradict each other, or there is no root.
        NotALakehouse, VersionNotFound, VersionExpired, ObjectNotFound: the lakehouse, version or transaction does not
            exist.
    """

    def __init__(
        self,
        name: str = "trinitylake",
        *,
        lakehouse: Lakehouse | None = None,
        version: int | str | None = None,
        timestamp: datetime | str | None = None,
        transaction: Transaction | str | None = None,
        storage_options: Mapping[str, str] | None = None,
        **properties: str,
    ) -> None:
        super().__init__(name, **configured(name, properties))
        if version is None and timestamp is None and transaction is None:
            version = self.properties.get("version")
            timestamp = self.properties.get("timestamp")
            transaction = self.properties.get("transaction")
        self._given = lakehouse
        self._source = bind(name, self.properties, lakehouse, version, timestamp, transaction, storage_options)
        self._storage_options = storage_options
        for place in ("version", "timestamp", "transaction"):
            self.properties.pop(place, None)
        self.properties.update(properties_of(self._source))

    def __reduce__(self) -> tuple[Callable[..., BoundCatalog], tuple[Any, ...]]:
        """Pickle the arguments. Unpickling creates the catalog again, with PyIceberg's configuration in that process.

        Secrets are treated as in pickles of a lakehouse. Raises `InvalidArgument` for a catalog of a transaction.
        """
        if isinstance(self._source, Transaction):
            refuse_transaction(self._source.id)
        configuration = configured(self.name, {})
        own = {name: value for name, value in self.properties.items() if configuration.get(name) != value}
        version = self._source.version if isinstance(self._source, LakehouseVersion) else None
        given = (self._given, version, pickled_options(own), pickled_options(self._storage_options or {}))
        return _reopened, (type(self), self.name, self._source._storage.root, *given)

    @property
    def source(self) -> Source:
        """The `Lakehouse`, `LakehouseVersion` or `Transaction` that the catalog is bound to."""
        return self._source

    def state(self) -> _core.Version | _core.Transaction:
        """The version or transaction of the core that the next reads see."""
        return self._source._state()

    def file_io(self) -> LakehouseFileIO:
        """New file access below the root, with its own record of written files."""
        return LakehouseFileIO(self._source._storage)

    def _file_io_properties(self) -> dict[str, str]:
        """Properties of the file access for external tables."""
        options = storage_options(self.properties, self._storage_options)
        found = {key: value for key, value in options.items() if "." in key}
        if (implementation := self.properties.get("py-io-impl")) is not None:
            found["py-io-impl"] = implementation
        return found

    def write(self, statement: Callable[[Transaction], Result]) -> Result:
        """Run a statement in its own transaction, or in the catalog's. Raises `InvalidArgument` if it is read-only."""
        return self._writable()._execute(statement)

    def _writable(self) -> Lakehouse | Transaction:
        if isinstance(self._source, LakehouseVersion):
            self.refuse_write()
        return self._source

    def refuse_write(self) -> NoReturn:
        """Raise `InvalidArgument`, because the catalog is bound to one version."""
        assert isinstance(self._source, LakehouseVersion)
        raise InvalidArgument(
            f"catalog {self.name!r} is read-only, because it is bound to version {self._source.version}: "
            "write through a catalog of the latest version or of a transaction"
        )


def _reopened(
    kind: type[BoundCatalog],
    name: str,
    root: str,
    lakehouse: Lakehouse | None,
    version: int | None,
    properties: Mapping[str, PickledOption],
    storage_options: Mapping[str, PickledOption],
) -> BoundCatalog:
    """Unpickle a catalog. Raises the errors of its class, and `InvalidArgument` if this process lacks a secret."""
    own = unpickled_options(properties)
    for choice in ("version", "timestamp"):  # `version` is the number of the version that these choose
        own.pop(choice, None)
    if lakehouse is None:
        own["root"] = root
    return kind(
        name, lakehouse=lakehouse, version=version, storage_options=unpickled_options(storage_options) or None, **own
    )


def names_checked(missing: type[Exception]) -> errors_as:
    """Context manager that raises `missing` instead of `InvalidName`."""
    return errors_as(lambda error: missing(str(error)) if isinstance(error, InvalidName) else None)
