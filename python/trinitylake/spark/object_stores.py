"""What Iceberg's runtime for Spark takes to reach the files of a lakehouse on an object store.

That is one more package, the store's clients, and their settings, which are the storage options under Iceberg's names.
Iceberg finds the client by the scheme of each file. On a disk nothing is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinitylake.lakehouse import Lakehouse

_ICEBERG = "1.11.0"


@dataclass(frozen=True)
class ObjectStore:
    """One kind of store.

    Attributes:
        bundle: the name of the package with its clients.
        prefix: that its storage options may have, as in `aws_region`.
        names: a catalog's property for each storage option that it can be made of.
    """

    bundle: str
    prefix: str
    names: Mapping[str, str]

    @property
    def package(self) -> str:
        """The Maven coordinates."""
        return f"org.apache.iceberg:{self.bundle}:{_ICEBERG}"


_S3 = ObjectStore(
    "iceberg-aws-bundle",
    "aws_",
    {
        "access_key_id": "s3.access-key-id",
        "client.access-key-id": "s3.access-key-id",
        "key": "s3.access-key-id",
        "secret_access_key": "s3.secret-access-key",
        "client.secret-access-key": "s3.secret-access-key",
        "secret": "s3.secret-access-key",
        "session_token": "s3.session-token",
        "client.session-token": "s3.session-token",
        "token": "s3.session-token",
        "region": "client.region",
        "default_region": "client.region",
        "s3.region": "client.region",
        "endpoint": "s3.endpoint",
        "endpoint_url": "s3.endpoint",
    },
)
_GCS = ObjectStore(
    "iceberg-gcp-bundle",
    "google_",
    {"bearer_token": "gcs.oauth2.token", "base_url": "gcs.service.host"},
)
_AZURE = ObjectStore(
    "iceberg-azure-bundle",
    "azure_",
    {
        "storage_account_name": "adls.auth.shared-key.account.name",
        "adls.account-name": "adls.auth.shared-key.account.name",
        "account_name": "adls.auth.shared-key.account.name",
        "storage_account_key": "adls.auth.shared-key.account.key",
        "adls.account-key": "adls.auth.shared-key.account.key",
        "account_key": "adls.auth.shared-key.account.key",
        "storage_token": "adls.token",
        "bearer_token": "adls.token",
    },
)
_STORES = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE}


def store_of(root: str) -> ObjectStore | None:
    """The store that the URI of a lakehouse is in; None for a disk."""
    return _STORES.get(root.partition("://")[0])


def catalog_properties(lake: Lakehouse, storage_options: Mapping[str, str]) -> dict[str, str]:
    """The storage options as properties of an Iceberg catalog.

    Options that Iceberg knows by the same name, such as `s3.endpoint`, are passed on. What they leave out, Iceberg's
    clients look for where they always do: in the environment, in files, in the machine's role.
    """
    store = store_of(lake.uri)
    if store is None:
        return {}
    schemes = ("s3.", "client.", "gcs.", "adls.")
    properties = {name: value for name, value in storage_options.items() if name.startswith(schemes)}
    for name, value in storage_options.items():
        known = store.names.get(name.lower()) or store.names.get(name.lower().removeprefix(store.prefix))
        if known is not None:
            properties[known] = value
    if store is _S3 and "s3.endpoint" in properties:
        # As the lakehouse's own client: the bucket is in the path, unless it is told otherwise.
        options = {name.lower().removeprefix(store.prefix): value for name, value in storage_options.items()}
        in_host = options.get("virtual_hosted_style_request", options.get("s3.force-virtual-addressing", "false"))
        properties.setdefault("s3.path-style-access", "false" if in_host.lower() == "true" else "true")
    return properties
