"""Reading rows: a filter, some columns, a limit; nothing is read before one of the `to_…` methods is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import DataScan

from trinitylake.iceberg_errors import translated

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame


class Scan:
    """A scan of one table in one state: later commits do not change what it returns.

    Also an Arrow stream (`__arrow_c_stream__`), so polars, duckdb and pandas read it as it is.
    """

    def __init__(self, scan: DataScan) -> None:
        self._scan = scan

    @property
    def iceberg(self) -> DataScan:
        """The PyIceberg scan, for its plan of files and whatever else it offers."""
        return self._scan

    def to_arrow(self) -> pa.Table:
        """All matching rows, in no particular order."""
        with translated():
            return self._scan.to_arrow()

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """The matching rows as a stream of record batches, for more than fits in memory."""
        with translated():
            return self._scan.to_arrow_batch_reader()

    def to_pandas(self, **options: Any) -> PandasFrame:
        """The matching rows as a pandas frame; `options` go to `pyarrow.Table.to_pandas`."""
        frame: PandasFrame = self.to_arrow().to_pandas(**options)
        return frame

    def to_polars(self) -> PolarsFrame:
        """The matching rows as a polars frame."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_duckdb(self, table_name: str, connection: DuckDBPyConnection | None = None) -> DuckDBPyConnection:
        """Register the matching rows as `table_name` in a duckdb connection, a new one in memory if none is given."""
        import duckdb

        connection = connection or duckdb.connect(database=":memory:")
        connection.register(table_name, self.to_arrow())
        return connection

    def count(self) -> int:
        """The number of matching rows; answered from metadata alone where the filter allows it."""
        with translated():
            total = self._scan.count()
        return total if self._scan.limit is None else min(total, self._scan.limit)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        parts = [repr(self._scan.row_filter)] if self._scan.row_filter != AlwaysTrue() else []
        parts += [f"columns={list(self._scan.selected_fields)}"] if self._scan.selected_fields != ("*",) else []
        parts += [f"limit={self._scan.limit}"] if self._scan.limit is not None else []
        return f"Scan({', '.join(parts)})"


def parse_filter(expression: str | BooleanExpression) -> BooleanExpression:
    """A filter such as `"month = 1 and carrier in ('AA', 'UA')"`. Raises `InvalidArgument` if it cannot be read."""
    if isinstance(expression, BooleanExpression):
        return expression
    from pyiceberg.expressions.parser import parse

    with translated(f"filter {expression!r}"):
        return parse(expression)
