"""HTTP connections that wait for the headers of an answer only so long, however they come.

A time limit of a socket is one for the next bytes. Whoever sends a byte of a header in each of its seconds keeps a
client waiting for days; so the connection is cut off when the headers are not there in time.
"""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, ClassVar

import urllib3.connection
import urllib3.connectionpool

if TYPE_CHECKING:
    import requests

#: For all headers of an answer, those of a proxy on the way among them.
HEADERS_SECONDS = 60.0


class _InTime(HTTPConnection):
    """Raises `TimeoutError` from `getresponse` if the headers are not there in time."""

    headers_seconds: ClassVar[float | None] = None

    def getresponse(self) -> Any:
        cut = threading.Event()
        timer = threading.Timer(self.headers_seconds or HEADERS_SECONDS, _cut_off, (self.sock, cut))
        timer.daemon = True
        timer.start()
        try:
            answer: HTTPResponse = super().getresponse()
        except Exception as error:
            if cut.is_set():
                raise TimeoutError("the headers of the answer did not come in time") from error
            raise
        finally:
            timer.cancel()
        if cut.is_set():  # what there was of them counts as all of them, once the connection is cut off
            raise TimeoutError("the headers of the answer did not come in time")
        return answer


def _cut_off(connection: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with suppress(OSError):  # without the farewell of TLS, for which the other side would be waited
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def in_time(connection: type[HTTPConnection], seconds: float) -> type[HTTPConnection]:
    """The same kind of connection, which raises `TimeoutError` where the headers of an answer are not there by then."""
    return type(connection.__name__, (_InTime, connection), {"headers_seconds": seconds})


class _Plain(_InTime, urllib3.connection.HTTPConnection):
    pass


class _Tls(_InTime, urllib3.connection.HTTPSConnection):
    pass


class _PlainPool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Plain


class _TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _Tls


_POOLS = {"http": _PlainPool, "https": _TlsPool}


def wait_in_time(session: requests.Session) -> None:
    """Let a session that has sent nothing yet wait `HEADERS_SECONDS` for the headers of each answer.

    Its requests raise `requests.exceptions.ReadTimeout` after that.
    """
    from requests.adapters import HTTPAdapter

    for adapter in session.adapters.values():
        if isinstance(adapter, HTTPAdapter):
            adapter.poolmanager.pool_classes_by_scheme = _POOLS
            adapter.proxy_manager_for = _by_proxy(adapter.proxy_manager_for)  # type: ignore[method-assign]


def _by_proxy(manager_for: Any) -> Any:
    def manager(*arguments: Any, **options: Any) -> Any:
        found = manager_for(*arguments, **options)
        found.pool_classes_by_scheme = _POOLS
        return found

    return manager


def tls_handler(seconds: float) -> urllib.request.HTTPSHandler:
    """For `urllib.request.build_opener`: requests over TLS that wait so long for the headers of an answer.

    They raise `TimeoutError` after that.
    """

    class Connection(_InTime, HTTPSConnection):
        headers_seconds = seconds

    class Handler(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            return super().do_open(Connection, req, **options)

    return Handler()
