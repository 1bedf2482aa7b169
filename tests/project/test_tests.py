"""Checks of the tests: each test can fail, and each is collected."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
FILES = sorted(path for path in TESTS.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Names of assertion helpers of pytest and unittest.mock.
EXPECTING = {"raises", "warns", "fail", "assert_called_once"}


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


@cache
def names_called(node: ast.AST) -> set[str]:
    called = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    methods = {one.attr for one in called if isinstance(one, ast.Attribute)}
    return methods | {one.id for one in called if isinstance(one, ast.Name)}


def expects(node: Function, helpers: set[str]) -> bool:
    """Whether a function has an assertion, directly or in a helper that it calls."""
    return asserts(node) or bool(names_called(node) & (helpers | EXPECTING))


@cache
def asserts(node: Function) -> bool:
    return any(isinstance(one, ast.Assert) for one in ast.walk(node))


def expecting_helpers(trees: list[ast.AST]) -> set[str]:
    """Names of all functions with an assertion, directly or in a function that they call."""
    known: set[str] = set()
    everything = [node for tree in trees for node in functions(tree)]
    while True:
        more = {node.name for node in everything if node.name not in known and expects(node, known)}
        if not more:
            return known
        known |= more


def without_expectation(trees: dict[str, ast.AST]) -> list[str]:
    helpers = expecting_helpers(list(trees.values()))
    return [
        f"{name}::{node.name}"
        for name, tree in trees.items()
        for node in functions(tree)
        if node.name.startswith("test_") and not expects(node, helpers)
    ]


def unreachable(tree: ast.AST) -> list[int]:
    """Lines after a statement that always leaves their block."""
    return [
        behind.lineno
        for node in ast.walk(tree)
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
        for line, behind in pairwise(block)
        if isinstance(line, ast.Return | ast.Raise | ast.Continue | ast.Break)
    ]


def over_nothing(tree: ast.AST) -> list[int]:
    """Loops and parametrizations over a literal that is empty."""
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    return [one.lineno for one in loops if isinstance(one, ast.List | ast.Tuple | ast.Set) and not one.elts]


@cache
def trees() -> dict[str, ast.AST]:
    """Syntax trees of all test files, parsed only in the process that runs these tests."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}


def test_every_test_expects_something() -> None:
    assert without_expectation(trees()) == []


def test_tests_have_no_unreachable_lines() -> None:
    found = {name: unreachable(tree) + over_nothing(tree) for name, tree in trees().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_test_is_in_a_file_that_pytest_collects() -> None:
    """The tests of Spark on S3 were in a file with another name for months, so pytest did not collect them."""
    elsewhere = [
        name
        for name, tree in trees().items()
        if not Path(name).name.startswith("test_") and any(node.name.startswith("test_") for node in functions(tree))
    ]
    assert elsewhere == []


def test_nothing_is_skipped_because_something_is_missing() -> None:
    """A missing package must fail a test and not skip it."""
    skipping = {"importorskip", "skip", "skipif"}
    found = {
        name: skipping & {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
        for name, tree in trees().items()
    }
    assert {name: words for name, words in found.items() if words} == {}


def test_each_lane_is_run_by_a_command() -> None:
    lanes = {lane for path in FILES for lane in re.findall(r"mark\.lane\(\"([\w.-]+)\"\)", path.read_text())}
    assert lanes
    run = set(re.findall(r"--lane ([\w.-]+)", (ROOT / "Makefile").read_text()))
    assert lanes == run


def test_commands_name_tests_that_exist() -> None:
    """A test file was deleted, but `make test-lowest` still named it, and ran no test for a day."""
    lanes = ["test-lowest", "test-spark-3.5", "test-spark-4.3", "test-duckdb-2", "test-browser", "soak"]
    printed = subprocess.run(["make", "--dry-run", *lanes], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    named = set(re.findall(r"(?<=\s)tests/[\w./*-]+", printed))
    assert len(named) > 20
    assert [one for one in named if not [*ROOT.glob(one)]] == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("def test_a(): pass", True),
        ("def test_a():\n    try:\n        f()\n    except ValueError:\n        return", True),
        ("def test_a(): helper()\ndef helper(): other()\ndef other(): print()", True),
        ("def test_a(): assert f()", False),
        ("def test_a(): helper()\ndef helper(): other()\ndef other(): assert 1", False),
        ("def test_a():\n    with pytest.raises(ValueError): f()", False),
    ],
)
def test_a_test_that_expects_nothing_would_be_found(source: str, is_found: bool) -> None:
    assert bool(without_expectation({"test.py": ast.parse(source)})) == is_found


def test_unreachable_lines_would_be_found() -> None:
    assert unreachable(ast.parse("def test_a():\n    return\n    assert f()")) == [3]
    assert unreachable(ast.parse("for a in b:\n    continue\n    assert f()")) == [3]
    assert over_nothing(ast.parse("for a in []:\n    assert f()")) == [1]
    assert unreachable(ast.parse("def test_a():\n    assert f()\n    return")) == []
