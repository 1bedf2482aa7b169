"""Row groups have the sort order of the table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl

NAN, INF = math.nan, math.inf


def _stored(table: tl.Table) -> list[list[Any]]:
    """The values of `v` in each file, in the order of the files."""
    files = [task.file for task in table.scan().iceberg.plan_files()]
    assert all(file.sort_order_id == table.sort_order.order_id for file in files)
    return [pq.read_table(file.file_path.removeprefix("file://"))["v"].to_pylist() for file in files]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("v", [None, -INF, -1.0, 0.0, 7.0, INF, "NaN"]),
        ("v desc", ["NaN", INF, 7.0, 0.0, -1.0, -INF, None]),
        ("v asc nulls last", [-INF, -1.0, 0.0, 7.0, INF, "NaN", None]),
    ],
)
def test_rows_are_written_in_the_sort_order_of_the_table(tmp_path: Path, order: str, expected: list[Any]) -> None:
    """Every statement writes rows in the sort order of the table."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    rows = pa.table({"k": range(7), "v": [7.0, NAN, None, -INF, 0.0, INF, -1.0]})
    writes = {
        "append": lambda table: table.append(rows),
        "stream": lambda table: table.append(iter(rows.to_batches(max_chunksize=2))),
        "overwrite": lambda table: table.overwrite(rows),
        "upsert": lambda table: table.upsert(rows, on="k"),
        "sql": lambda table: lake.sql(f"INSERT INTO {table.name} SELECT * FROM d", data={"d": rows}),
    }
    for name, write in writes.items():
        table = lake.create_table(f"n.{name}", rows.schema, sort_order=order)
        write(table)
        (found,) = _stored(lake.table(f"n.{name}"))
        assert ["NaN" if value is not None and math.isnan(value) else value for value in found] == expected, name


def test_rows_are_sorted_by_transformed_values(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "text"}, sort_order=["truncate(1, v) desc", "v"])
    table.append({"v": ["b2", "a1", "c", "b1", "a0"]})
    assert _stored(lake.table("n.t")) == [["c", "b1", "b2", "a0", "a1"]]


def test_an_update_and_a_compaction_keep_the_order(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    lake.create_table("n.t", {"v": "int"}, sort_order="v")
    for values in ([3, 1], [2, 5]):
        lake.table("n.t").append({"v": values})
    lake.table("n.t").maintenance.compact(min_files=2)
    assert _stored(lake.table("n.t")) == [[1, 2, 3, 5]]
    lake.sql("UPDATE n.t SET v = 9 WHERE v = 1")
    assert _stored(lake.table("n.t")) == [[2, 3, 5, 9]]


def test_a_field_of_a_struct_with_a_dot_in_its_name_partitions_and_sorts_rows(lake: tl.Lakehouse) -> None:
    """The name of the partition source `"a.b"."c"` was split at its dots, so the table accepted no rows."""
    lake.create_namespace("n")
    columns = pa.schema([("id", pa.int64()), ("a.b", pa.struct([("c", pa.int32()), ("d", pa.int32())]))])
    table = lake.create_table("n.t", columns, partition_spec=['"a.b"."c"'], sort_order=['"a.b"."d"'])
    table.append(
        pa.table({"id": [1, 2, 3], "a.b": [{"c": 1, "d": 2}, {"c": 2, "d": 1}, {"c": 1, "d": 1}]}, schema=columns)
    )
    assert sorted(lake.table("n.t").scan('"a.b"."c" = 1').to_arrow()["id"].to_pylist()) == [1, 3]
    table.maintenance.compact(sort_by='"a.b"."d"')
    assert lake.table("n.t").scan('"a.b"."c" = 1').to_arrow()["id"].to_pylist() == [3, 1]
