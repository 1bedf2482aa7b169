"""What an expiry and a vacuum would delete, found by their dry runs, one at a time, and kept for a while.

A dry run of a vacuum reads what all tables are made of. So it runs in a thread of its own while clients ask how far it
is, it is begun for lakehouses of a bounded number of tables only, and its result stands for ten minutes.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.vacuum import Vacuumed
from trinitylake.rest.errors import RestError

logger = logging.getLogger("trinitylake.rest")

MAX_TABLES = 20_000
_KEPT_SECONDS = 600.0


@dataclass
class Estimate:
    """One estimate, perhaps still at work.

    Attributes:
        progress: files that were marked and looked at so far.
        expired, vacuumed: the results, once they are there.
    """

    state: Literal["running", "done", "failed"] = "running"
    began_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    progress: dict[str, int] = field(default_factory=dict)
    expired: Expired | None = None
    vacuumed: Vacuumed | None = None
    problem: str = ""


class MaintenanceEstimates:
    """The estimates of one server. Safe to share between threads."""

    def __init__(self, lake: Lakehouse) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._newest: Estimate | None = None

    @property
    def newest(self) -> Estimate | None:
        """The one that runs, or that ended last and is not too old."""
        with self._lock:
            found = self._newest
        if found is None or found.ended_at is None or time.time() - found.ended_at < _KEPT_SECONDS:
            return found
        return None

    def begin(self) -> Estimate:
        """Begin one, unless one runs. Raises `RestError` 413 for a lakehouse with too many tables."""
        with self._lock:
            if self._newest is not None and self._newest.state == "running":
                return self._newest
        if self._n_tables() > MAX_TABLES:
            message = f"an estimate of more than {MAX_TABLES} tables takes long: use trinitylake maintain --dry-run"
            raise RestError(413, "RequestTooLargeException", message)
        with self._lock:
            if self._newest is None or self._newest.state != "running":
                self._newest = Estimate()
                threading.Thread(
                    target=self._run, args=(self._newest,), name="trinitylake-maintenance", daemon=True
                ).start()
            return self._newest

    def _n_tables(self) -> int:
        state = self._lake._core.latest()
        stream = pa.RecordBatchReader.from_stream(state.scan("C===", ("key",), limit=MAX_TABLES + 1))
        return sum(len(batch) for batch in stream)

    def _run(self, estimate: Estimate) -> None:
        try:
            estimate.expired = self._lake.maintenance.expire(dry_run=True)
            estimate.vacuumed = self._lake.maintenance.vacuum(dry_run=True, progress=estimate.progress.__setitem__)
            estimate.state = "done"
        except Exception as error:
            # What a program is told of its own lakehouse; what libraries say stays in the log.
            logger.warning("an estimate of maintenance failed: %s", error)
            estimate.problem = str(error) if isinstance(error, TrinityLakeError) else "the log of the server tells more"
            estimate.state = "failed"
        finally:
            estimate.ended_at = time.time()
