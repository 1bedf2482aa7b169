"""What tests share: an empty lakehouse, on disk and in memory; and which of them a run is about.

Tests in a *lane* need something of their own: a Spark session with other jars, a download. Every run collects them, so
that they cannot rot unseen; `--lane NAME` runs those of that lane and no others.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import trinitylake as tl
from written_manifests import check_written_manifests

# pytest imports readline, which tells every process that is started from here that there is a terminal of 80 columns.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# No test fails because a machine is slow: on a busy one, drawing four examples took 1.3 s and counted as a failure.
settings.register_profile("deep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A pull request is judged by the same examples on every machine; deep runs look for new ones.
settings.register_profile("pull-request", settings.get_profile("deep"), derandomize=True)
settings.load_profile("deep" if os.environ.get("TRINITYLAKE_DEEP") else "pull-request")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", default="", metavar="NAME", help="run the tests of that lane instead of the others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def lane(item: pytest.Item) -> str:
        mark = item.get_closest_marker("lane")
        return str(mark.args[0]) if mark is not None else ""

    chosen = config.getoption("--lane")
    config.hook.pytest_deselected(items=[item for item in items if lane(item) != chosen])
    items[:] = [item for item in items if lane(item) == chosen]


@pytest.fixture(autouse=True)
def _written_manifests_are_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    check_written_manifests(monkeypatch)


@pytest.fixture(params=["memory", "disk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root where nothing is yet."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """An empty lakehouse at version 0, with a tree small enough to split often."""
    return tl.create(root, name="test", order=5, durability="none")
