"""What a server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


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
        self.commits = Counter("trinitylake_commits", "Commits by outcome", ["outcome"], registry=self._registry)
        self.open_transactions = Gauge(
            "trinitylake_open_transactions", "Transactions that are open here", registry=self._registry
        )
        self.open_transactions_size = Gauge(
            "trinitylake_open_transactions_bytes", "Memory that they take, at most", registry=self._registry
        )

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
