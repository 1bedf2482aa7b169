"""Files of a lakehouse on a local disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl

SCHEME = "file://"


def local_path(location: str) -> Path:
    """Path of the file or folder at a `file://` location.

    Raises `ValueError` for every other scheme: `memory://…` is also a valid relative path, and a test wrote a file with
    this name into the checkout.
    """
    if not location.startswith(SCHEME):
        raise ValueError(f"{location!r} is not on a local disk")
    return Path(location.removeprefix(SCHEME))


def lake_on_disk(namespace: str) -> Callable[..., tl.Lakehouse]:
    """A fixture: a lakehouse on disk with one namespace."""

    @pytest.fixture
    def lake(tmp_path: Path) -> tl.Lakehouse:
        made = tl.create(tmp_path / "lake", durability="none")
        made.create_namespace(namespace)
        return made

    return lake


def age(folder: Path, seconds: float = 3600) -> None:
    """Set the modification times of all files below a folder back by this number of seconds."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # deleted concurrently
                then = os.stat(f"{parent}/{name}").st_mtime - seconds
                os.utime(f"{parent}/{name}", (then, then))


def age_instead_of_sleep(monkeypatch: pytest.MonkeyPatch, module: ModuleType, folder: Path) -> None:
    """Replace `sleep` of a module that waits until files are old enough: make the files older instead."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: age(folder, seconds))
    monkeypatch.setattr(module, "time", clock)


def write_parquet_of_size(rows: pa.Table, path: Path, size_bytes: int) -> None:
    """Write a Parquet file without an Arrow schema, padded to an exact size in bytes."""
    padding = 0
    while True:
        with pq.ParquetWriter(path, rows.schema, write_statistics=False, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        missing = size_bytes - path.stat().st_size
        if missing <= 0:
            break
        padding += max(missing - 8, 1)  # the length of the padding has some bytes, too
    assert missing == 0
