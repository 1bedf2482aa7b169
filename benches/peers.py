"""Peers, each set up as in its own documentation, on the measured disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = 10
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])


def ten_rows(number: int) -> pa.Table:
    """The rows of one append."""
    start = number * ROWS
    return pa.table(
        {
            "id": list(range(start, start + ROWS)),
            "name": [f"row {i}" for i in range(start, start + ROWS)],
            "value": [i / 7 for i in range(ROWS)],
        },
        schema=SCHEMA,
    )


def sql_catalog(folder: Path) -> Any:
    """PyIceberg's catalog in SQLite, which syncs its own file and no file of a table."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True)
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


class DeltaTable:
    """A delta-rs table, which never syncs."""

    def __init__(self, folder: Path) -> None:
        from deltalake import DeltaTable as Table

        self._path = str(folder)
        Table.create(self._path, SCHEMA)

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._path, rows, mode="append")

    def count(self) -> int:
        from deltalake import DeltaTable as Table

        return sum(Table(self._path).get_add_actions().column("num_records").to_pylist())


class DuckLake:
    """A DuckLake whose catalog is a DuckDB file, which syncs. One connection.

    Inserts of at most `inlined_rows` rows are stored in the catalog; by default DuckLake's own number.
    """

    def __init__(self, folder: Path, inlined_rows: int | None = None) -> None:
        import duckdb

        folder.mkdir(parents=True)
        package = importlib.util.find_spec("duckdb_extension_ducklake")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("DuckLake is in the package duckdb-extension-ducklake")
        extension = next(Path(package.origin).parent.rglob("ducklake.duckdb_extension"))
        self.connection = duckdb.connect()
        self.connection.execute(f"LOAD '{extension}'")
        options = f"DATA_PATH '{folder}/data'"
        options += "" if inlined_rows is None else f", DATA_INLINING_ROW_LIMIT {inlined_rows}"
        self.connection.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake ({options})")

    def create_tables(self, names: Sequence[str]) -> None:
        for name in names:
            self.connection.execute(f"CREATE TABLE lake.{name} (id BIGINT, name VARCHAR, value DOUBLE)")

    def append(self, names: Sequence[str], rows: pa.Table) -> None:
        """Append the rows to every table in one transaction."""
        self.connection.register("new_rows", rows)
        self.connection.execute("BEGIN")
        for name in names:
            self.connection.execute(f"INSERT INTO lake.{name} SELECT * FROM new_rows")
        self.connection.execute("COMMIT")


class Lmdb:
    """An LMDB file, an ordered key-value store on one machine that syncs each transaction."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        folder.mkdir(parents=True)
        self.path = folder
        self._environment = lmdb.open(str(folder), map_size=4 << 30)

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Load all keys at once, in key order."""
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(keys, values, strict=True), append=True)

    def get(self, keys: Sequence[bytes]) -> int:
        """Look up each key; returns how many exist."""
        with self._environment.begin() as transaction:
            return sum(transaction.get(key) is not None for key in keys)

    def scan(self) -> int:
        """Read all keys in order into a list; returns their number."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            return len(list(cursor.iternext(keys=True, values=False)))
