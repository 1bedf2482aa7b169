"""Sorting of written rows: each row group is sorted by the sort order of the table.

NaN is larger than all other numbers, as in SQL and in Iceberg. To bound memory, a file with several row groups is not
sorted as a whole. So a file records the sort order only if it has one row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import IcebergType

from trinitylake.iceberg_storage.data_files.partitioned_rows import transformed

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class _Key:
    path: tuple[str, ...]
    transform: Transform[Any, Any]
    type: IcebergType
    direction: str
    nulls_first: bool


class RowOrder:
    """Sorts rows in memory by the fields of a sort order. `schema` is the schema of the rows."""

    def __init__(self, fields: Sequence[SortField], schema: Schema) -> None:
        self._keys = [_key(field, schema) for field in fields]

    @classmethod
    def of(cls, order: SortOrder, schema: Schema) -> RowOrder | None:
        """The sort order of a table; None if the table has none."""
        return cls(order.fields, schema) if order.fields else None

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in order. Raises Arrow's errors for a type that has no order."""
        return rows.take(self.indices(rows))

    def indices(self, rows: pa.Table) -> pa.Array:
        """The indices of the rows in sorted order. Raises Arrow's errors for a type that has no order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns: dict[str, pa.ChunkedArray] = {}
        sort_keys: list[tuple[str, str]] = []

        def add(values: pa.ChunkedArray, direction: str) -> None:
            name = str(len(columns))
            columns[name] = values
            sort_keys.append((name, direction))

        for key in self._keys:
            values = transformed(_column(rows, key.path), key.transform, key.type)
            # Arrow sorts nulls and NaN to the end, so additional sort columns decide their position.
            add(pc.is_null(values), "descending" if key.nulls_first else "ascending")
            if pa.types.is_floating(values.type):
                add(pc.is_nan(values), key.direction)
            add(values, key.direction)
        return pc.sort_indices(pa.table(columns), sort_keys=sort_keys)


def _key(field: SortField, schema: Schema) -> _Key:
    found = schema.find_field(field.source_id)
    whole = str(schema.find_column_name(field.source_id))
    is_top = any(one.field_id == field.source_id for one in schema.fields)
    return _Key(
        (whole,) if is_top else tuple(whole.split(".")),
        field.transform,
        found.field_type,
        "ascending" if field.direction == SortDirection.ASC else "descending",
        field.null_order == NullOrder.NULLS_FIRST,
    )


def _column(rows: pa.Table, path: tuple[str, ...]) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def by_columns(order: SortOrder) -> bool:
    return bool(order.fields) and all(isinstance(field.transform, IdentityTransform) for field in order.fields)
