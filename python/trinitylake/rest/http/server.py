"""The server process: it listens, answers from a thread or in the foreground, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trinitylake.errors import InvalidArgument, StorageError
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.rest import limits
from trinitylake.rest.http.app import App
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.guard import Bearers, is_loopback
from trinitylake.rest.security.tokens import Tokens
from trinitylake.rest.transactions.open_transactions import OpenTransactions

if TYPE_CHECKING:
    from trinitylake.rest.security.jwt_bearer import JwtSettings

_START_SECONDS = 10.0
#: How often the thread that ends the process checks for a request to stop.
_POLL_SECONDS = 0.5

logger = logging.getLogger("trinitylake.rest")


class _Protocol(H11Protocol):
    """Uvicorn's protocol, which closes a connection that sends nothing. Uvicorn's own timer starts after a response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(limits.SILENT_SECONDS, self.timeout_keep_alive_handler)


class _Server(uvicorn.Server):
    """Uvicorn's server, with time limits for TLS handshakes, which uvicorn has no options for."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self.config.is_ssl:
            limited = partial(
                loop.create_server,
                ssl_handshake_timeout=limits.SILENT_SECONDS,
                ssl_shutdown_timeout=limits.TLS_CLOSE_SECONDS,
            )
            loop.create_server = limited  # type: ignore[method-assign]
        await super().startup(sockets)


class RestServer:
    """An Iceberg REST catalog over one lakehouse. Made by `serve`; listens as soon as it is made, answers once started.

    As a context manager it runs in a thread of its own until the block ends, and gives its URL to the block.
    """

    def __init__(
        self,
        lake: Lakehouse,
        host: str,
        port: int,
        bearers: tuple[Bearers, ...],
        *,
        token: str = "",
        certificate_file: Path | None = None,
        key_file: Path | None = None,
        behind_proxy: bool = False,
        options: ServerOptions | None = None,
    ) -> None:
        _check_access(host, bearers, certificate_file, key_file, behind_proxy)
        options = options or ServerOptions()
        if options.client_properties and not (bearers and is_loopback(host)):
            raise InvalidArgument("properties of clients can be credentials: they need loopback, and a token")
        self._token = token
        self._app = App(lake, bearers, options)
        self._scheme = "http" if certificate_file is None else "https"
        self._host = host
        config = uvicorn.Config(
            self._app,
            http=_Protocol,
            h11_max_incomplete_event_size=limits.MAX_HEADERS_SIZE_BYTES,
            ssl_certfile=certificate_file,
            ssl_keyfile=key_file,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            limit_concurrency=options.max_connections,
            timeout_keep_alive=limits.KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=limits.GRACE_SECONDS,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"the certificate or its key cannot be used: {error}") from error
        self._server = _Server(config)
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
        """The token that opens it, or "" if none is needed or others know."""
        return self._token

    @property
    def transactions(self) -> OpenTransactions:
        """The open transactions; `add` one of this process to let clients work in it."""
        return self._app.service.transactions

    @property
    def latest_commits(self) -> list[int]:
        """The newest versions that requests committed outside of open transactions, at most 1,000; oldest first."""
        return sorted(set(self._app.service.latest_commits))

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

    def run_process(self) -> None:
        """Answer in the main thread of a process that is there for nothing else, until a signal.

        The process ends then, also where a request goes on that nobody can end, after the time that requests have and
        the time for saving open transactions.
        """
        _allow_open_files()
        threading.Thread(target=self._end_process, name="trinitylake-end", daemon=True).start()
        self.run()

    def _end_process(self) -> None:
        while not self._server.should_exit:
            time.sleep(_POLL_SECONDS)
        time.sleep(limits.GRACE_SECONDS + limits.SAVING_SECONDS)
        logger.error("requests go on that nobody can end: the process ends without them")
        os._exit(1)

    def stop(self) -> None:
        """Refuse new connections, finish the requests that run, save open transactions, and end."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(limits.GRACE_SECONDS + _START_SECONDS)
        self._socket.close()

    def __enter__(self) -> str:
        return self.start().url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    lake: Lakehouse,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: str | None = None,
    token_file: Path | None = None,
    jwt: JwtSettings | None = None,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    behind_proxy: bool = False,
    options: ServerOptions | None = None,
) -> RestServer:
    """A REST catalog server over a lakehouse, to be written in a `with` statement, which gives its URL.

    Without a token every program on this machine gets in, and nobody else.

    Args:
        lake: what is served.
        host: the address to listen on.
        port: 0 for one that is free.
        token: that opens the server.
        token_file: tokens with the roles of each (`Tokens.from_file`).
        jwt: which JSON Web Tokens open it, too.
        certificate_file: for TLS, in PEM.
        key_file: its private key, in PEM.
        behind_proxy: TLS ends in a proxy in front of the server.
        options: limits and choices.

    Raises:
        InvalidArgument: for a bad token or certificate, a port that is taken, choices that contradict each other, and
            for an address that other machines reach without tokens, and TLS or `behind_proxy`.
    """
    if token is not None and token_file is not None:
        raise InvalidArgument("choose a token or a token file, not both")
    bearers: list[Bearers] = []
    names: frozenset[str] = frozenset()
    if token_file is not None or token is not None:
        tokens = Tokens.from_file(token_file) if token_file is not None else Tokens([token or ""], grants=["admin:*"])
        bearers.append(tokens)
        names = tokens.names
    if jwt is not None:
        bearers.append(_jwt_bearers(jwt, names))
    return RestServer(
        lake,
        host,
        port,
        tuple(bearers),
        token=token or "",
        certificate_file=certificate_file,
        key_file=key_file,
        behind_proxy=behind_proxy,
        options=options,
    )


def _allow_open_files() -> None:
    """Allow this process as many open files as the system permits, so that idle connections do not use them up."""
    if os.name == "posix":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _jwt_bearers(settings: JwtSettings, names_of_others: Collection[str]) -> Bearers:
    from trinitylake.rest.security.jwt_bearer import JwtBearers  # loads a library for cryptography

    return JwtBearers(settings, names_of_others)


def _check_access(
    host: str, bearers: tuple[Bearers, ...], certificate_file: Path | None, key_file: Path | None, behind_proxy: bool
) -> None:
    if (certificate_file is None) != (key_file is None):
        raise InvalidArgument("TLS needs a certificate and its key, both")
    if is_loopback(host):
        return
    if not bearers:
        raise InvalidArgument(f"{host} can be reached from other machines: a token is needed")
    if certificate_file is None and not behind_proxy:
        raise InvalidArgument(
            f"{host} can be reached from other machines: give a certificate and its key, or put a proxy that ends TLS "
            "in front of it and say so"
        )
