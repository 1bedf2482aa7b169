"""Keeps secrets of a catalog out of Spark's settings.

Spark writes settings to event logs, shows them on pages and history servers, and prints them for `SET`. So the catalog
server sends the credentials of the store to clients with its token. The token is in an environment variable of the
driver's JVM, and the setting contains only the variable's name (`env:NAME`). Iceberg reads the variable whenever it
opens a catalog, also in the sessions that Spark creates for the batches of a stream.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trinitylake.base.secret_values import is_reference, is_secret_name, with_values_read
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Names of settings that Spark redacts in plans, unless `spark.redaction.regex` is set.
_HIDDEN_BY_SPARK = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
#: Prefixes of the properties of Iceberg's file clients. The server sends all of them, so that none is missed.
_OF_FILE_CLIENTS = ("s3.", "gcs.", "gcp.", "adls.", "client.", "oss.", "ecs.")


def divided(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide properties of a catalog: properties that the server sends, and properties that become settings.

    Raises `InvalidArgument` for a secret that Iceberg reads only from the settings.
    """
    sent = {name: value for name, value in properties.items() if name.startswith(_OF_FILE_CLIENTS)}
    settings = {name: value for name, value in properties.items() if name not in sent}
    for name, value in settings.items():
        if is_secret_name(name) and not value.startswith("env:"):
            raise InvalidArgument(
                f"catalog_config {name} would become a setting of the session, which Spark writes into its event log: "
                f"put it into the driver's environment and give env:NAME, or configure Hadoop with a file"
            )
    return sent, settings


def without_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of file clients that become settings of Spark, because a server in another process does not send them.

    Raises `InvalidArgument` for a secret.
    """
    for name in properties:
        if is_secret_name(name):
            raise InvalidArgument(
                f"{name} would become a setting of the session, which Spark writes into its event log: with uri= the "
                "executors reach the store by their environment or their role, or the server gives access "
                "(--vend-role, --sign-requests)"
            )
    return dict(properties)


def read_token(token: str | None) -> str:
    """A token, or the value of the variable in `env:NAME`. Raises `InvalidArgument` if it is not set."""
    if token is None or not token.startswith("env:"):
        return token or ""
    value = os.environ.get(token.removeprefix("env:"), "")
    if not value:
        raise InvalidArgument(f"the environment has no variable {token.removeprefix('env:')} with the token")
    return value


def checked_storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """The storage options of a data source, with references to secrets resolved.

    Raises `InvalidArgument` for a secret that is not a reference, if Spark would not hide its value in plans.
    """
    for name, value in options.items():
        is_hidden = _HIDDEN_BY_SPARK.search(name) is not None or name.endswith("key_id")  # a key id is not a secret
        if is_secret_name(name) and not is_reference(value) and not is_hidden:
            raise InvalidArgument(
                f"option storage.{name}: Spark would write the secret into plans and event logs, because it does not "
                f"hide options with this name: give @FILE or env:NAME, which are read in the driver"
            )
    return with_values_read(options)


def reference_to(token: str, spark: SparkSession) -> str:
    """Put a token into a new environment variable of the driver's JVM; returns the reference `env:NAME` for settings.

    Only this JVM and its child processes can read the variable. Raises `InvalidArgument` if the JVM does not allow
    this.
    """
    name = f"TRINITYLAKE_TOKEN_{uuid.uuid4().hex}"
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no public way to the JVM)
    try:
        # Java has no method for this, but Spark's launcher opens these packages for reflection.
        find = jvm.java.lang.Class.forName
        environment = find("java.lang.ProcessEnvironment").getDeclaredField("theUnmodifiableEnvironment")
        variables = find("java.util.Collections$UnmodifiableMap").getDeclaredField("m")
        environment.setAccessible(True)
        variables.setAccessible(True)
        variables.get(environment.get(None)).put(name, token)
    except Exception as error:
        raise InvalidArgument(
            "the driver's JVM takes no variable for the token: start it as Spark's launcher does, with "
            "--add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED"
        ) from error
    return f"env:{name}"


def warn_of_secrets(settings: Mapping[str, str]) -> None:
    """Warn of secrets in the settings of a new session, which PySpark passes on the JVM's command line."""
    for name in settings:
        if is_secret_name(name):
            warnings.warn(
                f"session_config {name}: everybody on this machine can read it in the list of processes, and Spark "
                "writes it down; put it into a file that only you can read, such as spark-defaults.conf",
                stacklevel=4,
            )
