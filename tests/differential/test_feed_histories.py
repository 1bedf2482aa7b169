"""The rows of a version and its change feed result in the rows of a later version, in random histories of a table.

The model is a dictionary of rows. `make test` runs a few histories, `TRINITYLAKE_DEEP=1` runs 50,000, and
`TRINITYLAKE_SEED=n` runs one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trinitylake.iceberg_storage.data_files.streamed_rows import ReadAhead
from trinitylake.tables.change_feed import feed, row_comparison

from .feed_history import FeedHistory

HISTORIES = 50_000 if os.environ.get("TRINITYLAKE_DEEP") else 16
#: Histories of one test.
PART = 100 if os.environ.get("TRINITYLAKE_DEEP") else 8


def _seeds() -> list[range]:
    if seed := os.environ.get("TRINITYLAKE_SEED"):
        return [range(int(seed), int(seed) + 1)]
    return [range(begin, begin + PART) for begin in range(0, HISTORIES, PART)]


@pytest.mark.parametrize("seeds", _seeds(), ids=lambda seeds: f"from-{seeds.start}")
def test_base_and_feed_are_the_result(seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = []
    for seed in seeds:
        with monkeypatch.context() as patch:
            try:
                run_seed(seed, tmp_path, patch)
            except Exception as error:
                failures.append(f"TRINITYLAKE_SEED={seed}: {type(error).__name__} {error} {error.__notes__}")
    assert not failures, f"{len(failures)} of {len(seeds)}\n" + "\n".join(failures)


def run_seed(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a history. Every fiftieth history is on a disk, and DuckDB reads its versions as well."""
    if seed % 8 in (0, 3):  # rows are compared in parts, and files are looked up in several pages
        patch.setattr(row_comparison, "MEMORY_MAX_SIZE_BYTES", 100)
        patch.setattr(row_comparison, "_PARTS", 3)
        patch.setattr(feed, "PAGE_VERSIONS", 3)
    if seed % 8 < 6:  # starting threads takes a quarter of the time
        patch.setattr(ReadAhead, "__iter__", lambda self: (rows for part in self._parts for rows in self._read(part)))
    on_disk = folder / str(seed) if seed % 50 == 7 else None
    history = FeedHistory(seed, has_key=bool(seed & 1), format_version=2 + (seed >> 1 & 1), folder=on_disk)
    try:
        _run(history)
    except Exception as error:
        error.add_note("\n".join(history.log))
        raise


def _run(history: FeedHistory) -> None:
    history.run(history.random.randrange(6, 14))
    kept = sorted(history.states)
    versions = range(kept[0], kept[-1] + 1)
    last = [version for version in versions if history.states[version].rows is not None][-1]
    pairs = [(versions[0], last), sorted(history.random.choices(versions, k=2))]
    for since, until in pairs:
        try:
            history.check(since, until)
        except Exception as error:
            error.add_note(f"versions {since} to {until}")
            raise
