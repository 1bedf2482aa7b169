"""The lists of planted bugs fit the source and the tests; `make planted-bugs` plants them and runs the tests."""

from __future__ import annotations

import ast
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
    for sources in planted.SOURCES.values():
        shutil.copytree(ROOT / sources, tmp_path / sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for bug in planted.bugs():
        source = bug.plant(tmp_path)
        path = tmp_path / bug.path
        assert path.read_text() != source, bug.name
        if bug.is_python:
            compile(path.read_text(), bug.file, "exec")
        path.write_text(source)


def test_the_tests_that_must_find_a_mistake_in_python_are_there(planted: ModuleType) -> None:
    for bug in planted.bugs():
        for test in bug.tests if bug.is_python else ():
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert not name or name.partition("[")[0].rpartition("::")[2] in names, f"{bug.name}: {test}"


def test_a_planted_bug_that_no_longer_fits_is_refused(planted: ModuleType, tmp_path: Path) -> None:
    bug = planted.bugs()[0]
    path = tmp_path / bug.path
    path.parent.mkdir(parents=True)
    for source in ("", bug.search * 2):
        path.write_text(source)
        with pytest.raises(planted.Unusable, match="times"):
            bug.plant(tmp_path)


@pytest.mark.parametrize(
    ("replacement", "state"),
    [
        ("    assert 1 + 1 == 3", "found"),
        ("    assert 1 + 1 == 2  # the same", "survives"),
        ("    assert (", "unusable"),
    ],
)
def test_a_mistake_counts_as_found_only_if_a_test_ran_and_failed(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacement: str, state: str
) -> None:
    """A module that cannot be loaded, or a test that is not there, fails every run: that says nothing about a test."""
    (tmp_path / "sums.py").write_text("def check() -> None:\n    assert 1 + 1 == 2\n")
    (tmp_path / "test_sums.py").write_text(
        "import sys\nsys.path.insert(0, '.')\nimport sums\n\ndef test_sums() -> None:\n    sums.check()\n"
    )
    monkeypatch.setattr(planted, "ROOT", tmp_path)
    monkeypatch.setattr(planted, "SOURCES", {".py": Path()})
    bug = planted.Bug("sums", "a sum", "sums.py", "    assert 1 + 1 == 2", replacement, ["test_sums.py::test_sums"])
    hunt = planted.hunt(tmp_path, bug)
    assert hunt.is_found == (state == "found"), str(hunt)
    assert bool(hunt.unusable) == (state == "unusable"), str(hunt)
    assert "1 of   1" in planted.summary([hunt]) or not hunt.is_found

    missing = planted.Bug("sums", "a sum", "sums.py", "    assert 1 + 1 == 2", replacement, ["test_sums.py::test_gone"])
    assert planted.hunt(tmp_path, missing).unusable


def test_there_are_twenty_planted_bugs_and_ten_of_them_concern_commits(planted: ModuleType) -> None:
    bugs = planted.bugs()
    assert len(bugs) >= 20
    assert sum(bug.kind == "commits" for bug in bugs) >= 10
    assert sum(bug.is_python for bug in bugs) >= 12
    assert len({bug.name for bug in bugs}) == len(bugs)
    assert all(bug.tests for bug in bugs)
