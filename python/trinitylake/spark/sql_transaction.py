"""Transactions for Spark SQL: any number of statements over any number of tables, one commit or nothing.

Every transaction has a catalog of its own, with a name that is used once. Statements that go through it see what the
transaction has written, and nothing that others committed since it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.settings import Isolation
from trinitylake.spark.connection import Connection, connection_of, unique_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.checks import Check
    from trinitylake.lakehouse.transaction import Transaction


class SparkTransaction:
    """An open transaction of one Spark session, from `transaction` or `resume`. As text it is its catalog's name.

        with transaction(spark) as tx:
            spark.sql(f"INSERT INTO {tx}.nyc.flights SELECT …")
            frame.writeTo(f"{tx}.nyc.planes").append()

    It commits when the block ends and rolls back when an exception leaves it. A data frame that reads its catalog has
    to be evaluated inside the block. Transactions in one another know nothing of each other: each commits for itself.

    Attributes:
        id: as in the log of the lakehouse.
        catalog: the name of the catalog.
        warehouse: with which any REST client of the server takes part.
        version: that it became; None before the commit.
    """

    def __init__(self, spark: SparkSession, connection: Connection, id: str, catalog: str) -> None:
        self.id = id
        self.catalog = catalog
        self.warehouse = f"@txn/{id}"
        self.version: int | None = None
        self._spark = spark
        self._connection = connection
        self._is_open = True
        connection.add_catalog(spark, catalog, self.warehouse)

    @property
    def is_open(self) -> bool:
        """Whether it has been neither committed nor rolled back nor handed over."""
        return self._is_open

    @property
    def uri(self) -> str:
        """The address of the server, for other clients."""
        return self._connection.server.url

    @property
    def token(self) -> str:
        """What lets other clients in."""
        return self._connection.server.token

    def add_check(self, check: str | Check[Transaction]) -> None:
        """Something that must hold when the transaction commits; see `trinitylake.Transaction.add_check`."""
        with self._connection.server.transactions.borrowed(self.id) as transaction:
            transaction.add_check(check)

    def commit(self) -> int:
        """Make everything visible at once; returns the version. Raises as `trinitylake.Transaction.commit` does."""
        try:
            self.version = self._connection.server.transactions.commit(self.id)
        finally:
            self._end()
        return self.version

    def rollback(self) -> None:
        """Give up: nothing becomes visible."""
        if not self._is_open:
            return
        try:
            self._connection.server.transactions.rollback(self.id)
        finally:
            self._end()

    def save(self) -> str:
        """Hand over: another process, or another Spark application, goes on with `resume`; returns the id.

        This transaction is then neither committed nor rolled back here. Raises as `trinitylake.Transaction.save` does.
        """
        with self._connection.server.transactions.borrowed(self.id) as transaction:
            transaction.save()
        self._connection.server.transactions.release(self.id)
        self._end()
        return self.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            with suppress(TrinityLakeError):  # it was ended by another client: the error of the block is what counts
                self.rollback()
        elif self._is_open:
            self.commit()

    def __str__(self) -> str:
        return self.catalog

    def __repr__(self) -> str:
        state = f"version={self.version}" if self.version is not None else "open" if self._is_open else "ended"
        return f"SparkTransaction(id={self.id!r}, catalog={self.catalog!r}, {state})"

    def _end(self) -> None:
        self._is_open = False
        self._connection.remove_catalog(self._spark, self.catalog)


def transaction(
    spark: SparkSession,
    *,
    isolation: Isolation | None = None,
    message: str = "",
    author: str = "",
    id: str | None = None,
    properties: Mapping[str, str] | None = None,
    catalog: str = "lake",
) -> SparkTransaction:
    """Begin a transaction, to be written in a `with` statement.

    Args:
        spark: a session that `connect` returned.
        isolation: this and what follows as for `trinitylake.Lakehouse.begin`.
        message: for the log.
        author: for the log.
        id: makes the commit exactly-once.
        properties: for the log.
        catalog: the name that was given to `connect`.
    """
    connection = connection_of(spark, catalog)
    begun = connection.server.transactions.begin(
        isolation=isolation, message=message, author=author, id=id, properties={"engine": "spark", **(properties or {})}
    )
    return SparkTransaction(spark, connection, begun.id, unique_name(catalog))


def resume(spark: SparkSession, id: str, *, catalog: str = "lake") -> SparkTransaction:
    """Go on with a transaction that was saved, here or elsewhere. Raises `ObjectNotFound` and `TransactionExpired`."""
    connection = connection_of(spark, catalog)
    with connection.server.transactions.borrowed(id):
        return SparkTransaction(spark, connection, id, unique_name(catalog))
