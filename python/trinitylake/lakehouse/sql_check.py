"""A check in SQL: its query is one as any other, over tables and views of the transaction.

A check, or a view that it reads, may have been written by somebody other than the user who runs it: checks are saved
with transactions, and a server commits those of all its clients. So DuckDB's messages about a query that has begun to
run are not passed on, because they quote rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions

if TYPE_CHECKING:
    from trinitylake.lakehouse.reader import Reader


def first_row(transaction: Reader, sql: str) -> tuple[Any, ...] | None:
    """The first row of the result, or None if it is empty.

    Raises `InvalidArgument` for what DuckDB refuses, and `ObjectNotFound` for a table or view that is not there.
    """
    check = PreparedQuery(sql, transaction, QueryOptions(quotes_rows=False, subject=f"check {sql!r}"))
    with check.running() as rows:
        row: tuple[Any, ...] | None = rows.fetchone()
        return row
