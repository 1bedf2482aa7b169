"""The server: listens, runs in a thread or in the foreground, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trinitylake.errors import InvalidArgument, StorageError
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.rest import limits
from trinitylake.rest.http.app import App, not_http
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.guard import Bearers, is_loopback
from trinitylake.rest.security.tokens import Tokens
from trinitylake.rest.transactions.open_transactions import OpenTransactions

if TYPE_CHECKING:
    from trinitylake.rest.security.jwt_bearer import JwtSettings

_START_SECONDS = 60.0
#: How often the thread that ends the process checks for a shutdown.
_POLL_SECONDS = 0.5

#: Pause after a connection could not be accepted because the process has no free file descriptors.
_ACCEPT_RETRY_SECONDS = 0.2

logger = logging.getLogger("trinitylake.rest")


class _Connections:
    """Accepts connections, and limits silent ones: above the limit, a new connection closes the oldest silent one.

    A connection is silent from its acceptance until the first request head is complete. This includes a TLS handshake,
    during which uvicorn does not know the connection yet. Without this limit, clients that send nothing would use up
    the file descriptors of the process. The class has the methods of an `asyncio.Server` that uvicorn calls.
    """

    def __init__(self, factory: Callable[[], _Protocol], listening: socket.socket, config: _Config) -> None:
        self._factory = factory
        self._listening = listening
        self._limits: dict[str, Any] = {}
        if config.is_ssl:
            self._limits = {
                "ssl": config.ssl,
                "ssl_handshake_timeout": limits.SILENT_SECONDS,
                "ssl_shutdown_timeout": limits.TLS_CLOSE_SECONDS,
            }
        self._max_silent = config.max_silent
        self._silent: dict[_Protocol, socket.socket] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    def heard(self, protocol: _Protocol) -> None:
        """The connection has sent the head of a request, or is closed."""
        self._silent.pop(protocol, None)

    def close(self) -> None:
        """Accept no more connections."""
        self._accepting.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Wait until no more connections are accepted."""
        await asyncio.wait([self._accepting])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                logger.warning("no connection can be accepted: %s", error)
                self._end_oldest()
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            protocol = self._factory()
            self._silent[protocol] = connection
            if len(self._silent) > self._max_silent:
                self._end_oldest()
            handshake = asyncio.create_task(self._connect(connection, protocol))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _end_oldest(self) -> None:
        """Close the connection that has been silent for the longest time, through the event loop."""
        if self._silent:
            with suppress(OSError):
                self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RDWR)

    async def _connect(self, connection: socket.socket, protocol: _Protocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, **self._limits)
        except (OSError, TimeoutError):  # the handshake failed
            self.heard(protocol)
            connection.close()


class _Config(uvicorn.Config):
    """Uvicorn's configuration, with the limit of silent connections."""

    max_silent: int
    connections: _Connections


class _Protocol(H11Protocol):
    """Uvicorn's protocol with a time limit for request heads, and the error model for bytes that are not HTTP.

    Uvicorn's own timer starts after a response and ends with the first byte of the next request.
    """

    config: _Config
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._has_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that violates HTTP, after which uvicorn's parser cannot find the next request."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = not_http()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=response.status_code, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.SILENT_SECONDS, self.timeout_keep_alive_handler)

    def _has_head(self) -> None:
        self.config.connections.heard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Server(uvicorn.Server):
    """Uvicorn's server, whose connections are accepted by `_Connections`."""

    config: _Config

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        async def create_server(factory: Callable[[], _Protocol], *, sock: socket.socket, **_: Any) -> _Connections:
            sock.setblocking(False)
            self.config.connections = _Connections(factory, sock, self.config)
            return self.config.connections

        asyncio.get_running_loop().create_server = create_server  # type: ignore[method-assign,assignment]
        await super().startup(sockets)


class RestServer:
    """Iceberg REST catalog server over one lakehouse, as `serve` creates it. Listens at once.

    As a context manager it runs in a separate thread until the block ends, and returns its URL.

    A server without tokens accepts all programs on this machine, and no other clients.

    Args:
        lake: the lakehouse.
        host: the address to listen on.
        port: 0 for a free port.
        token: a bearer token with all rights.
        token_file: a file of tokens with their roles (`Tokens.from_file`).
        jwt: settings for JSON Web Tokens, which are accepted in addition.
        certificate_file: certificate for TLS, in PEM.
        key_file: private key of the certificate, in PEM.
        behind_proxy: a proxy in front of the server terminates TLS.
        options: limits and optional features.

    Raises:
        InvalidArgument: for an invalid token or certificate, a port that is in use, contradictory options, and an
            address that other machines can reach without both tokens and TLS (or `behind_proxy`).
    """

    def __init__(
        self,
        lake: Lakehouse,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        jwt: JwtSettings | None = None,
        certificate_file: str | Path | None = None,
        key_file: str | Path | None = None,
        behind_proxy: bool = False,
        options: ServerOptions | None = None,
    ) -> None:
        if token is not None and token_file is not None:
            raise InvalidArgument("choose a token or a token file, not both")
        bearers: tuple[Bearers, ...] = ()
        names: frozenset[str] = frozenset()
        if token_file is not None or token is not None:
            tokens = (
                Tokens.from_file(Path(token_file))
                if token_file is not None
                else Tokens([token or ""], grants=["admin:*"])
            )
            if not tokens.names:
                raise InvalidArgument(
                    f"the token file {token_file} has no token: add one with `trinitylake token create`"
                )
            bearers += (tokens,)
            names = tokens.names
        if jwt is not None:
            from trinitylake.rest.security.jwt_bearer import JwtBearers  # loads a library for cryptography

            bearers += (JwtBearers(jwt, names),)
        _check_access(host, bearers, certificate_file, key_file, behind_proxy)
        options = options or ServerOptions()
        if options.client_properties and not (bearers and is_loopback(host)):
            raise InvalidArgument("client_properties may be credentials: they need a server on loopback with a token")
        self._token = token or ""
        self._app = App(lake, bearers, options)
        self._scheme = "http" if certificate_file is None else "https"
        self._host = host
        config = _Config(
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
        config.max_silent = max(options.max_connections // 2, 1)
        self._port = int(self._socket.getsockname()[1])

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._port

    @property
    def url(self) -> str:
        """The `uri` for clients."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    @property
    def token(self) -> str:
        """The token of `serve(token=)`, or ""."""
        return self._token

    @property
    def transactions(self) -> OpenTransactions:
        """The open transactions. `add` serves a transaction of this process to clients."""
        return self._app.service.transactions

    @property
    def latest_commits(self) -> list[int]:
        """The newest versions that requests committed outside of open transactions: at most 1,000, oldest first."""
        return sorted(set(self._app.service.latest_commits))

    def start(self) -> Self:
        """Start the server in a thread. Raises `StorageError` if it does not start."""
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
        """Run the server in this thread until `stop`, or a signal in the main thread."""
        self._server.run(sockets=[self._socket])

    def run_process(self) -> None:
        """Run the server in the main thread of a process that only runs it, until a signal.

        Afterwards the process ends. If a request hangs, it is killed after the time limits for running requests and for
        saving open transactions.
        """
        _allow_open_files()
        threading.Thread(target=self._end_process, name="trinitylake-end", daemon=True).start()
        self.run()

    def _end_process(self) -> None:
        while not self._server.should_exit:
            time.sleep(_POLL_SECONDS)
        time.sleep(limits.GRACE_SECONDS + limits.SAVING_SECONDS)
        logger.error("the process ends although requests still run")
        os._exit(1)

    def stop(self) -> None:
        """Refuse new connections, finish running requests, save open transactions, and end."""
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


#: Makes a server, for a `with` statement that returns its URL.
serve = RestServer


def _allow_open_files() -> None:
    """Raise the limit of open files of this process to the maximum that the system permits."""
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_access(
    host: str,
    bearers: tuple[Bearers, ...],
    certificate_file: str | Path | None,
    key_file: str | Path | None,
    behind_proxy: bool,
) -> None:
    if (certificate_file is None) != (key_file is None):
        raise InvalidArgument("TLS needs both a certificate and its key")
    if is_loopback(host):
        return
    if not bearers:
        raise InvalidArgument(
            f"{host} can be reached from other machines, so the server needs a token: create one with `trinitylake "
            'token create NAME --read "*"` and pass token_file (--token-file), or pass a token or settings for JSON '
            "Web Tokens"
        )
    if certificate_file is None and not behind_proxy:
        raise InvalidArgument(
            f"{host} can be reached from other machines: pass certificate_file and key_file (--certificate, --key), or "
            "behind_proxy (--behind-proxy) if a proxy in front of the server terminates TLS"
        )
