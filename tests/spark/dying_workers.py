"""Workers of Spark that die in the middle of a task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest


def let_workers_die(monkeypatch: pytest.MonkeyPatch, module: ModuleType, tasks: list[str], folder: Path) -> None:
    """Each of these functions of a module kills its worker once, after its first batch. A file in the folder, with its
    name, records that."""
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
