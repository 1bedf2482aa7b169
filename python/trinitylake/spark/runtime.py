"""Requirements of Spark SQL over a lakehouse: Java, Iceberg's runtime for Spark, and its clients for the object store.

The runtime is a jar on the class path, at a given path, or resolved by Spark as a package, from Maven Central or a
mirror. The clients of the store are one more package; Iceberg chooses a client by the scheme of each file.
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
#: Statements that only Iceberg has, such as `ALTER TABLE … ADD PARTITION FIELD`.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
#: Parameters of statements are filled in after parsing.
LATE_PARAMETERS = "spark.sql.legacy.parameterSubstitution.constantsOnly"
CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"


def package() -> str:
    """The Maven coordinates of Iceberg's runtime for the installed PySpark. Raises `InvalidArgument` for other
    versions.
    """
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in PACKAGES:
        known = ", ".join(PACKAGES)
        raise InvalidArgument(f"PySpark {pyspark.__version__} is installed, and connect() needs one of: {known}")
    return PACKAGES[version]


def use_this_python() -> None:
    """Let a local Spark that is started next run its workers with this interpreter, not the `python3` of the PATH,
    which may not have this package. What PYSPARK_PYTHON says already stays."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_java() -> None:
    """Check for a Java that can start Spark. Raises `InvalidArgument`."""
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
    """Raises `InvalidArgument` if a session has no Iceberg runtime."""
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no public way to the JVM)
    try:
        jvm.java.lang.Class.forName(CATALOG_CLASS, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    except Exception as error:
        raise InvalidArgument(
            f"this Spark session has no Iceberg runtime ({CATALOG_CLASS}): let connect() start the session, or start "
            f"it with spark.jars.packages={package()} and spark.sql.extensions={EXTENSIONS}"
        ) from error


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, whose driver is another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def require_driver(spark: SparkSession, what: str) -> None:
    """Raises `InvalidArgument` if the driver of a session is not this process."""
    if is_remote(spark):
        raise InvalidArgument(
            f"{what} with engine= needs a session whose driver is this process, and this one is of Spark Connect: "
            "leave engine out to do it here, or run it by spark-submit"
        )


def let_parameters_in(spark: SparkSession) -> None:
    """Let `spark.sql(…, args=…)` work with Iceberg's extensions.

    Spark 4.1 has its parser fill in parameters (`ParserInterface.parsePlanWithParameters`), which Iceberg's parser does
    not hand on: with Iceberg 1.11 each parameter of each statement is UNBOUND_SQL_PARAMETER. Filled in after parsing,
    as Spark did before, they arrive.
    """
    if EXTENSIONS in (spark.conf.get("spark.sql.extensions", "") or ""):
        spark.conf.set(LATE_PARAMETERS, "true")


def _is_installed(name: str) -> bool:
    """Whether a package is among the jars that every session of this installation gets."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return any(Path(home, "jars").glob(f"{name}-*.jar"))
