"""Reports that engines send after a scan or a commit: the newest are kept, in memory."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

from trinitylake.rest.security.principals import Name

#: They are kept as bytes, which take no more memory than they say.
MAX_REPORTS = 1000
MAX_REPORTS_SIZE_BYTES = 8 << 20


class MetricsReports:
    """The newest reports. Safe to share between threads."""

    def __init__(self) -> None:
        self._reports: deque[tuple[Name, bytes]] = deque()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, table: Name, report: dict[str, Any]) -> None:
        """Keep a report about a table, and forget the oldest if there are too many."""
        data = json.dumps({"table": table, "report": report}, separators=(",", ":")).encode()
        with self._lock:
            self._reports.append((table, data))
            self._size_bytes += len(data)
            while len(self._reports) > MAX_REPORTS or self._size_bytes > MAX_REPORTS_SIZE_BYTES:
                self._size_bytes -= len(self._reports.popleft()[1])

    def list(self) -> list[tuple[Name, bytes]]:
        """The tables and the JSON of the reports, oldest first."""
        with self._lock:
            return list(self._reports)
