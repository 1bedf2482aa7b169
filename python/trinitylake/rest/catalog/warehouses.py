"""Warehouses of the REST catalog: versions and open transactions. The paths of requests begin with their prefix.

| warehouse                | prefix             | version or transaction                         |
|--------------------------|--------------------|------------------------------------------------|
| none, `@latest`          | `latest`           | the latest version; each write is a commit     |
| `@version/12`            | `version~12`       | that version, read-only                        |
| `@timestamp/<ISO 8601>`  | `version~<number>` | the latest version at that time, read-only     |
| `@tag/<name>`            | `tag~<name>`       | the version with that tag, read-only           |
| `@txn/<id>`              | `txn~<id>`         | an open transaction                            |

A timestamp is resolved to a version once, so all requests of the client see the same version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trinitylake.base.arguments import moment
from trinitylake.errors import VersionNotFound
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.transactions.open_transactions import OpenTransactions

LATEST = "latest"
_VERSION, _TAG, _TRANSACTION = "version~", "tag~", "txn~"


def prefix_of(warehouse: str, lake: Lakehouse, transactions: OpenTransactions, principal: Principal) -> str:
    """The prefix of a warehouse, for a principal that may use it.

    Raises:
        RestError: 404 for an unknown kind of address, 400 for an invalid one, 403 for a transaction that the principal
            may not use.
        VersionNotFound, VersionExpired, ObjectNotFound: the version or transaction does not exist.
    """
    if warehouse in ("", "@latest", lake.name, lake.uri, lake.uri.rstrip("/")):
        return LATEST
    kind, _, value = warehouse.partition("/")
    if kind == "@version":
        return f"{_VERSION}{lake.at(_number(value)).version}"
    if kind == "@timestamp":
        return f"{_VERSION}{lake.at(moment(value, 'the time of a version')).version}"
    if kind == "@tag":
        lake.at(f"tag:{value}")
        return f"{_TAG}{value}"
    if kind == "@txn":
        with transactions.borrowed(value, principal):
            return transaction_prefix(value)
    raise RestError(
        404,
        "NotFoundException",
        f"unknown warehouse {warehouse!r}: expected @latest, @version/<number>, @timestamp/<ISO 8601>, "
        "@tag/<name> or @txn/<id>",
    )


def transaction_prefix(id: str) -> str:
    return f"{_TRANSACTION}{id}"


def is_transaction(prefix: str) -> bool:
    return prefix.startswith(_TRANSACTION)


@contextmanager
def source_of(
    prefix: str,
    lake: Lakehouse,
    transactions: OpenTransactions,
    principal: Principal,
    *,
    writes: bool = False,
    sent_size_bytes: int = 0,
) -> Iterator[LakehouseVersion | Transaction]:
    """Context manager: the version or transaction of a prefix other than `LATEST`. A transaction is used exclusively.

    Args:
        writes, sent_size_bytes: as for `OpenTransactions.borrowed`.

    Raises as `prefix_of` and `OpenTransactions.borrowed`.
    """
    if prefix.startswith(_VERSION):
        yield lake.at(_number(prefix.removeprefix(_VERSION)))
    elif prefix.startswith(_TAG):
        yield lake.at(f"tag:{prefix.removeprefix(_TAG)}")
    elif prefix.startswith(_TRANSACTION):
        id = prefix.removeprefix(_TRANSACTION)
        with transactions.borrowed(id, principal, writes=writes, sent_size_bytes=sent_size_bytes) as transaction:
            yield transaction
    else:
        raise RestError(404, "NotFoundException", f"unknown prefix {prefix!r}: use that of /v1/config")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"a version must be a whole number, not {text!r}")
    if len(text) > 18:
        raise VersionNotFound(f"there is no version {text}")
    return int(text)
