"""Scheduled maintenance: runs `lake.maintenance.run()` in a separate thread, at the period of the server's options.

The next run starts one period after the start of the last one, or at its end if that took longer. Several servers and
cron jobs may run maintenance at the same time: garbage collections are safe together, and only cost requests.

A server that shuts down waits `PATIENCE_SECONDS` for a run. Maintenance may be interrupted at any point; the next run
completes it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trinitylake.base.commit_info import CommitInfo
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.maintenance_policy import Skipped
from trinitylake.rest.secret_redaction import without_secrets
from trinitylake.rest.server_metrics import ServerMetrics
from trinitylake.rest.workers.maintenance_jobs import maintain_tables
from trinitylake.rest.workers.pool import JobAbandoned, WorkerPool

if TYPE_CHECKING:
    from trinitylake.lakehouse.maintenance_policy import MaintenanceReport

logger = logging.getLogger("trinitylake.rest.maintenance")

#: How long a shutdown waits for a run.
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class FinishedRun:
    """The last run of a schedule.

    Attributes:
        ended_at: Unix time in seconds.
        outcome: "done", "failed" or "stopped".
        seconds: duration of the run.
        counts: numbers of changed things, by their names in the server log; empty unless the outcome is "done".
    """

    ended_at: float
    outcome: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)


class MaintenanceSchedule:
    """The schedule of one server. Thread-safe.

    Attributes:
        period_seconds: time between two runs; None for no schedule.
        last_run: the last run since the server started, if any.

    Args:
        lake: the lakehouse to maintain.
        period_seconds: time between the starts of two runs; None for no schedule.
        metrics: counts the runs.
        workers: maintain the tables, in processes.
    """

    def __init__(
        self, lake: Lakehouse, period_seconds: float | None, metrics: ServerMetrics, workers: WorkerPool
    ) -> None:
        self._lake = lake
        self.period_seconds = period_seconds
        self.last_run: FinishedRun | None = None
        self._metrics = metrics
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._workers = workers
        self._skipped: dict[str, Skipped] = {}

    def begin(self) -> None:
        """Start the schedule, if there is one."""
        if self.period_seconds is None or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._run_periodically,
            args=(self.period_seconds,),
            name="trinitylake-maintenance-schedule",
            daemon=True,
        )
        self._thread.start()

    def end(self) -> None:
        """Start no more runs, and wait up to `PATIENCE_SECONDS` for the current one."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive():
                logger.warning("maintenance still runs and is abandoned: the next run does the rest")

    def _run_periodically(self, period_seconds: float) -> None:
        due = time.monotonic() + period_seconds
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + period_seconds
            self._run()

    def _run(self) -> None:
        began, outcome = time.monotonic(), "done"
        counts: dict[str, int] = {}
        try:
            report = self._maintained()
        except (_Stopped, JobAbandoned):
            outcome = "stopped"
            logger.info("maintenance stopped, because the server shuts down")
        except Exception as error:  # a failed run does not end the schedule
            outcome = "failed"
            logger.error("maintenance failed: %s", without_secrets(f"{type(error).__name__}: {error}"))
        else:
            self._metrics.maintenance_done.set_to_current_time()
            counts = self._report(report, time.monotonic() - began)
        self.last_run = FinishedRun(time.time(), outcome, time.monotonic() - began, counts)
        self._metrics.maintenance_seconds.set(self.last_run.seconds)
        self._metrics.maintenance_runs.labels(outcome).inc()

    def _maintained(self) -> MaintenanceReport:
        """Maintain tables in a worker process if it can open the lakehouse, and run the other steps in this process."""
        lake = self._lake
        if not isinstance(lake, Lakehouse) or os.name != "posix" or lake.uri.startswith("memory:"):
            return lake.maintenance.run(progress=self._stop_if_closing)
        tables = maintain_tables(self._workers, lake._storage, self._skipped, lambda: not self._ending.is_set())
        return lake.maintenance._run_steps(tables, CommitInfo("maintenance"), progress=self._stop_if_closing)

    def _stop_if_closing(self, what: str, files: int) -> None:
        if self._ending.is_set():
            raise _Stopped

    def _report(self, done: MaintenanceReport, seconds: float) -> dict[str, int]:
        """Write the report of a run to the server log; returns its counts."""
        deleted = None if done.vacuumed is None else done.vacuumed.total_deleted
        files, size_bytes = (0, 0) if deleted is None else (deleted.files, deleted.size_bytes)
        versions = 0 if done.expired is None else len(done.expired)
        self._metrics.deleted_files.inc(files)
        self._metrics.deleted_bytes.inc(size_bytes)
        self._metrics.expired_versions.inc(versions)
        counts = {
            "tables_compacted": len(done.compacted),
            "tables_skipped": len(done.skipped),
            "versions_expired": versions,
            "files_deleted": files,
            "bytes_deleted": size_bytes,
        }
        logger.info("maintenance done", extra={"fields": {**counts, "seconds": round(seconds, 3)}})
        for table, why in done.skipped.items():
            self._metrics.skipped_tables.labels(why.kind).inc()
            logger.warning("maintenance skipped table %s: %s", without_secrets(table), without_secrets(why.message))
        return counts


class _Stopped(Exception):
    """The server shuts down."""
