"""Values of dates, times, decimals, strings, nested types and maps are stored exactly, or the write is refused."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation, localcontext
from random import Random
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.types import IcebergType, ListType, LongType

import trinitylake as tl
from trinitylake.definitions.sql_type_grammar import MAX_DEPTH
from trinitylake.definitions.sql_types import parse_type
from trinitylake.iceberg_storage.data_files.written_values import leaf_arrays
from trinitylake.tables.ingestion.text_rows import json_rows
from trinitylake.tables.input_files.text_conversion import conversion
from trinitylake.tables.input_rows import fitting

# Dates and times in rows of Python


DAY, NOON = date(2020, 1, 1), datetime(2020, 1, 1, 12, 0, 0, 1)
ZONED = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
MIDNIGHT = datetime(2020, 1, 1)
MICROS, INSTANTS = pa.timestamp("us"), pa.timestamp("us", "UTC")


def written(lake: tl.Lakehouse, kind: pa.DataType, values: list[Any], form: str) -> list[Any]:
    lake.create_namespace("n")
    version = "3" if kind == pa.timestamp("ns") else "2"
    columns = pa.schema([("id", pa.int64()), ("c", kind)])
    table = lake.create_table("n.t", columns, properties={"format-version": version})
    rows = [{"id": number, "c": value} for number, value in enumerate(values)]
    if form == "rows":
        table.append(rows)
    elif form == "columns":
        table.append({"id": list(range(len(values))), "c": values})
    elif form == "upsert":
        table.upsert(rows, on="id")
    else:
        lake.sql("INSERT INTO n.t SELECT * FROM x", data={"x": rows})
    found: list[Any] = lake.table("n.t").to_arrow().sort_by("id")["c"].to_pylist()
    return found


@pytest.mark.parametrize("form", ["rows", "columns", "upsert", "sql"])
@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (MICROS, [DAY, NOON], [MIDNIGHT, NOON]),
        (MICROS, [None, DAY, pd.NaT, NOON], [None, MIDNIGHT, None, NOON]),
        (pa.list_(MICROS), [[DAY, NOON], None], [[MIDNIGHT, NOON], None]),
        (pa.list_(MICROS), [[DAY], [NOON, None]], [[MIDNIGHT], [NOON, None]]),
        (pa.struct([("t", MICROS)]), [{"t": DAY}, {"t": NOON}, None], [{"t": MIDNIGHT}, {"t": NOON}, None]),
        (pa.list_(pa.struct([("t", MICROS)])), [[{"t": DAY}, {"t": NOON}]], [[{"t": MIDNIGHT}, {"t": NOON}]]),
        (INSTANTS, [NOON, ZONED], [NOON.replace(tzinfo=UTC), ZONED]),
        (INSTANTS, [DAY, ZONED], [MIDNIGHT.replace(tzinfo=UTC), ZONED]),
        (pa.list_(INSTANTS), [[DAY, ZONED]], [[MIDNIGHT.replace(tzinfo=UTC), ZONED]]),
        (pa.date32(), [DAY, None], [DAY, None]),
        (pa.time64("us"), [time(12, 30), None], [time(12, 30), None]),
    ],
)
def test_no_part_of_a_date_or_time_is_lost(
    lake: tl.Lakehouse, kind: pa.DataType, values: list[Any], expected: list[Any], form: str
) -> None:
    """Next to a date in a list or struct, times of day became midnight: Arrow takes the type of the first value."""
    assert written(lake, kind, values, form) == expected


@pytest.mark.parametrize("form", ["rows", "columns", "upsert"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MICROS, [NOON, ZONED]),
        (MICROS, [ZONED, NOON]),
        (pa.list_(MICROS), [[NOON, ZONED]]),
        (pa.struct([("t", MICROS)]), [{"t": NOON}, {"t": ZONED}]),
        (MICROS, [pd.Timestamp(7_200_000_000_001)]),
        (pa.list_(pa.date32()), [[DAY, NOON]]),
        (pa.time64("us"), [time(12, tzinfo=UTC)]),
        (pa.time64("us"), [time(1), time(2, tzinfo=UTC)]),
        (pa.time64("us"), [NOON]),
        (pa.time64("us"), [ZONED]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    lake: tl.Lakehouse, kind: pa.DataType, values: list[Any], form: str
) -> None:
    """In a column without a zone, a datetime with a zone after one without was stored as the time in UTC. A column of
    times took the time of a datetime, and dropped zones. Nanoseconds of pandas were cut."""
    with pytest.raises(tl.InvalidArgument, match="column c"):
        written(lake, kind, values, form)


@pytest.mark.parametrize("form", ["rows", "columns", "upsert"])
def test_nanoseconds_of_pandas_are_stored(lake: tl.Lakehouse, form: str) -> None:
    """Arrow makes microseconds of `pandas.Timestamp`, so a copy by `to_pylist` had other values than the original."""
    values = [pd.Timestamp(7_200_000_000_001), pd.Timestamp(1), None, NOON]
    assert written(lake, pa.timestamp("ns"), values, form) == [*values[:3], pd.Timestamp(NOON)]
    table = lake.table("n.t")
    before = table.to_arrow()["c"].cast(pa.int64()).to_pylist()
    table.overwrite(table.to_arrow().to_pylist())
    assert lake.table("n.t").to_arrow()["c"].cast(pa.int64()).to_pylist() == before


# Decimals


def test_truncated_decimals_of_38_digits_are_exact(lake: tl.Lakehouse) -> None:
    """Rounded to 28 digits, a row would be in a partition where no filter finds it."""
    lake.create_namespace("n")
    values = [Decimal("-" + "9" * 34 + "50.00"), Decimal("-" + "9" * 36 + ".99"), Decimal("9" * 36 + ".99")]
    rows = pa.table({"v": pa.array(values, pa.decimal128(38, 2))})
    table = lake.create_table("n.t", rows.schema, partition_spec=["truncate(50, v)"])
    table.append(rows)
    for value in values:
        assert table.scan(f"v = {value}").to_arrow()["v"].to_pylist() == [value]
    assert table.upsert(rows, on=["v"]) == (0, 0)


PRICE = pa.decimal128(10, 2)
#: Types of a column, each with a function from a number to a value of the column.
SHAPES: dict[str, tuple[pa.DataType, Any]] = {
    "number": (PRICE, lambda number: number),
    "structure": (pa.struct([("price", PRICE), ("count", pa.int64())]), lambda number: {"count": 3, "price": number}),
    "list": (pa.list_(PRICE), lambda number: [number, None]),
    "map": (pa.map_(pa.string(), PRICE), lambda number: {"a": number}),
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", [7, -(10**7), 10**8, 1.5, 19.99, 0.1 + 0.2, 12345678.91, 1.105, 1e-20, 1e9])
def test_number_becomes_the_decimal_that_it_means_or_is_refused(
    lake: tl.Lakehouse, shape: str, number: int | float
) -> None:
    """A float means the decimal of its 15 digits: 1.105 must not be stored as 1.10."""
    lake.create_namespace("n")
    kind, value_of = SHAPES[shape]
    table = lake.create_table("n.t", pa.schema([("v", kind)]))
    given = [{"v": value_of(number)}, {"v": None}]
    meant = Decimal(f"{number:.15g}")
    if meant == round(meant, 2) and abs(meant) < 10**8:
        table.append(given)
        expected = pa.array([value_of(round(meant, 2)), None], kind)
        assert table.scan().to_arrow()["v"].to_pylist() == expected.to_pylist()
    else:
        with pytest.raises(tl.InvalidArgument, match="column v: cannot cast"):
            table.append(given)
        assert table.count() == 0


def test_float_of_32_bits_and_lists_of_a_fixed_size_become_decimals(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.schema([("v", PRICE), ("l", pa.list_(PRICE))]))
    pairs = pa.list_(pa.float64(), 2)
    table.append(pa.table({"v": pa.array([1.1], pa.float32()), "l": pa.array([[1.5, 2.25]], pairs)}))
    assert table.scan().to_arrow().to_pylist() == [{"v": Decimal("1.10"), "l": [Decimal("1.50"), Decimal("2.25")]}]
    for rows in ({"v": pa.array([1.105], pa.float32())}, {"l": pa.array([[1.5, 1.105]], pairs)}):
        with pytest.raises(tl.InvalidArgument, match="would be rounded"):
            table.append(pa.table(rows))


@pytest.mark.parametrize(("type", "digits"), [(pa.float64(), 15), (pa.float32(), 6)])
@pytest.mark.parametrize("scale", [4, 10, 18, 30])
def test_only_the_digits_that_a_float_preserves_become_a_decimal(
    lake: tl.Lakehouse, scale: int, type: pa.DataType, digits: int
) -> None:
    """1234567.891 was stored as 1234567.8910000001 with ten decimal places, as Arrow casts it."""
    lake.create_namespace("n")
    kind = pa.decimal128(38, scale)
    table = lake.create_table("n.t", pa.schema([("v", kind), ("l", pa.list_(kind))]))
    numbers = pa.array([0.1, -1.1, 12.25, 123.625, 1000.1, 999.9, 1000.0, 0.0, 12345.5, 0.1 + 0.2, None], type)
    table.append(pa.table({"v": numbers, "l": pa.array([[one] for one in numbers.to_pylist()], pa.list_(type))}))
    expected = [None if one is None else Decimal(f"{one:.{digits}g}") for one in numbers.to_pylist()]
    rows = table.to_arrow()
    assert sorted(rows["v"].to_pylist(), key=str) == sorted(rows["l"].combine_chunks().flatten().to_pylist(), key=str)
    assert [None if one is None else one.normalize() for one in rows["v"].to_pylist()] == [
        None if one is None else one.normalize() for one in expected
    ]


@pytest.mark.parametrize("number", [600000000000000.5, -1000000000000000.5, 2.0**53, 1e18])
def test_a_float_with_many_digits_before_the_point_is_stored_exactly(lake: tl.Lakehouse, number: float) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.schema([("v", pa.decimal128(38, 4))]))
    table.append([{"v": number}])
    assert table.to_arrow()["v"].to_pylist() == [Decimal(number)]


def fits(text: str, kind: pa.Decimal128Type) -> bool:
    """Whether a decimal type can hold a number without rounding."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return False
    whole = Decimal(10) ** kind.scale
    return number == 0 or (abs(number) < 10 ** (kind.precision - kind.scale) and number * whole % 1 == 0)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("form", ["text", "exponent", "decimal"])
def test_texts_and_decimals_become_the_same_number_or_are_refused(form: str, is_nested: bool) -> None:
    """Arrow overflows silently when it adds digits: -6880.0 became -74.35… in a decimal(37,35)."""
    random = Random(f"{form} {is_nested}")
    outcomes = Counter[bool]()
    with localcontext(prec=200):
        for _ in range(20_000 if os.environ.get("TRINITYLAKE_DEEP") else 1_000):
            digits = "".join(random.choices("0123456789", k=random.randint(1, 38)))
            place = random.choice([len(digits), random.randint(0, len(digits))])
            text = random.choice(["", "-"]) + digits[:place] + ("." if place < len(digits) else "") + digits[place:]
            if form == "exponent":
                text += f"{random.choice('eE')}{random.randint(-60, 60)}"
            scale = random.randint(0, 38)
            kind = pa.decimal128(random.randint(max(scale, 1), 38), scale)
            given = pa.array([Decimal(text) if form == "decimal" else text])
            field = pa.field("v", pa.large_list(kind) if is_nested else kind)
            column = pa.ListArray.from_arrays([0, 1], given) if is_nested else given
            outcomes[fits(text, kind)] += 1
            if fits(text, kind):
                (value,) = fitting(column, field).to_pylist()
                assert (value[0] if is_nested else value) == Decimal(text), (text, kind)
            else:
                with pytest.raises(tl.InvalidArgument, match="column v: cannot cast"):
                    fitting(column, field)
    assert min(outcomes.values()) > 50, outcomes


@pytest.mark.parametrize("is_nested", [False, True])
def test_decimals_that_pyiceberg_appends_fit_or_are_refused(lake: tl.Lakehouse, is_nested: bool) -> None:
    """PyIceberg's append refuses decimals that do not fit the scale of the column, instead of writing other numbers."""
    lake.create_namespace("n")
    lake.create_table("n.t", {"v": "row(d decimal(37,35))" if is_nested else "decimal(37,35)"})
    table = tl.iceberg.load(lake.uri).load_table("n.t")

    def rows(number: str) -> pa.Table:
        column = pa.array([Decimal(number)])
        return pa.table({"v": pa.StructArray.from_arrays([column], ["d"]) if is_nested else column})

    with pytest.raises((pa.ArrowInvalid, ValueError, tl.InvalidArgument), match="does not fit in precision 37"):
        table.append(rows("-6880.0"))
    table.append(rows("-68.5"))
    (value,) = lake.table("n.t").scan().to_arrow()["v"].to_pylist()
    assert (value["d"] if is_nested else value) == Decimal("-68.5")


@pytest.mark.parametrize(
    "text", ["1e-999999999", "1e999999999", "1e-39", "9e-77", "1e-99999999999999999999", "0." + "0" * 77 + "1", "", "x"]
)
def test_texts_beyond_38_digits_are_refused(lake: tl.Lakehouse, text: str) -> None:
    """Arrow looks up the power of ten beyond its table: 1e-999999999 ended the process."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"d": "decimal(38,0)", "l": "array(decimal(9,2))"})
    for rows in ([{"d": text}], [{"l": [text]}]):
        with pytest.raises(tl.InvalidArgument, match="cannot cast"):
            table.append(rows)
    table.append([{"d": "0e-999999999", "l": ["150e-2", "1.50000"]}])
    assert table.scan().to_arrow().to_pylist() == [{"d": Decimal(0), "l": [Decimal("1.50")] * 2}]


# Strings that become other types


TEXTS = {
    "real": ["NaN", "Infinity", "-Infinity", "inf", "16777216", "16777217", "0.1", "1e300", "3.4e38", "1e-60", "x", ""],
    "double": [
        "nan",
        "+Infinity",
        "9007199254740992",
        "9007199254740993",
        "0.1",
        "1e400",
        "123456789012345678.5",
        "-0",
    ],
    "int": ["2147483647", "2147483648", "-7", "1.5", "x", "true"],
    "bigint": ["9223372036854775807", "9223372036854775808", "0", "1e3", "false"],
    "boolean": ["true", "FALSE", "1", "0", "yes", "t"],
    "decimal(10,2)": ["1.10", "1.100", "1.105", "99999999.99", "123456789", "NaN"],
    "date": ["2020-02-29", "2021-02-29", "2020-01-01T00:00:00", "5", "infinity"],
    "time": [
        *("12:34:56", "12:34", "12:34:56.5", "12:34:56.123456", "12:34:56.1234560", "12:34:56.1234561"),
        *("24:00:00", "23:59:60", "12:34:56Z", "5", "x"),
    ],
    "timestamp": [
        *("2020-01-01T12:00:00", "2020-01-01 12:00:00.123456", "2020-01-01", "2020-01-01T12:00", "5", "x"),
        *("2020-01-01T12:00:00.123456000", "2020-01-01T12:00:00.123456789", "2020-01-01T12:00:00Z"),
    ],
    "timestamptz": [
        *("2020-01-01T12:00:00Z", "2020-01-01T12:00:00+02:00", "2020-01-01 12:00:00.5-0530", "2020-01-01T12:00:00+01"),
        *("2020-01-01T12:00:00", "2020-01-01", "2020-01-01T12:00", "2020-01-01T12:00:00.123456789Z", "x"),
    ],
}


KINDS = {
    "real": pa.float32(),
    "double": pa.float64(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def expected(type: str, text: str) -> pa.Scalar:
    """The value of a text in CSV, in the Arrow type of the column; NULL for a refused text."""
    query = f"SELECT {conversion('t', parse_type(type))} AS v FROM (SELECT ?::VARCHAR AS t)"
    connection = duckdb.connect()
    return connection.execute(query, [text]).to_arrow_table()["v"].cast(KINDS[type])[0]


@pytest.mark.parametrize("type", TEXTS)
def test_texts_are_converted_as_in_csv(type: str) -> None:
    """Otherwise JSON's times, `Infinity`, 16777217 in a `real` or 1 in a boolean column would be refused or changed."""
    kind = KINDS[type]
    for text in TEXTS[type]:
        value = expected(type, text)
        plain = pa.array([text, None, text])
        structure = pa.StructArray.from_arrays([plain], ["p"])
        nested = {
            kind: plain,
            pa.struct({"p": kind}): structure,
            pa.list_(kind): pa.array([[None, text], None]),
            pa.map_(pa.string(), kind): pa.array([[("k", text)]], pa.map_(pa.string(), pa.string())),
            pa.list_(pa.struct({"p": kind})): pa.ListArray.from_arrays([0, 3], structure),
        }
        for target, column in nested.items():
            if not value.is_valid:
                with pytest.raises(tl.InvalidArgument, match="column v: cannot cast "):
                    fitting(column, pa.field("v", target))
                continue
            made = fitting(column, pa.field("v", target))
            leaf = next(one for one in leaf_arrays(made) if one.type == kind)
            assert {str(one) for one in leaf if one.is_valid} == {str(value)}, (text, target)


def test_a_row_of_json_has_every_type(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"r": "real", "t": "time", "z": "timestamptz", "s": "struct<t: time>"})
    row = {"r": "-Infinity", "t": "12:30", "z": "2020-01-01T12:00:00", "s": {"t": "23:59:59.999999"}}
    with table.writer() as writer:
        writer.write(json_rows([json.dumps(row).encode()])).result()
    [found] = lake.sql("SELECT r::VARCHAR, t::VARCHAR, z = '2020-01-01T12:00:00Z', s.t::VARCHAR FROM n.t").fetchall()
    assert found == ("-inf", "12:30:00", True, "23:59:59.999999")


def test_a_boolean_is_no_number(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"i": "bigint", "d": "double", "s": "struct<i: int>"})
    for row in ({"i": True}, {"d": False}, {"s": {"i": True}}):
        with pytest.raises(tl.InvalidArgument, match=r"cannot cast .*BOOLEAN"):
            table.append([row])


WIDE = 2**70


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("decimal(38,0)", WIDE, WIDE),
        ("struct<a: decimal(38,0), b: bigint>", {"a": WIDE, "b": 1}, {"a": WIDE, "b": 1}),
        ("list<decimal(38,0)>", [1, WIDE], [1, WIDE]),
        ("map<varchar, decimal(38,0)>", {"k": WIDE}, [("k", WIDE)]),
        ("double", WIDE, float(WIDE)),
        ("double", WIDE + 1, None),
        ("bigint", WIDE, None),
    ],
)
def test_integers_beyond_64_bits(lake: tl.Lakehouse, type: str, value: Any, expected: Any) -> None:
    """Stored exactly where they fit, also in lists and structs, or refused with the column's name."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": type})
    if expected is None:
        with pytest.raises(tl.InvalidArgument, match="column v: cannot cast DECIMAL"):
            table.append([{"v": value}])
    else:
        table.append([{"v": value}])
        assert table.to_arrow()["v"].to_pylist() == [expected]


def test_run_end_encoded_columns(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "bigint"})
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, None], pa.int64()))
    table.append(pa.table({"v": runs}))
    assert table.to_arrow()["v"].to_pylist() == [7, 7, None]


def test_errors_quote_at_most_ten_thousand_characters(lake: tl.Lakehouse) -> None:
    """The name of an unknown column was quoted with its five million characters."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "bigint"})
    long = "x" * 100_000
    for refused in (
        lambda: table.append({long: [1]}),
        lambda: table.append({"v": [long]}),
        lambda: table.scan(f"v = '{long}'").count(),
        lambda: lake.sql(f"SELECT {long} FROM n.t").fetchall(),
        lambda: lake.at(f"tag:{long}"),
    ):
        with pytest.raises(tl.TrinityLakeError) as caught:
            refused()
        assert 1_000 < len(str(caught.value)) < 10_001


# Nested types


#: For each nested type, a function from an inner type and value to the nested type and its value.
LEVELS: dict[str, Callable[[pa.DataType, Any], tuple[pa.DataType, Any]]] = {
    "list": lambda kind, value: (pa.list_(kind), [value]),
    "map": lambda kind, value: (pa.map_(pa.string(), kind), [("k", value)]),
    "structure": lambda kind, value: (pa.struct([("a", kind)]), {"a": value}),
}


def nested(depth: int, *levels: str) -> pa.Table:
    kind, value = pa.int64(), 7
    for number in range(depth):
        kind, value = LEVELS[levels[number % len(levels)]](kind, value)
    return pa.table({"k": [1, 2], "v": pa.array([value, None], kind)})


@pytest.mark.parametrize("levels", [["list"], ["map"], ["structure"], ["list", "structure"], ["map", "list"]])
def test_deepest_type_is_read_by_every_reader(lake: tl.Lakehouse, levels: list[str]) -> None:
    lake.create_namespace("n")
    rows = nested(MAX_DEPTH, *levels)
    table = lake.create_table("n.t", rows)
    table.append(rows)
    table.upsert(rows, on="k")
    assert table.scan().to_arrow().sort_by("k").to_pylist() == rows.to_pylist()
    assert lake.sql("FROM n.t ORDER BY k").to_arrow().to_pylist() == rows.to_pylist()
    assert lake.maintenance.fsck("all", files=True).is_sound


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100])
def test_deeper_type_is_refused(lake: tl.Lakehouse, level: str, depth: int) -> None:
    """With 99 levels the definition would be unreadable, and vacuum would fail."""
    lake.create_namespace("n")
    with pytest.raises(tl.InvalidArgument, match="more than 30 levels"):
        lake.create_table("n.t", nested(depth, level))
    table = lake.create_table("n.t", {"k": "bigint"})
    kind: IcebergType = LongType()
    for number in range(depth):
        kind = ListType(1000 + number, kind, element_required=False)
    with pytest.raises(tl.InvalidArgument, match="more than 30 levels"), table.update_schema() as update:
        update.add_column("v", kind)
    assert lake.table("n.t").schema.names == ("k",)
    assert lake.maintenance.fsck("all", files=True).is_sound


FIXED = pa.list_(pa.int64(), 2)
VIEW = pa.list_view(pa.int64())
PAIRS = [[1, 2], None, [3, 4]]


@pytest.mark.parametrize(
    "values",
    {
        "fixed size": pa.array(PAIRS, FIXED),
        "slice": pa.array([[9, 9], *PAIRS], FIXED).slice(1),
        "list view": pa.array(PAIRS, VIEW),
        "large list view": pa.array(PAIRS, pa.large_list_view(pa.int64())),
        "list view without order": pa.ListViewArray.from_arrays(
            pa.array([2, 0, 0], pa.int32()),
            pa.array([2, 0, 2], pa.int32()),
            pa.array([3, 4, 1, 2]),
            mask=pa.array([False, True, False]),
        ).take(pa.array([0, 1, 2])),
        "null with elements": pa.LargeListArray.from_arrays(
            pa.array([0, 2, 4, 6]), pa.array([1, 2, 8, 9, 3, 4]), mask=pa.array([False, True, False])
        ),
    }.items(),
    ids=lambda one: one[0],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_lists_of_other_libraries_have_their_values(
    lake: tl.Lakehouse, values: tuple[str, pa.Array], is_nested: bool
) -> None:
    """Elements that Arrow stores for a NULL list do not go to the list before it. List views are accepted."""
    column = values[1]
    if is_nested:
        column = pa.StructArray.from_arrays([column], ["a"])
    rows = pa.table({"k": [1, 2, 3], "v": column})
    lake.create_namespace("n")
    kind = pa.list_(pa.int64())
    table = lake.create_table(
        "n.t", pa.schema([("k", pa.int64()), ("v", pa.struct([("a", kind)]) if is_nested else kind)])
    )
    table.append(rows)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    table.overwrite(iter(rows.to_batches()))
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    table.upsert(rows, on="k")
    lake.sql("UPDATE n.t SET k = k + 10")
    lake.sql("INSERT INTO n.t FROM given", data={"given": rows})
    assert [row["v"] for row in lake.table("n.t").scan().to_arrow().sort_by("k").to_pylist()] == [
        *rows["v"].to_pylist()
    ] * 2


def test_arrays_of_polars_and_duckdb_have_their_values(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.schema([("v", pa.list_(pa.int64()))]))
    table.append(pl.DataFrame({"v": pl.Series(PAIRS, dtype=pl.Array(pl.Int64, 2))}))
    with duckdb.connect() as connection:
        table.append(connection.sql("SELECT v::BIGINT[2] AS v FROM (VALUES ([1, 2]), (NULL), ([3, 4])) t(v)"))
    assert table.scan().to_arrow()["v"].to_pylist() == [*PAIRS, *PAIRS]


def test_null_map_with_entries_is_null(lake: tl.Lakehouse) -> None:
    whole = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int64()))
    column = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, mask=pa.array([False, True, False]))
    lake.create_namespace("n")
    table = lake.create_table("n.t", pa.table({"v": column}))
    table.append(pa.table({"v": column}))
    assert table.scan().to_arrow()["v"].to_pylist() == [[("a", 1)], None, [("c", 3)]]


# Maps


ROWS: list[dict[str, Any]] = [
    {"id": 1, "sold": {"tea": 3, "salt": None}, "days": [{"mon": 1}, {}, None]},
    {"id": 2, "sold": {}, "days": []},
    {"id": 3, "sold": None, "days": None},
    {"id": 4, "sold": {"rum": 1}, "days": [{"tue": 2, "mon": 3}]},
]


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    """A table with a map, and a list of maps."""
    lake.create_namespace("shop")
    lake.create_table("shop.sales", {"id": "long", "sold": "map<string, long>", "days": "list<map<string, int>>"})
    return lake.table("shop.sales")


def found(table: tl.Table) -> list[dict[str, Any]]:
    return table.scan().to_arrow().sort_by("id").to_pylist(maps_as_pydicts="strict")


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("form", [list, iter, tuple, columns], ids=["list", "iterator", "tuple", "columns"])
def test_a_dictionary_is_a_map(table: tl.Table, form: Callable[[Any], Any]) -> None:
    table.append(form(ROWS))
    assert found(table) == ROWS
    table.overwrite(form(ROWS[:1]))
    assert found(table) == ROWS[:1]


def test_upserts_and_merges_take_dictionaries(table: tl.Table) -> None:
    table.append(ROWS)
    table.upsert([{"id": 2, "sold": {"tea": 5}, "days": None}], on=["id"])
    table.merge([{"id": 9, "sold": {"tea": 9}, "days": [{}]}], on="id").when_not_matched_insert().execute()
    assert [row["sold"] for row in found(table)] == [ROWS[0]["sold"], {"tea": 5}, None, {"rum": 1}, {"tea": 9}]


def test_maps_take_pairs_and_dictionaries(table: tl.Table) -> None:
    table.append([{"id": 1, "sold": {"tea": 3}, "days": None}, {"id": 2, "sold": [("rum", 1)], "days": None}])
    assert [row["sold"] for row in found(table)] == [{"tea": 3}, {"rum": 1}]


@pytest.mark.parametrize("rows", [[[]], [[], None], [[("tea", None)]], [[("rum", 1), ("tea", 2)], []], [{}], [None]])
def test_maps_take_what_arrow_returns(table: tl.Table, rows: list[Any]) -> None:
    """So that a scanned row can be written again."""
    table.append([{"id": number, "sold": row, "days": [row]} for number, row in enumerate(rows)])
    scanned = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [row["sold"] for row in scanned] == [None if row is None else list(dict(row).items()) for row in rows]
    table.upsert(scanned, on="id")
    table.append([{**row, "id": 10 + row["id"]} for row in scanned])
    assert [row["sold"] for row in table.scan("id >= 10").to_arrow().sort_by("id").to_pylist()] == [
        row["sold"] for row in scanned
    ]


@pytest.mark.parametrize("wrong", [{"tea": "three"}, {"tea": 1.5}, {"tea": {"green": 1}}, {None: 1}, [1], 7])
def test_values_that_do_not_fit_are_refused(table: tl.Table, wrong: Any) -> None:
    with pytest.raises(tl.InvalidArgument):
        table.append([{"id": 1, "sold": wrong}])
    assert found(table) == []


def test_a_structure_in_a_map_loses_no_part(lake: tl.Lakehouse) -> None:
    """Given the type, Arrow would drop an unknown field of the dictionary."""
    lake.create_namespace("shop")
    lake.create_table("shop.t", {"m": "map<string, struct<a: long>>"})
    with pytest.raises(tl.InvalidArgument):
        lake.table("shop.t").append([{"m": {"x": {"a": 1, "b": 2}}}])


def test_a_table_of_dictionaries_has_structures(lake: tl.Lakehouse) -> None:
    """In a new table, a dictionary becomes a struct, as in Arrow."""
    lake.create_namespace("shop")
    rows = pa.table({"sold": [{"tea": 3}]})
    lake.create_table("shop.t", rows).append([{"sold": {"tea": 3}}])
    assert pa.types.is_struct(lake.table("shop.t").scan().to_arrow().schema.field("sold").type)
