"""Dates and times in rows of Python: all parts of a value are stored, or the write is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import trinitylake as tl

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
    """Arrow takes the type of the first value. Next to a date in a list or struct, the times of day of datetimes were
    stored as midnight, without an error."""
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
