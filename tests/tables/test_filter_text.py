"""Filters in text form have the same meaning as in SQL. The oracle is DuckDB over the same rows."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThan
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, TimestampNanoType

import trinitylake as tl
from trinitylake.iceberg_storage.filter_text import filter_text, parse_filter

COLUMNS = {
    "id": "int",
    "f": "double",
    "d": "decimal(9,2)",
    "day": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "a": "text",
    "b": "boolean",
    "naïve": "bigint",
    "a.b": "bigint",
    "s": "row(x int)",
}
ROWS = [
    {
        "id": 1,
        "f": 1e6,
        "d": Decimal("1.10"),
        "day": date(2020, 1, 1),
        "ts": datetime(2020, 1, 1),
        "tz": datetime(2020, 1, 1, tzinfo=UTC),
        "a": "it's",
        "b": True,
        "naïve": 1,
        "a.b": 7,
        "s": {"x": 1},
    },
    {
        "id": 2,
        "f": -0.0,
        "d": Decimal("-5.00"),
        "day": date(1, 1, 1),
        "ts": datetime(2020, 1, 1, 12, 30, 0, 500_000),
        "tz": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "a": "100%",
        "b": False,
        "naïve": None,
        "a.b": -7,
        "s": None,
    },
    {"id": 3},
]
#: Filters that are valid in SQL, too.
FILTERS = [
    "ts = '2020-01-01 00:00:00'",
    "ts >= '2020-01-01'",
    "ts < '2020-01-01 12:30:00.5'",
    "ts = '2020-01-01T12:30:00.500000'",
    "tz = '2020-01-01T00:00:00Z'",
    "tz = '2020-01-01T00:00:00+00:00'",
    "tz = '2020-01-01 02:00:00+02'",
    "tz >= '2020-01-01'",
    "tz > '12000-01-01'",
    "tz < '12000-01-01 00:00:00+00'",
    "day = '0001-01-01'",
    "day <= '0001-01-01'",
    "day >= '0001-01-02'",
    "ts in ('2020-01-01', '2021-01-01')",
    "ts between '2020-01-01' and '2020-01-02'",
    "f > 1e5",
    "f > -1.5E-3",
    "f = 1.0e+6",
    "f < .5",
    "d = 1.1",
    "d in (1.10, -5)",
    "naïve = 1",
    "naïve IS NULL",
    '"a.b" = 7',
    '"a.b" != 7',
    '"s"."x" = 1',
    "s.x is not null",
    "a = 'it''s'",
    "a like 'it%'",
    "a = 'like ''a_b'''",
    "a not like 'it%'",
    "b = true",
    "true = b",
    "not b = true",
    "id = 1 or id = 2 and f < 1",
    "not (id = 1 or id = 2)",
    "1 < id and 3 >= id",
    "id not between 2 and 3",
    "true",
    "id = 1 or false",
]


@pytest.fixture(scope="module")
def table() -> tl.Table:
    lake = tl.create("memory://filter-text")
    lake.create_namespace("n")
    table = lake.create_table("n.t", COLUMNS)
    table.append(ROWS)
    return table


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_matches_the_rows_that_sql_matches(table: tl.Table, text: str) -> None:
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        oracle.register("t", table.scan().to_arrow())
        oracle.execute("CREATE TABLE own AS SELECT * FROM t")
        expected = [id for (id,) in oracle.execute(f"SELECT id FROM own WHERE {text} ORDER BY id").fetchall()]
    assert sorted(table.scan(text).to_arrow()["id"].to_pylist()) == expected
    assert table.scan(text).count() == len(expected)


@pytest.mark.parametrize("text", FILTERS)
def test_a_parsed_filter_is_shown_as_a_text_of_the_same_meaning(text: str) -> None:
    """Not as PyIceberg's `GreaterThan(term=Reference(name='id'), literal=LongLiteral(1))`."""
    parsed = parse_filter(text)
    assert parse_filter(filter_text(parsed)) == parsed


@pytest.mark.parametrize("column", ["id", "d", "f"])
@pytest.mark.parametrize("number", ["1e99999", "1e999999999", "9" * 5000, "1e-999999999", "0e999999999"])
def test_a_number_beyond_all_types_is_compared_as_any_other(table: tl.Table, column: str, number: str) -> None:
    least = 0.0 if column == "f" else 1e-300  # 1e-999 is 0 as a double
    number_of = {"1e-999999999": least, "0e999999999": 0.0}.get(number, 1e300)
    rows = [row[column] for row in table.scan().to_arrow().to_pylist() if row[column] is not None]
    for sign, value in (("", number_of), ("-", -number_of)):
        assert table.scan(f"{column} < {sign}{number}").count() == sum(row < value for row in rows)
        assert table.scan(f"{column} >= {sign}{number}").count() == sum(row >= value for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        "id = 1e99999999999999999999",
        "ts = '2020-13-01'",
        "ts = '2020-01-01 25:00'",
        "ts = '2020-01-01 00:00:00+00:00'",
        "ts = '2020-01-01 00:00:00.0000001'",
        "day = '2020-01-01 00:00'",
        "day = 'yesterday'",
        "a like 'a_b'",
        "a not like 'a_b'",
        "b = true or not a like '_'",
        "a like '%b'",
        "id = 1 1",
        "id = = 1",
        "not",
        "(" * 5000 + "id = 1" + ")" * 5000,
    ],
)
def test_a_filter_that_cannot_be_evaluated_is_refused(table: tl.Table, text: str) -> None:
    for use in (lambda: table.scan(text).count(), lambda: table.delete(text)):
        with pytest.raises(tl.InvalidArgument):
            use()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zon = 'a'", "no column 'zon'; did you mean 'zone'"),
        ("ZONE = 'a'", "did you mean 'zone'"),
        (
            "zone = 1",
            "column 'zone': a column of type VARCHAR cannot be compared with 1; write the string in quotes: '1'",
        ),
        ("id in (1, 'x')", "column 'id': a column of type BIGINT cannot be compared with 'x'"),
        ("id like 'a%'", "column 'id': `like` needs a column of strings, not of type BIGINT"),
        ("flag = 'yes'", "column 'flag': a column of type BOOLEAN cannot be compared with 'yes'"),
        ("id = true", "column 'id': a column of type BIGINT cannot be compared with true"),
        ("tags = 1", "type VARCHAR[] cannot be compared with 1"),
        ("day < 20250101", "column 'day': a column of type DATE cannot be compared with 20250101; write a string"),
        ("day in ('2025-01-01', 2025)", "type DATE cannot be compared with 2025; write a string in quotes"),
        ("ts >= 2025", "type TIMESTAMP cannot be compared with 2025; write a string in quotes"),
        ("id > NULL", "is null"),
    ],
)
def test_errors_about_filters_name_the_column_and_its_sql_type(lake: tl.Lakehouse, text: str, words: str) -> None:
    """`delete("day < 20250101")` deleted all rows, because a number was a number of days since 1970."""
    lake.create_namespace("shop")
    columns = {"id": "bigint", "zone": "text", "flag": "boolean", "tags": "array<text>", "place": "row(x int)"}
    table = lake.create_table("shop.t", columns | {"day": "date", "ts": "timestamp"})
    for use in (lambda: table.scan(text).to_arrow(), lambda: table.delete(text)):
        with pytest.raises(tl.InvalidArgument, match=re.escape(words)):
            use()
    with pytest.raises(tl.InvalidArgument, match=r"shop.t in version \d+ has no column 'zon'; did you mean 'zone'"):
        table.scan(columns=["zon"])


def test_escaped_signs_of_like_are_characters() -> None:
    assert parse_filter("a like '100\\%'") == parse_filter("a = '100%'")
    assert parse_filter("a like 'a\\_b'") == parse_filter("a = 'a_b'")


def test_nanoseconds_are_compared_with_texts_and_times() -> None:
    lake = tl.create("memory://filter-nanos")
    lake.create_namespace("n")
    schema = Schema(NestedField(1, "ts", TimestampNanoType()))
    table = lake.create_table("n.t", schema, properties={"format-version": "3"})
    table.append(pa.table({"ts": pa.array([1, 1000], pa.timestamp("ns"))}))
    for filter, count in (
        ("ts > '1970-01-01T00:00:00'", 2),
        ("ts > '1970-01-01 00:00:00.000000001'", 1),
        ("ts = '1970-01-01 00:00:00.000001'", 1),
        ("ts > '1970-01-01 00:00:00.000001'", 0),
        (GreaterThan("ts", datetime(1970, 1, 1)), 2),
    ):
        assert table.scan(filter).count() == count


def test_a_column_with_a_dot_is_filtered_in_every_statement() -> None:
    """A delete looked for the field `b` of a struct `a`."""
    lake = tl.create("memory://filter-dots")
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"a.b": "bigint", "v": "text"})
    table.append([{"a.b": 1, "v": "x"}, {"a.b": 2, "v": "y"}, {"a.b": 3, "v": "z"}])
    assert table.scan(EqualTo("a.b", 2)).to_arrow()["v"].to_pylist() == ["y"]
    table.delete('"a.b" = 2')
    table.overwrite([{"a.b": 4, "v": "w"}], filter="a.b = 3")
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == ["w", "x"]
    assert lake.sql('DELETE FROM n.t WHERE "a.b" = 4').fetchone() == (0, 1, 0, lake.version)


@pytest.mark.parametrize(
    ("type", "text", "expected"),
    [
        (type, text, expected)
        for type in ("real", "double")
        for text, expected in {
            "c = 'inf'": [math.inf],
            "c != 'inf'": [-math.inf, 1.0],
            "c > 'Infinity'": [],
            "c < '-inf'": [],
            "c in ('inf', 1)": [1.0, math.inf],
            "c between 0 and 'inf'": [1.0, math.inf],
            "c = '1e0'": [1.0],
        }.items()
    ]
    + [("int", "c = '1.5'", []), ("int", "c > '0.5'", [1, 2**31 - 1]), ("int", "c < '3000000000'", [1, 2**31 - 1])]
    + [("int", "c = '3000000000'", []), ("decimal(9,2)", "c = '1.00'", [1]), ("decimal(9,2)", "c = '1.001'", [])],
)
def test_a_string_is_compared_with_numbers_as_the_number_that_it_is(
    lake: tl.Lakehouse, type: str, text: str, expected: list[float]
) -> None:
    """Infinity became the largest `real`, so `delete("c != 'inf'")` deleted infinity; `1.5` became the integer 1."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"c": type})
    values = [1, None, *((2**31 - 1,) if type == "int" else (-math.inf, math.inf) if "(" not in type else ())]
    table.append([{"c": value} for value in values])
    assert sorted(table.scan(text).to_arrow()["c"].to_pylist()) == expected
    with pytest.raises(tl.InvalidArgument, match="cannot be compared with '1_0'"):
        table.scan("c = '1_0'").to_arrow()
