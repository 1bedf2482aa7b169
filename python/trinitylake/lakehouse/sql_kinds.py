"""Finds whether a statement in SQL reads, writes, or is not supported.

The modules that execute writing statements import PyIceberg, so this module does not import them for a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import numbered, shortened
from trinitylake.tables.queries.prepared import NEEDS
from trinitylake.tables.queries.running import planning
from trinitylake.tables.queries.statement_text import Statement, statement_of
from trinitylake.tables.queries.tokens import first_word, tokens_of
from trinitylake.tables.sql_sandbox import refusals

if TYPE_CHECKING:
    from trinitylake.lakehouse.sql_definitions import Alter

_WRITING = frozenset({"CREATE", "DELETE", "DROP", "INSERT", "MERGE", "TRUNCATE", "UPDATE"})
_TRANSACTION = (
    "use `with lake.transaction() as txn` and txn.sql, or the option --single-transaction of the command line"
)
_SETTING = "queries run with fixed settings, and times without a zone are in UTC"
_CLOSED = "queries are confined to the lakehouse; allow_external=True lets them read files and URLs"
#: Statements of DuckDB that are not supported, and what to use instead.
_UNSUPPORTED = {
    "ANALYZE": "statistics are written with the files",
    "ATTACH": "use lake.import_catalog or create_table(catalog=…)",
    "BEGIN": _TRANSACTION,
    "CALL": "use the methods of the lakehouse, such as lake.maintenance.run()",
    "CHECKPOINT": "every commit is durable",
    "COMMIT": _TRANSACTION,
    "COPY": "read files with `trinitylake load`, or INSERT INTO … FROM 'file' with allow_external; write them with "
    "`trinitylake cat --format parquet` or lake.sql(…).to_arrow()",
    "DEALLOCATE": "pass values as parameters",
    "DETACH": "no database is attached",
    "EXECUTE": "pass values as parameters",
    "EXPORT": "use lake.export or `trinitylake export`",
    "GRANT": "roles and tokens belong to the server: `trinitylake serve`",
    "IMPORT": "use tl.restore or `trinitylake restore`",
    "INSTALL": _CLOSED,
    "LOAD": _CLOSED,
    "PRAGMA": _SETTING,
    "PREPARE": "pass values as parameters",
    "RESET": _SETTING,
    "REVOKE": "roles and tokens belong to the server: `trinitylake serve`",
    "ROLLBACK": _TRANSACTION,
    "SET": _SETTING,
    "START": _TRANSACTION,
    "USE": "write namespace.table, or give default_namespace",
    "VACUUM": "use lake.maintenance.run() or `trinitylake maintain`",
}


def writing_statement(sql: str) -> Statement | Alter | None:
    """Parse SQL as a writing statement; None for a query. Raises `InvalidArgument` for an unsupported statement."""
    word = first_word(sql)
    if why := _UNSUPPORTED.get(word):
        raise InvalidArgument(f"{shortened(sql)}: {word} is not supported: {why}")
    if word in ("ALTER", "COMMENT"):
        from trinitylake.lakehouse.sql_definitions import alter_statement

        return alter_statement(sql)
    if word not in _WRITING and word != "WITH":
        return None
    with planning(NEEDS) as connection, refusals(f"statement {shortened(sql)}", quotes_rows=False):
        if word == "WITH" and not any(one.word in _WRITING and not one.depth for one in tokens_of(sql)):
            return None
        return statement_of(connection, numbered(sql))
