"""The server: a socket, a thread or the foreground, and an end that finishes what has begun."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from trinitylake.errors import InvalidArgument, StorageError
from trinitylake.lakehouse import Lakehouse
from trinitylake.rest.access import Tokens, is_loopback, new_token
from trinitylake.rest.app import MAX_BODY_SIZE_BYTES, create_app
from trinitylake.rest.open_transactions import OpenTransactions

#: How long requests may go on after the server was told to stop.
GRACE_SECONDS = 30
_START_SECONDS = 10.0


class RestServer:
    """An Iceberg REST catalog over one lakehouse. Made by `serve`; listens as soon as it is made, answers once started.

    As a context manager it runs in a thread of its own until the block ends.
    """

    def __init__(
        self,
        lake: Lakehouse,
        host: str,
        port: int,
        tokens: Tokens | None,
        *,
        token: str = "",
        certificate_file: Path | None = None,
        key_file: Path | None = None,
        behind_proxy: bool = False,
        max_body_size_bytes: int = MAX_BODY_SIZE_BYTES,
        overrides_locations: bool = False,
    ) -> None:
        _check_access(host, tokens, certificate_file, key_file, behind_proxy)
        self._token = token
        self._app = create_app(
            lake, tokens, max_body_size_bytes=max_body_size_bytes, overrides_locations=overrides_locations
        )
        self._scheme = "http" if certificate_file is None else "https"
        self._host = host
        config = uvicorn.Config(
            self._app,
            ssl_certfile=certificate_file,
            ssl_keyfile=key_file,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"the certificate or its key cannot be used: {error}") from error
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            raise InvalidArgument(f"cannot listen on {host} port {port}: {error}") from error
        self._port = int(self._socket.getsockname()[1])

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def url(self) -> str:
        """What clients call `uri`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    @property
    def token(self) -> str:
        """The token that opens it, or "" if none is needed or only a file knows."""
        return self._token

    @property
    def transactions(self) -> OpenTransactions:
        """The open transactions; `add` one of this process to let clients work in it."""
        return self._app.service.transactions

    def start(self) -> Self:
        """Answer from a thread. Raises `StorageError` if the server does not come up."""
        self._thread = threading.Thread(target=self.run, name="trinitylake-rest", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise StorageError("the server did not start")
            time.sleep(0.002)
        return self

    def run(self) -> None:
        """Answer in this thread until `stop`, or a signal if it is the main thread."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Refuse new connections, finish the requests that run, save open transactions, and end."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(GRACE_SECONDS + _START_SECONDS)
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    lake: Lakehouse,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    *,
    without_token: bool = False,
    token_file: Path | None = None,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    behind_proxy: bool = False,
    max_body_size_bytes: int = MAX_BODY_SIZE_BYTES,
    overrides_locations: bool = False,
) -> RestServer:
    """A REST catalog server over a lakehouse, to be written in a `with` statement.

    Args:
        lake: what is served.
        host: the address to listen on.
        port: 0 for one that is free.
        token: that opens the server; a random one if not given.
        without_token: let every program on this machine in.
        token_file: the tokens instead of `token` (`Tokens.from_file`).
        certificate_file, key_file: for TLS, in PEM.
        behind_proxy: TLS ends in a proxy in front of the server.
        max_body_size_bytes: of a request.
        overrides_locations: where a client asks for a location outside of the lakehouse, choose one; else refuse it.

    Raises:
        InvalidArgument: for a bad token or certificate, a port that is taken, choices that contradict each other, and
            for an address that other machines reach without a chosen token, and TLS or `behind_proxy`.
    """
    if (token is not None) + (token_file is not None) + without_token > 1:
        raise InvalidArgument("choose a token, a token file, or no token, not several of them")
    if token is None and token_file is None and not is_loopback(host):
        raise InvalidArgument(f"{host} can be reached from other machines: choose a token")
    if token_file is not None:
        tokens: Tokens | None = Tokens.from_file(token_file)
    elif without_token:
        tokens = None
    else:
        token = new_token() if token is None else token
        tokens = Tokens([token])
    return RestServer(
        lake,
        host,
        port,
        tokens,
        token=token or "",
        certificate_file=certificate_file,
        key_file=key_file,
        behind_proxy=behind_proxy,
        max_body_size_bytes=max_body_size_bytes,
        overrides_locations=overrides_locations,
    )


def _check_access(
    host: str, tokens: Tokens | None, certificate_file: Path | None, key_file: Path | None, behind_proxy: bool
) -> None:
    if (certificate_file is None) != (key_file is None):
        raise InvalidArgument("TLS needs a certificate and its key, both")
    if is_loopback(host):
        return
    if tokens is None:
        raise InvalidArgument(f"{host} can be reached from other machines: a token is needed")
    if certificate_file is None and not behind_proxy:
        raise InvalidArgument(
            f"{host} can be reached from other machines: give a certificate and its key, or put a proxy that ends TLS "
            "in front of it and say so"
        )
