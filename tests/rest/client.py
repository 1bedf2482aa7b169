"""Clients of a server: PyIceberg, and plain HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from trinitylake.rest import RestServer, serve
from waiting import PATIENCE_SECONDS, wait_until

TOKEN = "a-token-that-is-long-enough"


@contextmanager
def running(lake: tl.Lakehouse, *args: Any, **options: Any) -> Iterator[RestServer]:
    """A server, for the length of a block."""
    server = serve(lake, *args, **options)
    with server:
        yield server


class Answer(NamedTuple):
    """Response of a server to a plain HTTP client."""

    code: int
    body: Any
    headers: dict[str, str]

    @property
    def error(self) -> str:
        """The type of the error."""
        assert self.body["error"]["code"] == self.code
        return str(self.body["error"]["type"])

    @property
    def bad_request(self) -> str:
        """The message of a response 400."""
        assert (self.code, self.error) == (400, "BadRequestException"), self
        return str(self.body["error"]["message"])


def in_the_end(ask: Callable[[], Answer]) -> Answer:
    """Repeat a request until it is neither 503 nor 504. Returns the last response."""
    answers: list[Answer] = []
    wait_until(lambda: answers.append(ask()) or answers[-1].code not in (503, 504))
    return answers[-1]


class Client:
    """A plain HTTP client. It uses no library that changes a path, so a test controls every byte of the path."""

    def __init__(self, server: RestServer) -> None:
        self._server = server

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        token: str | None = None,
    ) -> Answer:
        token = self._server.token if token is None else token
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        return Answer(response.status, json.loads(text) if text else None, found)

    def table(self, path: str) -> dict[str, Any]:
        """Return the metadata of a table. Fails if the table does not exist."""
        answer = self("GET", path)
        assert answer.code == 200, answer
        metadata: dict[str, Any] = answer.body["metadata"]
        return metadata


def connect(server: RestServer, warehouse: str | None = None) -> RestCatalog:
    """Open PyIceberg's REST catalog for a warehouse."""
    chosen = {} if warehouse is None else {"warehouse": warehouse}
    if server.token:
        chosen["token"] = server.token
    return RestCatalog("test", uri=server.url, **chosen)
