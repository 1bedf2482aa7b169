"""Base class of scans and queries: conversions of their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trinitylake.base.arguments import checked
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame


class RowResult(ABC):
    """Rows in the formats of several libraries. Also an Arrow stream (`__arrow_c_stream__`)."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """All rows, in no particular order unless a query has ORDER BY."""

    @abstractmethod
    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches, for more than fits in memory."""

    @checked
    def to_pandas(self, **options: Any) -> PandasFrame:
        """All rows as a pandas frame; `options` go to `pyarrow.Table.to_pandas`."""
        with optional_dependency("a pandas frame"):
            import pandas  # noqa: F401
        frame: PandasFrame = self.to_arrow().to_pandas(**options)
        return frame

    def _to_polars(self) -> PolarsFrame:
        with optional_dependency("a polars frame"):
            import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    @checked
    def to_duckdb(self, table_name: str, connection: DuckDBPyConnection | None = None) -> DuckDBPyConnection:
        """Register the rows as `table_name` in a DuckDB connection; without `connection`, in a new one in memory."""
        with optional_dependency("a connection of DuckDB"):
            import duckdb

        if connection is None:
            connection = duckdb.connect(database=":memory:")
        elif not isinstance(connection, duckdb.DuckDBPyConnection):
            raise InvalidArgument(f"connection must be one of DuckDB, got {type(connection).__name__}")
        connection.register(table_name, self.to_arrow())
        return connection

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)
