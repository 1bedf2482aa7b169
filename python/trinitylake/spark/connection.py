"""Spark SQL over a lakehouse: a session with a catalog whose server runs in the driver or elsewhere.

A connection is a server and the catalogs of the sessions that use it. It lives as long as the driver, or until
`disconnect`. The token of a server in the driver is random. No setting of a session holds a secret, because Spark
writes settings into event logs and shows them on pages: `secret_settings.py`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.view_names import TRANSACTION_CATALOG_INFIX, VERSION_CATALOG_INFIX
from trinitylake.lakehouse.opening import Durability
from trinitylake.lakehouse.opening import open as open_lakehouse
from trinitylake.spark.catalog_server import CatalogServer, LocalServer, RemoteServer
from trinitylake.spark.options import zoned
from trinitylake.spark.runtime import (
    CATALOG_CLASS,
    EXTENSIONS,
    check_java,
    check_runtime,
    is_remote,
    jar_settings,
    let_parameters_in,
    use_this_python,
)
from trinitylake.spark.secret_settings import divided, read_token, reference_to, warn_of_secrets, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Maximum number of catalogs of ended transactions that still report the end. Older catalogs are removed.
ENDED_CATALOGS = 16


@dataclass
class Connection:
    """A server, and the common settings of its catalogs.

    Attributes:
        root: the URI of the lakehouse; "" if only the server knows it.
        server: of the catalogs of the sessions.
        token: the server's token in settings; "" if it requires none.
        config: more settings of each catalog.
        open: the open transactions of this process by id.
    """

    root: str
    server: CatalogServer
    token: str
    config: dict[str, str] = field(repr=False)
    _ended: deque[tuple[SparkSession, str, Any]] = field(default_factory=deque, repr=False)
    _views: dict[str, list[str]] = field(default_factory=dict, repr=False)
    open: dict[str, Any] = field(default_factory=dict, repr=False)

    def add_catalog(self, spark: SparkSession, name: str, warehouse: str) -> None:
        """Add a catalog to a session, for one state of the lakehouse."""
        for key, value in self._settings(name, warehouse).items():
            spark.conf.set(key, value)

    def as_view(self, spark: SparkSession, catalog: str, frame: DataFrame) -> DataFrame:
        """The same rows through a temporary view, whose names are resolved now. It is removed with the catalog."""
        views = self._views.setdefault(catalog, [])
        views.append(f"{catalog}_query_{len(views)}")
        frame.createTempView(views[-1])
        return spark.table(views[-1])

    def remove_catalog(self, spark: SparkSession, name: str) -> None:
        """Remove a catalog from a session, close its connections and forget its settings."""
        _close(_remove_plugin(spark, name))
        self._forget(spark, name)

    def end_catalog(self, spark: SparkSession, name: str) -> None:
        """Take a catalog out of a session, so that it is not listed any more.

        Frames that were made from it keep its connections and settings; the server answers that the transaction has
        ended. Of many such catalogs the oldest is closed and removed.
        """
        self._ended.append((spark, name, _remove_plugin(spark, name)))
        self.close_ended(ENDED_CATALOGS)

    def close_ended(self, kept: int = 0) -> None:
        """Close and forget the catalogs of ended transactions, except the last ones."""
        while len(self._ended) > kept:
            session, name, plugin = self._ended.popleft()
            _close(plugin)
            self._forget(session, name)

    def _forget(self, spark: SparkSession, name: str) -> None:
        with suppress(Exception):  # the session is stopped
            for view in self._views.pop(name, []):
                spark.catalog.dropTempView(view)
            for key in self._settings(name, ""):
                spark.conf.unset(key)

    def _settings(self, name: str, warehouse: str) -> dict[str, str]:
        prefix = f"spark.sql.catalog.{name}"
        properties = {
            "type": "rest",
            "uri": self.server.url,
            **({"rest.auth.type": "oauth2", "token": self.token} if self.token else {}),
            "warehouse": warehouse,
            # A cached table would hide commits of others and writes of this transaction.
            "cache-enabled": "false",
            # The reports are a third of a transaction's requests, and nothing reads them.
            "rest-metrics-reporting-enabled": "false",
            # Spark sends names of views and new names of tables with the name of the catalog.
            "header.X-TrinityLake-Catalog": name,
            # Spark plans all batch scans by the server where a table asks for it, so its transactions track rows.
            "header.X-TrinityLake-Scan-Planning": "server",
            **self.config,
        }
        return {prefix: CATALOG_CLASS, **{f"{prefix}.{key}": value for key, value in properties.items()}}


_connections: dict[tuple[str, str], Connection] = {}
_lock = threading.Lock()


def _remove_plugin(spark: SparkSession, name: str) -> Any:
    """Remove a catalog from a session; None if it was never used, or the session has no JVM in this process.

    Spark has no call for this. A lock that Python cannot take guards its table of catalogs, so a catalog that another
    thread uses for the first time at the same moment may have to be loaded again.
    """
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    with suppress(Exception):  # the session is stopped
        manager = session.sessionState().catalogManager()
        catalogs = manager.getClass().getDeclaredField("catalogs")
        catalogs.setAccessible(True)
        found = catalogs.get(manager).remove(name)
        return found.get() if found.isDefined() else None
    return None


def _close(plugin: Any) -> None:
    if plugin is not None:
        with suppress(Exception):  # it holds nothing that could be closed
            plugin.icebergCatalog().close()


def connect(
    root: str | os.PathLike[str] | None = None,
    catalog: str = "lake",
    *,
    uri: str | None = None,
    token: str | None = None,
    spark: SparkSession | None = None,
    jars: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    session_config: Mapping[str, str] | None = None,
    catalog_config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session in which a lakehouse is a catalog: DDL, queries, INSERT, MERGE, UPDATE, DELETE, views.

    Each statement is one commit; for more than one see `trinitylake.spark.transaction`.

    Args:
        root: the URI of the lakehouse, or its path. May be left out with `uri`; then `storage_options` and the package
            for its object store are left out too, and the executors reach the files by `catalog_config` or on their
            own.
        catalog: its name in SQL.
        uri: the address of a running server (`trinitylake serve`), instead of one in this driver. Sessions of Spark
            Connect need it, because the catalog is used where Spark's driver is.
        token: the bearer token of that server; `env:NAME` for one in the environment, here and in Spark's driver.
        spark: the session to add the catalog to; the active one if not given, or a new one if there is none.
        jars: paths of Iceberg's runtime for Spark and of the clients of the lakehouse's store, for a new session. By
            default the jars of Spark's installation are used, and `spark.jars.packages` downloads missing ones.
        storage_options: as for `trinitylake.open`. They are also settings of the catalog, under Iceberg's names,
            because the executors read and write files with Iceberg's own clients. The catalog gets them from its
            server, so they are in no setting of the session.
        durability: as for `trinitylake.open`.
        session_config: settings of a new session, such as `spark.master`. Spark starts with them on its command line,
            so there is a warning for secrets.
        catalog_config: properties of the Iceberg catalog, which count before those made of the storage options.

    Raises:
        InvalidArgument: Java or the runtime is missing, the name is taken, or a secret would become a setting.
        NotALakehouse: `root` has no lakehouse.
        StorageError: the server at `uri` does not answer.
        PermissionDenied: the server does not accept this token.
    """
    if not catalog.isidentifier():
        raise InvalidArgument(f"{catalog!r} cannot be a catalog's name: use letters, digits and _")
    if (root is None and uri is None) or (token is not None and uri is None):
        raise InvalidArgument("connect needs the root of a lakehouse, or uri= of a server (and its token=)")
    if root is None and storage_options:
        raise InvalidArgument("storage_options are for the store of a root: give the root in addition to uri=")
    lake = None
    if uri is None and root is not None:
        lake = open_lakehouse(root, storage_options=storage_options, durability=durability)
    place = lake.uri if lake is not None else "" if root is None else _core.normalize_root(os.fspath(root))
    from_options = _core.iceberg_properties(place, storage_options or {}) if place else {}
    client_properties, settings = divided({**from_options, **(catalog_config or {})})
    session = spark or _active()
    if session is None:
        paths = [jars] if isinstance(jars, str) else list(jars)
        session = _start({**jar_settings(paths, place), **(session_config or {})})
    if is_remote(session):
        if uri is None:
            raise InvalidArgument(
                "this is a session of Spark Connect, whose driver does not reach a server in this process: start "
                "`trinitylake serve` where it does, and give connect(uri=...)"
            )
    else:
        check_runtime(session)
    key = (_application(session), catalog)
    with _lock:
        known = _connections.get(key)
        if known is None:
            if lake is not None:
                server: CatalogServer = LocalServer(lake, client_properties)
            else:
                server = RemoteServer(uri or "", read_token(token))
                settings |= without_secrets(client_properties)
            server.start()
            known = _connections[key] = Connection(place, server, _token_setting(server, token, session), settings)
        elif known.root != place or (uri or known.server.url).rstrip("/") != known.server.url:
            where = known.root or known.server.url
            raise InvalidArgument(f"catalog {catalog} is connected to {where}: choose another name")
    let_parameters_in(session)
    known.add_catalog(session, catalog, "@latest")
    return session


def disconnect(spark: SparkSession, catalog: str = "lake") -> None:
    """Stop the server of a catalog. Its open transactions are saved, as a server does when it ends."""
    with _lock:
        connection = _connections.pop((_application(spark), catalog), None)
    if connection is not None:
        connection.close_ended()
        connection.remove_catalog(spark, catalog)
        connection.server.stop()


def connection_of(spark: SparkSession, catalog: str) -> Connection:
    """The connection of a catalog. Raises `InvalidArgument` if `connect` has not created it."""
    with _lock:
        connection = _connections.get((_application(spark), catalog))
    if connection is None:
        raise InvalidArgument(f"catalog {catalog} is not connected: call trinitylake.spark.connect(root) first")
    return connection


def catalog_at(
    spark: SparkSession, *, version: int | None = None, timestamp: datetime | str | None = None, catalog: str = "lake"
) -> str:
    """Add a read-only catalog of an older version of the whole lakehouse; returns its name.

    A timestamp has a time zone. Raises `VersionNotFound` and `VersionExpired`.
    """
    connection = connection_of(spark, catalog)
    number = connection.server.version_at(version, None if timestamp is None else zoned(timestamp))
    name = f"{catalog}{VERSION_CATALOG_INFIX}{number}"
    connection.add_catalog(spark, name, f"@version/{number}")
    return name


def unique_name(catalog: str) -> str:
    """A name that no catalog of any session has had."""
    return f"{catalog}{TRANSACTION_CATALOG_INFIX}{uuid.uuid4().hex[:12]}"


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start(config: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    check_java()
    settings = {"spark.sql.extensions": EXTENSIONS, **config}
    warn_of_secrets(settings)
    if settings.get("spark.master", "local").startswith("local"):
        use_this_python()
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        source = settings.get("spark.jars.packages", "")
        hint = f"; {source} has to be in Maven Central's reach, or give jars=" if source else ""
        raise InvalidArgument(f"Spark did not start: {error}{hint}") from error
    return session


def _token_setting(server: CatalogServer, given: str | None, spark: SparkSession) -> str:
    """The token as a setting of a session: a reference to the environment."""
    if not server.token:
        return ""
    if given is not None and given.startswith("env:"):
        return given
    if is_remote(spark):
        raise InvalidArgument(
            "a session of Spark Connect would keep the token among its settings: put it into the environment of this "
            'process and of Spark\'s driver, and give token="env:NAME"'
        )
    return reference_to(server.token, spark)


def _application(spark: SparkSession) -> str:
    return str(spark.session_id) if is_remote(spark) else str(spark.sparkContext.applicationId)  # type: ignore[attr-defined]
