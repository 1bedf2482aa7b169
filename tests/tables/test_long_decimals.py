"""Partitions by truncated decimals of up to 38 digits are exact."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

import trinitylake as tl


def test_truncated_decimals_of_38_digits_are_exact(lake: tl.Lakehouse) -> None:
    """Python's decimals round to 28 digits: a row was put into a wrong partition, where no filter found it."""
    lake.create_namespace("n")
    values = [Decimal("-" + "9" * 34 + "50.00"), Decimal("-" + "9" * 36 + ".99"), Decimal("9" * 36 + ".99")]
    rows = pa.table({"v": pa.array(values, pa.decimal128(38, 2))})
    table = lake.create_table("n.t", rows.schema, partition_spec=["truncate(50, v)"])
    table.append(rows)
    for value in values:
        assert table.scan(f"v = {value}").to_arrow()["v"].to_pylist() == [value]
    assert table.upsert(rows, on=["v"]) == (0, 0)
