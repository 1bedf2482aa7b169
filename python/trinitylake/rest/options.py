"""Limits and choices of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinitylake.base.durations import Duration, milliseconds
from trinitylake.errors import InvalidArgument

MAX_BODY_SIZE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """Access delegation for the data files of a lakehouse on S3. Needs the extra `s3`.

    Attributes:
        role_arn: clients get temporary credentials of this role, restricted to one table; "" for none.
        sts_endpoint: endpoint of the security token service; by default that of the store.
        seconds: lifetime of the credentials.
        signs_requests: whether the server signs requests of clients without credentials.
        storage_options: as for `trinitylake.open`: the credentials of the server, which clients never get.
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
        max_body_size_bytes: maximum size of the body of a request.
        body_timeout_seconds: time in which a client must send the body.
        max_connections: above this number, requests get 503. At most half as many connections may have sent nothing
            yet.
        overrides_locations: replace a requested location outside of the lakehouse, instead of refusing it.
        s3_access: access delegation; None for clients with their own credentials.
        client_properties: catalog properties for clients that are admins of `*`. They may be credentials, so they need
            a server on loopback with a token.
        max_open_transactions: number of open transactions in memory.
        max_open_transactions_per_principal: number of open transactions of one principal in memory.
        max_transaction_size_bytes: memory for the requests of one open transaction.
        max_transactions_size_bytes: memory for all open transactions, with the metadata of their tables. Above it the
            least recently used ones are saved and removed from memory.
        max_transactions_size_bytes_per_principal: memory for the open transactions of one principal.
        transaction_idle_seconds: time without a request after which an open transaction is saved and removed.
        has_page: serve the web page and its data.
        page_shows_rows: whether the page shows the first rows of tables to their readers; the server reads them with
            its own credentials. None: yes, if clients have access to data files anyway, without tokens or with
            `s3_access`.
        is_read_only: whether every client is at most a reader, so that no request changes the lakehouse.
        maintenance_every: period at which the server runs the maintenance policy (`lake.maintenance.run()`), such as
            "6 hours", at least a second; None for never.
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
    is_read_only: bool = False
    maintenance_every: Duration | None = None

    @property
    def maintenance_seconds(self) -> float | None:
        """`maintenance_every` in seconds; None for never. Raises `InvalidArgument` for an invalid duration."""
        if self.maintenance_every is None:
            return None
        millis = milliseconds(self.maintenance_every, "maintenance_every")
        if millis < 1000:
            raise InvalidArgument(f"maintenance_every must be at least a second, got {self.maintenance_every!r}")
        return millis / 1000
