"""Limits and choices of a server."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY_SIZE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits and choices of a server.

    Attributes:
        max_body_size_bytes: of a request.
        body_timeout_seconds: for a request to send its body.
        max_connections: more are answered with 503.
        overrides_locations: where a client asks for a location outside of the lakehouse, choose one; else refuse it.
        table_cache_size_bytes: memory for metadata of tables, as it is sent.
    """

    max_body_size_bytes: int = MAX_BODY_SIZE_BYTES
    body_timeout_seconds: float = 30.0
    max_connections: int = 1000
    overrides_locations: bool = False
    table_cache_size_bytes: int = 64 << 20
