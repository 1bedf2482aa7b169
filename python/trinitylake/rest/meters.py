"""What a server counts, for Prometheus."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


#: Of a request that changes something.
Outcome: TypeAlias = Literal["committed", "staged", "conflict", "failed", "refused"]


class Meters:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        names = ["method", "route", "code"]
        self._requests = Counter("trinitylake_requests", "Requests", names, registry=self._registry)
        self._seconds = Histogram(
            "trinitylake_request_seconds", "Duration", ["method", "route"], buckets=_SECONDS, registry=self._registry
        )
        self._by_labels: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.running = 0
        running = Gauge("trinitylake_requests_running", "Requests that are answered", registry=self._registry)
        running.set_function(lambda: self.running)
        commits = Counter("trinitylake_commits", "Commits by outcome", ["outcome"], registry=self._registry)
        self._commits = {outcome: commits.labels(outcome) for outcome in get_args(Outcome)}
        self.open_transactions = Gauge(
            "trinitylake_open_transactions", "Transactions that are open here", registry=self._registry
        )
        self.open_transactions_size = Gauge(
            "trinitylake_open_transactions_bytes", "Memory that they take, at most", registry=self._registry
        )

        self._upkeep = Counter(
            "trinitylake_upkeep_runs", "Scheduled runs of upkeep by outcome", ["outcome"], registry=self._registry
        )
        self._upkeep_done = Gauge(
            "trinitylake_upkeep_done_timestamp_seconds", "When the last run went through", registry=self._registry
        )
        self._upkeep_seconds = Gauge(
            "trinitylake_upkeep_seconds", "How long the last run took", registry=self._registry
        )
        self._freed = {
            what: Counter(f"trinitylake_upkeep_{what}", text, registry=self._registry)
            for what, text in (
                ("deleted_files", "Files that scheduled upkeep deleted"),
                ("deleted_bytes", "Their size"),
                ("expired_versions", "Versions that it let expire"),
            )
        }

        self._skipped = Counter(
            "trinitylake_upkeep_skipped_tables",
            "Tables that scheduled upkeep left alone in a run, by the kind of the reason",
            ["reason"],
            registry=self._registry,
        )

    def count_commit(self, outcome: Outcome) -> None:
        """Count a request that was to change something."""
        self._commits[outcome].inc()

    def count_skipped(self, reason: str) -> None:
        """Count a table that a run of upkeep left alone."""
        self._skipped.labels(reason).inc()

    def count_upkeep(self, outcome: Literal["done", "failed", "stopped"], seconds: float) -> None:
        """Count a run of upkeep."""
        self._upkeep.labels(outcome).inc()
        self._upkeep_seconds.set(seconds)
        if outcome == "done":
            self._upkeep_done.set_to_current_time()

    def count_freed(self, files: int, size_bytes: int, versions: int) -> None:
        """Count what a run of upkeep let go."""
        self._freed["deleted_files"].inc(files)
        self._freed["deleted_bytes"].inc(size_bytes)
        self._freed["expired_versions"].inc(versions)

    def count(self, method: str, route: str, code: int, seconds: float) -> None:
        """Count a request."""
        labels = (method, route, code)
        found = self._by_labels.get(labels)
        if found is None:
            found = self._requests.labels(method, route, str(code)), self._seconds.labels(method, route)
            self._by_labels[labels] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """All of them, in the format that Prometheus reads."""
        return generate_latest(self._registry)
