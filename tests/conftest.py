"""What tests share: an empty lakehouse, on disk and in memory; and which of them a run is about.

A test with other parameters runs half of its cases in memory and the other half on disk (decision 0102);
`TRINITYLAKE_DEEP=1`, or a case that is named on the command line, runs them on both.

Tests in a *lane* need something of their own: a Spark session with other jars, a download. Every run collects them, so
that they cannot rot unseen; `--lane NAME` runs those of that lane and no others.
"""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import trinitylake as tl
from written_manifests import check_written_manifests

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# pytest imports readline, which tells every process that is started from here that there is a terminal of 80 columns.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# A program that a shell starts in the background ignores SIGINT, and so would all processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STORAGES = ("memory", "disk")
SPARK = "tests/spark/"

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
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))  # they take longest, so they start first
    if not os.environ.get("TRINITYLAKE_DEEP") and not any("[" in argument for argument in config.args):
        once = _each_case_once(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in once])
        items[:] = [item for item in items if item in once]


def pytest_collection_finish() -> None:
    """Leave thousands of tests and their modules out of later garbage collections, which took 5 % of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """One process runs all tests with Spark: a session takes 15 s of processor time and 1 GiB of memory."""
    from xdist.scheduler import LoadFileScheduling

    class SparkInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    return SparkInOneProcess(config, log)


def _each_case_once(items: list[pytest.Item]) -> set[pytest.Item]:
    """All items but those of `root` in memory and on disk whose other parameters run on the other one.

    The Thue-Morse sequence chooses: no period of the parameters agrees with it, so that of several parameters each
    value runs on both.
    """
    chosen, n_cases = set(), Counter[tuple[str, str]]()
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("root") not in STORAGES or len(parameters) == 1:
            chosen.add(item)
            continue
        case = item.nodeid.partition("[")[0], parameters["root"]
        if n_cases[case].bit_count() % 2 == STORAGES.index(parameters["root"]):
            chosen.add(item)
        n_cases[case] += 1
    return chosen


@pytest.fixture(autouse=True)
def _written_manifests_are_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    check_written_manifests(monkeypatch)


@pytest.fixture(params=STORAGES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root where nothing is yet."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """An empty lakehouse at version 0, with a tree small enough to split often."""
    return tl.create(root, name="test", order=5, durability="none")
