"""What tests share: an empty lakehouse, on disk and in memory."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import settings

import trinitylake as tl

# A pull request is judged by the same examples on every machine; deep runs look for new ones.
settings.register_profile("pull-request", derandomize=True)
if not os.environ.get("TRINITYLAKE_DEEP"):
    settings.load_profile("pull-request")


@pytest.fixture(params=["memory", "disk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root where nothing is yet."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """An empty lakehouse at version 0, with a tree small enough to split often."""
    return tl.create(root, name="test", order=5, durability="none")
