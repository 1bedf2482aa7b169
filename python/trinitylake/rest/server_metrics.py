"""Prometheus metrics of a server, and the metrics reports that engines send to it."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Buckets of the duration of a request.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: Outcome of a request that changes something.
Outcome: TypeAlias = Literal["committed", "staged", "conflict", "failed", "refused"]

#: Maximum number of stored reports, and maximum total size of their JSON.
MAX_REPORTS, MAX_REPORTS_SIZE_BYTES = 1000, 8 << 20


class MetricsReports:
    """The newest reports, in memory. Thread-safe."""

    def __init__(self) -> None:
        self._reports: deque[tuple[tuple[str, ...], bytes]] = deque()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, table: tuple[str, ...], report: dict[str, Any]) -> None:
        """Add a report about a table, and drop the oldest reports above the limits."""
        data = json.dumps({"table": table, "report": report}, separators=(",", ":")).encode()
        with self._lock:
            self._reports.append((table, data))
            self._size_bytes += len(data)
            while len(self._reports) > MAX_REPORTS or self._size_bytes > MAX_REPORTS_SIZE_BYTES:
                self._size_bytes -= len(self._reports.popleft()[1])

    def list(self) -> list[tuple[tuple[str, ...], bytes]]:
        """Table and JSON of each report, oldest first."""
        with self._lock:
            return list(self._reports)


class ServerMetrics:
    """The metrics of one server, in a registry of its own. A process may run several servers."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("trinitylake_requests", "Requests", ["method", "route", "code"], registry=registry)
        self.request_seconds = Histogram(
            "trinitylake_request_seconds", "Duration", ["method", "route"], buckets=_SECONDS, registry=registry
        )
        self.requests_running = Gauge("trinitylake_requests_running", "Requests in progress", registry=registry)
        self.commits = Counter("trinitylake_commits", "Commits by outcome", ["outcome"], registry=registry)
        self.open_transactions = Gauge(
            "trinitylake_open_transactions", "Open transactions in memory", registry=registry
        )
        self.open_transactions_size = Gauge(
            "trinitylake_open_transactions_bytes", "Upper bound of their memory", registry=registry
        )
        self.maintenance_runs = Counter(
            "trinitylake_maintenance_runs", "Scheduled maintenance by outcome", ["outcome"], registry=registry
        )
        self.maintenance_done = Gauge(
            "trinitylake_maintenance_done_timestamp_seconds", "End of the last successful run", registry=registry
        )
        self.maintenance_seconds = Gauge(
            "trinitylake_maintenance_seconds", "Duration of the last run", registry=registry
        )
        self.deleted_files = Counter(
            "trinitylake_maintenance_deleted_files", "Files that maintenance deleted", registry=registry
        )
        self.deleted_bytes = Counter("trinitylake_maintenance_deleted_bytes", "Their size", registry=registry)
        self.expired_versions = Counter(
            "trinitylake_maintenance_expired_versions", "Versions that maintenance expired", registry=registry
        )
        self.skipped_tables = Counter(
            "trinitylake_maintenance_skipped_tables",
            "Tables that a run skipped, by the kind of the reason",
            ["reason"],
            registry=registry,
        )
