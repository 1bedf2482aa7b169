"""Conversion of strings to other types: JSON rows and appended strings are converted by the rules for CSV, or
refused.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.definitions.sql_types import parse_type
from trinitylake.iceberg_storage.data_files.written_values import leaf_arrays
from trinitylake.tables.ingestion.text_rows import json_rows
from trinitylake.tables.input_files.text_conversion import conversion
from trinitylake.tables.input_rows import fitting

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
    """Strings are converted to other types by the rules for CSV. Otherwise JSON's times, `Infinity`, 16777217 in a
    `real` column or 1 in a boolean column would be refused or changed."""
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
    """A boolean is refused in a column of numbers, instead of being stored as 1."""
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
    """Integers beyond 64 bits are stored exactly where they fit, also in lists and structs, or refused by an error that
    names the column."""
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
    """Errors quote at most ten thousand characters of a name. The name of an unknown column was quoted with its five
    million characters.
    """
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
