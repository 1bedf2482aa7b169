"""`trinitylake load`: messy files are loaded exactly or refused, never loaded in part."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet
from typer.testing import CliRunner, Result

import s3_server
import trinitylake as tl
from trinitylake.cli.app import app
from trinitylake.definitions.sql_types import parse_type
from trinitylake.tables.input_files import text_conversion as conversion


class Loader:
    """Writes texts to files, and loads them into the table `shop.t`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = tl.create(str(folder / "lake"))

    def file(self, text: str | bytes, name: str = "rows.csv") -> str:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    def run(self, *arguments: str, code: int = 0, input: bytes | None = None) -> Result:
        result = CliRunner().invoke(app, ["load", *arguments, "--root", self.lake.uri], input=input)
        assert result.exit_code == code, result.output
        return result

    def load(self, text: str | bytes, *arguments: str, name: str = "rows.csv", code: int = 0) -> Result:
        return self.run(self.file(text, name), "shop.t", "--create", *arguments, code=code)

    def rows(self) -> list[dict[str, Any]]:
        return self.lake.table("shop.t").scan().to_arrow().to_pylist()

    def types(self) -> dict[str, str]:
        return {column.name: str(column.type) for column in self.lake.table("shop.t").schema.columns}


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a":1}\n{"a":2', "rows.json, line 2: damaged JSON at byte 7: "),
        ('{"a":1}\n\n\nnot json\n{"a":3}\n', "rows.json, line 4: damaged JSON at byte 1: "),
        ('[{"a":1},\n{"a":2},\n{"a":]', "rows.json, value 3: damaged JSON at byte 6 of the value: "),
    ],
)
def test_damaged_json_is_named_by_its_place(loader: Loader, text: str, place: str) -> None:
    """The error for damaged JSON names the right line. DuckDB counts lines from 2 and skips empty lines."""
    assert place in loader.load(text, name="rows.json", code=2).stderr


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_columns_of_several_files_that_differ_in_case_are_refused(loader: Loader, suffix: str) -> None:
    """Files whose columns differ only in case are refused with a clear error, for CSV and JSON."""
    files = []
    for number, column in enumerate(("id", "ID")):
        rows = pa.table({column: [number]})
        path = loader.folder / f"{number}.{suffix}"
        if suffix == "parquet":
            parquet.write_table(rows, path)
        else:
            path.write_text(f"{column}\n{number}\n" if suffix == "csv" else json.dumps({column: number}))
        files.append(str(path))
    error = loader.run(*files, "shop.t", "--create", code=2).stderr
    assert f"1.{suffix}: the column 'ID' is 'id' in another file" in error
    assert '--select \'SELECT * RENAME ("ID" AS "id") FROM input\'' in error
    select = 'SELECT * RENAME ("ID" AS "id") FROM input'
    loader.run(files[0], "shop.t", "--create")
    loader.run(files[1], "shop.t", "--select", select)
    assert sorted(row["id"] for row in loader.rows()) == [0, 1]


@pytest.mark.parametrize(
    ("column", "select"),
    [
        (pa.array([1500], pa.duration("ms")), "SELECT epoch_ms(t) AS t FROM input"),
        (pa.array([1], pa.timestamp("ns")), "SELECT t::TIMESTAMP AS t FROM input"),
        (pa.array([Decimal("1.23")], pa.decimal256(50, 2)), "SELECT t::DECIMAL(38, 2) AS t FROM input"),
    ],
    ids=["duration", "nanoseconds", "decimal256"],
)
def test_types_that_no_table_stores_name_the_file_and_the_option(loader: Loader, column: pa.Array, select: str) -> None:
    """The error for a type that no table can store names the Parquet file and the option."""
    path = str(loader.folder / "rows.parquet")
    parquet.write_table(pa.table({"t": column}), path)
    error = loader.run(path, "shop.t", "--create", code=2).stderr
    assert "rows.parquet: column" in error
    assert "--select" in error
    if not pa.types.is_decimal256(column.type):  # DuckDB cannot read this type
        loader.run(path, "shop.t", "--create", "--select", select)


def test_parquet_files_that_do_not_fit_together_name_the_second_one(loader: Loader) -> None:
    """If Parquet files have contradicting types, the error names the second file and the option. It named the first of
    all files."""
    paths = [str(loader.folder / f"{number}.parquet") for number in range(3)]
    for path, values in zip(paths, ([1], ["x"], [2]), strict=True):
        parquet.write_table(pa.table({"a": values}), path)
    error = loader.run(*paths, "shop.t", "--create", code=2).stderr
    assert "1.parquet: " in error
    assert "one by one, with --select" in error


def test_long_rows_are_loaded_and_do_not_hide_other_errors(loader: Loader) -> None:
    """Rows of more than 2 MB are loaded, and a long field does not hide the line of another error."""
    long = "x" * 3_000_000
    error = loader.load(f"a,b\n{long},1\ny,2\nz,n/a\n", "--type", "b=int", code=2).stderr
    assert "line 4: 'n/a' in column b" in error
    loader.load(f"a,b\n{long},1\ny,2\n")
    assert [len(row["a"]) for row in loader.rows()] == [3_000_000, 1]


def test_a_line_of_excel_that_names_the_delimiter_is_no_header(loader: Loader) -> None:
    """The line `sep=;` of Excel is not a header. The error recommended `--skip 1 --no-header`, with which the header
    would have become a row."""
    assert "use --skip 1" in loader.load("sep=;\r\na;b\r\n1;2\r\n", code=2).stderr
    loader.load("sep=;\r\na;b\r\n1;2\r\n", "--skip", "1")
    assert loader.rows() == [{"a": 1, "b": 2}]


def test_standard_input_without_a_format_names_the_option(loader: Loader) -> None:
    """`load - shop.t` without a format fails with an error that names the option."""
    refused = loader.run("-", "shop.t", "--create", input=b"a\n1\n", code=2)
    assert "use --format csv, json or parquet" in refused.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a,b\n1,2\n3\n4,5,6\n", "line 3:"),
        ("a,b,c\n1,x,2\n3,x,y,4\n5,z,6\n", "line 3:"),
        ('a,b\n1,"x"y\n2,z\n', "line 2:"),
        ('a,b\n1,2\n3,"open\n', "line 3:"),
    ],
)
def test_rows_with_another_number_of_fields_are_refused(loader: Loader, text: str, place: str) -> None:
    """Rows with another number of fields than the header are refused. DuckDB's detection could take the last row for
    the data, and lose the others."""
    refused = loader.load(text, code=2)
    assert "rows.csv" in refused.stderr
    assert place in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert loader.lake.version == 0


def test_bad_rows_are_counted_and_written_if_allowed(loader: Loader) -> None:
    bad = loader.folder / "bad.jsonl"
    text = "a,b\n1,2\n3\n4,5,6\nx,7\n8,9\n"
    done = loader.load(text, "--bad-rows", str(bad), "--type", "a=int", "--json")
    assert json.loads(done.stdout)["bad_rows"] == 3
    assert loader.rows() == [{"a": 1, "b": 2}, {"a": 8, "b": 9}]
    rejected = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [(one["line"], one["column"], one["text"]) for one in rejected] == [
        (3, "b", "3"),
        (4, None, "4,5,6"),
        (5, "a", '{"a": "x", "b": "7"}'),
    ]
    before = loader.lake.version
    loader.load(text, "--max-bad-rows", "1", code=2)
    assert loader.lake.version == before


def test_value_of_another_type_after_the_sample_names_file_line_and_column(loader: Loader) -> None:
    rows = "".join(f"{number},{number}\n" for number in range(30_000))
    refused = loader.load(f"a,b\n{rows}1,n/a\n", code=2)
    assert "rows.csv, line 30002: 'n/a' in column b is not a valid BIGINT; use --type b=VARCHAR" in refused.stderr
    assert refused.stderr.count("\n") == 1
    loader.load(f"a,b\n{rows}1,n/a\n", "--null", "n/a")
    assert loader.lake.table("shop.t").scan("b is null").count() == 1


@pytest.mark.parametrize("value", ["1.5", "1_000", "1e3", "0x1F", " 7"])
def test_fraction_in_an_integer_column_is_not_rounded(loader: Loader, value: str) -> None:
    """A fraction in a column of integers is refused, and so is 1_000; DuckDB's cast would make 2 of 1.5."""
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"a": "int", "b": "decimal(6,2)"})
    refused = loader.load(f"a,b\n1,1\n{value},2\n", code=2)
    assert f"line 3: {value!r} in column a is not a valid INTEGER" in refused.stderr
    refused = loader.load("a,b\n1,1.50\n2,1.505\n", code=2)
    assert "line 3: '1.505' in column b is not a valid DECIMAL(6,2)" in refused.stderr
    loader.load("a,b\n1,1.500\n2,-.5\n")
    assert loader.rows() == [{"a": 1, "b": Decimal("1.50")}, {"a": 2, "b": Decimal("-0.50")}]


@pytest.mark.parametrize("value", [".5", "-.9", "+.1", ".50"])
def test_fraction_without_a_digit_before_the_point_is_not_rounded(loader: Loader, value: str) -> None:
    """`.5` was loaded as 1 into a decimal without decimal places."""
    refused = loader.load(f"a\n{value}\n", "--type", "a=decimal(9,0)", code=2)
    assert "is not a valid DECIMAL(9,0)" in refused.stderr


def test_detected_types_keep_every_value(loader: Loader) -> None:
    """The detected type keeps every value: a number of 23 digits does not become a double, and `00123` stays
    a string."""
    loader.load(
        "zip,big,long,f,b,d,ts,tz,t,none,q\n"
        "00123,12345678901234567890123,1.23456789012345678,1.5,true,2024-02-29,2024-01-01 10:00,"
        '2024-01-01T10:00:00+02:00,10:11:12,,""\n'
        "04567,1,2,-inf,FALSE,2023-01-01,2024-01-01T10:00:00.5,2024-01-01 10:00:00Z,23:59,,x\n"
    )
    assert loader.types() == {
        "zip": "VARCHAR",
        "big": "DECIMAL(38,0)",
        "long": "VARCHAR",
        "f": "DOUBLE",
        "b": "BOOLEAN",
        "d": "DATE",
        "ts": "TIMESTAMP",
        "tz": "TIMESTAMP WITH TIME ZONE",
        "t": "TIME",
        "none": "VARCHAR",
        "q": "VARCHAR",
    }
    first, second = loader.rows()
    assert first == {
        "zip": "00123",
        "big": Decimal("12345678901234567890123"),
        "long": "1.23456789012345678",
        "f": 1.5,
        "b": True,
        "d": date(2024, 2, 29),
        "ts": datetime(2024, 1, 1, 10),
        "tz": datetime(2024, 1, 1, 8, tzinfo=UTC),
        "t": time(10, 11, 12),
        "none": None,
        "q": "",
    }
    assert (second["f"], second["ts"]) == (float("-inf"), datetime(2024, 1, 1, 10, 0, 0, 500_000))


def test_types_come_from_the_table_if_it_exists(loader: Loader) -> None:
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"id": "varchar", "at": "timestamptz", "f": "real", "u": "uuid"})
    identifier = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    loader.load(f"u,f,at,id\n{identifier},1,2024-07-01 10:00,007\n")
    [row] = loader.rows()
    assert (row["id"], row["at"], row["f"]) == ("007", datetime(2024, 7, 1, 10, tzinfo=UTC), 1.0)
    refused = loader.load(f"u,f,at,id\n{identifier},1e300,2024-07-01 10:00,1\n", code=2)
    assert "'1e300' in column f is not a valid FLOAT" in refused.stderr


def test_time_zone_applies_to_times_without_an_offset(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    text = "at\n2024-07-01 10:00:00\n2024-07-01 10:00:00+00:00\n"
    loader.load(text, "--time-zone", "Europe/Berlin")
    expected = [datetime(2024, 7, 1, hour, tzinfo=UTC) for hour in (8, 10)]
    assert [row["at"] for row in loader.rows()] == expected
    loader.load(text, "--time-zone", "Mars/Olympus", code=2)


def test_time_with_an_offset_is_not_stripped_for_a_column_without_zone(loader: Loader) -> None:
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"at": "timestamp"})
    refused = loader.load("at\n2024-07-01 10:00:00+02:00\n", code=2)
    assert "is not a valid TIMESTAMP" in refused.stderr


@pytest.mark.parametrize("text", ["", "\n", "a,,c\n1,2,3\n", "a,A\n1,2\n"])
def test_file_without_a_usable_header_is_refused(loader: Loader, text: str) -> None:
    assert "header" in loader.load(text, code=2).stderr
    assert loader.lake.version == 0


def test_dialect_options(loader: Loader) -> None:
    loader.load(
        "exported by x\nname;price\nJosé;1,5\n".encode("latin-1"),
        "--skip",
        "1",
        "--decimal",
        ",",
        "--encoding",
        "latin-1",
    )
    assert loader.rows() == [{"name": "José", "price": 1.5}]
    names = "SELECT column1 AS name, column2 AS price FROM input"
    loader.load("Ann\t2,5\n", "--no-header", "--delimiter", "\t", "--decimal", ",", "--select", names)
    assert {row["name"]: row["price"] for row in loader.rows()} == {"José": 1.5, "Ann": 2.5}
    refused = loader.load("a\n\xe9\n".encode("latin-1"), code=2)
    assert "utf-8" in refused.stderr


def test_files_with_different_columns_are_united_by_name(loader: Loader) -> None:
    one, two = loader.file("a,b\n1,x\n", "one.csv"), loader.file("c,a\n2.5,3\n", "two.csv")
    loader.run(one, two, "shop.t", "--create")
    expected = [{"a": 1, "b": "x", "c": None}, {"a": 3, "b": None, "c": 2.5}]
    assert sorted(loader.rows(), key=lambda row: row["a"]) == expected
    loader.run(str(loader.folder / "*.csv"), "shop.t", "--mode", "overwrite")
    assert sorted(loader.rows(), key=lambda row: row["a"]) == expected
    assert "no such file" in loader.run(str(loader.folder / "*.tsv"), "shop.t", code=2).stderr


def test_line_of_an_error_counts_quoted_line_breaks_and_blank_lines(loader: Loader) -> None:
    refused = loader.load('a,b\n1,"x\ny"\n\nz,w\n', "--type", "a=int", code=2)
    assert "line 5: 'z' in column a is not a valid INTEGER" in refused.stderr
    packed = gzip.compress(b"a,b\n1,2\nx,3\n")
    refused = loader.load(packed, "--type", "a=int", name="rows.csv.gz", code=2)
    assert "line 3: 'x' in column a" in refused.stderr


@pytest.mark.parametrize("seed", range(8))
def test_lines_may_end_in_several_ways(loader: Loader, seed: int) -> None:
    """The lines of a file may end in different ways. Line breaks in quotes are kept."""
    choose = random.Random(seed)
    delimiter = choose.choice(",;")
    parts = ["x", ",", ";", "ü", '""', "\n", "\r\n", "\r", " "]

    def field() -> str:
        if choose.random() < 0.5:
            return '"' + "".join(choose.choices(parts, k=choose.randrange(5))) + 'q"'
        return choose.choice(["plain", '5" pipe', "", "x y"])

    text = f"# first\r\na{delimiter}b{delimiter}c"
    for number in range(300):
        text += choose.choice(["\n", "\r\n"]) + delimiter.join([str(number), field(), field()])
    if seed % 2:
        text += "\n"
    expected = [
        {"a": int(a), "b": b or None, "c": c or None}
        for a, b, c in list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))[2:]
    ]
    name = choose.choice(["rows.csv", "rows.csv.gz"])
    data = text.encode()
    loader.load(gzip.compress(data) if name.endswith(".gz") else data, "--skip", "1", name=name)
    assert loader.rows() == expected


@pytest.mark.parametrize("line", [b"1,x\xff", b"1,2,3", b'1,"x'])
def test_fault_late_in_a_large_file_is_an_error_of_one_line(loader: Loader, line: bytes) -> None:
    rows = b"".join(b"%d,x\n" % number for number in range(300_000))
    refused = loader.load(b"a,b\n" + rows + line + b"\n", code=2)
    assert refused.stderr.startswith("invalid_argument: ")
    assert "rows.csv: line 300002: " in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("skip", [0, 2])
def test_bad_rows_have_the_line_in_which_they_end(loader: Loader, skip: int) -> None:
    """A bad row is reported with the line in which it ends, although DuckDB counts a record with line breaks, and a
    blank line, as one line."""
    before = "".join(f"# {number}\n" for number in range(skip))
    text = 'a,b\n1,x\n"y","two\nlines"\n3,z,z\n\n4\nq,"m\nn\no",5\nw,w\n5,"k\n\nl"\nv,v\n'
    bad = loader.folder / "bad.jsonl"
    loader.load(before + text, "--skip", str(skip), "--type", "a=int", "--bad-rows", str(bad))
    lines = [json.loads(line)["line"] for line in bad.read_text().splitlines()]
    assert lines == [skip + line for line in (4, 5, 7, 10, 11, 15)]
    loader.load('{"a": 1}\n\n{"a": "x"}\n', "--type", "a=int", "--bad-rows", str(bad), name="rows.jsonl")
    assert [json.loads(line)["row"] for line in bad.read_text().splitlines()] == [2]


@pytest.mark.sample(4)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "latin-1"])
def test_other_encodings_are_read_whole(loader: Loader, format: str, encoding: str) -> None:
    """Files in other encodings are read completely. DuckDB returns no row and no error for big-endian UTF-16."""
    text = "a,b\n1,ü\n2,y\n" if format == "csv" else '{"a": 1, "b": "ü"}\n{"a": 2, "b": "y"}\n'
    last = "y\x85" if encoding == "latin-1" else "😀"  # DuckDB cannot decode these
    text = text.replace("y", last)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    stated = encoding.removesuffix("-be")
    for data, suffix in ((text, ""), (text, ".gz")):
        encoded = (mark + data).encode(encoding)
        packed = gzip.compress(encoded) if suffix else encoded
        loader.load(packed, "--encoding", stated, "--mode", "overwrite", name=f"rows.{format}{suffix}")
        assert loader.rows() == [{"a": 1, "b": "ü"}, {"a": 2, "b": last}]
    refused = loader.load(text.encode(encoding), name=f"rows.{format}", code=2)
    assert ("UTF-16" if stated == "utf-16" else "utf-8") in refused.stderr.replace("UTF-8", "utf-8")
    assert "Traceback" not in loader.load(text, "--encoding", "utf-16", name=f"rows.{format}", code=2).stderr


@pytest.mark.parametrize("is_list", [False, True])
def test_decimals_of_json_are_exact(loader: Loader, is_list: bool) -> None:
    """Decimals of JSON are exact, although DuckDB reads fractions as doubles."""
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"d": "decimal(38, 2)", "s": "text", "l": "double"})
    values = ["12345678901234567.89", "-0.10", "1e2", "7", '"1.50"', "null"]
    texts = [f'{{"d": {value}, "s": "a \\"1.5\\" b", "l": 0.1}}' for value in values]
    text = f"[{', '.join(texts)}]" if is_list else "\n".join(texts)
    refused = loader.load(text, name="rows.json", code=2)  # exponents are refused, as in CSV
    assert "row 3: '1e2' in column d is not a valid DECIMAL(38,2)" in refused.stderr
    loader.load(text.replace("1e2", "100.00"), name="rows.json")
    found = [row["d"] for row in loader.rows()]
    assert found == [Decimal("12345678901234567.89"), Decimal("-0.10"), 100, 7, Decimal("1.50"), None]
    assert {(row["s"], row["l"]) for row in loader.rows()} == {('a "1.5" b', 0.1)}
    assert "'1.005' in column d" in loader.load('{"d": 1.005}', name="rows.json", code=2).stderr


def test_numbers_of_json_are_texts_as_they_are(loader: Loader) -> None:
    """In a column of strings, numbers of JSON keep their spelling: 1.10 does not become 1.1."""
    values = ["1.10", "1e2", "12345678901234567890123", "true", '"x\\u00fc 1.50"', '[1, "2.50"]', '{"a": 1.5}', "null"]
    text = "".join(f'{{"v": {value}, "w": {{"n": 1.50}}}}\n' for value in values)
    expected = ["1.10", "1e2", "12345678901234567890123", "true", "xü 1.50", '[1,"2.50"]', '{"a":1.5}', None]
    loader.load(text, name="rows.jsonl")
    assert [row["v"] for row in loader.rows()] == expected
    assert {row["w"]["n"] for row in loader.rows()} == {1.5}
    loader.load('{"v": 1.12345678901234567890}', "--mode", "overwrite", name="rows.json")
    assert [row["v"] for row in loader.rows()] == ["1.12345678901234567890"]
    loader.run(loader.file('{"v": 0.1}', "more.json"), "shop.u", "--create", "--type", "v=decimal(30,20)")
    loader.run(loader.file('{"v": 1.12345678901234567890}', "more.json"), "shop.u")
    found = loader.lake.table("shop.u").scan().to_arrow()["v"].to_pylist()
    assert sorted(found) == [Decimal("0.1"), Decimal("1.12345678901234567890")]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "A": 2}',
        '{"a": 1}\n{"A": 2}\n',
        '{"": 1}',
        "[1, 2]",
        "5",
        '[[{"a": 1}]]',
        "{}",
        "",
        '{"s": {"a": 1}}\n{"s": {"A": 2}}',
    ],
)
def test_json_whose_fields_are_no_columns_is_refused(loader: Loader, text: str) -> None:
    """JSON whose fields differ only in case is refused. DuckDB named the columns of `a` and `A` a and A_1, and read
    NULL for the second one."""
    refused = loader.load(text, name="rows.json", code=2).stderr
    assert "invalid_argument" in refused
    assert "LINE 1" not in refused
    loader.load('{"json": 1, "a_1": 2, "C0": 3}', name="rows.json")
    assert loader.rows() == [{"json": 1, "a_1": 2, "C0": 3}]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '{"a": 1}\n{"a": 2}\n'])
def test_byte_order_mark_of_json_is_ignored(loader: Loader, text: str) -> None:
    loader.load("\ufeff" + text, name="rows.json")
    assert loader.rows() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("select", [[], ["--select", "SELECT * FROM input"]])
def test_type_uuid_makes_a_column_of_uuids(loader: Loader, select: list[str]) -> None:
    """`--type id=uuid` creates a column of UUIDs, although DuckDB returns UUIDs as strings."""
    id = UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    loader.load(f"a,b\n{id},1\n,2\n", "--type", "a=uuid", *select)
    assert loader.types() == {"a": "UUID", "b": "BIGINT"}
    assert [row["a"] for row in loader.rows()] == [id, None]
    assert "line 2: 'x' in column a is not a valid UUID" in loader.load("a,b\nx,1\n", "--type", "a=uuid", code=2).stderr


def test_null_in_a_required_column_is_a_bad_row(loader: Loader) -> None:
    bad = loader.folder / "bad.jsonl"
    for options in (["--primary-key", "k"], []):
        loader.load("k,v\n1,a\n,b\n3,c\n", *options, "--bad-rows", str(bad))
        [rejected] = [json.loads(line) for line in bad.read_text().splitlines()]
        assert (rejected["line"], rejected["column"]) == (3, "k")
    assert sorted(row["k"] for row in loader.rows()) == [1, 1, 3, 3]
    assert "line 2: column k is required" in loader.load("k,v\n,b\n", code=2).stderr


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_value_beyond_a_declared_limit_is_a_bad_row(loader: Loader, format: str) -> None:
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"k": "smallint", "v": "varchar(3)"})
    values = [(1, "äöü"), (2, "abcd"), (70000, "a"), (4, "ok")]
    text = {
        "csv": "k,v\n" + "".join(f"{k},{v}\n" for k, v in values),
        "jsonl": "".join(json.dumps({"k": k, "v": v}) + "\n" for k, v in values),
    }[format]
    bad = loader.folder / "bad.jsonl"
    loader.load(text, "--bad-rows", str(bad), name=f"rows.{format}")
    assert [row["k"] for row in loader.rows()] == [1, 4]
    assert [json.loads(line)["column"] for line in bad.read_text().splitlines()] == ["v", "k"]


def test_bad_rows_overwrite_no_input(loader: Loader) -> None:
    """The file of bad rows cannot be an input file, and its folder is checked before the load."""
    text = '{"a": 1}\n{"a": "x"}\n'
    path = loader.file(text, "rows.jsonl")
    for file in (path, str(loader.folder / "lake" / ".." / "rows.jsonl"), str(loader.folder / "none" / "bad.jsonl")):
        refused = loader.run(path, "shop.t", "--create", "--type", "a=int", "--bad-rows", file, code=2)
        assert "--bad-rows" in refused.stderr
    assert Path(path).read_text() == text
    assert not loader.lake.exists("shop.t")


@pytest.mark.parametrize(
    ("data", "word"), [(gzip.compress(b"a\n1\n", mtime=0), "is compressed"), (b"id,b\0c\n1,2\n", "is no text")]
)
def test_file_that_is_no_text_is_refused_in_plain_words(loader: Loader, data: bytes, word: str) -> None:
    assert word in loader.load(data, code=2).stderr


def test_select_is_one_statement(loader: Loader) -> None:
    assert "one statement" in loader.load("a\n1\n", "--select", "SELECT 1; SELECT 2", code=2).stderr


def test_long_integers_in_nested_json_are_exact_or_refused(loader: Loader) -> None:
    """Long integers in nested JSON are exact or refused: a list of 9007199254740993 and 1.5 must not become a list of
    doubles."""
    text = '{"l": [1, 1.5], "s": {"id": 9007199254740993, "x": 2.5}}\n{"l": [9007199254740993]}\n'
    refused = loader.load(text, name="rows.jsonl", code=2)
    assert "row 2: '[9007199254740993]' in column l is not a valid DOUBLE[]" in refused.stderr
    loader.load(text, "--max-bad-rows", "1", name="rows.jsonl")
    assert loader.rows() == [{"l": [1.0, 1.5], "s": {"id": 9007199254740993, "x": 2.5}}]
    loader.load(
        text, "--type", "l=varchar", "--select", "SELECT l FROM input", "--mode", "overwrite", name="t.jsonl", code=2
    )
    loader.run(str(loader.folder / "rows.jsonl"), "shop.u", "--create", "--type", "l=varchar")
    assert loader.lake.table("shop.u").scan().to_arrow()["l"].to_pylist() == ["[1,1.5]", "[9007199254740993]"]


@pytest.mark.parametrize("number", ["1234567890123456.7891", "-0.1", "1.10", "1e-10", "9" * 28 + "." + "9" * 10])
def test_decimals_and_texts_in_nested_json_are_exact(loader: Loader, number: str) -> None:
    loader.lake.create_namespace("shop")
    fields = '"x DOUBLE" decimal(38, 10), double double, name varchar'
    loader.lake.create_table("shop.t", {"id": "int", "s": f"row({fields})", "l": "array(decimal(38, 10))"})
    rows = f'{{"id": 1, "s": {{"x DOUBLE": {number}, "double": {number}, "name": {number}}}, "l": [1.5, {number}]}}'
    loader.load(rows, name="rows.jsonl")
    (row,) = loader.rows()
    assert row["s"] == {"x DOUBLE": Decimal(number), "double": float(number), "name": number}
    assert row["l"] == [Decimal("1.5"), Decimal(number)]
    refused = loader.load('{"id": 2, "l": [1.12345678901]}', name="rows.jsonl", code=2)
    assert "would cause data loss" in refused.stderr


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("08:00:00.1234567", "time"),
        ("24:00:00", "time"),
        ("2024-01-01T10:00:00+02:00", "timestamp"),
        ("2024-01-01 10:00:00.1234567", "timestamp"),
        ("epoch", "date"),
        ("550E8400", "uuid"),
    ],
)
def test_strings_in_nested_json_are_kept_or_refused(loader: Loader, text: str, type: str) -> None:
    """Strings in nested JSON lost digits of times and the offset of timestamps, and the word epoch became a day,
    without an error, because DuckDB detected their types. In new tables they are strings; typed fields are exact."""
    rows = json.dumps({"x": {"t": text}, "l": [text]})
    loader.load(rows, name="rows.jsonl")
    assert loader.rows() == [json.loads(rows)]
    loader.lake.create_table("shop.typed", {"x": tl.struct_of(("t", type)), "l": f"{type}[]"})
    loader.run(loader.file(rows, "rows.jsonl"), "shop.typed", code=2)


def test_strings_in_nested_json_become_typed_values(loader: Loader) -> None:
    """A timestamp in nested JSON kept its local time and lost its offset in a column with a time zone."""
    types = {"at": "timestamptz", "t": "time", "d": "date", "u": "uuid", "w": "timestamp"}
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"x": tl.struct_of(*types.items())})
    uuid = "550E8400-e29b-41d4-a716-446655440000"
    texts = {
        "at": "2024-01-01T10:00:00+02:00",
        "t": "08:00:00.5",
        "d": "2024-01-05",
        "u": uuid,
        "w": "2024-01-01 10:00:00",
    }
    loader.load(json.dumps({"x": texts}), name="rows.jsonl")
    [row] = loader.rows()
    assert row["x"] == {
        "at": datetime(2024, 1, 1, 8, tzinfo=UTC),
        "t": time(8, 0, 0, 500_000),
        "d": date(2024, 1, 5),
        "u": UUID(uuid),
        "w": datetime(2024, 1, 1, 10),
    }


def test_number_in_nested_json_that_no_double_holds_is_refused(loader: Loader) -> None:
    """The number 1e400 in nested JSON became infinity without an error. The string Infinity is valid."""
    assert "row 1: " in loader.load('{"x": {"a": 1e400}}', name="rows.jsonl", code=2).stderr
    rows = '{"x": {"a": 1.5, "s": "Infinity \\" Infinity"}}'
    loader.load(rows, name="rows.jsonl")
    assert loader.rows() == [json.loads(rows)]


@pytest.mark.parametrize(
    "rows",
    [
        [{f"c{number}": number for number in range(201)}] * 3,
        [{f"k{number}": number} for number in range(60)],
        [{"x": {f"c{number}": number for number in range(201)}}] * 3,
    ],
    ids=["many fields", "sparse rows", "nested"],
)
def test_objects_of_many_fields_are_not_maps(loader: Loader, rows: list[dict[str, Any]]) -> None:
    """Rows of 200 numbers (sensors, one-hot), and rows that have few of many fields, were refused as not being objects,
    because DuckDB took each row for a map. A nested object of so many fields became a map."""
    loader.load("\n".join(map(json.dumps, rows)), name="rows.jsonl")
    names = list(dict.fromkeys(name for row in rows for name in row))
    assert list(loader.types()) == names
    found = [{name: value for name, value in row.items() if value is not None} for row in loader.rows()]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, rows))


@pytest.mark.parametrize("row", ['{"m": {"z": 1, "z": 2}}', '{"m": {"z": 1.5, "z": 2}}', '{"z": 1, "z": 2, "d": 1.5}'])
def test_object_with_repeated_keys_is_refused(loader: Loader, row: str) -> None:
    """Of a key that an object has twice, the second value was dropped without an error if the row also had a fraction
    in a nested object, or for a decimal."""
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.typed", {"d": "decimal(5, 2)", "z": "int"})
    table = "shop.typed" if "d" in json.loads(row) else "shop.t"
    file = loader.file(row, "rows.jsonl")
    assert 'has duplicate key "z"' in loader.run(file, table, "--create", code=2).stderr


def test_standard_input_and_select(loader: Loader) -> None:
    query = "SELECT a, (SELECT max(a) FROM input) AS highest FROM input WHERE a > 1"
    loader.run("-", "shop.t", "--create", "-f", "csv", "--select", query, input=b"a\n1\n2\n3\n")
    assert sorted(loader.rows(), key=lambda row: row["a"]) == [{"a": 2, "highest": 3}, {"a": 3, "highest": 3}]
    assert "--select" in loader.load("a\n1\n", "--select", "SELECT nothing FROM input", code=2).stderr
    loader.load("a\n1\n", "--select", "SELECT * FROM read_csv('/etc/passwd')", code=2)


def test_json_keeps_long_numbers_and_refuses_other_values(loader: Loader) -> None:
    """Long numbers of JSON are kept, and a fraction after 20,000 integers is refused instead of rounded."""
    rows = "".join(f'{{"a": {number}}}\n' for number in range(30_000))
    refused = loader.load(f'{rows}{{"a": 1.5}}\n', name="rows.jsonl", code=2)
    assert "row 30001: '1.5' in column a is not a valid BIGINT" in refused.stderr
    loader.load(
        '{"n": 12345678901234567890123, "s": "00123", "at": "2024-01-01T10:00:00Z", "l": [{"x": 1}], "e": null}\n'
        '{"n": 1, "s": "1", "at": "2024-01-01T10:00:00+02:00", "l": [], "new": 7}\n',
        name="rows.jsonl",
    )
    first, second = sorted(loader.rows(), key=lambda row: -row["n"])
    assert (first["n"], first["s"]) == (Decimal("12345678901234567890123"), "00123")
    assert (first["l"], first["e"], first["new"], second["new"]) == ([{"x": 1}], None, None, 7)
    assert first["at"] == datetime(2024, 1, 1, 10, tzinfo=UTC)


def test_parquet_types_are_kept_and_an_untyped_column_is_text(loader: Loader) -> None:
    table = pa.table(
        {"a": pa.array([1, 2], pa.int32()), "none": pa.nulls(2), "ts": pa.array([1, 2], pa.timestamp("us"))}
    )
    target = io.BytesIO()
    parquet.write_table(table, target)
    done = loader.load(target.getvalue(), name="rows.parquet")
    assert "column none has no type" in done.stderr
    assert loader.types() == {"a": "INTEGER", "none": "VARCHAR", "ts": "TIMESTAMP"}
    assert (
        "--type is for CSV and JSON"
        in loader.load(target.getvalue(), "--type", "a=int", name="rows.parquet", code=2).stderr
    )


def test_timestamps_of_96_bits_are_exact_in_all_years(loader: Loader) -> None:
    """INT96 timestamps in files of Spark are loaded exactly in all years, although they can overflow Arrow's
    nanoseconds."""
    moments = [datetime(1, 1, 1), datetime(9999, 12, 31)]
    target = io.BytesIO()
    column = pa.array(moments, pa.timestamp("us"))
    parquet.write_table(pa.table({"ts": column}), target, use_deprecated_int96_timestamps=True)
    loader.load(target.getvalue(), name="rows.parquet")
    assert sorted(row["ts"] for row in loader.rows()) == moments


@pytest.mark.parametrize("column", ["top", "struct", "list", "map"])
@pytest.mark.parametrize("nanoseconds", [1_700_000_000_123_456_789, -1])
def test_timestamps_of_96_bits_with_nanoseconds_are_refused(loader: Loader, column: str, nanoseconds: int) -> None:
    """INT96 timestamps of Impala and pandas lost their nanoseconds without an error."""
    kind, wrap = {
        "top": (pa.timestamp("ns"), lambda value: value),
        "struct": (pa.struct([("t", pa.timestamp("ns"))]), lambda value: {"t": value}),
        "list": (pa.list_(pa.timestamp("ns")), lambda value: [0, value]),
        "map": (pa.map_(pa.string(), pa.timestamp("ns")), lambda value: [("k", value)]),
    }[column]
    for value, code in ((nanoseconds, 2), (nanoseconds // 1000 * 1000, 0)):
        rows = pa.table({"c": pa.array([wrap(0), None, wrap(value)], kind), "id": [1, 2, 3]})
        target = io.BytesIO()
        parquet.write_table(rows, target, use_deprecated_int96_timestamps=True)
        done = loader.load(target.getvalue(), name="rows.parquet", code=code)
    assert loader.lake.table("shop.t").scan().count() == 3
    assert done.stderr == ""


def hive_files(folder: Path, suffix: str, files: dict[str, pa.Table]) -> str:
    """Write files in Hive-style folders, and return the pattern of their paths."""
    for number, (name, rows) in enumerate(files.items()):
        path = folder / "hive" / name / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == "parquet":
            parquet.write_table(rows, path)
        elif suffix == "csv":
            path.write_text("\n".join([",".join(rows.column_names), *map(_csv_line, rows.to_pylist())]) + "\n")
        else:
            path.write_text("\n".join(json.dumps(row, default=str) for row in rows.to_pylist()))
    return f"{folder}/hive/**/*.{suffix}"


def _csv_line(row: dict[str, Any]) -> str:
    return ",".join(str(value) for value in row.values())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


HIVE_PATHS = {
    "year=2024/day=2024-02-29/country=de": pa.table({"id": [1, 2]}),
    "year=2025/day=2025-01-01/country=C%C3%B4te%20d%27Ivoire%2F%3D": pa.table({"id": [3]}),
    "year=-1/day=__HIVE_DEFAULT_PARTITION__/country=__HIVE_DEFAULT_PARTITION__": pa.table({"id": [4]}),
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_folders_of_a_hive_table_are_columns(loader: Loader, suffix: str) -> None:
    """A load of a Hive table lost its partition columns, which exist only in the paths, and the user then deleted the
    old table. The rows are those of DuckDB and pyarrow."""
    pattern = hive_files(loader.folder, suffix, HIVE_PATHS)
    loader.run(pattern, "shop.t", "--create")
    assert list(loader.types().items())[1:] == [("year", "BIGINT"), ("day", "DATE"), ("country", "VARCHAR")]
    found = in_order(loader.rows())
    names = list(found[0])
    assert found[2] == {"id": 3, "year": 2025, "day": date(2025, 1, 1), "country": "Côte d'Ivoire/="}
    read = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[suffix]
    known = duckdb.sql(f"SELECT {', '.join(names)} FROM {read}('{pattern}', hive_partitioning = true) ORDER BY id")
    assert [tuple(row.values()) for row in found] == known.fetchall()
    if suffix == "parquet":
        schema = pa.schema([("year", pa.int64()), ("day", pa.date32()), ("country", pa.string())])
        hive = dataset.partitioning(schema, flavor="hive")
        read_rows = dataset.dataset(loader.folder / "hive", partitioning=hive).to_table().select(names)
        assert found == in_order(read_rows.to_pylist())
    loader.run(pattern, "shop.without", "--create", "--no-hive-partitioning")
    assert list(loader.lake.table("shop.without").schema.names) == ["id"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_folders_have_the_types_of_a_table_that_exists(loader: Loader, suffix: str) -> None:
    """The month of a folder is a string with its zero, because it may be a code, or has the type of the table."""
    pattern = hive_files(loader.folder, suffix, {"month=01": pa.table({"id": [1]}), "month=12": pa.table({"id": [2]})})
    loader.run(pattern, "shop.t", "--create")
    assert [row["month"] for row in in_order(loader.rows())] == ["01", "12"]
    loader.lake.create_table("shop.typed", {"id": "bigint", "month": "int"})
    loader.run(pattern, "shop.typed")
    assert in_order(loader.lake.table("shop.typed").to_arrow().to_pylist()) == [
        {"id": 1, "month": 1},
        {"id": 2, "month": 12},
    ]
    loader.lake.create_table("shop.days", {"id": "bigint", "month": "date"})
    assert "'01' of column month is not a valid DATE" in loader.run(pattern, "shop.days", code=2).stderr
    loader.run(pattern, "shop.selected", "--create", "--select", "SELECT id + month::INT AS n FROM input")
    assert sorted(loader.lake.table("shop.selected").to_arrow()["n"].to_pylist()) == [2, 14]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_column_of_a_file_must_agree_with_its_folder(loader: Loader, suffix: str) -> None:
    """Some writers also store the columns of the path in the file. A file with other values is refused."""
    files = {
        "day=2024-01-05": pa.table({"id": [1, 2], "day": pa.array([date(2024, 1, 5)] * 2)}),
        "day=2024-01-06": pa.table({"id": [3]}),
    }
    pattern = hive_files(loader.folder, suffix, files)
    loader.run(pattern, "shop.t", "--create")
    assert [row["day"].day for row in in_order(loader.rows())] == [5, 5, 6]
    files["day=2024-01-07"] = pa.table({"id": [4, 5], "day": [date(2024, 1, 7), date(2024, 1, 8)]})
    hive_files(loader.folder, suffix, files)
    error = loader.run(pattern, "shop.t", code=2).stderr
    assert f"2.{suffix}: column day of the file has other values than the folder day=" in error
    assert loader.lake.table("shop.t").scan().count() == 3


def test_uuid_of_a_file_must_agree_with_its_folder(loader: Loader) -> None:
    """Arrow has no kernel for the distinct values of a column of UUIDs."""
    uuids = [UUID(int=number) for number in (1, 2)]
    rows = {f"u={uuid}": pa.table({"id": [1], "u": pa.array([uuids[0].bytes], pa.uuid())}) for uuid in uuids}
    pattern = hive_files(loader.folder, "parquet", rows)
    assert (
        "1.parquet: column u of the file has other values" in loader.run(pattern, "shop.t", "--create", code=2).stderr
    )
    loader.run(pattern.replace("**", f"u={uuids[0]}"), "shop.t", "--create")
    assert loader.rows() == [{"id": 1, "u": uuids[0]}]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["a=1", "a=1/b=2"], "0.csv has the columns a, and that of"),
        (["a=1", "."], "1.csv has the columns (none), and that of"),
        (["a=1/a=2"], "two folders have the name a"),
        (["a=1/A=2"], "the column a of the path is also named A"),
        (["ID=1"], "the column ID of the path is also named id"),
        (["a=%ff"], "the folder a=%ff is not UTF-8"),
    ],
)
def test_folders_without_one_meaning_are_refused(loader: Loader, paths: list[str], words: str) -> None:
    pattern = hive_files(loader.folder, "csv", {path: pa.table({"id": [1]}) for path in paths})
    assert words in loader.run(pattern, "shop.t", "--create", code=2).stderr
    loader.run(pattern, "shop.t", "--create", "--no-hive-partitioning")


@pytest.mark.parametrize("type", ["decimal(9, 2)", "decimal(9, 0)", "double", "real"])
def test_point_is_no_decimal_point_beside_a_decimal_comma(loader: Loader, type: str) -> None:
    """German exports with thousands, such as 1.500, became 1.5 with `--decimal ,` without an error."""
    comma = ("--decimal", ",", "--delimiter", ";")
    assert "'1.500' in column p" in loader.load("p\n1.500\n", *comma, "--type", f"p={type}", code=2).stderr
    loader.load("p\n1.500\n2,5\n", *comma)
    assert [row["p"] for row in loader.rows()] == ["1.500", "2,5"]
    assert "--decimal is for CSV" in loader.load('{"p": 1.5}', *comma, name="rows.json", code=2).stderr


def test_time_zone_that_would_have_no_effect_is_refused(loader: Loader) -> None:
    """With `--time-zone`, times without an offset were in UTC in nested columns and in Parquet, without an error."""
    zone = ("--time-zone", "Europe/Berlin")
    loader.lake.create_namespace("shop")
    loader.lake.create_table("shop.t", {"id": "int", "l": "timestamptz[]"})
    row = '{"id": 1, "l": ["2026-07-01 00:00:00"]}'
    assert "nested column l" in loader.load(row, *zone, name="rows.json", code=2).stderr
    loader.load('{"id": 1}', *zone, name="rows.json")
    target = io.BytesIO()
    parquet.write_table(pa.table({"at": pa.array([datetime(2026, 7, 1)])}), target)
    assert "--time-zone is for CSV" in loader.load(target.getvalue(), *zone, name="rows.parquet", code=2).stderr


@pytest.mark.parametrize("delimiter", ["||", "\\t"])
def test_delimiter_of_several_characters_is_refused(loader: Loader, delimiter: str) -> None:
    """A delimiter of several characters ended the command with a traceback."""
    assert "--delimiter is one character" in loader.load("a\n", "--delimiter", delimiter, code=2).stderr


def test_column_that_differs_in_case_is_not_added(loader: Loader) -> None:
    """With `--evolve-schema`, a header ID added a second column to a table with id, which SQL then called ID_1."""
    loader.load("id\n1\n")
    assert "no column 'ID'" in loader.load("ID\n2\n", "--evolve-schema", code=2).stderr
    loader.load("id,new\n2,3\n", "--evolve-schema")


@pytest.mark.parametrize("value", [{"x": None, "l": None}, {"l": []}, {"x": {"s": None, "d": 1.5}, "l": [None]}])
def test_nested_column_without_a_value_is_loaded(loader: Loader, value: dict[str, Any]) -> None:
    """A day's file in which a nested column of the table had no value was refused: the column was text."""
    loader.lake.create_namespace("shop")
    part = tl.struct_of(("a", "int"))
    loader.lake.create_table("shop.t", {"x": tl.struct_of(("s", part), ("d", "double")), "l": tl.list_of(part)})
    loader.load(json.dumps(value), name="rows.json")
    assert loader.rows() == [{"x": None, "l": None} | value]
    assert "cannot cast" in loader.load('{"l": ["a"]}', name="rows.json", code=2).stderr


def test_created_table_has_partitions_and_a_key_and_follows_new_columns(loader: Loader) -> None:
    loader.load("id,day\n1,2024-01-01\n", "--partition-by", "month(day)", "--primary-key", "id")
    table = loader.lake.table("shop.t")
    assert (list(table.primary_key), len(table.iceberg.spec().fields)) == (["id"], 1)
    loader.load("id,day,extra\n2,2024-02-01,x\n", code=2)
    loader.load("id,day,extra\n2,2024-02-01,x\n", "--evolve-schema")
    assert {row["id"]: row["extra"] for row in loader.rows()} == {1: None, 2: "x"}
    loader.load("id,day\n3,2024-01-01\n", "--primary-key", "id", code=2)


def test_second_load_with_an_id_changes_nothing(loader: Loader) -> None:
    first = loader.load("a\n1\n", "--id", "day-1", "--json")
    version = json.loads(first.stdout)["version"]
    again = loader.load("a\n1\n", "--id", "day-1")
    assert f"already committed as version {version}" in again.stdout
    assert (loader.lake.version, loader.rows()) == (version, [{"a": 1}])
    loader.load("a\nx\n", "--id", "day-2", code=2)
    loader.load("a\n2\n", "--id", "day-2")
    assert loader.lake.table("shop.t").scan().count() == 2


def test_unknown_column_of_type_is_refused(loader: Loader) -> None:
    assert "no file has the column 'z', only a" in loader.load("a\n1\n", "--type", "z=int", code=2).stderr
    assert loader.lake.version == 0


def test_files_of_an_object_store_are_read_with_the_options_of_the_lakehouse(tmp_path: Path) -> None:
    with s3_server.serve() as server:
        bucket = server.new_bucket()
        client = server.client()
        for name, text in {"in/a-1.csv": "a\n1\n", "in/a-2.csv": "a\n2\n", "in/b.csv": "a\n3\n"}.items():
            client.put_object(Bucket=bucket, Key=name, Body=text.encode())
        lake = tl.create(f"s3://{bucket}/lake", storage_options=server.storage_options)
        options = [part for pair in server.storage_options.items() for part in ("--option", "=".join(pair))]
        url = f"s3://{bucket}/in/a-*.csv"
        done = CliRunner().invoke(app, ["load", url, "shop.t", "--create", "--root", lake.uri, *options])
        assert done.exit_code == 0, done.output
        assert sorted(lake.table("shop.t").scan().to_arrow()["a"].to_pylist()) == [1, 2]
        # `**` missed files in the first folder, and `*` found files in folders, unlike for local paths.
        client.put_object(Bucket=bucket, Key="in/a-old/deep/a-4.csv", Body=b"a\n4\n")
        for pattern, found in (("in/a-*.csv", [1, 2]), ("in/**/a-?.csv", [1, 2, 4]), ("**/deep/*.csv", [4])):
            arguments = ["load", f"s3://{bucket}/{pattern}", "shop.t", "--mode", "overwrite", "--root", lake.uri]
            done = CliRunner().invoke(app, [*arguments, *options])
            assert done.exit_code == 0, done.output
            assert sorted(lake.table("shop.t").to_arrow()["a"].to_pylist()) == found
        client.put_object(Bucket=bucket, Key="hive/at=10%3A30/x.csv", Body=b"a\n4\n")
        url = f"s3://{bucket}/hive/**/*.csv"
        done = CliRunner().invoke(app, ["load", url, "shop.hive", "--create", "--root", lake.uri, *options])
        assert done.exit_code == 0, done.output
        assert lake.table("shop.hive").to_arrow().to_pylist() == [{"a": 4, "at": "10:30"}]
        missing = CliRunner().invoke(app, ["load", f"s3://{bucket}/in/z.csv", "shop.t", "--root", lake.uri, *options])
        assert (missing.exit_code, f"s3://{bucket}/in/z.csv: no such file" in missing.output) == (2, True)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.jsonl.gz", "rows.csv.zst", "rows.jsonl.zst"])
@pytest.mark.parametrize("damage", ["last byte", "half", "flipped bit"])
def test_compressed_file_that_is_cut_or_damaged_is_refused(loader: Loader, name: str, damage: str) -> None:
    """A compressed file without its end or with a wrong checksum is refused, although DuckDB ignores both."""
    lines = "".join(
        ('{"a": %d}\n' if "json" in name else "%d\n") % (number * 7919 % 100_000) for number in range(20_000)
    )
    text = (lines if "json" in name else f"a\n{lines}").encode()
    whole = gzip.compress(text) if name.endswith("gz") else pa.compress(text, codec="zstd", asbytes=True)
    middle = len(whole) // 2
    damaged = {
        "last byte": whole[:-1],
        "half": whole[:middle],
        "flipped bit": whole[:middle] + bytes([whole[middle] ^ 8]) + whole[middle + 1 :],
    }
    if not (name.endswith("zst") and damage == "flipped bit"):  # these frames have no checksum
        assert "is cut or damaged" in loader.load(damaged[damage], name=name, code=2).stderr
        assert loader.lake.version == 0
    loader.load(whole, name=name)
    assert loader.lake.table("shop.t").count() == 20_000


def test_detected_type_accepts_after_the_sample_what_it_accepts_in_it(loader: Loader) -> None:
    """A detected type accepts the same values after the sample as in the sample: a late `007` is not loaded as 7."""
    for value, late in (("1", "007"), ("1.5", "0.1234567890123456789")):
        refused = loader.load("a\n" + f"{value}\n" * 30_000 + f"{late}\n", code=2)
        assert f"line 30002: {late!r} in column a is no" in refused.stderr


@pytest.mark.parametrize(("type", "exact", "rounded"), [("double", 2**53, 2**53 + 1), ("real", 2**24, 2**24 + 1)])
def test_integer_in_a_column_of_floats_is_exact(loader: Loader, type: str, exact: int, rounded: int) -> None:
    files = loader.file(f"a\n{rounded}\n", "one.csv"), loader.file("a\n1.5\n", "two.csv")
    if type == "double":
        loader.run(*files, "shop.texts", "--create")
        assert loader.lake.table("shop.texts").scan().to_arrow()["a"].to_pylist() == [str(rounded), "1.5"]
    refused = loader.load(f"a\n{rounded}\n", "--type", f"a={type}", code=2)
    assert f"{str(rounded)!r} in column a is not a valid {parse_type(type)}" in refused.stderr
    loader.load(f"a\n{exact}\n-{exact}\n1e20\n1.5\n", "--type", f"a={type}")
    assert loader.rows()[:2] == [{"a": float(exact)}, {"a": -float(exact)}]


def test_blank_line_of_a_single_column_is_a_null_row_with_a_line(loader: Loader) -> None:
    refused = loader.load("a\n1\n\nx\n", "--type", "a=int", code=2)
    assert "line 4: 'x' in column a is not a valid INTEGER" in refused.stderr
    loader.load("a\n1\n\n3\n")
    assert [row["a"] for row in loader.rows()] == [1, None, 3]


def test_row_with_several_fields_too_many_is_one_bad_row(loader: Loader) -> None:
    """A row with several superfluous fields counts once against --max-bad-rows, although DuckDB reports each field."""
    done = loader.load("a,b\n1,2\n3,4,5,6,7\n", "--max-bad-rows", "1", "--json")
    assert json.loads(done.stdout)["bad_rows"] == 1
    loader.load("a,b\n1,2\n3,4,5,6,7\n8\n", "--max-bad-rows", "1", code=2)
    assert loader.rows() == [{"a": 1, "b": 2}]


def test_select_reads_nothing_but_the_input(loader: Loader) -> None:
    loader.load("a\n1\n", "--select", "SELECT * FROM stream", code=2)


@pytest.mark.parametrize("order", [1, -1])
def test_fields_that_only_some_nested_objects_have_are_null_in_the_others(loader: Loader, order: int) -> None:
    """A field that only some nested objects have is null in the others, and each column of several files has its own
    type."""
    one = loader.file('{"id": 1, "o": {"x": 1, "y": {"z": [1.5]}}}\n', "one.jsonl")
    two = loader.file(
        '{"id": 2, "o": {"x": 2.25}}\n{"id": 3}\n{"id": 4, "o": {"w": "a", "y": {"q": true}}}\n', "two.jsonl"
    )
    loader.run(*[one, two][::order], "shop.t", "--create")
    found = {row["id"]: row["o"] for row in loader.rows()}
    assert found == {
        1: {"x": 1.0, "y": {"z": [1.5], "q": None}, "w": None},
        2: {"x": 2.25, "y": None, "w": None},
        3: None,
        4: {"x": None, "y": {"z": None, "q": True}, "w": "a"},
    }


def test_values_of_several_kinds_in_json_are_texts_and_that_is_said(loader: Loader) -> None:
    done = loader.load('{"v": 5, "o": {"b": [1, "a"]}, "n": null}\n{"v": [1]}\n', name="rows.jsonl")
    assert [line for line in done.stderr.splitlines() if "several kinds" in line] == [
        "warning: column v has values of several kinds: its type is VARCHAR, with JSON text",
        "warning: parts of column o have values of several kinds, or none: they are stored as JSON text",
    ]
    assert loader.rows() == [{"v": "5", "o": {"b": ["1", '"a"']}, "n": None}, {"v": "[1]", "o": None, "n": None}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.csv", "# export\na,b\n1,2\n", "line 2: .*; use --delimiter, --skip or --bad-rows FILE: 'a,b'"),
        ("rows.csv.bz2", b"BZh", "decompress it"),
        ("rows.json", "", "no row of the file is an object with fields"),
        ("rows.parquet", "hello", "it is no Parquet file"),
    ],
)
def test_errors_about_files_name_what_helps(loader: Loader, name: str, content: str | bytes, words: str) -> None:
    assert re.search(words, loader.load(content, name=name, code=2).stderr)


def test_confused_arguments_and_unknown_columns_name_the_way_out(loader: Loader) -> None:
    loader.load("id,name\n1,a\n")
    rows = loader.file("id,nam\n2,b\n", "more.csv")
    assert "is a file: the table comes last" in loader.run("shop.t", rows, code=2).stderr
    refused = loader.run(rows, "shop.t", code=2).stderr
    assert "has no column 'nam'; did you mean 'name'?; --evolve-schema adds columns" in " ".join(refused.split())
    loader.run(rows, "shop.t", "--evolve-schema")
    assert loader.rows()[-1]["nam"] == "b" or loader.rows()[0]["nam"] == "b"


def test_statements_for_wide_files_grow_with_their_columns(loader: Loader) -> None:
    """The time to load a file is proportional to the number of columns. DuckDB would plan one query with tests of all
    columns in quadratic time."""
    bigint = parse_type("bigint")

    def sizes(columns: int) -> tuple[int, int]:
        names = [f"column_{number:04}" for number in range(columns)]
        statements: list[str] = []
        with duckdb.connect() as connection:
            recorder = SimpleNamespace(execute=lambda sql: (statements.append(sql), connection.execute(sql))[1])
            sample = "SELECT " + ", ".join(f"'1' AS {one}" for one in names)
            found = conversion.detected_types(recorder, sample, {one: (bigint,) for one in names})
        assert found == dict.fromkeys(names, bigint)
        converted = conversion.converted(sample, found, names, "bad", detected=names)  # type: ignore[arg-type]
        return max(len(one) for one in statements if one.startswith("SELECT")), len(converted)

    (test, query), (wide_test, wide_query) = sizes(40), sizes(400)
    assert wide_test == test
    assert wide_query < 11 * query
    names = [f"c{number}" for number in range(100)]
    refused = loader.load(f"{','.join(names)}\n{'1,' * 99}x\n", "--type", "c99=bigint", code=2)
    assert "line 2: 'x' in column c99 is not a valid BIGINT" in refused.stderr
    loader.load(f"{','.join(names)}\n{','.join(map(str, range(100)))}\n")
    assert loader.rows() == [dict(zip(names, range(100), strict=True))]


def test_nothing_is_loaded_if_the_bad_rows_cannot_be_written(loader: Loader) -> None:
    """Bad rows are written before the commit, so that nothing is loaded if they cannot be written. Otherwise they would
    be lost, and a retry would load the other rows again."""
    refused = loader.load("id\n1\nx\n", "--type", "id=int", "--bad-rows", "/dev/full", code=1)
    assert "No space left" in refused.stderr
    assert loader.lake.version == 0
