"""Spark SQL over a lakehouse: a session with a catalog whose server runs in the driver or in another process.

A connection is a server and the catalogs of the sessions that use it. It exists as long as the driver, or until
`disconnect`. The token of a server in the driver is random. No setting of a session contains a secret
(`secret_settings.py`), because Spark writes settings into event logs and shows them on pages.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.view_names import VERSION_CATALOG_INFIX
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
    from pyspark.sql import DataFrame

#: Maximum number of catalogs of ended transactions that are kept, so that their frames get an error that the
#: transaction has ended. Older catalogs are removed.
ENDED_CATALOGS = 16


@dataclass
class Connection:
    """A server, and the common settings of its catalogs.

    Attributes:
        root: the URI of the lakehouse; "" if only the server knows it.
        server: the server of the catalogs.
        token: the reference to the token (`env:NAME`) in the settings of the catalogs; "" if the server requires no
            token.
        config: further settings of each catalog.
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
        """Add a catalog to a session; `warehouse` names the state of the lakehouse that it shows."""
        for key, value in self._settings(name, warehouse).items():
            spark.conf.set(key, value)

    def as_view(self, spark: SparkSession, catalog: str, frame: DataFrame) -> DataFrame:
        """The frame as a temporary view, so that its names are resolved now. The view is removed with the catalog."""
        views = self._views.setdefault(catalog, [])
        views.append(f"{catalog}_query_{len(views)}")
        frame.createTempView(views[-1])
        return spark.table(views[-1])

    def remove_catalog(self, spark: SparkSession, name: str) -> None:
        """Remove a catalog from a session, close its connections and forget its settings."""
        _close(_remove_plugin(spark, name))
        self._forget(spark, name)

    def end_catalog(self, spark: SparkSession, name: str) -> None:
        """Remove a catalog from the list of a session's catalogs, after its transaction has ended.

        Frames of the catalog keep its connections and settings, and get the server's error that the transaction has
        ended. If there are more than `ENDED_CATALOGS` such catalogs, the oldest ones are closed.
        """
        self._ended.append((spark, name, _remove_plugin(spark, name)))
        self.close_ended(ENDED_CATALOGS)

    def close_ended(self, kept: int = 0) -> None:
        """Close and forget the catalogs of ended transactions, except the last `kept` catalogs."""
        while len(self._ended) > kept:
            session, name, plugin = self._ended.popleft()
            _close(plugin)
            self._forget(session, name)

    def _forget(self, spark: SparkSession, name: str) -> None:
        with suppress(Exception):  # the session may have been stopped
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
            # A cached table would hide other writers' commits and the transaction's own writes.
            "cache-enabled": "false",
            # Metrics reports would be a third of a transaction's requests, and the server does not use them.
            "rest-metrics-reporting-enabled": "false",
            # The server needs the name, because Spark sends names of views and new names of tables with it.
            "header.X-TrinityLake-Catalog": name,
            # With this the server plans the scans of batch queries, so that transactions know which rows are read.
            "header.X-TrinityLake-Scan-Planning": "server",
            **self.config,
        }
        return {prefix: CATALOG_CLASS, **{f"{prefix}.{key}": value for key, value in properties.items()}}


_connections: dict[tuple[str, str], Connection] = {}
_lock = threading.Lock()


def _remove_plugin(spark: SparkSession, name: str) -> Any:
    """Remove a catalog from a session, and return it; None if it was never used, or there is no JVM in this process.

    Spark has no method for this. Its map of catalogs is guarded by a lock that Python cannot take, so a catalog that
    another thread loads at the same moment may be lost from the map, and is then loaded again.
    """
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    with suppress(Exception):  # the session may have been stopped
        manager = session.sessionState().catalogManager()
        catalogs = manager.getClass().getDeclaredField("catalogs")
        catalogs.setAccessible(True)
        found = catalogs.get(manager).remove(name)
        return found.get() if found.isDefined() else None
    return None


def _close(plugin: Any) -> None:
    if plugin is not None:
        with suppress(Exception):  # the catalog may have nothing to close
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

    Each statement is one commit; `trinitylake.spark.transaction` commits several statements together.

    Args:
        root: the URI or path of the lakehouse. It is optional with `uri`: without it, `storage_options` and the jar for
            the object store are not used, and executors access files as `catalog_config` or their environment says.
        catalog: name of the catalog in SQL.
        uri: the address of a running server (`trinitylake serve`), instead of a server in this driver. Sessions of
            Spark Connect need it, because their driver is another process.
        token: the bearer token of that server, or `env:NAME` if it is in the environment both here and in Spark's
            driver.
        spark: the session to add the catalog to; by default the active session, or a new one if there is none.
        jars: paths of the jars for a new session: Iceberg's runtime for Spark, and Iceberg's clients of the object
            store. By default the jars of Spark's installation are used, and `spark.jars.packages` downloads missing
            jars.
        storage_options: as for `trinitylake.open`. The server also sends them, under Iceberg's names, to the catalog,
            because executors read and write files with Iceberg's own clients. They are in no setting of the session.
        durability: as for `trinitylake.open`.
        session_config: settings of a new session, such as `spark.master`. They appear on the command line of Spark's
            JVM, so there is a warning for secrets.
        catalog_config: properties of the Iceberg catalog, which override properties from the storage options.

    Raises:
        InvalidArgument: Java or the runtime is missing, the catalog's name is used for another lakehouse, or a secret
            would become a setting.
        NotALakehouse: there is no lakehouse at `root`.
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
    session = spark or SparkSession.getActiveSession()
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
    """Remove a catalog and stop its server in this process, which saves the open transactions."""
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

    `timestamp` needs a time zone. Raises `VersionNotFound` and `VersionExpired`.
    """
    if (version is None) == (timestamp is None):
        raise InvalidArgument("give a version or a timestamp, and not both")
    connection = connection_of(spark, catalog)
    number = connection.server.version_at(version, None if timestamp is None else zoned(timestamp))
    name = f"{catalog}{VERSION_CATALOG_INFIX}{number}"
    connection.add_catalog(spark, name, f"@version/{number}")
    return name


def _start(config: Mapping[str, str]) -> SparkSession:
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
        hint = f"; Spark downloads {source} from Maven Central: allow the download, or give jars=" if source else ""
        raise InvalidArgument(f"Spark did not start: {error}{hint}") from error
    return session


def _token_setting(server: CatalogServer, given: str | None, spark: SparkSession) -> str:
    """The value of a session's setting for the token: a reference to an environment variable; "" without a token."""
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
