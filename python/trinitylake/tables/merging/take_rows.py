"""Takes rows of a table by their numbers, batch by batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


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
