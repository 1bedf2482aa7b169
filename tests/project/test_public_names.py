"""The API reference lists exactly the public names, as shown by `dir()`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import trinitylake as tl

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "api"
#: Maximum number of public members of the most used classes.
MOST_MEMBERS = {"Lakehouse": 40, "Transaction": 34, "Table": 30}


def public(of: object) -> list[str]:
    return [name for name in dir(of) if not name.startswith("_") or name == "__version__"]


def documented_members() -> dict[str, list[str]]:
    """Members of each class and module, from the table in the index of the API reference."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", (REFERENCE / "index.md").read_text(), re.M)
    return {name: re.findall(r"`(\w+)`", members) for name, members in rows}


@cache
def handles() -> list[Any]:
    """One object of each class that a lakehouse returns, and the classes that users construct."""
    lake = tl.create("memory://public-names")
    lake.create_namespace("n")
    lake.create_table("n.t", {"id": "bigint"})
    lake.create_view("n.v", "SELECT 1")
    table, transaction = lake.table("n.t"), lake.begin()
    return [
        *(lake, lake.at(), transaction, lake.maintenance, lake.tags, lake.transactions),
        *(table, lake.at().table("n.t"), transaction.table("n.t"), table.maintenance, table.writer()),
        *(
            table.scan(),
            table.merge({"id": [1]}, on="id"),
            lake.sql("SELECT * FROM n.t"),
            lake.view("n.v"),
            lake.namespace("n"),
        ),
        *(tl.Schema, tl.Column),
    ]


def name_of(handle: object) -> str:
    """Name of the documented class, which may be a base class."""
    known = documented_members()
    classes = handle.__mro__ if isinstance(handle, type) else type(handle).__mro__
    return next((one.__name__ for one in classes if one.__name__ in known), classes[0].__name__)


def test_dir_shows_the_names_of_the_reference() -> None:
    actual = {name_of(handle): public(handle) for handle in handles()}
    modules: list[ModuleType] = [tl, tl.core, tl.iceberg, tl.rest, tl.spark]
    actual |= {module.__name__: public(module) for module in modules}
    listed = "\n".join(f"| `{name}` | {', '.join(f'`{one}`' for one in members)} |" for name, members in actual.items())
    assert documented_members() == actual, f"the table of {REFERENCE / 'index.md'} should be:\n{listed}"


def test_every_kind_of_table_has_the_members_of_table() -> None:
    shown = {tuple(public(handle)) for handle in handles() if isinstance(handle, tl.Table)}
    assert shown == {tuple(public(tl.Table))}


@pytest.mark.parametrize("name", MOST_MEMBERS)
def test_a_class_has_few_members(name: str) -> None:
    assert len(public(getattr(tl, name))) <= MOST_MEMBERS[name]


def test_every_public_member_has_a_docstring() -> None:
    bare = [
        f"{name_of(handle)}.{name}"
        for handle in handles()
        for name in public(handle)
        if (member := getattr(handle if isinstance(handle, type) else type(handle), name, None)) is not None
        and (callable(member) or isinstance(member, property))
        and not member.__doc__
    ]
    assert bare == []


def test_every_public_class_and_function_is_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.M))
    on_pages = {path.rpartition(".")[2] for path in shown} | set(dir(tl.errors))
    modules = {"__version__", "core", "errors", "iceberg", "rest", "spark"}
    assert [name for name in public(tl) if name not in on_pages | modules] == []
