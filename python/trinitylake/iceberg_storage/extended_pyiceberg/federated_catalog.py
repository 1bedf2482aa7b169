"""REST catalog client that sends requests only to the configured address.

PyIceberg's client takes the address from the response of `/v1/config`, follows redirects, and loads the classes that a
response names. So the other catalog could choose where tokens are sent and which code runs in this process. PyIceberg
also waits without a deadline. The REST server loads federated tables in worker processes, with limits on time and
memory.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import PreparedRequest, Response, Session
from requests.exceptions import RequestException, Timeout

from trinitylake.errors import PermissionDenied, StorageError

#: Time limits: for a connection, and for the next bytes of a response.
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 30.0

#: Properties that the other catalog may not set: code, addresses, credentials.
_CODE = ("py-io-impl", "py-catalog-impl", "write.py-location-provider.impl")
_OURS = (*_CODE, "auth", "credential", "token", "oauth2-server-uri", "ssl")
_OURS_BELOW = ("auth.", "header.", "rest.sigv4", "rest.signing")


class FederatedRestCatalog(RestCatalog):
    """REST catalog of a federated table, which sends credentials to the configured address only.

    Raises `PermissionDenied` if the catalog returns another address, and `StorageError` if it does not answer or its
    response cannot be read.
    """

    def _create_session(self) -> Session:
        session = super()._create_session()
        send = session.send

        def bounded(request: PreparedRequest, **options: Any) -> Response:
            try:
                return send(request, **{**options, "timeout": (CONNECT_SECONDS, SILENCE_SECONDS)})
            except RequestException as error:
                # A timeout within a body is a `ConnectionError`.
                if isinstance(error, Timeout) or "timed out" in str(error):
                    raise StorageError(f"the catalog at {self.uri} does not answer in time", retryable=True) from error
                raise StorageError(f"the response of the catalog at {self.uri} cannot be read: {error}") from error

        session.send = bounded  # type: ignore[method-assign]
        session.get_redirect_target = self._refuse_redirect  # type: ignore[assignment, method-assign]
        return session

    def _fetch_config(self) -> None:
        given, uri = dict(self.properties), self.uri
        super()._fetch_config()
        if self.uri.rstrip("/") != uri.rstrip("/"):
            raise PermissionDenied(
                f"the catalog at {uri} returned another address, {self.uri}: configure that one if it is right"
            )
        received = {name: value for name, value in self.properties.items() if not _is_ours(name)}
        self.properties = {**received, **{name: value for name, value in given.items() if _is_ours(name)}}

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return super()._load_file_io({name: value for name, value in properties.items() if name not in _CODE}, location)

    def _refuse_redirect(self, response: Response) -> str | None:
        if (target := Session.get_redirect_target(Session(), response)) is not None:
            raise PermissionDenied(f"the catalog at {self.uri} redirects to {target}, and redirects are not followed")
        return None


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_BELOW)
