"""Streams of rows: the memory of a scan whose consumer is slow."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from trinitylake.iceberg_storage.data_files import streamed_rows
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows

FILES, ROWS = 12, 20_000


@pytest.fixture
def table(tmp_path: Path) -> tl.Table:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"id": "bigint", "text": "text"})
    for number in range(FILES):
        first = number * ROWS
        table.append({"id": range(first, first + ROWS), "text": [f"{one:0100d}" for one in range(first, first + ROWS)]})
    return lake.table("a.t")


@pytest.mark.parametrize("filter", [None, "id >= 0"])
def test_a_slow_reader_holds_few_rows(table: tl.Table, filter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg's own stream would read all files while the first batch is used."""
    monkeypatch.setattr(streamed_rows, "BUFFER_SIZE_BYTES", 1 << 20)
    monkeypatch.setattr(streamed_rows, "RUN_FILES", 1)
    begun: list[object] = []
    of_files, of_filters = LiveRows.batches_of, LiveRows.matching

    def batches_of(*arguments: Any) -> Any:
        begun.append(arguments)
        return of_files(*arguments)

    def matching(*arguments: Any) -> Any:
        begun.append(arguments)
        return of_filters(*arguments)

    monkeypatch.setattr(LiveRows, "batches_of", batches_of)
    monkeypatch.setattr(LiveRows, "matching", matching)
    reader = (table.scan() if filter is None else table.scan(filter)).to_arrow_batch_reader()
    first = next(reader)
    time.sleep(1)  # gives threads time to read further
    assert 0 < len(begun) <= streamed_rows.READ_AHEAD + 1
    rest = sum(batch.num_rows for batch in reader)
    assert first.num_rows + rest == FILES * ROWS


def test_a_stream_has_the_rows_of_a_scan(table: tl.Table) -> None:
    scan = table.scan("id >= 30000 and text != 'x'", columns=["text"])
    rows = scan.to_arrow_batch_reader().read_all()
    assert rows.schema == scan.iceberg.to_arrow_batch_reader().schema
    assert rows.cast(scan.to_arrow().schema).equals(scan.to_arrow())
    for limit in (0, 1, ROWS, ROWS + 1, 10 * FILES * ROWS):
        limited = table.scan(limit=limit)
        assert limited.to_arrow_batch_reader().read_all().num_rows == min(limit, FILES * ROWS)
    ids = [one.as_py() for batch in table.scan(columns=["id"]).to_arrow_batch_reader() for one in batch["id"]]
    assert sorted(ids) == list(range(FILES * ROWS))


def test_a_program_ends_with_rows_that_were_not_taken(table: tl.Table, tmp_path: Path) -> None:
    """The thread that fills the stream must not wait for ever."""
    program = """
import sys
import trinitylake as tl
from trinitylake.iceberg_storage.data_files import streamed_rows

streamed_rows.BUFFER_SIZE_BYTES = 1000
reader = tl.open(sys.argv[1]).table("a.t").scan().to_arrow_batch_reader()
print(next(reader).num_rows > 0)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "lake")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
