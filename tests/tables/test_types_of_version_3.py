"""Types of format version 3: times with nanoseconds, and the type `unknown`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable

import trinitylake as tl
from local_files import lake_on_disk, local_path
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import MAX_KEYS

V3 = {"format-version": "3"}
NANOS = [1, 1_700_000_000_123_456_789, -1]


lake = lake_on_disk("ns")


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_arrow_nanoseconds_are_kept_in_version_3_and_refused_in_version_2(lake: tl.Lakehouse, zone: str | None) -> None:
    """The table accepts the Arrow data from which it was created."""
    times = pa.array(NANOS, pa.timestamp("ns", zone))
    rows = pa.table({"id": [1, 2, 3], "t": times, "l": pa.array([[one] for one in NANOS], pa.list_(times.type))})
    table = lake.create_table("ns.t", rows, properties=V3, partition_spec=["day(t)"])
    table.append(rows)
    table.append(rows.to_reader())
    table.append({"id": [4], "more": times[:1]}, evolve_schema=True)
    kind = types.TimestamptzNanoType() if zone else types.TimestampNanoType()
    assert [table.iceberg.schema().find_type(name) for name in ("t", "l.element", "more")] == [kind] * 3
    read = table.scan(filter="id < 4").to_arrow().sort_by("id")
    assert read["t"].cast(pa.int64()).to_pylist() == [one for one in NANOS for _ in range(2)]
    assert table.count() == 7
    second = lake.create_table("ns.second", rows)
    with pytest.raises(InvalidArgument, match="would lose data"):
        second.append(rows)


@pytest.mark.parametrize("count", [3, MAX_KEYS + 1])
def test_rows_are_merged_by_nanoseconds(lake: tl.Lakehouse, count: int) -> None:
    """With keys in microseconds the rows are not found, and inserted again."""
    times = pa.array([NANOS[1] + number for number in range(count)], pa.timestamp("ns"))
    table = lake.create_table("ns.t", pa.table({"t": times, "n": [0] * count}), properties=V3)
    table.append({"t": times, "n": [0] * count})
    assert table.upsert({"t": times, "n": [1] * count}, on=["t"]) == (count, 0)
    rows = pa.table({"t": times[:2], "n": pa.array([2, 2])})
    iceberg: IcebergTable = lake.table("ns.t").iceberg
    result = iceberg.upsert(rows, ["t"])
    assert (result.rows_updated, result.rows_inserted) == (2, 0)
    table.refresh()
    assert table.scan().to_arrow().sort_by("t")["n"].to_pylist() == [2, 2] + [1] * (count - 2)
    assert lake.sql(f"SELECT n FROM ns.t WHERE t = make_timestamp_ns({NANOS[1] + 1})").fetchall() == [(2,)]


def test_a_default_value_with_nanoseconds_is_read_and_written(lake: tl.Lakehouse) -> None:
    """A default value with nanoseconds can be read and written, although PyIceberg cannot parse its JSON."""
    table = lake.create_table("ns.t", {"id": "bigint"}, properties=V3)
    table.append({"id": [1]})
    field = {"id": 2, "name": "t", "type": "timestamp_ns", "required": False}
    default = {"initial-default": "2023-11-14T22:13:20.123456789", "write-default": "1970-01-01T00:00:00.000000001"}
    with table.update_schema() as change:
        change._adds.setdefault(-1, []).append(types.NestedField.model_validate(field | default))
    lake = tl.open(lake.uri)
    table = lake.table("ns.t")
    table.append({"id": [2]})
    assert table.scan().to_arrow().sort_by("id")["t"].cast(pa.int64()).to_pylist() == [NANOS[1], NANOS[0]]
    assert default.items() <= table.iceberg.schema().find_field("t").model_dump(by_alias=True).items()


def test_columns_of_an_unknown_type_are_not_stored_and_become_wider(lake: tl.Lakehouse) -> None:
    """As in the specification, they can be promoted to any type."""
    inner = types.StructType(
        types.NestedField(4, "a", types.UnknownType()), types.NestedField(5, "b", types.LongType())
    )
    schema = Schema(
        types.NestedField(1, "id", types.LongType()),
        types.NestedField(2, "u", types.UnknownType()),
        types.NestedField(3, "s", inner),
    )
    table = lake.create_table("ns.t", schema, properties=V3)
    rows: Any = {"id": [1], "u": pa.nulls(1), "s": [{"a": None, "b": 1}]}
    table.append(rows)
    with pytest.raises(InvalidArgument, match="column u: cannot cast BIGINT to UNKNOWN"):
        table.append({"id": [2], "u": [5]})
    (task,) = table.scan().iceberg.plan_files()
    assert pq.read_schema(local_path(task.file.file_path)).names == ["id", "s"]
    table.append({"id": [2], "u": [5], "s": [{"a": "x", "b": 1}]}, evolve_schema=True)
    table.upsert({"id": [1], "u": [7]}, on=["id"])
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "u": 7, "s": {"a": None, "b": 1}},
        {"id": 2, "u": 5, "s": {"a": "x", "b": 1}},
    ]


def test_a_column_of_nulls_has_an_unknown_type_in_version_3(lake: tl.Lakehouse) -> None:
    rows = pa.table({"id": [1], "u": pa.nulls(1)})
    table = lake.create_table("ns.t", rows, properties=V3)
    table.append(rows)
    assert isinstance(table.iceberg.schema().find_type("u"), types.UnknownType)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    with pytest.raises(InvalidArgument, match="the Arrow type null has no counterpart"):
        lake.create_table("ns.second", rows)


def test_sql_writes_null_to_a_column_of_an_unknown_type(lake: tl.Lakehouse) -> None:
    """`INSERT … VALUES (2, NULL)` failed, because DuckDB gives NULL the type INTEGER."""
    lake.create_table("ns.t", pa.table({"id": [1], "u": pa.nulls(1)}), properties=V3)
    lake.sql("INSERT INTO ns.t VALUES (2, NULL)")
    lake.sql("UPDATE ns.t SET u = NULL WHERE id = 2")
    assert lake.table("ns.t").to_arrow().to_pylist() == [{"id": 2, "u": None}]
    with pytest.raises(InvalidArgument, match="column u: cannot cast"):
        lake.sql("INSERT INTO ns.t VALUES (3, 5)")


def test_a_schema_of_pyiceberg_keeps_its_default_values(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    part = types.NestedField(4, "p", types.StringType(), write_default="part")
    schema = Schema(
        types.NestedField(1, "id", types.LongType()),
        types.NestedField(2, "x", types.LongType(), initial_default=5, write_default=7),
        types.NestedField(3, "s", types.StructType(part)),
    )
    table = lake.create_table("n.t", schema, properties={"format-version": "3"}, primary_key="id")
    table.append({"id": [1]})
    assert table.to_arrow().to_pylist() == [{"id": 1, "x": 7, "s": None}]
    assert table.iceberg.schema().find_field("x").initial_default == 5
    assert table.iceberg.schema().find_field("s.p").write_default == "part"
    with pytest.raises(tl.InvalidArgument, match="needs format version 3"):
        lake.create_table("n.u", schema)
