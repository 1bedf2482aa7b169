"""HTTP connections with a time limit for the headers of a response.

The timeout of a socket applies to each read, so a server that sends a byte of a header every second could block a
client for days. Here the connection is shut down if the headers are not complete in time.
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

#: For all headers of a response, including those of a proxy.
HEADERS_SECONDS = 60.0


class _InTime(HTTPConnection):
    """`getresponse` raises `TimeoutError` if the headers are not complete in time."""

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
                raise TimeoutError("the headers of the response did not arrive in time") from error
            raise
        finally:
            timer.cancel()
        if cut.is_set():  # after the shutdown, incomplete headers look complete
            raise TimeoutError("the headers of the response did not arrive in time")
        return answer


def _cut_off(connection: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with suppress(OSError):  # not a TLS shutdown, which would wait for the other side
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def in_time(connection: type[HTTPConnection], seconds: float) -> type[HTTPConnection]:
    """A subclass of a connection class with this limit for headers; it raises `TimeoutError`."""
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
    """Limit the headers of each response to `HEADERS_SECONDS`, in a session that has sent no request yet.

    Requests raise `requests.exceptions.ReadTimeout`.
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
    """TLS handler with this limit for headers, for `urllib.request.build_opener`; requests raise `TimeoutError`."""

    class Connection(_InTime, HTTPSConnection):
        headers_seconds = seconds

    class Handler(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            return super().do_open(Connection, req, **options)

    return Handler()
