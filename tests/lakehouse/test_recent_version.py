"""Statements that begin on the version that was recently the latest have the same result as statements that look for
the latest version, whatever happened to the lakehouse before.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import trinitylake as tl
from trinitylake import core
from trinitylake.lakehouse.namespace import Namespace
from trinitylake.lakehouse.opening import Durability

Story = Callable[[tl.Lakehouse, tl.Lakehouse], None]

#: Text that differs between two runs: ids, and folders whose names are hashes.
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|([01]{4}/){3}[01]{8}-")
NAMES = ["a", "", "x" * 100, "x" * 101, "\u00e9" * 51, "a.b.c", "a b", "a\nb", "a/b", "..", "x" * 1000]


def nothing(_: tl.Lakehouse, __: tl.Lakehouse) -> None:
    """No concurrent commit."""


def another_created_it(lake: tl.Lakehouse, other: tl.Lakehouse) -> None:
    lake.create_namespace("before")
    other.create_namespace("a")


def another_dropped_it(lake: tl.Lakehouse, other: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    other.drop_namespace("a")


def another_altered_it(lake: tl.Lakehouse, other: tl.Lakehouse) -> None:
    lake.create_namespace("there", {"first": "1", "gone": "2"})
    other.alter_namespace("there", {"first": "one", "second": "two"})


def others_went_on(lake: tl.Lakehouse, other: tl.Lakehouse) -> None:
    lake.create_namespace("before")
    for number in range(20):
        other.create_namespace(f"other{number}")


def others_changed_the_settings(_: tl.Lakehouse, other: tl.Lakehouse) -> None:
    other.alter({"commit.coordination": "queue", "node.compression": "none"}, default_isolation="serializable")


def transactions_are_serializable(lake: tl.Lakehouse, _: tl.Lakehouse) -> None:
    lake.alter(default_isolation="serializable")


def the_next_root_is_damaged(lake: tl.Lakehouse, _: tl.Lakehouse) -> None:
    lake.create_namespace("before")
    (Path(folder_of(lake)) / core.root_path(lake.version + 1)).write_bytes(b"nothing")


def a_folder_lies_where_the_next_root_goes(lake: tl.Lakehouse, _: tl.Lakehouse) -> None:
    lake.create_namespace("before")
    (Path(folder_of(lake)) / core.root_path(lake.version + 1)).mkdir()


def it_is_gone(lake: tl.Lakehouse, _: tl.Lakehouse) -> None:
    lake.create_namespace("before")
    shutil.rmtree(folder_of(lake))


def folder_of(lake: tl.Lakehouse) -> str:
    return lake.uri.removeprefix("file://")


def results(folder: Path, story: Story, durability: Durability) -> list[object]:
    """All visible results: answers, errors and the log."""
    lake = tl.create(folder, durability=durability)
    story(lake, tl.open(folder, durability=durability))
    seen: list[object] = []
    made_any = False
    names = NAMES[:1] if story in (the_next_root_is_damaged, it_is_gone) else NAMES  # only one fault at once

    def see(statement: Callable[[], Namespace]) -> None:
        nonlocal made_any
        try:
            made = statement()
            seen.append((made.name, made.properties))
            made_any = True
        except tl.TrinityLakeError as error:
            seen.append((type(error), RANDOM.sub("#", str(error)).replace(str(folder), "")))

    def alter(name: str, properties: dict[str, str]) -> Namespace:
        return lake.alter_namespace(
            name, properties, remove_properties=["gone"], message=f"alters {name[:9]}", author="me"
        )

    if len(names) > 1:
        see(lambda: alter("there", {"third": "3"}))
    for number, name in enumerate(names):
        properties, message = {"number": str(number)}, f"makes {number}"
        see(lambda: lake.create_namespace(name, properties, message=message, author="me"))  # noqa: B023 (called at once)
    for name in names[:4] if len(names) > 1 else ():
        see(lambda: alter(name, {"number": "none", "new": name}))  # noqa: B023
        see(lambda: alter(name, {"": "no name"}))  # noqa: B023
    if made_any:
        log = [*tl.open(folder).log()]
        seen += [
            (e.version, e.message, e.author, [(one.summary, one.isolation) for one in e.transactions]) for e in log
        ]
        seen += [(name, dict(tl.open(folder).namespace(name).properties)) for name in tl.open(folder).namespaces()]
    return seen


@pytest.mark.sample(10)
@pytest.mark.parametrize("durability", ["none", "fsync"])
@pytest.mark.parametrize(
    "story",
    [
        nothing,
        another_created_it,
        another_dropped_it,
        another_altered_it,
        others_went_on,
        others_changed_the_settings,
        transactions_are_serializable,
        the_next_root_is_damaged,
        a_folder_lies_where_the_next_root_goes,
        it_is_gone,
    ],
)
def test_statement_on_a_recent_version_answers_as_on_the_latest(
    tmp_path: Path, story: Story, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_recent = results(tmp_path / "lake", story, durability)
    shutil.rmtree(tmp_path / "lake", ignore_errors=True)
    monkeypatch.setattr(tl.Lakehouse, "_recent_version", lambda lake: None)
    assert on_recent == results(tmp_path / "lake", story, durability)
