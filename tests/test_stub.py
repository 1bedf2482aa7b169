"""The stub `_core.pyi` equals the compiled module: names, methods, parameters and default values."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trinitylake import _core

STUB = Path(_core.__file__).with_name("_core.pyi")
TREE = ast.parse(STUB.read_text())
#: Names that exist only for type checkers.
ALIASES = {"Kind", "Isolation"}
OF_EVERY_MODULE = set(dir(sys)) | {"__file__", "__builtins__", "__all__", "__path__", "__cached__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Kind of a parameter, its name, and its default value as text.
Parameter = tuple[str, str, str | None]


def stub_classes() -> dict[str, ast.ClassDef]:
    return {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}


def stub_functions(body: list[ast.stmt]) -> dict[str, Function]:
    return {node.name: node for node in body if isinstance(node, Function)}


def stub_attributes(node: ast.ClassDef) -> set[str]:
    """Names of annotated attributes and properties."""
    annotated = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return annotated | {one.name for one in stub_functions(node.body).values() if "property" in decorators(one)}


def decorators(function: Function) -> set[str]:
    return {one.id for one in function.decorator_list if isinstance(one, ast.Name)}


def stub_parameters(function: Function) -> Iterator[Parameter]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        yield "positional", argument.arg, None if default is None else ast.unparse(default)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield "keyword", argument.arg, None if default is None else ast.unparse(default)


def built_parameters(function: Callable[..., object]) -> Iterator[Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        kind = "keyword" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else "positional"
        assert parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ), parameter
        default = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        yield kind, parameter.name, default


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def same(stub: list[Parameter], built: list[Parameter]) -> bool:
    """Whether names, order, kinds and default values of the parameters are equal."""

    def shape(parameters: list[Parameter]) -> list[tuple[str, str, bool]]:
        return [(kind, name, default is not None) for kind, name, default in parameters]

    def unlike(one: str | None, other: str | None) -> bool:
        # PyO3 shows "..." for a default value that it cannot express.
        return one != other and not {one, other} & {"Ellipsis", "..."}

    return shape(stub) == shape(built) and not any(unlike(a[2], b[2]) for a, b in zip(stub, built, strict=True))


def test_the_module_has_the_names_of_the_stub_and_no_other() -> None:
    stub = public(set(stub_classes()) | set(stub_functions(TREE.body)))
    built = public(set(dir(_core))) - OF_EVERY_MODULE
    assert built - ALIASES == stub


@pytest.mark.parametrize("name", sorted(stub_classes()))
def test_a_class_has_the_members_of_the_stub_and_no_other(name: str) -> None:
    node, built = stub_classes()[name], getattr(_core, name)
    members = set(stub_functions(node.body)) | stub_attributes(node)
    assert public(set(dir(built))) == public(members)
    special = {member for member in members if member.startswith("__")} - {"__new__"}
    assert special <= set(dir(built))


def signatures() -> Iterator[tuple[str, Function, Callable[..., object]]]:
    for name, function in stub_functions(TREE.body).items():
        yield name, function, getattr(_core, name)
    for class_name, node in stub_classes().items():
        for name, function in stub_functions(node.body).items():
            if "property" in decorators(function):
                continue
            built = getattr(_core, class_name)
            yield f"{class_name}.{name}", function, built if name == "__new__" else getattr(built, name)


SIGNATURES = {name: (function, built) for name, function, built in signatures()}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_a_function_has_the_parameters_of_the_stub(name: str) -> None:
    function, built = SIGNATURES[name]
    stub, actual = list(stub_parameters(function)), list(built_parameters(built))
    if stub and stub[0][1] in ("self", "cls") and (not actual or actual[0][1] != stub[0][1]):
        stub = stub[1:]
    assert same(stub, actual), f"stub {stub}\nbuilt {actual}"


@pytest.mark.parametrize("name", sorted(stub_classes()))
def test_a_property_is_a_property_and_a_method_is_a_method(name: str) -> None:
    node, built = stub_classes()[name], getattr(_core, name)
    for attribute in stub_attributes(node):
        assert not callable(inspect.getattr_static(built, attribute)), attribute
    for method, function in stub_functions(node.body).items():
        if "property" not in decorators(function):
            assert callable(getattr(built, method)), method
        is_static = isinstance(inspect.getattr_static(built, method), staticmethod)
        assert is_static == ("staticmethod" in decorators(function)), method


def test_the_type_checker_finds_no_other_difference(tmp_path: Path) -> None:
    # Checks only the stub; `make lint` checks its imports.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nfollow_imports = skip\nignore_missing_imports = true\n")
    # Disjoint bases are newer than the Python version of the stub.
    command = [sys.executable, "-m", "mypy.stubtest", "trinitylake._core", "--concise", "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(settings)]
    # Runs in the folder of the stub: if mypy did not find the stub, it would report no difference.
    folder = STUB.parents[1]
    environment = {**os.environ, "MYPYPATH": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    expected = {f"trinitylake._core.{name} is not present at runtime" for name in ALIASES}
    assert set(done.stdout.splitlines()) == {"trinitylake._core.__all__ is not present in stub", *expected}, done.stderr


def test_a_difference_would_be_found() -> None:
    """The comparison finds a renamed, a missing and a moved parameter, and a wrong default value."""
    function, built = SIGNATURES["Lakehouse.rollback"]
    actual = [parameter for parameter in built_parameters(built) if parameter[1] != "self"]
    stub = [parameter for parameter in stub_parameters(function) if parameter[1] != "self"]
    assert same(stub, actual)
    assert not same([("positional", "version", None), *stub[1:]], actual)
    assert not same(stub[:-1], actual)
    assert not same([stub[0], stub[2], stub[1]], actual)
    assert not same([*stub[:-1], ("positional", "author", "'somebody'")], actual)
    assert not same([*stub[:-1], ("positional", "author", None)], actual)
    assert not same([*stub[:-1], ("keyword", "author", "''")], actual)


def test_the_package_is_marked_as_typed() -> None:
    """Type checkers ignored all annotations of the installed package, because the marker file was missing."""
    assert STUB.with_name("py.typed").exists()
