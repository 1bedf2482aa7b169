"""The planted bugs apply to the sources, and the tests that they name exist. `make planted-bugs` runs these tests."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_bugs", ROOT / "scripts/planted_bugs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_planted_bug_applies_and_python_still_compiles(planted: ModuleType, tmp_path: Path) -> None:
    for sources in planted.SOURCES.values():
        shutil.copytree(ROOT / sources, tmp_path / sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    problems = []
    for bug in planted.bugs():
        path = tmp_path / bug.path
        try:
            source = bug.plant(tmp_path)
        except planted.Unusable as error:
            problems.append(f"{bug.name}: {error}")
            continue
        if path.read_text() == source:
            problems.append(f"{bug.name}: changes nothing")
        if bug.is_python:
            compile(path.read_text(), bug.file, "exec")
        path.write_text(source)
    assert problems == []


def test_the_python_tests_of_each_planted_bug_exist(planted: ModuleType) -> None:
    problems = []
    for bug in planted.bugs():
        for test in bug.tests if bug.is_python else ():
            file, _, name = test.partition("::")
            source = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
            names = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
            if not source or (name and name.partition("[")[0] not in names):
                problems.append(f"{bug.name}: {test}")
    assert problems == []


def test_names_are_unique_and_each_planted_bug_has_tests(planted: ModuleType) -> None:
    bugs = planted.bugs()
    assert len({bug.name for bug in bugs}) == len(bugs)
    assert all(bug.tests for bug in bugs)
    assert {bug.is_python for bug in bugs} == {True, False}


def test_a_planted_bug_that_does_not_apply_once_is_unusable(planted: ModuleType, tmp_path: Path) -> None:
    bug = planted.bugs()[0]
    path = tmp_path / bug.path
    path.parent.mkdir(parents=True)
    for source in ("", bug.search * 2):
        path.write_text(source)
        with pytest.raises(planted.Unusable, match="times"):
            bug.plant(tmp_path)


@pytest.mark.parametrize(
    ("replacement", "test", "expected"),
    [
        ("    assert 1 + 1 == 3", "test_sums", (True, "test_sums")),
        ("    assert 1 + 1 == 2  # the same", "test_sums", (False, "SURVIVES")),
        ("    assert (", "test_sums", (False, "its tests do not run")),
        ("    assert 1 + 1 == 3", "test_gone", (False, "its tests do not run")),
    ],
)
def test_a_planted_bug_is_found_only_if_a_test_ran_and_failed(
    planted: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replacement: str,
    test: str,
    expected: tuple[bool, str],
) -> None:
    (tmp_path / "sums.py").write_text("def check() -> None:\n    assert 1 + 1 == 2\n")
    (tmp_path / "test_sums.py").write_text(
        "import sys\nsys.path.insert(0, '.')\nimport sums\n\ndef test_sums() -> None:\n    sums.check()\n"
    )
    monkeypatch.setattr(planted, "ROOT", tmp_path)
    monkeypatch.setattr(planted, "SOURCES", {".py": Path()})
    bug = planted.Bug("sums", "a sum", "sums.py", "    assert 1 + 1 == 2", replacement, [f"test_sums.py::{test}"])
    is_found, how = planted.hunt(tmp_path, bug)
    assert is_found == expected[0], how
    assert how.startswith(expected[1])


def test_the_copied_crates_differ_from_the_checkout_in_their_version_only(planted: ModuleType, tmp_path: Path) -> None:
    """`cargo test` tested the crate with the previous planted bug, the newest build in the target folder."""
    planted.copy_sources(tmp_path)
    copy, checkout = (tomllib.loads((root / "Cargo.toml").read_text()) for root in (tmp_path, ROOT))
    assert copy["workspace"]["package"].pop("version") != checkout["workspace"]["package"].pop("version")
    assert copy == checkout
