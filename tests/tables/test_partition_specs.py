"""Partition specs and sort orders: their expressions, changes of specs, and values."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import DecimalType

import trinitylake as tl
from trinitylake.base.foreign_errors import own_error
from trinitylake.definitions.schema import to_iceberg_schema
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.partitioned_rows import transformed
from trinitylake.iceberg_storage.errors import translated
from trinitylake.tables.partitioning_and_sorting import partition_spec, sort_order, split_expressions

# Expressions


SCHEMA = to_iceberg_schema(
    pa.schema({"id": pa.int64(), "ts": pa.timestamp("us"), "s": pa.string(), "a b": pa.int64(), "x,(y": pa.int64()})
)


@pytest.mark.parametrize(
    ("expression", "transform", "column"),
    [
        ("bucket(4, id)", "bucket[4]", "id"),
        ("bucket(id, 4)", "bucket[4]", "id"),
        ("bucket[4](id)", "bucket[4]", "id"),
        ("BUCKET [ 4 ] ( id )", "bucket[4]", "id"),
        ("truncate(2, s)", "truncate[2]", "s"),
        ("truncate(s, 2)", "truncate[2]", "s"),
        ("trunc[2](s)", "truncate[2]", "s"),
        ("day(ts)", "day", "ts"),
        ("days(ts)", "day", "ts"),
        ("date(ts)", "day", "ts"),
        ("hours(ts)", "hour", "ts"),
        ("date_hour(ts)", "hour", "ts"),
        ("months(`ts`)", "month", "ts"),
        ("years(ts)", "year", "ts"),
        ("identity(s)", "identity", "s"),
        ("`a b`", "identity", "a b"),
        ('truncate("a b", 4)', "truncate[4]", "a b"),
        ('bucket(4, "x,(y")', "bucket[4]", "x,(y"),
    ],
)
def test_spellings_of_iceberg_and_spark_mean_the_same_transform(expression: str, transform: str, column: str) -> None:
    (field,) = partition_spec(expression, SCHEMA).fields
    assert (str(field.transform), SCHEMA.find_column_name(field.source_id)) == (transform, column)
    (sorted_by,) = sort_order(f"{expression} desc", SCHEMA).fields
    assert (str(sorted_by.transform), sorted_by.source_id) == (transform, field.source_id)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("bucket(id)", "needs a width"),
        ("bucket[0](id)", "needs a width"),
        ("bucket[4](4, id)", "two widths"),
        ("days(ts, 4)", "unknown transform"),
        ("fortnights(ts)", "unknown transform"),
        ("bucket(4, nothing)", "no column 'nothing'"),
    ],
)
def test_unreadable_expression_is_an_invalid_argument(expression: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        partition_spec(expression, SCHEMA)


def test_a_comma_in_a_quoted_name_does_not_split_expressions() -> None:
    expressions = ["bucket(4, id)", '"x,(y"', 'truncate("x,(y", 4)', "`a b`"]
    assert split_expressions(", ".join(expressions)) == expressions


# Changes of specs


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("transform", ["v", "bucket(3, v)"])
@pytest.mark.parametrize("added", [None, "v"])
def test_rows_after_a_removed_partition_field_are_found(
    lake: tl.Lakehouse, version: str, transform: str, added: str | None
) -> None:
    """Format version 1 replaces the field by a void field, which is NULL in every row."""
    lake.create_namespace("n")
    lake.create_table(
        "n.t", {"k": "int", "v": "int"}, partition_spec=[transform], properties={"format-version": version}
    )
    table = lake.table("n.t")
    table.append({"k": [1, 2, 3], "v": [1, -7, None]})
    with table.update_spec() as update:
        update.remove_field(table.partition_spec.fields[0].name)
    if added is not None:
        with table.update_spec() as update:
            update.add_field(added, BucketTransform(4), "added")
    table.append({"k": [4, 5, 6], "v": [1, -7, None]})
    for filter, keys in {"v = 1": [1, 4], "v < 0": [2, 5], "v IS NOT NULL": [1, 2, 4, 5], "v IS NULL": [3, 6]}.items():
        assert sorted(table.scan(filter).to_arrow()["k"].to_pylist()) == keys
        assert table.scan(filter).count() == len(keys)
        assert lake.sql(f"SELECT list(k ORDER BY k) FROM n.t WHERE {filter}").fetchone() == (keys,)
    result = table.upsert({"v": [-7], "k": [5]}, on="k")
    assert (result.rows_updated, result.rows_inserted) == (0, 0)
    table.maintenance.rewrite_manifests()
    assert table.delete("v = 1").rows_deleted == 2
    assert table.merge({"v": [-7]}, on="v").when_matched_delete().execute().rows_deleted == 2
    assert table.count() == 2


def with_name_of_dropped_field(lake: tl.Lakehouse, version: str, transform: str) -> tuple[tl.Table, str]:
    """The table `n.t` with a column that has the name of a dropped partition field. Returns also this name."""
    lake.create_namespace("n")
    columns = {"id": "bigint", "p": "varchar"}
    table = lake.create_table("n.t", columns, partition_spec=[transform], properties={"format-version": version})
    table.append({"id": [1], "p": ["a"]})
    name = table.partition_spec.fields[0].name
    with table.update_spec() as update:
        update.remove_field(name)
    with table.update_schema() as update_schema:
        update_schema.delete_column("p")
    with table.update_schema() as update_schema:
        update_schema.add_column(name, "varchar")
    table.append({"id": [2], name: ["b"]})
    return table, name


@pytest.mark.parametrize("version", ["1", "2", "3"])
@pytest.mark.parametrize("transform", ["p", "bucket(4, p)"])
def test_a_column_takes_the_name_of_a_dropped_partition_field(lake: tl.Lakehouse, version: str, transform: str) -> None:
    """Format version 1 keeps the removed field as `void`; Iceberg's Java allows this, too."""
    table, name = with_name_of_dropped_field(lake, version, transform)
    with table.update_spec() as update:
        update.add_field(name, "identity", name)
    table.append({"id": [3], name: ["b"]})
    for filter, ids in {f"{name} = 'b'": [2, 3], f"{name} IS NULL": [1]}.items():
        assert sorted(table.scan(filter).to_arrow()["id"].to_pylist()) == ids
        assert lake.sql(f"SELECT list(id ORDER BY id) FROM n.t WHERE {filter}").fetchone() == (ids,)
    assert table.delete(f"{name} = 'b'").rows_deleted == 2
    table.maintenance.rewrite_manifests()
    assert table.count() == 1


# Sort orders


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


# Bucket values


@pytest.mark.parametrize("precision", [9, 18, 38])
@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(10)])
def test_decimals_that_are_aligned_to_8_bytes_have_the_same_partition_values(
    precision: int, transform: BucketTransform[Decimal] | TruncateTransform[Decimal]
) -> None:
    """As in the JVM. Rust reads decimals 16 bytes at a time, and a write panicked."""
    type = DecimalType(precision, 2)
    values = pa.array([None, *(Decimal(number) / 4 for number in range(101))], pa.decimal128(precision, 2))
    validity, data = values.buffers()
    shifted = pa.py_buffer(b"12345678" + bytes(data)).slice(8)
    unaligned = pa.Array.from_buffers(values.type, len(values), [validity, shifted])
    assert unaligned.buffers()[1].address % 16 == 8
    expected = [transform.transform(type)(value) for value in values.to_pylist()]
    assert transformed(unaligned, transform, type).to_pylist() == expected


def test_a_panic_of_a_library_is_translated() -> None:
    class PanicException(BaseException):
        """Like the class of PyO3, which is not a subclass of `Exception`."""

    assert own_error(RuntimeError("not of an input")) is None
    with pytest.raises(InvalidArgument, match="misaligned"), translated("shop.orders"):
        raise PanicException("misaligned pointer")
