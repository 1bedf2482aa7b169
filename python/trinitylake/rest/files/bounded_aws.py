"""Answers of Amazon's services that end in time, and are small.

botocore has a limit for the next bytes of an answer, and none for all of them: a service that sends a byte of it now
and then is waited for until the server ends, and an answer without end is read until the memory is full.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trinitylake.base.answers_in_time import in_time

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.session import Session

#: For the headers of an answer, and for all of its body.
HEADERS_SECONDS, ANSWER_SECONDS = 10.0, 10.0
#: Of an answer. One with credentials takes two kilobytes.
MAX_ANSWER_SIZE_BYTES = 1 << 20
_PART_SIZE_BYTES = 16 << 10


def bound(session: Session) -> None:
    """Give limits to whatever clients of a session ask, those by which it gets its own credentials among them.

    Beyond them they raise what botocore raises for an answer that does not come.
    """
    session.register("creating-client-class", _with_limits)


def _with_limits(base_classes: list[type], **_: Any) -> None:
    base_classes.insert(0, _Bounded)


class _Bounded:
    """Comes before botocore's `BaseClient`."""

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
                raise TimeoutError("it did not come in time")
    except BaseException:
        raw.close()  # so that nobody goes on with what is left of it
        raise
    raw.release_conn()
    return bytes(data)
