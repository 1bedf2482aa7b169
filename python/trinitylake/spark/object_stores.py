"""Packages and settings with which Iceberg's runtime for Spark reads a lakehouse on an object store.

That is one more package, the store's clients, and their settings, which are the storage options under Iceberg's names.
Iceberg finds the client by the scheme of each file. On a disk nothing is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trinitylake import _core

_ICEBERG = "1.11.0"


@dataclass(frozen=True)
class ObjectStore:
    """One kind of store.

    Attributes:
        bundle: the name of the package with its clients.
    """

    bundle: str

    @property
    def package(self) -> str:
        """The Maven coordinates."""
        return f"org.apache.iceberg:{self.bundle}:{_ICEBERG}"


_S3 = ObjectStore("iceberg-aws-bundle")
_GCS = ObjectStore("iceberg-gcp-bundle")
_AZURE = ObjectStore("iceberg-azure-bundle")
_STORES = {"s3": _S3, "gs": _GCS, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE}


def store_of(root: str) -> ObjectStore | None:
    """The store that the URI of a lakehouse is in; None for a disk."""
    return _STORES.get(root.partition("://")[0])


def catalog_properties(root: str, storage_options: Mapping[str, str]) -> dict[str, str]:
    """The storage options of a lakehouse at `root` as properties of an Iceberg catalog.

    Options that Iceberg knows by the same name, such as `s3.endpoint`, are passed on. What they leave out, Iceberg's
    clients look for where they always do: in the environment, in files, in the machine's role.
    """
    return _core.iceberg_properties(root, storage_options)
