"""Limits and choices of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinitylake.base.durations import Duration, milliseconds
from trinitylake.errors import InvalidArgument

MAX_BODY_SIZE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """How the server helps clients to the data files of a lakehouse on S3. It needs the extra `s3`.

    Attributes:
        role_arn: clients get temporary credentials of this role, narrowed to one table; "" for none.
        sts_endpoint: of the service that gives them; by default that of the store.
        seconds: how long they work.
        signs_requests: sign requests for clients that have no credentials.
        storage_options: as for `trinitylake.open`: the server's own credentials, which nobody else gets to see.
    """

    role_arn: str = ""
    sts_endpoint: str = ""
    seconds: int = 3600
    signs_requests: bool = False
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits and choices of a server.

    Attributes:
        max_body_size_bytes: of a request.
        body_timeout_seconds: for a request to send its body.
        max_connections: more are answered with 503.
        overrides_locations: where a client asks for a location outside of the lakehouse, choose one; else refuse it.
        s3_access: how clients get at data files; None leaves that to them.
        client_properties: of the catalogs of clients, told to whoever may do everything. They can be credentials, so
            they are for the server of one program, on loopback and with a token.
        max_open_transactions: in the memory of the server.
        max_open_transactions_per_principal: of them.
        max_transaction_size_bytes: of memory, for what clients have sent into one open transaction.
        max_transactions_size_bytes: of memory, for all of them, with the metadata of their tables: above that some are
            saved instead.
        max_transactions_size_bytes_per_principal: of that.
        transaction_idle_seconds: after which an open transaction that nobody uses is saved instead.
        has_page: serve the page for browsers, and its data.
        page_shows_rows: whether the page shows the first rows of tables, which the server reads with its own
            credentials, to those who may read them; None for where clients get at data files anyway: without tokens,
            or with `s3_access`.
        maintenance_every: how often the server runs the maintenance policy (`lake.maintenance.run()`), as a length of
            time such as "6 hours", of at least a second; None for never.
    """

    max_body_size_bytes: int = MAX_BODY_SIZE_BYTES
    body_timeout_seconds: float = 30.0
    max_connections: int = 1000
    overrides_locations: bool = False
    s3_access: S3Access | None = None
    client_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_open_transactions: int = 1000
    max_open_transactions_per_principal: int = 250
    max_transaction_size_bytes: int = 64 << 20
    max_transactions_size_bytes: int = 384 << 20
    max_transactions_size_bytes_per_principal: int = 192 << 20
    transaction_idle_seconds: float = 900.0
    has_page: bool = True
    page_shows_rows: bool | None = None
    maintenance_every: Duration | None = None

    @property
    def maintenance_seconds(self) -> float | None:
        """`maintenance_every` as a number; None for never. Raises `InvalidArgument` for what is no length of time."""
        if self.maintenance_every is None:
            return None
        millis = milliseconds(self.maintenance_every, "maintenance_every")
        if millis < 1000:
            raise InvalidArgument(f"maintenance_every must be at least a second, got {self.maintenance_every!r}")
        return millis / 1000
