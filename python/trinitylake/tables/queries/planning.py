"""Pool of DuckDB connections for planning queries, because opening a connection takes longer than planning."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument
from trinitylake.tables.sql_sandbox import connect

#: Optimizers that planning disables. Some would use that the tables are empty, others only speed up execution. Join
#: ordering takes most of the planning time, and many plans with swapped join sides cannot be exported as JSON.
_WITHOUT = (
    "statistics_propagation,empty_result_pullup,join_order,build_side_probe_side,compressed_materialization,"
    "column_lifetime,join_filter_pushdown"
)
#: The first version of DuckDB with which this package is not tested. Trees and plans may have another form in it.
_FIRST_UNKNOWN = (2, 1)
#: Maximum number of idle connections; others are closed after use.
_MAX_IDLE = 4
#: Idle connections by process: a forked child must not use the connections of its parent.
_idle: defaultdict[int, list[Any]] = defaultdict(list)


@contextmanager
def planning(needs: str, *, is_open: bool = False) -> Iterator[Any]:
    """Context manager: a DuckDB connection to an empty in-memory database for planning. The block may create objects.

    Args:
        needs: the feature, for the error if DuckDB is not installed.
        is_open: whether names in a query may refer to files and hosts that this process can access.

    Raises `InvalidArgument` without DuckDB, and with a version whose trees and plans are unknown.
    """
    _require_known_duckdb(needs)
    idle = [] if is_open else _idle[os.getpid()]
    try:
        database = idle.pop()
    except IndexError:
        database = connect(needs=needs, without_optimizers=_WITHOUT, is_plan=True, is_open=is_open)
    is_whole = False
    try:
        connection = database.cursor()  # has its own variables and registered rows
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("ROLLBACK")
            is_whole = not is_open
        finally:
            connection.close()
    finally:
        if is_whole and len(idle) < _MAX_IDLE:
            idle.append(database)
        else:
            database.close()


def _require_known_duckdb(needs: str) -> None:
    with optional_dependency(needs):
        import duckdb
    major, minor, *_ = duckdb.__version__.split(".")
    if (int(major), int(minor)) >= _FIRST_UNKNOWN:
        raise InvalidArgument(
            f"{needs} needs DuckDB before {_FIRST_UNKNOWN[0]}.{_FIRST_UNKNOWN[1]}, and {duckdb.__version__} is "
            "installed: pip install 'duckdb>=1.5,<2.1'"
        )
