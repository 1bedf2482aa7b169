"""Spark workers that die during a task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest


def let_workers_die(monkeypatch: pytest.MonkeyPatch, module: ModuleType, tasks: list[str], folder: Path) -> None:
    """Make each of these functions of a module kill its worker once, after its first batch.

    A file with the name of the function in the folder records that it has done so.
    """
    for name in tasks:
        original, marker = getattr(module, name), str(folder / name)

        def dying(*given: object, original=original, marker=marker) -> Iterator[pa.RecordBatch]:
            for batch in original(*given):
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    yield batch
                    continue
                os._exit(1)

        monkeypatch.setattr(module, name, dying)
