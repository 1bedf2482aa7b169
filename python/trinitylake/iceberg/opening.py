"""`trinitylake.iceberg.load`: a catalog over a root, one version, or a transaction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from trinitylake.iceberg.catalog import TrinityLakeCatalog
from trinitylake.lakehouse.lakehouse import Lakehouse

if TYPE_CHECKING:
    from trinitylake.lakehouse.transaction import Transaction

__all__ = ["TrinityLakeCatalog", "load"]


def load(
    root: str | os.PathLike[str] | Lakehouse | None = None,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    transaction: Transaction | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    name: str = "trinitylake",
    **properties: str,
) -> TrinityLakeCatalog:
    """A PyIceberg catalog over a lakehouse.

    Args:
        root: where the lakehouse is, or the open lakehouse; from PyIceberg's configuration of `name` if not given.
        version: show that version, read-only.
        timestamp: show the newest version of that moment, read-only: a datetime, or ISO 8601 text.
        transaction: read and write in that open transaction, which stays yours to commit; or the id of a saved one.
        storage_options: as for `trinitylake.open`.
        name: of the catalog.
        **properties: more properties of the catalog, such as `**{"s3.endpoint": …}`; they overrule the configuration.

    Raises:
        InvalidArgument: for choices that contradict each other, or no root.
        NotALakehouse, VersionNotFound, VersionExpired, ObjectNotFound: for what is not there.
    """
    if root is not None and not isinstance(root, Lakehouse):
        properties["root"] = os.fspath(root)
    return TrinityLakeCatalog(
        name,
        lakehouse=root if isinstance(root, Lakehouse) else None,
        version=version,
        timestamp=timestamp,
        transaction=transaction,
        storage_options=storage_options,
        **properties,
    )
