"""Scheduled maintenance: off by default, one run at a time, with metrics and an orderly end."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

import trinitylake as tl
from rest.client import running
from rest.shop import ROWS
from trinitylake.cli.app import app
from trinitylake.rest import ServerOptions
from trinitylake.rest.maintenance import schedule as schedule_module
from trinitylake.rest.maintenance.schedule import MaintenanceSchedule
from trinitylake.rest.server_metrics import ServerMetrics
from trinitylake.rest.workers import maintenance_jobs
from trinitylake.rest.workers.pool import WorkerPool
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("reused_workers")
TICK_SECONDS = 0.01


class Work:
    """A lakehouse whose maintenance runs until the test ends the run."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.at_work = 0
        self.most_at_work = 0
        self.progress: Callable[[str, int], object] | None = None
        self._fails = fails

    @property
    def maintenance(self) -> Work:
        return self

    def run(self, *, progress: Callable[[str, int], object] | None = None) -> Any:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.progress = progress
        self.begun.release()
        try:
            while not self.may_end.wait(TICK_SECONDS):
                if progress is not None:
                    progress("compacted", 1)
            raise tl.StorageError("the store is away, password=canary-1234") if self._fails else ValueError("enough")
        finally:
            self.at_work -= 1


def lines_of(metrics: ServerMetrics, name: str) -> list[str]:
    return [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith(name)]


def runs(metrics: ServerMetrics, outcome: str) -> float:
    lines = lines_of(metrics, "trinitylake_maintenance_runs_total{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'"{outcome}"' in line)


def test_scheduled_maintenance_follows_the_policy(lake: tl.Lakehouse, caplog: Any) -> None:
    """The schedule follows the policy of the lakehouse, so operators need no cron job."""
    caplog.set_level(logging.INFO, logger="trinitylake.rest.maintenance")
    lake.alter({"maintenance.grace": "0 s"}, minimum_versions_to_keep=1, maximum_version_age_millis=1)
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS)
    for _ in range(6):
        lake.table("shop.orders").append(ROWS)
    before = lake.version
    done = threading.Event()
    logging.getLogger("trinitylake.rest.maintenance").addFilter(lambda record: done.set() or True)  # type: ignore[func-returns-value]
    try:
        with running(lake, options=ServerOptions(maintenance_every="1 s")) as server:
            assert done.wait(PATIENCE_SECONDS)
            with urllib.request.urlopen(f"{server.url}/metrics") as response:
                text = response.read().decode()
    finally:
        logging.getLogger("trinitylake.rest.maintenance").filters.clear()
    assert lake.version > before
    assert lake.table("shop.orders").scan().count() == 18
    record = next(record for record in caplog.records if record.getMessage() == "maintenance done")
    assert record.fields["tables_compacted"] == 1
    assert record.fields["versions_expired"] > 0
    assert 'trinitylake_maintenance_runs_total{outcome="done"}' in text
    assert "trinitylake_maintenance_expired_versions_total" in text


def test_a_server_deletes_nothing_by_default(lake: tl.Lakehouse, server: Any) -> None:
    names = [thread.name for thread in threading.enumerate()]
    assert "trinitylake-maintenance-schedule" not in names
    assert ServerOptions().maintenance_seconds is None


def test_a_run_longer_than_the_period_is_the_only_one() -> None:
    """No second run starts while one is running. Two runs would compact the same files, and the work of one would be
    lost."""
    work, metrics = Work(), ServerMetrics()
    schedule = MaintenanceSchedule(work, TICK_SECONDS, metrics, WorkerPool())
    schedule.begin()
    schedule.begin()
    assert work.begun.acquire(timeout=PATIENCE_SECONDS)
    assert not work.begun.acquire(timeout=20 * TICK_SECONDS)
    work.may_end.set()
    assert work.begun.acquire(timeout=PATIENCE_SECONDS), "the next run starts at once"
    schedule.end()
    assert work.most_at_work == 1


def test_an_error_of_one_run_does_not_end_the_schedule(caplog: Any) -> None:
    """The next run starts although the previous one failed, for instance because of the store."""
    work, metrics = Work(fails=True), ServerMetrics()
    work.may_end.set()
    schedule = MaintenanceSchedule(work, TICK_SECONDS, metrics, WorkerPool())
    schedule.begin()
    for _ in range(3):
        assert work.begun.acquire(timeout=PATIENCE_SECONDS)
    schedule.end()
    assert runs(metrics, "failed") >= 2
    assert schedule.last_run is not None
    assert (schedule.last_run.outcome, schedule.last_run.counts) == ("failed", {})
    assert runs(metrics, "done") == 0
    assert "maintenance failed: StorageError" in caplog.text
    assert "canary" not in caplog.text


def test_a_shutdown_stops_a_run_between_two_tables() -> None:
    work, metrics = Work(), ServerMetrics()
    schedule = MaintenanceSchedule(work, TICK_SECONDS, metrics, WorkerPool())
    schedule.begin()
    assert work.begun.acquire(timeout=PATIENCE_SECONDS)
    schedule.end()
    assert work.at_work == 0
    assert runs(metrics, "stopped") == 1
    assert not work.begun.acquire(timeout=5 * TICK_SECONDS)


def test_a_shutdown_waits_a_limited_time_for_maintenance(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A shutdown waits only a limited time for maintenance, which can be interrupted anywhere. A vacuum of a million
    files would delay the shutdown."""
    monkeypatch.setattr(schedule_module, "PATIENCE_SECONDS", TICK_SECONDS)
    begun, may_end = threading.Event(), threading.Event()

    class Vacuuming:
        @property
        def maintenance(self) -> Any:
            return self

        def run(self, *, progress: Callable[[str, int], object] | None = None) -> Any:
            begun.set()
            may_end.wait(PATIENCE_SECONDS)
            raise ValueError("late")

    schedule = MaintenanceSchedule(Vacuuming(), TICK_SECONDS, ServerMetrics(), WorkerPool())
    schedule.begin()
    assert begun.wait(PATIENCE_SECONDS)
    schedule.end()
    may_end.set()
    assert "still runs" in caplog.text


@pytest.mark.parametrize("period", ["often", "5", "10 ms", "0 s"])
def test_an_invalid_period_is_refused(lake: tl.Lakehouse, period: str, tmp_path: Path) -> None:
    with pytest.raises(tl.InvalidArgument, match="maintenance_every"):
        _ = ServerOptions(maintenance_every=period).maintenance_seconds
    result = CliRunner().invoke(app, ["serve", "--root", lake.uri, "--port", "0", "--maintenance-every", period])
    assert result.exit_code == 2, result.output


def test_skipped_tables_are_counted_by_reason(lake: tl.Lakehouse) -> None:
    lake.alter({"maintenance.vacuum": "false"})
    lake.create_namespace("shop")
    for name in ("shop.orders", "shop.odd"):
        lake.create_table(name, ROWS)
    for _ in range(6):
        lake.table("shop.orders").append(ROWS)
    files = [task.file for task in lake.table("shop.orders").iceberg.scan().plan_files()]
    with lake.table("shop.odd")._writing() as iceberg, iceberg.transaction() as change:
        change.append_files(files)  # type: ignore[attr-defined]
    metrics = ServerMetrics()
    workers = WorkerPool()
    schedule = MaintenanceSchedule(lake, None, metrics, workers)
    schedule._run()
    counted = lines_of(metrics, "trinitylake_maintenance_skipped")
    assert 'trinitylake_maintenance_skipped_tables_total{reason="invalid_location"} 1.0' in counted
    schedule._skipped["shop.orders"] = maintenance_jobs._ENDED
    schedule._run()
    workers.close()
    counted = lines_of(metrics, "trinitylake_maintenance_skipped")
    assert 'trinitylake_maintenance_skipped_tables_total{reason="invalid_location"} 2.0' in counted
    assert 'trinitylake_maintenance_skipped_tables_total{reason="ended_process"} 1.0' in counted
