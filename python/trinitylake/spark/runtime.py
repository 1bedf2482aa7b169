"""Requirements of Spark SQL over a lakehouse: Java, Iceberg's runtime for Spark, and Iceberg's object store clients.

The runtime is a jar: on the class path, at a given path, or a package that Spark downloads from Maven Central or a
mirror. The clients for an object store are another package; Iceberg chooses a client by the URI scheme of a file.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_ICEBERG = "1.11.0"
#: Iceberg's runtime by the version of Spark.
PACKAGES = {
    "3.5": f"org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:{_ICEBERG}",
    "4.1": f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{_ICEBERG}",
}
#: Iceberg's clients of an object store, by the scheme of a root.
CLIENT_BUNDLES = {
    "s3": "iceberg-aws-bundle",
    "gs": "iceberg-gcp-bundle",
    "az": "iceberg-azure-bundle",
    "abfs": "iceberg-azure-bundle",
    "abfss": "iceberg-azure-bundle",
}
#: Extension of Spark for statements that only Iceberg has, such as `ALTER TABLE … ADD PARTITION FIELD`.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
#: Setting that makes Spark fill in the parameters of statements after parsing.
LATE_PARAMETERS = "spark.sql.legacy.parameterSubstitution.constantsOnly"
CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"


def package() -> str:
    """The Maven coordinates of Iceberg's runtime for the installed PySpark.

    Raises `InvalidArgument` for a version of PySpark that is not supported.
    """
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in PACKAGES:
        known = ", ".join(PACKAGES)
        raise InvalidArgument(f"PySpark {pyspark.__version__} is installed, and connect() needs one of: {known}")
    return PACKAGES[version]


def use_this_python() -> None:
    """Let a local Spark that starts later run its workers with this interpreter.

    By default it would use the `python3` of the PATH, which may lack this package. An existing PYSPARK_PYTHON is kept.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_java() -> None:
    """Raise `InvalidArgument` if no Java is found that can start Spark."""
    home = os.environ.get("JAVA_HOME")
    if not (shutil.which("java") or (home and Path(home, "bin", "java").exists())):
        raise InvalidArgument("Spark needs Java 17 or 21: install one, or set JAVA_HOME to where it is")


def jar_settings(jars: Sequence[str], root: str) -> dict[str, str]:
    """Settings for a new session: the jars of the runtime and of the client of a lakehouse's store.

    Raises `InvalidArgument` for a path without a file.
    """
    for jar in jars:
        if "://" not in jar and not Path(jar).is_file():
            raise InvalidArgument(f"there is no jar at {jar}")
    if jars:
        return {"spark.jars": ",".join(jars)}
    packages = [] if _is_installed("iceberg-spark-runtime") else [package()]
    bundle = CLIENT_BUNDLES.get(root.partition("://")[0])
    if bundle is not None and not _is_installed(bundle):
        packages.append(f"org.apache.iceberg:{bundle}:{_ICEBERG}")
    return {"spark.jars.packages": ",".join(packages)} if packages else {}


def check_runtime(spark: SparkSession) -> None:
    """Raise `InvalidArgument` if a session has no Iceberg runtime."""
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no public way to the JVM)
    try:
        jvm.java.lang.Class.forName(CATALOG_CLASS, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception as error:
        raise InvalidArgument(
            f"this Spark session has no Iceberg runtime ({CATALOG_CLASS}): let connect() start the session, or start "
            f"it with spark.jars.packages={package()} and spark.sql.extensions={EXTENSIONS}"
        ) from error


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is a session of Spark Connect, whose driver is another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def require_driver(spark: SparkSession, what: str) -> None:
    """Raise `InvalidArgument` if the driver of a session is not this process."""
    if is_remote(spark):
        raise InvalidArgument(
            f"{what} with engine= needs a session whose driver is this process, and this one is of Spark Connect: "
            "leave engine out to do it here, or run it by spark-submit"
        )


def let_parameters_in(spark: SparkSession) -> None:
    """Let `spark.sql(…, args=…)` work with Iceberg's extensions.

    In Spark 4.1 the parser fills in parameters (`ParserInterface.parsePlanWithParameters`), but the parser of Iceberg
    1.11 does not pass them on, so that a statement with parameters fails with UNBOUND_SQL_PARAMETER. This setting makes
    Spark fill in parameters after parsing, as earlier versions do.
    """
    if EXTENSIONS in (spark.conf.get("spark.sql.extensions", "") or ""):
        spark.conf.set(LATE_PARAMETERS, "true")


def _is_installed(name: str) -> bool:
    """Whether a package is among the jars of Spark's installation, which every session has."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return any(Path(home, "jars").glob(f"{name}-*.jar"))
