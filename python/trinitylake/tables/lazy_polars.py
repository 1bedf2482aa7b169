"""A scan as a polars LazyFrame, which reads only the columns and rows that a query needs.

Projection and predicates of a query are pushed down to the Iceberg scan if they have the same meaning in polars and
Iceberg. polars applies all predicates again, so a predicate that is not pushed down only costs time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pyarrow as pa
from polars.io.iceberg._utils import predicate_to_pyiceberg_delete_filter
from polars.io.plugins import register_io_source
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan

#: Maximum depth of nested "and" conditions that are analysed.
_CONJUNCTS_MAX_DEPTH = 200


def lazy_frame(scan: ReadAheadScan, read: Callable[[ReadAheadScan], pa.RecordBatchReader]) -> pl.LazyFrame:
    """A LazyFrame with the rows of `scan`. `read` returns the rows of a scan when the frame is collected."""
    wanted = scan.projection()
    schema = cast(pl.DataFrame, pl.from_arrow(no_rows(arrow_schema(wanted)))).schema

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        shown = list(schema) if with_columns is None else with_columns
        needed = {*shown, *(() if predicate is None else predicate.meta.root_names())}
        names = [name for name in schema if name in needed] or list(schema)[:1]
        narrowed = scan.update(selected_fields=tuple(names))
        if predicate is not None and n_rows is None and scan.limit is None:  # limits apply before the predicate
            narrowed = narrowed.filter(pushed_filter(predicate, scan.table_metadata))
        elif predicate is None and n_rows is not None:
            narrowed = narrowed.update(limit=n_rows if scan.limit is None else min(n_rows, scan.limit))
        left = n_rows
        for batch in read(narrowed):
            frame = cast(pl.DataFrame, pl.from_arrow(batch)).cast({name: schema[name] for name in names})
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame.select(shown) if shown else frame
            if left == 0:
                return

    return register_io_source(source, schema=schema, is_pure=True, explain_name="TRINITYLAKE")


def pushed_filter(predicate: pl.Expr, metadata: TableMetadata) -> BooleanExpression:
    """A filter that matches at least all rows for which `predicate` is true."""
    filter: BooleanExpression = AlwaysTrue()
    for part in _conjuncts(predicate, _CONJUNCTS_MAX_DEPTH):
        # polars applies predicates that cannot be translated to the rows that are read.
        with suppress(Exception):
            filter = And(filter, _translated(part, metadata))
    return filter


def _translated(predicate: pl.Expr, metadata: TableMetadata) -> BooleanExpression:
    # The parts of a table that polars uses.
    schemas, specs = {one.schema_id: one for one in metadata.schemas}, metadata.specs()
    table: Any = SimpleNamespace(schema=metadata.schema, schemas=lambda: schemas, specs=lambda: specs)
    return predicate_to_pyiceberg_delete_filter(predicate, table)


def _conjuncts(predicate: pl.Expr, depth: int) -> Iterator[pl.Expr]:
    parts: list[pl.Expr] = []
    with suppress(Exception):  # polars may change the format of serialized expressions
        if depth and json.loads(predicate.meta.serialize(format="json"))["BinaryExpr"]["op"] == "And":
            parts = predicate.meta.pop()
    if len(parts) != 2:
        yield predicate
        return
    for part in parts:
        yield from _conjuncts(part, depth - 1)
