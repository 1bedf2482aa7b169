"""REST catalog client that sends requests only to the configured address.

PyIceberg takes the address from the response of `/v1/config`, follows redirects, and loads the classes that a response
names. The other catalog could so choose where tokens are sent and which code runs here. PyIceberg also waits without a
deadline, and reads responses of any size.
"""

from __future__ import annotations

import time
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import PreparedRequest, Response, Session
from requests.exceptions import ConnectTimeout, ReadTimeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from trinitylake.base.header_timeouts import wait_in_time
from trinitylake.base.parsed_size import parsed_size_bytes
from trinitylake.errors import PermissionDenied, StorageError

#: For a connection, for the next bytes of an answer, and for all of its body (headers: `header_timeouts`).
CONNECT_SECONDS, SILENCE_SECONDS, ANSWER_SECONDS = 10.0, 30.0, 120.0
#: Of an answer, decompressed, and once it is parsed.
MAX_ANSWER_SIZE_BYTES, MAX_PARSED_SIZE_BYTES = 64 << 20, 512 << 20
_PART_SIZE_BYTES = 16 << 10

#: Properties that the other catalog may not set: code, addresses, credentials.
_CODE = ("py-io-impl", "py-catalog-impl", "write.py-location-provider.impl")
_OURS = (*_CODE, "auth", "credential", "token", "oauth2-server-uri", "ssl")
_OURS_BELOW = ("auth.", "header.", "rest.sigv4", "rest.signing")


class FederatedRestCatalog(RestCatalog):
    """Raises `PermissionDenied` for a catalog that names another address, and `StorageError` for a response that
    exceeds a limit of time or size."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        wait_in_time(session)
        send = session.send

        def bounded(request: PreparedRequest, **options: Any) -> Response:
            try:
                response = send(request, **{**options, "stream": True, "timeout": (CONNECT_SECONDS, SILENCE_SECONDS)})
                return self._read(response)
            except (ConnectTimeout, ReadTimeout, ReadTimeoutError, TimeoutError) as error:
                raise StorageError(f"the catalog at {self.uri} does not answer in time", retryable=True) from error
            except HTTPError as error:
                raise StorageError(f"the answer of the catalog at {self.uri} cannot be read: {error}") from error

        session.send = bounded  # type: ignore[method-assign]
        session.get_redirect_target = self._refuse_redirect  # type: ignore[assignment, method-assign]
        return session

    def _read(self, response: Response) -> Response:
        """The response with its body. Raises `StorageError` for a response that is too large, and `TimeoutError`."""
        deadline = time.monotonic() + ANSWER_SECONDS
        data = bytearray()
        with response:
            while part := response.raw.read1(_PART_SIZE_BYTES, decode_content=True):
                data += part
                if len(data) > MAX_ANSWER_SIZE_BYTES:
                    raise StorageError(f"the catalog at {self.uri} answers more than {MAX_ANSWER_SIZE_BYTES >> 20} MiB")
                if time.monotonic() > deadline:
                    raise TimeoutError
        if parsed_size_bytes(data) > MAX_PARSED_SIZE_BYTES:
            raise StorageError(f"the response of the catalog at {self.uri} exceeds the limit of values")
        response._content = bytes(data)
        response._content_consumed = True
        return response

    def _fetch_config(self) -> None:
        given, uri = dict(self.properties), self.uri
        super()._fetch_config()
        if self.uri.rstrip("/") != uri.rstrip("/"):
            raise PermissionDenied(f"the catalog at {uri} says that it is at {self.uri}: configure that address, if so")
        received = {name: value for name, value in self.properties.items() if not _is_ours(name)}
        self.properties = {**received, **{name: value for name, value in given.items() if _is_ours(name)}}

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return super()._load_file_io({name: value for name, value in properties.items() if name not in _CODE}, location)

    def _refuse_redirect(self, response: Response) -> str | None:
        if (target := Session.get_redirect_target(Session(), response)) is not None:
            raise PermissionDenied(f"the catalog at {self.uri} leads to {target}: redirects are not followed")
        return None


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(_OURS_BELOW)
