"""The lists of planted bugs fit the source and the tests; `make planted-bugs` plants them and runs the tests."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    """Scripts find those beside them, as if they were started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield


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


class Tried:
    """Two planted mistakes in one module, each with a test file of its own, of which only `found` is ever noticed."""

    def __init__(self, planted: ModuleType, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._main = planted.main
        self.source, self.tests = root / "python/sums.py", root / "test_found.py"
        self.source.parent.mkdir()
        self.source.write_text("ONE = 1\nTWO = 2\n")
        for name in ("found", "missed"):
            (root / f"test_{name}.py").write_text("")
        mistakes = [
            planted.Bug("sums", "found", "sums.py", "ONE = 1", "ONE = 3", ["test_found.py::test_sums"]),
            planted.Bug("sums", "missed", "sums.py", "TWO = 2", "TWO = 3", ["test_missed.py"]),
        ]

        def asked(work: Path, arguments: list[str]) -> str | None:
            if "= 3" not in (work / "python/sums.py").read_text():
                return None
            self.names.append(arguments[0].partition(".")[0].removeprefix("test_"))
            return "test_sums" if self.names[-1] == "found" else None

        for name, value in {
            "ROOT": root,
            "SOURCES": {".py": Path("python"), ".rs": Path("rust")},
            "COPIED": (),
            "JOBS": 1,
            "bugs": lambda: mistakes,
            "pytest": asked,
            "copy_package": lambda work: shutil.copytree(root / "python", work / "python"),
        }.items():
            patch.setattr(planted, name, value)

    def __call__(self, *arguments: str) -> list[str]:
        """The mistakes that a run tries. It fails, since one of them survives."""
        self.names.clear()
        assert self._main(list(arguments)) == 1
        return self.names


def test_a_run_goes_on_where_the_last_one_stopped(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of all mistakes takes hours; one that was ended had to begin anew, and so had whoever had mended one."""
    tried = Tried(planted, tmp_path, monkeypatch)
    assert tried() == ["found", "missed"]
    capsys.readouterr()
    assert tried("--resume") == ["missed"]
    assert "1 of 2 planted bugs were found, 1 of them by earlier runs" in (told := capsys.readouterr().out)
    assert "1 of   2  sums" in told
    assert "1 of   1  test_found.py" in told
    assert tried() == ["found", "missed"]


@pytest.mark.parametrize(
    "change",
    [
        lambda tried: tried.source.write_text("ONE = 1\nTWO = 2\nTHREE = ONE + TWO\n"),
        lambda tried: tried.tests.write_text("# another test\n"),
    ],
    ids=["the source", "the tests"],
)
def test_what_changed_is_tried_again(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Tried], object]
) -> None:
    tried = Tried(planted, tmp_path, monkeypatch)
    assert tried() == ["found", "missed"]
    change(tried)
    assert tried("--resume") == ["found", "missed"]
    assert tried("--resume") == ["missed"]


def test_a_record_that_was_cut_short_loses_nothing_else(
    planted: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of a run that was killed is half a line, and the next run wrote its first one into it."""
    tried = Tried(planted, tmp_path, monkeypatch)
    record = tmp_path / planted.OUTCOMES
    record.parent.mkdir()
    record.write_text('{"key": "ab')
    assert tried("--resume") == ["found", "missed"]
    assert tried("--resume") == ["missed"]


def test_what_is_built_of_a_copy_is_not_taken_for_the_checkout(planted: ModuleType, tmp_path: Path) -> None:
    """The last mistake of a hunt stayed in the target folder under the name of the true crate, newer than the sources,
    and `cargo test` in the checkout tested it."""
    planted.copy_core(tmp_path)
    copy, checkout = (tomllib.loads((root / "Cargo.toml").read_text()) for root in (tmp_path, ROOT))
    assert copy["workspace"]["package"].pop("version") != checkout["workspace"]["package"].pop("version")
    assert copy == checkout


def test_there_are_twenty_planted_bugs_and_ten_of_them_concern_commits(planted: ModuleType) -> None:
    bugs = planted.bugs()
    assert len(bugs) >= 20
    assert sum(bug.kind == "commits" for bug in bugs) >= 10
    assert sum(bug.is_python for bug in bugs) >= 12
    assert len({bug.name for bug in bugs}) == len(bugs)
    assert all(bug.tests for bug in bugs)
