"""Verification of a whole version by the executors of a Spark session: `trinitylake/lakehouse/verification.py`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trinitylake.lakehouse.verification import Subtree, Verification, Verifier, begun
from trinitylake.lakehouse.verification import verify as verify_here
from trinitylake.spark.runtime import require_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.opening import Durability

#: Subtrees for each core: they differ in size, so a core that is done takes another one.
SUBTREES_PER_CORE = 4


def verify(
    root: str | os.PathLike[str],
    *,
    version: int | None = None,
    files: bool = False,
    engine: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> Verification:
    """Read and check every node and every definition of a version.

    Of the latest one, also whether it is the newest that was ever made: if the file of a newer one is missing, that is
    a problem, too.

    Args:
        root: this and what follows as for `trinitylake.lakehouse.verification.verify`.
        version: the latest if not given.
        files: look also for the files of managed tables.
        engine: a Spark session to share the work among its executors; without one it is done here. The result is
            the same.
        storage_options: sent to the executors, written nowhere.
        durability: as for `trinitylake.open`.

    Raises:
        VersionNotFound, VersionExpired: there is no such version.
        CorruptFile: its root cannot be read.
        InvalidArgument: the session is one of Spark Connect.
    """
    if engine is None:
        return verify_here(root, version=version, files=files, storage_options=storage_options, durability=durability)
    require_driver(engine, "verify")
    parts = engine.sparkContext.defaultParallelism * SUBTREES_PER_CORE
    verifier, result, subtrees = begun(root, version, files, storage_options, durability, parts)
    return sum(_on_executors(engine, verifier, subtrees), result)


def _on_executors(spark: SparkSession, verifier: Verifier, subtrees: list[Subtree]) -> list[Verification]:
    if not subtrees:
        return []

    def verified(part: Iterable[Subtree]) -> Iterator[Verification]:
        storage = verifier.storage()
        for subtree in part:
            yield verifier.verify(storage, subtree)

    shared: Any = spark.sparkContext.parallelize(subtrees, len(subtrees))
    results: list[Verification] = shared.mapPartitions(verified).collect()
    return results
