"""A lakehouse whose disk is unmounted while it is open: acknowledged commits exist afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables

CHANGE = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"note": "1"}}]}
PATH = "/v1/namespaces/shop/tables/orders"


@pytest.fixture(params=["fsync", "none"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tl.Lakehouse:
    """On a disk."""
    return with_tables(tl.create(str(tmp_path / "lake"), durability=request.param), "shop.orders")


def left_empty(root: Path) -> None:
    root.mkdir()


def left_with_an_older_copy(root: Path) -> None:
    copy(root.parent / "older", root)


def copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)


@pytest.mark.parametrize("leave", [lambda root: None, left_empty, left_with_an_older_copy])
def test_no_commit_succeeds_while_the_root_is_another_folder(
    lake: tl.Lakehouse, tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    """Commits fail while another folder is in the place of the root, such as the mount point of a disk, although all
    information for them is in memory. Otherwise the log would have a gap when the disk is mounted again."""
    root, away = tmp_path / "lake", tmp_path / "away"
    copy(root, tmp_path / "older")
    lake.alter_table("shop.orders", {"newer": "yes"})
    table = lake.table("shop.orders")
    with running(lake) as server:
        client = Client(server)
        assert client("POST", PATH, CHANGE).code == 200
        version = lake.version
        root.rename(away)
        leave(root)
        files = sorted(str(path) for path in root.rglob("*.arrow"))
        for _ in range(3):
            assert client("POST", PATH, CHANGE).code >= 500
            for statement in (
                lambda: lake.create_namespace("more"),
                lambda: table.append(pa.table({"id": pa.array([7], pa.int64())})),
                lambda: lake.alter_table(table.name, {"note": "2"}),
            ):
                with pytest.raises((tl.TrinityLakeError, FileNotFoundError)):
                    statement()
        assert sorted(str(path) for path in root.rglob("*.arrow")) == files, "no version is made there"
        if root.exists():
            root.rename(tmp_path / "left")
        away.rename(root)
        assert client("POST", PATH, CHANGE).code == 200
        assert lake.version == version + 1
    again = tl.open(str(root))
    assert again.version == version + 1
    assert not again.exists("more")
    assert again.table("shop.orders").properties["newer"] == "yes"
    assert again.table("shop.orders").scan().count() == 3
    assert not again.maintenance.fsck().findings
