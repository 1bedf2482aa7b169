"""Scheduled maintenance: runs `lake.maintenance.run()` in a separate thread, at the period of the server's options.

One run at a time: the next is due one period after the last began, and if that took longer, as soon as it has ended.
Any number of servers may do this, and cron as well, since collections are safe beside each other; it costs requests.

A server that ends waits for a run, and goes without it if that takes too long: an upkeep may end anywhere. What it has
not done is for the next one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from trinitylake.base.log_note import LogNote
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.maintenance_policy import reason_of, run_policy
from trinitylake.rest.meters import Meters
from trinitylake.rest.redaction import without_secrets
from trinitylake.rest.workers.maintenance_jobs import maintain_tables
from trinitylake.rest.workers.pool import JobAbandoned, WorkerPool

if TYPE_CHECKING:
    from trinitylake.lakehouse.maintenance_policy import MaintenanceReport

logger = logging.getLogger("trinitylake.rest.upkeep")

#: How long a server that ends waits for a run.
PATIENCE_SECONDS = 5.0


class ScheduledUpkeep:
    """The schedule of one server. Safe to share between threads.

    Args:
        lake: what is kept up.
        period_seconds: from the beginning of a run to that of the next; None for no schedule.
        meters: where runs are counted.
        workers: of the server.
    """

    def __init__(self, lake: Lakehouse, period_seconds: float | None, meters: Meters, workers: WorkerPool) -> None:
        self._lake = lake
        self._period_seconds = period_seconds
        self._meters = meters
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._workers = workers
        self._skipped: dict[str, str] = {}

    def begin(self) -> None:
        """Begin to count the time to the first run, if there is a schedule."""
        if self._period_seconds is None or self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._go_on, args=(self._period_seconds,), name="trinitylake-upkeep-schedule", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Begin no more runs, and wait for the one that is at work, but not for ever."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive():
                logger.warning("upkeep is still at work, and is left: the next run goes on")

    def _go_on(self, period_seconds: float) -> None:
        due = time.monotonic() + period_seconds
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + period_seconds
            self._run()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            done = self._done()
        except (_Stopped, JobAbandoned):
            self._meters.count_upkeep("stopped", time.monotonic() - began)
            logger.info("upkeep stopped, because the server ends")
        except Exception as error:  # the schedule goes on, whatever one run met
            self._meters.count_upkeep("failed", time.monotonic() - began)
            logger.error("upkeep failed: %s", without_secrets(f"{type(error).__name__}: {error}"))
        else:
            self._meters.count_upkeep("done", time.monotonic() - began)
            self._report(done, time.monotonic() - began)

    def _done(self) -> MaintenanceReport:
        """Maintain tables in a worker process, if one can open the lakehouse, and do the rest here."""
        lake = self._lake
        if not isinstance(lake, Lakehouse) or os.name != "posix" or lake.uri.startswith("memory:"):
            return lake.maintenance.run(progress=self._stop_here)
        tables = maintain_tables(self._workers, lake.storage, self._skipped, lambda: not self._ending.is_set())
        note = LogNote("maintenance", "")
        return run_policy(
            lake.definition, lake, lake.maintenance, note, dry_run=False, progress=self._stop_here, maintained=tables
        )

    def _stop_here(self, what: str, files: int) -> None:
        if self._ending.is_set():
            raise _Stopped

    def _report(self, done: MaintenanceReport, seconds: float) -> None:
        deleted = None if done.vacuumed is None else done.vacuumed.total_deleted
        files, size_bytes = (0, 0) if deleted is None else (deleted.files, deleted.size_bytes)
        versions = 0 if done.expired is None else len(done.expired)
        self._meters.count_freed(files, size_bytes, versions)
        fields = {
            "tables_compacted": len(done.compacted),
            "tables_skipped": len(done.skipped),
            "versions_expired": versions,
            "files_deleted": files,
            "bytes_deleted": size_bytes,
            "seconds": round(seconds, 3),
        }
        logger.info("upkeep done", extra={"fields": fields})
        for table, why in done.skipped.items():
            self._meters.count_skipped(reason_of(why))
            logger.warning("upkeep left table %s alone: %s", without_secrets(table), without_secrets(why))


class _Stopped(Exception):
    """The server ends."""
