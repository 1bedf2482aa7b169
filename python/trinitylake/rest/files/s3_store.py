"""The S3 bucket of a lakehouse and its credentials, for access delegation.

Only access delegation uses this module; the lakehouse reads and writes through its own storage. The storage options are
the same, and unset options come from the environment. Needs the extra `s3`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trinitylake import _core
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument
from trinitylake.rest.errors import unavailable
from trinitylake.rest.outbound import Outbound

logger = logging.getLogger("trinitylake.rest")

DEFAULT_REGION = "us-east-1"
#: Time limits for services that give credentials: for a connection, and for the next bytes of a response.
_CONNECT_SECONDS, _SILENCE_SECONDS = 5, 10
#: Name of the service in errors of calls that fetch the server's own temporary credentials.
OWN_CREDENTIALS = "the service that gives this server its credentials"

#: Loggers that write credentials and signed text at level DEBUG.
_TALKATIVE = ("botocore.auth", "botocore.endpoint", "botocore.hooks", "botocore.parsers")


def not_given() -> tuple[type[Exception], ...]:
    """Exception classes of botocore for a service that issues no credentials."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return BotoCoreError, ClientError, ResponseParserError


@dataclass(frozen=True)
class Scope:
    """Objects of a bucket that a principal may access: keys that start with `key` and a slash."""

    bucket: str
    key: str
    writable: bool


class S3Store:
    """The store below the root of a lakehouse.

    Args:
        root: of the lakehouse, `s3://bucket/…`.
        storage_options: as for `trinitylake.open`.
        outbound: runs the calls that renew the server's own credentials, if they are temporary.

    Attributes:
        bucket: of the root.
        endpoint: of the store; "" for that of AWS.
        region: for signatures.

    Raises:
        InvalidArgument: for a root that is not on S3, without credentials, and without the extra `s3`.
    """

    def __init__(self, root: str, storage_options: Mapping[str, str], outbound: Outbound | None = None) -> None:
        if not root.startswith("s3://"):
            raise InvalidArgument(f"access delegation works on S3 only, and the lakehouse is at {root}")
        with optional_dependency("access delegation on S3"):
            from botocore.config import Config
            from botocore.session import Session
        for name in _TALKATIVE:
            if (logger := logging.getLogger(name)).level == logging.NOTSET:
                logger.setLevel(logging.INFO)
        settings = _core.S3Settings(storage_options)
        self._root = root
        self.bucket = urlsplit(root).netloc
        self._outbound = outbound or Outbound()
        self._session = Session()
        # These limits also apply to the clients that fetch the server's own credentials.
        attempts = {"total_max_attempts": 2}
        self._session.set_default_client_config(
            Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_SILENCE_SECONDS, retries=attempts)
        )
        if settings.access_key_id:
            self._session.set_credentials(
                settings.access_key_id, settings.secret_access_key or "", settings.session_token
            )
        self.endpoint = (settings.endpoint or "").rstrip("/")
        self.region = settings.region or DEFAULT_REGION
        self._has_bucket_in_host = settings.is_bucket_in_host
        if self._session.get_credentials() is None:
            raise InvalidArgument("access delegation needs credentials for S3, and the server has none")

    def credentials(self) -> Any:
        """The server's present credentials: access key, secret key and token.

        Raises `RestError` 503 or 504 if they have expired or are about to, and cannot be renewed.
        """
        from botocore.credentials import RefreshableCredentials

        credentials = self._session.get_credentials()
        if not isinstance(credentials, RefreshableCredentials) or not credentials.refresh_needed():
            return credentials.get_frozen_credentials()
        try:
            return self._outbound.run(OWN_CREDENTIALS, credentials.get_frozen_credentials)
        except not_given() as error:
            logger.warning("no credentials for this server: %s", error)
            raise unavailable("the server has no credentials at present: try again") from error

    def client(self, service: str, endpoint: str) -> Any:
        """A client of a service, with the server's credentials. `endpoint`: "" for that of AWS."""
        return self._session.create_client(service, region_name=self.region, endpoint_url=endpoint or None)

    def key(self, path: str) -> str:
        """The object key of a path below the root."""
        return urlsplit(self._root).path.lstrip("/") + path

    @property
    def client_settings(self) -> dict[str, str]:
        """Properties of the store for clients, without secrets."""
        settings = {"client.region": self.region, "s3.region": self.region}
        if not self.endpoint:
            return settings
        path_style = "false" if self._has_bucket_in_host else "true"
        return {**settings, "s3.endpoint": self.endpoint, "s3.path-style-access": path_style}

    def key_of(self, url: str) -> str | None:
        """Percent-encoded object key in the URL of a request; "" for the bucket itself, None for another bucket.

        AWS accepts the name of a bucket in the path and in the host. At another endpoint only the form in use is
        accepted, since the store may read the other form as another bucket.
        """
        parts = urlsplit(url)
        if parts.fragment or "@" in parts.netloc:
            return None
        base = f"{parts.scheme}://{parts.netloc}".lower()
        for endpoint in self._endpoints():
            scheme, _, host = endpoint.partition("://")
            if self._takes(in_host=True) and base == f"{scheme}://{self.bucket}.{host}".lower():
                return parts.path[1:]
            if self._takes(in_host=False) and base == endpoint.lower():
                bucket, _, key = parts.path[1:].partition("/")
                return key if bucket == self.bucket else None
        return None

    def _takes(self, *, in_host: bool) -> bool:
        return not self.endpoint or self._has_bucket_in_host == in_host

    def _endpoints(self) -> list[str]:
        if self.endpoint:
            return [self.endpoint]
        suffix = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        regional = [f"https://s3.{self.region}.{suffix}", f"https://s3.dualstack.{self.region}.{suffix}"]
        return [*regional, f"https://s3.{suffix}"] if self.region == DEFAULT_REGION else regional
