"""Estimates of what expiry and vacuum would delete, by dry runs, one at a time.

A dry run of a vacuum reads the manifests of all tables. So it runs in a separate thread while clients poll its
progress, the number of tables is limited, and the result is cached for ten minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.vacuum_report import Vacuumed
from trinitylake.rest.errors import too_large

logger = logging.getLogger("trinitylake.rest")

MAX_TABLES = 20_000
_KEPT_SECONDS = 600.0


@dataclass
class Estimate:
    """One estimate, perhaps in progress.

    Attributes:
        progress: number of files per phase of the vacuum.
        expired, vacuumed: the results.
    """

    state: Literal["running", "done", "failed"] = "running"
    began_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    progress: dict[str, int] = field(default_factory=dict)
    expired: Expired | None = None
    vacuumed: Vacuumed | None = None
    problem: str = ""


class MaintenanceEstimates:
    """The estimates of one server. Thread-safe."""

    def __init__(self, lake: Lakehouse) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._newest: Estimate | None = None

    @property
    def newest(self) -> Estimate | None:
        """The estimate that is running, or the last one if it is recent enough."""
        with self._lock:
            found = self._newest
        if found is None or found.ended_at is None or time.time() - found.ended_at < _KEPT_SECONDS:
            return found
        return None

    def begin(self) -> Estimate:
        """Start an estimate, unless one runs. Raises `RestError` 413 for too many tables."""
        with self._lock:
            if self._newest is not None and self._newest.state == "running":
                return self._newest
        if self._lake._core.latest().list("table", None, MAX_TABLES + 1).num_rows > MAX_TABLES:
            message = (
                f"the server makes no estimate for more than {MAX_TABLES} tables: use trinitylake maintain --dry-run"
            )
            raise too_large(message)
        with self._lock:
            if self._newest is None or self._newest.state != "running":
                self._newest = Estimate()
                threading.Thread(
                    target=self._run, args=(self._newest,), name="trinitylake-maintenance", daemon=True
                ).start()
            return self._newest

    def _run(self, estimate: Estimate) -> None:
        try:
            estimate.expired = self._lake.maintenance.expire(dry_run=True)
            estimate.vacuumed = self._lake.maintenance.vacuum(dry_run=True, progress=estimate.progress.__setitem__)
            estimate.state = "done"
        except Exception as error:
            # Messages of libraries stay in the log.
            logger.warning("an estimate of maintenance failed: %s", error)
            estimate.problem = str(error) if isinstance(error, TrinityLakeError) else "see the log of the server"
            estimate.state = "failed"
        finally:
            estimate.ended_at = time.time()
