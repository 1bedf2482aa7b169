"""Addresses: which state of the lakehouse a client works on, chosen by `warehouse`, carried by the prefix of paths.

| warehouse                | prefix             | state                                          |
|--------------------------|--------------------|------------------------------------------------|
| none, `@latest`          | `latest`           | the latest version; every write is a commit    |
| `@version/12`            | `version~12`       | that version, read-only                        |
| `@timestamp/<ISO 8601>`  | `version~<number>` | the newest version of that moment, read-only   |
| `@tag/<name>`            | `tag~<name>`       | the version with that tag, read-only           |
| `@txn/<id>`              | `txn~<id>`         | an open transaction                            |

A moment becomes a version when it is asked for, so a client that works with it for long sees one state.
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
from trinitylake.rest.security.principals import Principal
from trinitylake.rest.transactions.open_transactions import OpenTransactions

LATEST = "latest"
_VERSION, _TAG, _TRANSACTION = "version~", "tag~", "txn~"


def prefix_of(warehouse: str, lake: Lakehouse, transactions: OpenTransactions, who: Principal) -> str:
    """The prefix for a warehouse parameter, for somebody who may work there.

    Raises:
        RestError: 404 for an address that leads nowhere, 400 for one that is misspelt, 403 for a transaction that is
            not theirs.
        VersionNotFound, VersionExpired, ObjectNotFound: for what is not there.
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
        with transactions.borrowed(value, who):
            return transaction_prefix(value)
    raise RestError(
        404,
        "NotFoundException",
        f"there is no warehouse {warehouse!r}: expected @latest, @version/<number>, @timestamp/<ISO 8601>, "
        "@tag/<name> or @txn/<id>",
    )


def transaction_prefix(id: str) -> str:
    """The prefix of an open transaction."""
    return f"{_TRANSACTION}{id}"


def is_transaction(prefix: str) -> bool:
    """Whether a prefix leads to an open transaction, which one request at a time can use."""
    return prefix.startswith(_TRANSACTION)


@contextmanager
def source_of(
    prefix: str,
    lake: Lakehouse,
    transactions: OpenTransactions,
    who: Principal,
    *,
    writes: bool = False,
    sent_size_bytes: int = 0,
) -> Iterator[LakehouseVersion | Transaction]:
    """What a prefix leads to that is not `LATEST`; a transaction is nobody else's inside the block, which may write to
    it if it says so, and how much memory that takes.

    Raises as `prefix_of` does, and as `OpenTransactions.borrowed` does.
    """
    if prefix.startswith(_VERSION):
        yield lake.at(_number(prefix.removeprefix(_VERSION)))
    elif prefix.startswith(_TAG):
        yield lake.at(f"tag:{prefix.removeprefix(_TAG)}")
    elif prefix.startswith(_TRANSACTION):
        id = prefix.removeprefix(_TRANSACTION)
        with transactions.borrowed(id, who, writes=writes, sent_size_bytes=sent_size_bytes) as transaction:
            yield transaction
    else:
        raise RestError(404, "NotFoundException", f"there is no prefix {prefix!r}: ask /v1/config for one")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"a version is a whole number, not {text!r}")
    if len(text) > 18:
        raise VersionNotFound(f"there is no version {text}")
    return int(text)
