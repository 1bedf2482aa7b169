"""DuckDB connections: a pool for planning queries, and running a query in a thread of its own, so that Ctrl-C ends it.

Opening a connection takes longer than planning. Python handles Ctrl-C only between two of its instructions, so not
while DuckDB computes in the same thread. DuckDB checks for Ctrl-C only between its tasks, and one task may run without
end.
"""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa

from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument
from trinitylake.tables.sql_sandbox import arrow_result, connect

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


Result = TypeVar("Result")
#: Interval between interrupts of a computation. They are repeated, because an interrupt between two steps has no
#: effect.
_AGAIN_SECONDS = 0.05


class RunningQuery:
    """A query whose rows can be read once. Its methods are those of DuckDB's connection, and raise as they do."""

    def __init__(self, connection: Any, sql: str, parameters: Any = None) -> None:
        self._connection = connection
        self._sql = sql
        self._parameters = parameters or None

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        """The first rows, `size` at most."""
        connection = self._connection
        return interruptible(connection, lambda: connection.execute(self._sql, self._parameters).fetchmany(size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""
        connection = self._connection
        return interruptible(connection, lambda: connection.execute(self._sql, self._parameters).fetchall())

    def to_arrow_table(self) -> pa.Table:
        """All rows."""
        return interruptible(self._connection, lambda: self._arrow_result().to_arrow_table())

    def to_arrow_reader(self, batch_size: int) -> pa.RecordBatchReader:
        """A stream of batches with `batch_size` rows each."""
        connection = self._connection
        reader = interruptible(connection, lambda: self._arrow_result().to_arrow_reader(batch_size))

        def batches() -> Iterator[pa.RecordBatch]:
            while (batch := interruptible(connection, lambda: next(reader, None))) is not None:
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _arrow_result(self) -> Any:
        return arrow_result(self._connection, self._sql, self._parameters)


def interruptible(connection: Any, work: Callable[[], Result]) -> Result:
    """Run `work`, a computation of a DuckDB connection, and return its result.

    An exception that the handler of Ctrl-C raises meanwhile is raised when the computation has ended. If it were raised
    between any two instructions, such as while the thread starts, the thread would continue after the statement ended.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return work()  # signals raise exceptions only in the main thread
    raised: list[BaseException] = []

    def defer(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)

    outcome: Future[Result] = Future()
    thread = threading.Thread(target=contextvars.copy_context().run, args=(_settle, outcome, work), daemon=True)
    signal.signal(signal.SIGINT, defer)
    try:
        thread.start()
        while thread.is_alive() and not raised:
            thread.join(_AGAIN_SECONDS)
    finally:
        while thread.is_alive():
            if not outcome.done():
                connection.interrupt()
            thread.join(_AGAIN_SECONDS)
        signal.signal(signal.SIGINT, handler)
    if raised:
        raise raised[0]
    return outcome.result()


def _settle(outcome: Future[Result], work: Callable[[], Result]) -> None:
    try:
        result = work()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
