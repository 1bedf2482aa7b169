"""Spark SQL over a lakehouse: a session with a catalog whose server runs in the driver, on loopback.

A connection is a server and the catalogs of the sessions that use it. It lives as long as the driver, or until
`disconnect`. No setting of a session holds a secret, because Spark writes settings into event logs and shows them on
pages: `secret_settings.py`.
"""

from __future__ import annotations

import os
import secrets
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.lakehouse import Durability, Lakehouse
from trinitylake.lakehouse.lakehouse import open as open_lakehouse
from trinitylake.spark.object_stores import catalog_properties
from trinitylake.spark.runtime import (
    CATALOG_CLASS,
    EXTENSIONS,
    check_java,
    check_runtime,
    jar_settings,
    use_this_python,
)
from trinitylake.spark.secret_settings import divided, reference_to, warn_of_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.rest import RestServer


@dataclass
class Connection:
    """A lakehouse, its server, and the settings that catalogs of it have in common.

    Attributes:
        lake, server: what is connected.
        token: what stands for the server's token in settings.
        config: more settings of each catalog.
    """

    lake: Lakehouse
    server: RestServer
    token: str
    config: dict[str, str] = field(repr=False)

    def add_catalog(self, spark: SparkSession, name: str, warehouse: str) -> None:
        """Make a catalog known to a session, for one state of the lakehouse."""
        for key, value in self._settings(name, warehouse).items():
            spark.conf.set(key, value)

    def remove_catalog(self, spark: SparkSession, name: str) -> None:
        """Close a catalog's connections and forget its settings. Spark keeps the name."""
        session: Any = spark._jsparkSession  # noqa: SLF001 (PySpark has no public way to the JVM)
        with suppress(Exception):  # it was never used, or the session is stopped
            session.sessionState().catalogManager().catalog(name).icebergCatalog().close()
        for key in self._settings(name, ""):
            spark.conf.unset(key)

    def _settings(self, name: str, warehouse: str) -> dict[str, str]:
        prefix = f"spark.sql.catalog.{name}"
        properties = {
            "type": "rest",
            "uri": self.server.url,
            "rest.auth.type": "oauth2",
            "token": self.token,
            "warehouse": warehouse,
            # A cached table would hide what others commit, and what this transaction has written.
            "cache-enabled": "false",
            # The server is this process, and nobody asks it for the reports: a third of a transaction's requests.
            "rest-metrics-reporting-enabled": "false",
            **self.config,
        }
        return {prefix: CATALOG_CLASS, **{f"{prefix}.{key}": value for key, value in properties.items()}}


_connections: dict[tuple[str, str], Connection] = {}
_lock = threading.Lock()


def connect(
    root: str | os.PathLike[str],
    catalog: str = "lake",
    *,
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
        root: the URI of the lakehouse, or its path.
        catalog: its name in SQL.
        spark: the session to add the catalog to; the active one if not given, or a new one if there is none.
        jars: where Iceberg's runtime for Spark is, for a new session, and the clients of the store that the lakehouse
            is in. Without it, the jars of Spark's installation are looked through, and then `spark.jars.packages`
            brings what is missing.
        storage_options: as for `trinitylake.open`. They are also settings of the catalog, under Iceberg's names,
            because the executors read and write files with Iceberg's own clients. The catalog gets them from its
            server, so they are in no setting of the session.
        durability: as for `trinitylake.open`.
        session_config: settings of a new session, such as `spark.master`. Spark starts with them on its command line,
            so there is a warning for secrets.
        catalog_config: properties of the Iceberg catalog, which count before those made of the storage options.

    Raises:
        InvalidArgument: Java or the runtime is missing, the name is taken, or a secret would become a setting.
        NotALakehouse: there is none at `root`.
    """
    if not catalog.isidentifier():
        raise InvalidArgument(f"{catalog!r} cannot be a catalog's name: use letters, digits and _")
    lake = open_lakehouse(root, storage_options=storage_options, durability=durability)
    told, settings = divided({**catalog_properties(lake, storage_options or {}), **(catalog_config or {})})
    session = spark or _active()
    if session is None:
        paths = [jars] if isinstance(jars, str) else list(jars)
        session = _start({**jar_settings(paths, lake.uri), **(session_config or {})})
    check_runtime(session)
    key = (_application(session), catalog)
    with _lock:
        known = _connections.get(key)
        if known is None:
            from trinitylake.rest import ServerOptions, serve

            token = secrets.token_urlsafe(32)
            options = ServerOptions(client_properties=told)
            server = serve(lake, token=token, options=options).start()
            known = _connections[key] = Connection(lake, server, reference_to(token, session), settings)
        elif known.lake.uri != lake.uri:
            raise InvalidArgument(f"catalog {catalog} is connected to {known.lake.uri}: choose another name")
    known.add_catalog(session, catalog, "@latest")
    return session


def disconnect(spark: SparkSession, catalog: str = "lake") -> None:
    """Stop the server of a catalog. What is open in its transactions is saved, as a server does when it ends."""
    with _lock:
        connection = _connections.pop((_application(spark), catalog), None)
    if connection is not None:
        connection.remove_catalog(spark, catalog)
        connection.server.stop()


def connection_of(spark: SparkSession, catalog: str) -> Connection:
    """What `connect` made. Raises `InvalidArgument` if it did not."""
    with _lock:
        connection = _connections.get((_application(spark), catalog))
    if connection is None:
        raise InvalidArgument(f"catalog {catalog} is not connected: call trinitylake.spark.connect(root) first")
    return connection


def catalog_at(
    spark: SparkSession,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    catalog: str = "lake",
) -> str:
    """A catalog that shows the whole lakehouse as it was, read-only; returns its name.

    Raises `VersionNotFound` and `VersionExpired`.
    """
    connection = connection_of(spark, catalog)
    number = connection.lake.at(version=version, timestamp=timestamp).version
    name = f"{catalog}_at_{number}"
    connection.add_catalog(spark, name, f"@version/{number}")
    return name


def unique_name(catalog: str) -> str:
    """A name that no catalog of any session has had: Spark never forgets one."""
    return f"{catalog}_txn_{uuid.uuid4().hex[:12]}"


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


def _application(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)
