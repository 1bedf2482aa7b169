"""Arrow batches of the tasks that Spark's `mapInArrow` runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

Batches: TypeAlias = Iterable[pa.RecordBatch]


def in_bounds(batches: Batches, rows: int) -> Iterator[pa.RecordBatch]:
    """Divide batches into batches of at most `rows` rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
