"""Checks the files of tables on the executors of a Spark session. The core checks all other files on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trinitylake.base.pickling import StorageForTasks
from trinitylake.lakehouse.fsck import Finding, FoundTable, TableCheck
from trinitylake.spark.runtime import require_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake import _core

#: Number of tasks for each core. Tables differ in size: a core that finishes early runs another task.
TASKS_PER_CORE = 4


def check_on(session: SparkSession) -> Callable[[_core.Storage, bool], TableCheck]:
    """The constructor of a `TableCheck` on executors. Raises `InvalidArgument` for a session of Spark Connect."""
    require_driver(session, "fsck")
    return partial(_ExecutorCheck, session)


class _ExecutorCheck(TableCheck):
    def __init__(self, session: SparkSession, storage: _core.Storage, reads_data: bool) -> None:
        super().__init__(storage, reads_data)
        self._context: Any = session.sparkContext
        self._task = partial(_checked, StorageForTasks(storage), reads_data)

    def check_all(self, tables: Sequence[FoundTable]) -> list[Finding]:
        n_tasks = min(len(tables), self._context.defaultParallelism * TASKS_PER_CORE)
        findings: list[Finding] = []
        shared = self._context.parallelize(tables, n_tasks)
        for found, done in shared.mapPartitions(self._task).collect():
            findings += found
            self.looked_for += done["looked_for"]
            self.incomplete |= done["incomplete"]
            for id, names in done["names"].items():
                self.names[id] |= names
        return findings


def _checked(
    carried: StorageForTasks, reads_data: bool, tables: Iterable[FoundTable]
) -> Iterator[tuple[list[Finding], dict[str, Any]]]:
    check = TableCheck(carried.storage.uncached(), reads_data)
    findings = check.check_all(list(tables))
    yield findings, {"looked_for": check.looked_for, "incomplete": check.incomplete, "names": dict(check.names)}
