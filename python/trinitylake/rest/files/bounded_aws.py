"""Limits on the duration and size of responses of AWS services.

botocore limits the time to the next bytes of a response, but neither its whole duration nor its size.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trinitylake.base.header_timeouts import in_time

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.session import Session

#: Time for the headers of a response, and for its body.
HEADERS_SECONDS, ANSWER_SECONDS = 10.0, 10.0
#: Of a response. One with credentials has two kilobytes.
MAX_ANSWER_SIZE_BYTES = 1 << 20
_PART_SIZE_BYTES = 16 << 10


def bound(session: Session) -> None:
    """Limit the responses to all clients of a session, including those that fetch its own credentials.

    Above the limits they raise botocore's errors for a missing response.
    """
    session.register("creating-client-class", _with_limits)


def _with_limits(base_classes: list[type], **_: Any) -> None:
    base_classes.insert(0, _Bounded)


class _Bounded:
    """Mixin before botocore's `BaseClient`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _bound(self._endpoint.http_session)  # type: ignore[attr-defined]


def _bound(http_session: Any) -> None:
    from botocore.exceptions import HTTPClientError, ReadTimeoutError
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import ReadTimeoutError as Silence

    known = http_session._pool_classes_by_scheme  # noqa: SLF001 (botocore has no public way to its connections)
    pools = {
        scheme: type(pool.__name__, (pool,), {"ConnectionCls": in_time(pool.ConnectionCls, HEADERS_SECONDS)})
        for scheme, pool in known.items()
    }
    http_session._pool_classes_by_scheme = pools  # noqa: SLF001 (for those by way of a proxy)
    http_session._manager.pool_classes_by_scheme = pools  # noqa: SLF001
    send = http_session.send

    def bounded(request: AWSPreparedRequest) -> AWSResponse:
        request.stream_output = True
        response = send(request)
        try:
            response._content = _content(response.raw)  # noqa: SLF001 (where botocore keeps it)
        except (Silence, TimeoutError) as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except (HTTPError, OSError, ValueError) as error:
            raise HTTPClientError(request=request, response=response, error=error) from error
        return response

    http_session.send = bounded


def _content(raw: Any) -> bytes:
    deadline = time.monotonic() + ANSWER_SECONDS
    data = bytearray()
    try:
        while part := raw.read1(_PART_SIZE_BYTES):
            data += part
            if len(data) > MAX_ANSWER_SIZE_BYTES:
                raise ValueError(f"it is larger than {MAX_ANSWER_SIZE_BYTES >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError("the response takes too long")
    except BaseException:
        raw.close()  # so that the connection is not used again
        raise
    raw.release_conn()
    return bytes(data)
