"""Which endpoint answers a request: the first one, in the order of the table, whose path and method fit.

Paths are matched as they were sent, with their escapes, so that a name with `/` in it stays one segment. There are some
seventy endpoints; those of another method or of another number of segments are left out before any is tried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trinitylake.rest.errors import RestError
from trinitylake.rest.http.routes import Endpoint
from trinitylake.rest.remembered import Remembered


class Router:
    """The endpoints of one server.

    Attributes:
        routes: each endpoint, and the methods that it answers.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.routes = [(one, _methods(one)) for one in endpoints]
        self._paths: dict[int, list[tuple[re.Pattern[str], tuple[str, ...]]]] = {}
        self._candidates: dict[tuple[str, int], list[tuple[re.Pattern[str], Endpoint]]] = {}
        for endpoint, methods in self.routes:
            pattern, n_segments = _pattern(endpoint.path), endpoint.path.count("/")
            self._paths.setdefault(n_segments, []).append((pattern, methods))
            for method in methods:
                self._candidates.setdefault((method, n_segments), []).append((pattern, endpoint))
        self._match = Remembered(self._matched)

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint, and the names in the path, with their escapes.

        Raises `RestError` 404 for a path that nothing answers, 405 for one that answers other methods only, which are
        told (RFC 9110 §15.5.6).
        """
        if found := self._match(method, path):
            endpoint, names = found
            return endpoint, names.copy()
        fitting = [methods for pattern, methods in self._paths.get(path.count("/"), ()) if pattern.fullmatch(path)]
        if fitting:
            allowed = ", ".join(sorted({method for methods in fitting for method in methods}))
            raise RestError(
                405, "UnsupportedOperationException", "this path has no such method", headers={"Allow": allowed}
            )
        raise RestError(404, "NotFoundException", "there is no such path")

    def _matched(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        for pattern, endpoint in self._candidates.get((method, path.count("/")), ()):
            if found := pattern.fullmatch(path):
                return endpoint, found.groupdict()
        return None


def _methods(endpoint: Endpoint) -> tuple[str, ...]:
    """What answers GET answers HEAD, too: of its answer the server sends the headers alone."""
    return (endpoint.method, "HEAD") if endpoint.method == "GET" else (endpoint.method,)


def _pattern(path: str) -> re.Pattern[str]:
    segments = (
        f"(?P<{segment[1:-1]}>[^/]+)" if segment.startswith("{") else re.escape(segment) for segment in path.split("/")
    )
    return re.compile("/".join(segments))
