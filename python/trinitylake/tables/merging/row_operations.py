"""Operations on rows of two tables: comparison, nested columns included, and selection by row numbers.

In a comparison nulls equal nulls, NaN equals NaN, and -0.0 is not 0.0.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask: TypeAlias = "npt.NDArray[np.bool_]"


def differing(left: pa.Table, right: pa.Table) -> Mask:
    """Mask of the rows in which any column differs between two tables with the same columns and types."""
    result = np.zeros(left.num_rows, dtype=bool)
    for name in left.column_names:
        result |= _differing(_one(left.column(name)), _one(right.column(name)))
    return result


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def _differing(left: pa.Array, right: pa.Array) -> Mask:
    if isinstance(left, pa.ExtensionArray):  # a UUID, which Arrow does not compare
        left, right = left.storage, right.storage
    kind = left.type
    left_null, right_null = _numpy(left.is_null()), _numpy(right.is_null())
    result: Mask = left_null != right_null
    both = ~left_null & ~right_null
    if not both.any():
        return result
    if pa.types.is_struct(kind):
        inside = np.zeros(len(left), dtype=bool)
        for number in range(kind.num_fields):
            inside |= _differing(pc.struct_field(left, [number]), pc.struct_field(right, [number]))
        result |= inside & both
        return result
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        result |= _differing_lists(left, right, both)
        return result
    equal = pc.fill_null(pc.equal(left, right), False)
    if pa.types.is_floating(kind):
        bits = pa.int64() if kind == pa.float64() else pa.int32()
        equal = pc.equal(left.view(bits), right.view(bits))
        equal = pc.fill_null(pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right))), False)
    result |= both & ~_numpy(equal)
    return result


def _differing_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    """Mask of the lists that differ in length or in an element. A map is compared as a list of its entries."""
    left, right = _as_lists(left), _as_lists(right)
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(one), 0)) for one in (left, right)]
    result: Mask = both & (lengths[0] != lengths[1])
    same = np.flatnonzero(both & ~result)
    if not len(same):
        return result
    chosen = pa.array(same)
    one, other = left.take(chosen), right.take(chosen)
    elements = _differing(one.flatten(), other.flatten())
    parents = np.asarray(pc.list_parent_indices(one))
    result[same[np.unique(parents[elements])]] = True
    return result


def _as_lists(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array
    kind = pa.list_(pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)]))
    return array.cast(kind) if _can_cast(array, kind) else pa.array(array.to_pylist(), kind)


def _can_cast(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        array.slice(0, 0).cast(kind)
    except pa.ArrowException:
        return False
    return True


def _numpy(values: pa.Array) -> Mask:
    result: Mask = values.to_numpy(zero_copy_only=False).astype(bool)
    return result


def take_rows(rows: pa.Table, numbers: np.ndarray) -> pa.Table:
    """The rows with the given numbers, in the order of the numbers.

    If a column has several chunks, Arrow's `take` copies all of its strings, even for few rows. So the rows are taken
    from each batch separately.
    """
    if rows.num_columns == 0 or all(column.num_chunks <= 1 for column in rows.columns) or not len(numbers):
        return rows.take(pa.array(numbers, pa.int64()))
    batches = rows.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    ends = np.searchsorted(ascending, starts)
    parts = [
        batch.take(pa.array(ascending[first:last] - start))
        for batch, start, first, last in zip(batches, starts, ends, ends[1:], strict=False)
        if last > first
    ]
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(parts, schema=rows.schema).combine_chunks().take(pa.array(back))
