"""Base class of the catalog, bound to a lakehouse, one version, or an open transaction.

If the catalog is bound to a lakehouse, every write is one commit. If it is bound to one version, writes are refused. If
it is bound to an open transaction, writes become part of the transaction, and the transaction's owner commits.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from trinitylake.base.foreign_errors import errors_as
from trinitylake.base.pickling import PickledOption, pickled_options, refuse_transaction, unpickled_options
from trinitylake.errors import InvalidArgument, InvalidName
from trinitylake.iceberg.configuration import bind, configured, properties_of, storage_options
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import ExtendedCatalog
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.iceberg.configuration import Source
    from trinitylake.lakehouse.lakehouse import Lakehouse

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
        **properties: properties of the catalog (`configuration.py`).

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
