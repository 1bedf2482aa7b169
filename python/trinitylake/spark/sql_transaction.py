"""Transactions for Spark SQL: any number of statements over any number of tables, which are all committed or none.

Every transaction has its own catalog, with a new name. Statements on this catalog see the writes of the transaction,
but no commits of other writers after the transaction began.
"""

from __future__ import annotations

import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from trinitylake.errors import CommitConflict, InvalidArgument, TransactionClosed, TrinityLakeError
from trinitylake.iceberg_storage.view_names import TRANSACTION_CATALOG_INFIX, in_catalog
from trinitylake.lakehouse.settings import Isolation
from trinitylake.spark.connection import Connection, connection_of
from trinitylake.spark.pyspark_patches import activate
from trinitylake.spark.runtime import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trinitylake.lakehouse.checks import Check
    from trinitylake.lakehouse.transaction import Transaction


Result = TypeVar("Result")

#: Default number of times that `run` begins again.
RETRIES = 5
#: Guards the current catalog, which belongs to the session and so to all its threads.
_current = threading.RLock()


class OutsideTransaction(UserWarning):
    """Statements were committed through the plain catalog while a transaction was open."""


class SparkTransaction:
    """An open transaction of one Spark session, from `transaction` or `resume`. `str(tx)` is the name of its catalog.

        with transaction(spark) as tx:
            tx.sql("INSERT INTO nyc.flights SELECT …")             # names are those of the transaction
            spark.sql(f"DELETE FROM {tx}.nyc.planes WHERE …")      # the same with the name of its catalog
            frame.writeTo(f"{tx}.nyc.planes").append()

    It commits when the block ends, and rolls back when an exception leaves the block. Data frames that read its catalog
    must be evaluated inside the block. Nested transactions are independent. A statement on the plain catalog inside the
    block is not part of the transaction: it commits at once, and a rollback does not undo it. If the server is in this
    driver, the end of the block warns of such statements (`OutsideTransaction`).

    Attributes:
        id: id of the transaction, as in the log of the lakehouse.
        catalog: name of the transaction's catalog.
        warehouse: the property `warehouse` with which other REST clients of the server use the transaction.
        version: the committed version; None before the commit.
    """

    def __init__(self, spark: SparkSession, connection: Connection, id: str, plain_catalog: str) -> None:
        self.id = id
        self.catalog = f"{plain_catalog}{TRANSACTION_CATALOG_INFIX}{uuid.uuid4().hex[:12]}"
        self.warehouse = f"@txn/{id}"
        self.version: int | None = None
        self._spark = spark
        self._connection = connection
        self._is_open = True
        self._plain = plain_catalog
        self._began = _place(spark)
        self._others = connection.server.latest_commits()[-1:]
        connection.open[id] = self
        connection.add_catalog(spark, self.catalog, self.warehouse)

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not been committed, rolled back or saved."""
        return self._is_open

    @property
    def uri(self) -> str:
        """The address of the server, for other clients."""
        return self._connection.server.url

    @property
    def token(self) -> str:
        """Bearer token for other clients."""
        return self._connection.server.token

    def sql(self, statement: str, args: dict[str, Any] | list[Any] | None = None, **frames: Any) -> DataFrame:
        """Run a statement in which names are names of the transaction, independently of the session's current catalog.

        Both `nyc.flights` and `lake.nyc.flights`, where `lake` is the plain catalog, are the transaction's table.
        Temporary views of the session can be used. The arguments are as for `SparkSession.sql`. Raises
        `TransactionClosed` if the transaction has ended.
        """
        if not self._is_open:
            raise TransactionClosed(f"transaction {self.id} has ended: begin another one")
        frames = frames if args is None else {"args": args, **frames}
        with self._as_current():
            frame = self._spark.sql(in_catalog(statement, self._plain, self.catalog), **frames)
            # Spark Connect resolves names again at each evaluation, when another catalog is the current one.
            if is_remote(self._spark) and frame.columns:
                return self._connection.as_view(self._spark, self.catalog, frame)
            return frame

    def add_check(self, check: str | Check[Transaction]) -> None:
        """Add a condition that must hold at the commit, as `trinitylake.Transaction.add_check` does."""
        self._connection.server.add_check(self.id, check)

    def commit(self) -> int:
        """Make all changes visible at once; returns the version. Raises as `trinitylake.Transaction.commit` does."""
        if not self._is_open and self.version is None:
            raise TransactionClosed(f"transaction {self.id} has ended")
        try:
            self.version = self._connection.server.commit(self.id)
        finally:
            self._end()
        return self.version

    def rollback(self) -> None:
        """Roll back: no change becomes visible."""
        if not self._is_open:
            return
        try:
            self._connection.server.rollback(self.id)
        finally:
            self._end()

    def save(self) -> str:
        """Save the transaction, so that another process or Spark application can `resume` it; returns the id.

        Afterwards this object can neither commit nor roll back the transaction. A server in another process keeps the
        transaction open for its other clients, and saves it when it has not been used for a long time. Raises the
        errors of `trinitylake.Transaction.save`.
        """
        self._connection.server.hand_over(self.id)
        self._end(is_over=False)
        return self.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            # The block's error is more important than an error that another client has ended the transaction.
            with suppress(TrinityLakeError):
                self.rollback()
        elif self._is_open:
            self.commit()

    def __str__(self) -> str:
        return self.catalog

    def __repr__(self) -> str:
        state = f"version={self.version}" if self.version is not None else "open" if self._is_open else "ended"
        return f"SparkTransaction(id={self.id!r}, catalog={self.catalog!r}, {state})"

    def _end(self, is_over: bool = True) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._connection.open.get(self.id) is self:
            del self._connection.open[self.id]
        with _current:
            if _place(self._spark)[0] == self.catalog:
                _set_current(self._spark, self._began if self._began[0] != self.catalog else (self._plain, ""))
            if is_over:
                self._connection.end_catalog(self._spark, self.catalog)
            else:
                self._connection.remove_catalog(self._spark, self.catalog)
        self._warn_of_others()

    def _warn_of_others(self) -> None:
        """Warn of commits through the plain catalog, which may have been intended for this transaction."""
        last = max(self._others, default=-1)
        if others := [version for version in self._connection.server.latest_commits() if version > last]:
            versions = f"version {others[0]}" if len(others) == 1 else f"versions {', '.join(map(str, others))}"
            warnings.warn(
                f"while transaction {self.id} was open, statements on catalog {self._plain} were committed as "
                f"{versions}: they are not part of the transaction, and remain after a rollback. Inside the block use "
                'tx.sql("…"), or the catalog of the transaction',
                OutsideTransaction,
                stacklevel=4,
            )

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        """Context manager inside which names without a catalog are names of the transaction."""
        with _current:
            before = _place(self._spark)
            namespace = before[1] if before[0] in (self._plain, self.catalog) else ""
            _set_current(self._spark, (self.catalog, namespace))
            try:
                yield
            finally:
                _set_current(self._spark, before)


def _place(spark: SparkSession) -> tuple[str, str]:
    return spark.catalog.currentCatalog(), spark.catalog.currentDatabase()


def _set_current(spark: SparkSession, place: tuple[str, str]) -> None:
    activate(spark)  # Spark finds catalogs in the settings of the thread's active session
    catalog, namespace = place
    if spark.catalog.currentCatalog() != catalog:
        spark.catalog.setCurrentCatalog(catalog)
    if namespace and spark.catalog.currentDatabase() != namespace:
        with suppress(Exception):  # the namespace may not exist in this catalog
            spark.catalog.setCurrentDatabase(namespace)


def transaction(
    spark: SparkSession,
    *,
    isolation: Isolation | None = None,
    message: str = "",
    author: str = "",
    id: str | None = None,
    properties: Mapping[str, str] | None = None,
    restart: bool = False,
    catalog: str = "lake",
) -> SparkTransaction:
    """Begin a transaction, for a `with` statement.

    Args:
        spark: a session that `connect` returned.
        isolation: as for `trinitylake.Lakehouse.begin`.
        message: stored in the log.
        author: stored in the log.
        id: id of the transaction, which is committed at most once: if the id was committed before, the statements have
            no effect, and the commit returns that version.
        properties: stored in the log.
        restart: discard an earlier attempt with the id (open, saved or rolled back), and begin again.
        catalog: the name of the catalog that was given to `connect`.
    """
    connection = connection_of(spark, catalog)
    begun = connection.server.begin(
        isolation=isolation,
        message=message,
        author=author,
        id=id,
        properties={"engine": "spark", **(properties or {})},
        restart=restart,
    )
    # An object of the discarded attempt has the same id, so it could write into the new transaction.
    if (discarded := connection.open.get(begun)) is not None:
        discarded._end()  # noqa: SLF001 (of the same class)
    return SparkTransaction(spark, connection, begun, catalog)


def run(
    spark: SparkSession,
    function: Callable[[SparkTransaction], Result],
    *,
    retries: int = RETRIES,
    isolation: Isolation | None = None,
    message: str = "",
    author: str = "",
    properties: Mapping[str, str] | None = None,
    catalog: str = "lake",
) -> Result:
    """Run a function in a transaction and commit; after a conflict, run it again on the newer version.

        tl.spark.run(spark, lambda tx: tx.sql("UPDATE nyc.flights SET …"), retries=10)

    The function may be called several times, and must read all data again in each call.

    Args:
        spark: a session that `connect` returned.
        function: called with the transaction. Its result is returned.
        retries: how often to begin again after a `CommitConflict`; 0 for one attempt.
        isolation: as for `transaction`.
        message: stored in the log.
        author: stored in the log.
        properties: stored in the log.
        catalog: the name of the catalog that was given to `connect`.

    Raises the `CommitConflict` of the last attempt. Any other error of the function or the commit is raised at once.
    """
    if retries < 0:
        raise InvalidArgument(f"retries must be 0 or more, got {retries}")
    for left in reversed(range(retries + 1)):
        try:
            with transaction(
                spark, isolation=isolation, message=message, author=author, properties=properties, catalog=catalog
            ) as tx:
                result = function(tx)
        except CommitConflict:
            if not left:
                raise
        else:
            return result
    raise AssertionError("the last attempt returns or raises")


def resume(spark: SparkSession, id: str, *, catalog: str = "lake") -> SparkTransaction:
    """Continue a saved transaction of any process. Raises `ObjectNotFound` and `TransactionExpired`."""
    connection = connection_of(spark, catalog)
    connection.server.require_open(id)
    return SparkTransaction(spark, connection, id, catalog)
