"""The server of a connection's catalogs: in this process, or in another process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidArgument,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    TransactionClosed,
    TransactionExpired,
    TrinityLakeError,
    VersionNotFound,
)

if TYPE_CHECKING:
    from datetime import datetime

    from trinitylake.lakehouse.checks import Check
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.transaction import Transaction

#: Timeout of a request to a server in another process, except a commit.
ANSWER_SECONDS = 60.0
#: Timeout of a commit, which the server may repeat for 120 seconds.
COMMIT_SECONDS = 300.0


class LocalServer:
    """A server in this process, on the loopback interface, with a random port and a random token.

    The server sends `client_properties` to the clients that open a catalog.
    """

    def __init__(self, lake: Lakehouse, client_properties: Mapping[str, str]) -> None:
        from trinitylake.rest import THIS_PROGRAM, ServerOptions, serve

        self._lake = lake
        self._principal = THIS_PROGRAM
        options = ServerOptions(client_properties=dict(client_properties))
        self.token = secrets.token_urlsafe(32)
        # "spark" is the name of the token, which becomes the author in the log.
        self._server = serve(lake, token=f"{self.token} spark", options=options)

    @property
    def url(self) -> str:
        """The URL of the server, for the property `uri` of clients."""
        return self._server.url

    def start(self) -> None:
        """Start the server, or check that it answers."""
        self._server.start()

    def stop(self) -> None:
        """Stop the server if `start` started it."""
        self._server.stop()

    def version_at(self, version: int | None, timestamp: datetime | None) -> int:
        """The number of the version that was the latest at a time; a given version number, if this version exists.

        Raises `VersionNotFound` and `VersionExpired`.
        """
        return self._lake.at(version if timestamp is None else timestamp).version

    def begin(self, **given: Any) -> str:
        """Begin a transaction with the arguments of `Lakehouse.begin`; returns its id."""
        return self._server.transactions.begin(**given).id

    def require_open(self, id: str) -> None:
        """Raise `ObjectNotFound`, `TransactionClosed` or `TransactionExpired` if the transaction is not open."""
        with self._server.transactions.borrowed(id, self._principal):
            pass

    def add_check(self, id: str, check: str | Check[Transaction]) -> None:
        """Add a condition that must hold at the commit."""
        with self._server.transactions.borrowed(id, self._principal) as transaction:
            transaction.add_check(check)

    def commit(self, id: str) -> int:
        """Commit a transaction; returns the version."""
        return self._server.transactions.commit(id, self._principal)

    def rollback(self, id: str) -> None:
        self._server.transactions.rollback(id, self._principal)

    def hand_over(self, id: str) -> None:
        """Save the transaction, so that another process can resume it."""
        with self._server.transactions.borrowed(id, self._principal) as transaction:
            transaction.save()
        self._server.transactions.memory.forget(id)

    def latest_commits(self) -> list[int]:
        """The latest versions that clients committed outside of transactions, as far as known, oldest first."""
        return self._server.latest_commits


class RemoteServer:
    """A server in another process, which gets requests over HTTP. Its methods do the same as `LocalServer`'s."""

    def __init__(self, url: str, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"the address of a server begins with http:// or https://, not {url!r}")
        self.url = url.rstrip("/")
        self.token = token

    def __repr__(self) -> str:
        return f"RemoteServer({self.url!r})"

    def start(self) -> None:
        self._ask("GET", "/v1/config?warehouse=%40latest")

    def stop(self) -> None:
        """Nothing to do: other clients use the server."""

    def version_at(self, version: int | None, timestamp: datetime | None) -> int:
        warehouse = f"@version/{version}" if timestamp is None else f"@timestamp/{timestamp.isoformat()}"
        try:
            answer = self._ask("GET", f"/v1/config?warehouse={quote(warehouse, safe='')}")
        except ObjectNotFound as error:
            raise VersionNotFound(str(error)) from error
        return int(str(answer["overrides"]["prefix"]).rpartition("~")[2])

    def begin(self, **given: Any) -> str:
        body = {name: value for name, value in given.items() if value not in (None, False)}
        return str(self._ask("POST", "/trinitylake/v1/transactions", body)["id"])

    def require_open(self, id: str) -> None:
        self._ask("GET", self._path(id))

    def add_check(self, id: str, check: str | Check[Transaction]) -> None:
        raise InvalidArgument("checks cannot be sent to a server over HTTP: query the conditions before the commit")

    def commit(self, id: str) -> int:
        return int(self._ask("POST", f"{self._path(id)}/commit", commits=True)["version"])

    def rollback(self, id: str) -> None:
        self._ask("POST", f"{self._path(id)}/rollback")

    def hand_over(self, id: str) -> None:
        self.require_open(id)

    def latest_commits(self) -> list[int]:
        return []

    def _path(self, id: str) -> str:
        return f"/trinitylake/v1/transactions/{quote(id, safe='')}"

    def _ask(self, method: str, path: str, body: Any = None, commits: bool = False) -> dict[str, Any]:
        import requests

        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        seconds = COMMIT_SECONDS if commits else ANSWER_SECONDS
        try:
            answer = requests.request(method, self.url + path, json=body, headers=headers, timeout=(10.0, seconds))
        except requests.ConnectTimeout as error:
            raise StorageError(f"the server {self.url} cannot be reached: {error}") from error
        except requests.RequestException as error:
            if commits:  # the server may have committed
                raise CommitStateUnknown(f"the server {self.url} did not answer to a commit: {error}") from error
            raise StorageError(f"the server {self.url} does not answer: {error}") from error
        if answer.ok:
            return dict(answer.json()) if answer.content else {}
        raise _error_of(answer.status_code, answer.text, answer.headers.get("content-type", ""), commits)


CatalogServer: TypeAlias = LocalServer | RemoteServer


def _error_of(code: int, text: str, content_type: str, commits: bool) -> TrinityLakeError:
    """Convert the error in a server's answer to the error that the same call would raise in this process."""
    message, kind = text[:500], ""
    if "json" in content_type:
        answer = json.loads(text)
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            message, kind = str(error.get("message", message)), str(error.get("type", ""))
    if code in (401, 403):
        return PermissionDenied(message)
    if kind == "CommitStateUnknownException" or (commits and code >= 500):
        return CommitStateUnknown(message)
    if kind == "TransactionExpiredException":
        return TransactionExpired(message)
    by_code: dict[int, type[TrinityLakeError]] = {
        400: InvalidArgument,
        404: ObjectNotFound,
        409: CommitConflict,
        410: TransactionClosed,
    }
    return by_code.get(code, StorageError)(message)
