"""Sorting of written rows: each row group is sorted by the sort order of the table.

NaN is larger than all other numbers, as in SQL and in Iceberg. To bound memory, a file with several row groups is not
sorted as a whole. So a file records the sort order only if it has one row group.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from trinitylake.iceberg_storage.data_files.partitioned_rows import column_of, transformed


class RowOrder:
    """Sorts rows in memory by the fields of a sort order. `schema` is the schema of the rows."""

    def __init__(self, fields: Sequence[SortField], schema: Schema) -> None:
        self._schema = schema
        self._keys = [(field, schema.find_type(field.source_id)) for field in fields]

    @classmethod
    def of(cls, order: SortOrder, schema: Schema) -> RowOrder | None:
        """The sort order of a table; None if the table has none."""
        return cls(order.fields, schema) if order.fields else None

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in order. Raises Arrow's errors for a type that has no order."""
        return rows.take(self.indices(rows))

    def indices(self, rows: pa.Table) -> pa.Array:
        """The indices of the rows in sorted order. Raises Arrow's errors for a type that has no order."""
        columns: dict[str, pa.ChunkedArray] = {}
        sort_keys: list[tuple[str, str]] = []

        def add(values: pa.ChunkedArray, *, ascending: bool) -> None:
            sort_keys.append((str(len(columns)), "ascending" if ascending else "descending"))
            columns[str(len(columns))] = values

        for field, type in self._keys:
            values = transformed(column_of(rows, self._schema, field.source_id), field.transform, type)
            ascending = field.direction == SortDirection.ASC
            # Arrow sorts nulls and NaN to the end, so additional sort columns decide their position.
            add(pc.is_null(values), ascending=field.null_order != NullOrder.NULLS_FIRST)
            if pa.types.is_floating(values.type):
                add(pc.is_nan(values), ascending=ascending)
            add(values, ascending=ascending)
        return pc.sort_indices(pa.table(columns), sort_keys=sort_keys)


def by_columns(order: SortOrder) -> bool:
    return bool(order.fields) and all(isinstance(field.transform, IdentityTransform) for field in order.fields)
