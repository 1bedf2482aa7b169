"""Maintenance of tables in a worker process, which reads data files of clients and may run out of memory.

A table whose maintenance ends the worker is skipped until the server restarts. A new worker maintains the other tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from trinitylake import _core
from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.pickling import StorageForTasks
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.maintenance_policy import MaintainedTables, Skipped
from trinitylake.lakehouse.maintenance_policy import maintain_tables as maintain
from trinitylake.rest.workers.pool import WorkerDied, WorkerPool
from trinitylake.rest.workers.worker import Job

#: How long one file of a table may take.
PATIENCE_SECONDS = 600.0
_ENDED = Skipped(
    "ended_process", "its maintenance took too much memory or time: it is skipped until the server restarts"
)


@dataclass(frozen=True)
class MaintenanceJob(Job):
    """Maintenance of all tables or of one. Reports the name of a table at its start, and after each of its files.

    Attributes:
        storage: of the lakehouse.
        skipped: tables that are left out, and why.
        table: full name of the only table to maintain; None for all.
    """

    kind: ClassVar[str] = "maintenance"

    storage: StorageForTasks
    skipped: dict[str, Skipped]
    table: str | None = None

    def run(self, report: Callable[[str], None]) -> MaintainedTables:
        """Compact tables and expire their snapshots, as the policy of the lakehouse says."""
        lake = Lakehouse(_core.Lakehouse.open(self.storage.storage))
        note = CommitInfo("maintenance", "")
        return maintain(lake._definition, lake, note, skip=self.skipped, on_table=report, only=self.table)


def maintain_tables(
    workers: WorkerPool, storage: _core.Storage, skipped: dict[str, Skipped], is_wanted: Callable[[], bool]
) -> MaintainedTables:
    """Run `MaintenanceJob`. If a table ends the worker, add the table to `skipped` and run the job again without it.

    Raises `JobAbandoned` when `is_wanted` returns False, `RuntimeError` if a worker ends before its first table, and
    the errors of the job.
    """
    while True:
        at_work = ""

        def began(table: str) -> None:
            nonlocal at_work
            at_work = table

        job = MaintenanceJob(StorageForTasks(storage), dict(skipped))
        try:
            found: MaintainedTables = workers.run(
                job, "", seconds=PATIENCE_SECONDS, is_wanted=is_wanted, on_progress=began
            )
            return found
        except (WorkerDied, TimeoutError) as error:
            if not at_work or at_work in skipped:
                raise RuntimeError("the worker for maintenance ended before its first table") from error
            skipped[at_work] = _ENDED
