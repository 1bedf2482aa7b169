"""Fixtures of all tests, and the selection of the tests of a run.

A test with other parameters than `root` runs half of its cases in memory and the other half on disk (decision 0025).
Of the cases of a test with `@pytest.mark.sample(n)`, n run, with each value of a parameter and as many pairs of values
as possible. `TRINITYLAKE_DEEP=1`, or a case that is named on the command line, runs all cases.

Tests in a *lane* need a process of their own, for example a Spark session with other jars. Every run collects them, so
that an import error is noticed; `--lane NAME` runs only the tests of that lane.
"""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import trinitylake as tl
from written_manifests import check_written_manifests

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# pytest imports readline, which sets variables of a terminal with 80 columns for all child processes.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# A program that a shell starts in the background ignores SIGINT, and its child processes inherit this. Tests interrupt
# such processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STORAGES = ("memory", "disk")
SPARK = "tests/spark/"
#: Names of the parameters of a case, with the identities of their values: pytest numbers the cases, not the values.
Case = frozenset[tuple[str, int]]

# No time limit for examples: on a busy machine, drawing four examples took 1.3 s, and the test failed.
settings.register_profile("deep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A pull request runs the same examples on every machine; deep runs draw new ones.
settings.register_profile("pull-request", settings.get_profile("deep"), derandomize=True, max_examples=50)
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
        for choose in (_sampled, _each_case_once):
            chosen_items = choose(items)
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen_items])
            items[:] = [item for item in items if item in chosen_items]


def pytest_collection_finish() -> None:
    """Exclude the objects of collected tests and modules from garbage collection, which took 5 % of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Run all tests with Spark in one process: a session takes 15 s of processor time and 1 GiB of memory."""
    from xdist.scheduler import LoadFileScheduling

    class SparkInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    return SparkInOneProcess(config, log)


def _sampled(items: list[pytest.Item]) -> set[pytest.Item]:
    """The items to run: of a test with the mark `sample`, cases with values and pairs that few others have."""
    chosen = {item for item in items if item.get_closest_marker("sample") is None}
    tests: dict[tuple[str, int], dict[Case, list[pytest.Item]]] = {}
    for item in items:
        if (mark := item.get_closest_marker("sample")) is not None and isinstance(item, pytest.Function):
            cases = tests.setdefault((item.nodeid.partition("[")[0], mark.args[0]), {})
            case = frozenset((name, id(value)) for name, value in item.callspec.params.items() if name != "root")
            cases.setdefault(case, []).append(item)
    for (_, size), cases in tests.items():
        seen = Counter[tuple[object, ...]]()

        def rank(case: Case, seen: Counter[tuple[object, ...]] = seen) -> tuple[int, int]:
            return sum(seen[value] for value in case), sum(seen[pair] for pair in combinations(sorted(case), 2))

        for _ in range(min(size, len(cases))):
            case = min(cases, key=rank)
            chosen.update(cases.pop(case))
            seen.update([*case, *combinations(sorted(case), 2)])
    return chosen


def _each_case_once(items: list[pytest.Item]) -> set[pytest.Item]:
    """The items to run: each case of a test with other parameters than `root` only in memory or only on disk.

    The Thue-Morse sequence chooses the storage. It has no period, so each value of each parameter runs on both.
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
    """The root URI of a lakehouse that does not exist yet."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """An empty lakehouse at version 0, with a small order, so that nodes split often."""
    return tl.create(root, name="test", order=5, durability="none")
