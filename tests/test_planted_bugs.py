"""The list of planted bugs fits the source; `make planted-bugs` plants them and runs the tests."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    path = ROOT / "scripts/planted_bugs.py"
    spec = importlib.util.spec_from_file_location("planted_bugs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_planted_bug_still_fits_the_source_and_changes_it(planted: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ROOT / planted.SOURCES, tmp_path / planted.SOURCES)
    for bug in planted.bugs():
        source = bug.plant(tmp_path)
        path = tmp_path / planted.SOURCES / bug.file
        assert path.read_text() != source, bug.name
        path.write_text(source)


def test_a_planted_bug_that_no_longer_fits_is_refused(planted: ModuleType, tmp_path: Path) -> None:
    bug = planted.bugs()[0]
    path = tmp_path / planted.SOURCES / bug.file
    path.parent.mkdir(parents=True)
    for source in ("", bug.search * 2):
        path.write_text(source)
        with pytest.raises(ValueError, match="times"):
            bug.plant(tmp_path)


def test_there_are_twenty_planted_bugs_and_ten_of_them_concern_commits(planted: ModuleType) -> None:
    bugs = planted.bugs()
    assert len(bugs) >= 20
    assert sum(bug.kind == "commits" for bug in bugs) >= 10
    assert len({bug.name for bug in bugs}) == len(bugs)
    assert all(bug.tests for bug in bugs)
