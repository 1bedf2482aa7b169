"""A table that streams read."""

from __future__ import annotations

import pyarrow as pa

import trinitylake as tl


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "carrier": pa.array(["AA"] * len(ids), pa.string())})


def flights(lake: tl.Lakehouse) -> tl.Table:
    """A table with rows 0 to 3 in four files, added by versions 3 to 6."""
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", rows())
    for id in range(4):
        table.append(rows(id))
    return table
