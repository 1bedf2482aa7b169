"""Decimals are exact: as partitions of up to 38 digits, and if other numbers become decimals."""

from __future__ import annotations

import os
from collections import Counter
from decimal import Decimal, InvalidOperation, localcontext
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.tables.input_rows import fitting


def test_truncated_decimals_of_38_digits_are_exact(lake: tl.Lakehouse) -> None:
    """The partition transform of a decimal is exact for 38 digits. Rounded to 28 digits, as Python's decimals by
    default, a row would be in a partition where no filter finds it."""
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", [7, -(10**7), 10**8, 1.5, 19.99, 0.1 + 0.2, 12345678.91, 1.105, 1e-20, 1e9])
def test_number_becomes_the_decimal_that_it_means_or_is_refused(
    lake: tl.Lakehouse, shape: str, number: int | float
) -> None:
    """A float becomes the decimal that its 15 digits mean, or is refused: 1.105 must not be stored as 1.10. Whole
    numbers are accepted."""
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
    """A string or decimal is stored exactly or refused. Arrow does not notice an overflow when it adds digits: -6880.0
    would become -74.35… in a decimal(37,35)."""
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
    """Strings with exponents beyond 38 digits are refused before they reach Arrow, which would look up the power of ten
    beyond its table: 1e-999999999 would end the process."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"d": "decimal(38,0)", "l": "array(decimal(9,2))"})
    for rows in ([{"d": text}], [{"l": [text]}]):
        with pytest.raises(tl.InvalidArgument, match="cannot cast"):
            table.append(rows)
    table.append([{"d": "0e-999999999", "l": ["150e-2", "1.50000"]}])
    assert table.scan().to_arrow().to_pylist() == [{"d": Decimal(0), "l": [Decimal("1.50")] * 2}]
