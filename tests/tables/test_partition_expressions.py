"""Partition expressions in the spellings of Iceberg, of Spark's `PARTITIONED BY` and of this package."""

from __future__ import annotations

import pyarrow as pa
import pytest

from trinitylake.definitions.schema import to_iceberg_schema
from trinitylake.errors import InvalidArgument
from trinitylake.tables.partitioning_and_sorting import partition_spec, sort_order, split_expressions

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
