"""What tests share: an empty lakehouse, on disk and in memory."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import trinitylake as tl


@pytest.fixture(params=["memory", "disk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root where nothing is yet."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """An empty lakehouse at version 0, with a tree small enough to split often."""
    return tl.create(root, name="test", order=5, durability="none")
