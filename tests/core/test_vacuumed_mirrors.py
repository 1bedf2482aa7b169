"""Exports while the source or the mirror is vacuumed.

An export reads one version of its source, which may expire meanwhile, and gc may delete its files. No version of the
mirror reaches the copied files before the last step, so a vacuum of the mirror may delete them. In all cases the mirror
shows the complete old or new state, and an incomplete export raises an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from local_files import age
from trinitylake import _core
from trinitylake.iceberg_storage import table_export
from trinitylake.iceberg_storage.metadata import cache

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(
        tmp_path / "lake", order=4, durability="none", txn_ttl_millis=1, properties={"root.buffer-size-bytes": "600"}
    )
    lake.create_namespace("shop")
    for name in ("orders", "others"):
        lake.create_table(f"shop.{name}", ROWS).append(ROWS)
    for number in range(6):
        lake.create_namespace(f"n{number:02}")
    return lake


def contents(lake: tl.Lakehouse | tl.LakehouseVersion) -> dict[str, object]:
    cache.clear()
    return {
        **dict.fromkeys(lake.namespaces()),
        **{name: lake.table(name).scan().to_arrow().sort_by("id").to_pydict() for name in lake.tables()},
    }


@contextmanager
def interrupted_at(monkeypatch: pytest.MonkeyPatch, step: int, work: Callable[[], object]) -> Iterator[list[int]]:
    """Call a function before the `step`-th write to a target. Counts the writes."""
    calls = [0]

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **keywords: Any) -> Any:
            calls[0] += 1
            if calls[0] - 1 == step:
                work()
            return original(*args, **keywords)

        return run

    with monkeypatch.context() as patch:
        for name in ("copy_files", "publish_tree", "publish_version", "publish_boundary"):
            patch.setattr(_core, name, wrapped(getattr(_core, name)))
        patch.setattr(table_export, "put_same", wrapped(table_export.put_same))
        yield calls


def vacuumed(root: Path) -> None:
    """Make all files old, and delete the unreferenced ones."""
    age(root)
    tl.open(root, durability="none").maintenance.vacuum(grace="1 minute")


def replaced_and_vacuumed(lake: tl.Lakehouse) -> None:
    """Replace all files of a table, and expire its version."""
    other = tl.open(lake.uri, durability="none")
    other.table("shop.orders").overwrite(ROWS)
    other.drop_table("shop.others")
    other.create_table("shop.others", ROWS).append(ROWS)
    other.maintenance.expire(keep=1)
    vacuumed(Path(lake.uri.removeprefix("file://")))


@pytest.mark.parametrize("place", ["source", "mirror"])
@pytest.mark.parametrize("mode", ["minimal", "full"])
def test_a_mirror_is_whole_whatever_is_vacuumed_meanwhile(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, place: str
) -> None:
    mirror, kept = tmp_path / "mirror", tmp_path / "kept"
    shop.export(mirror, mode=mode, durability="none")
    first = shop.version
    shop.table("shop.orders").append(ROWS)
    shop.create_table("shop.new", ROWS).append(ROWS)
    shop.create_namespace("later")
    shutil.copytree(tmp_path / "lake", kept / "lake")
    shutil.copytree(mirror, kept / "mirror")
    new = contents(shop)
    shown = [contents(shop.at(one)) for one in range(first, shop.version if mode == "full" else first + 1)]
    refusals = (tl.VersionExpired,) if place == "source" else (tl.TransactionExpired, tl.CommitConflict)
    step, ended, refused = 0, 0, 0
    while True:
        for name in ("lake", "mirror"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(kept / name, tmp_path / name)
        source = tl.open(tmp_path / "lake", durability="none")
        work = partial(vacuumed, mirror) if place == "mirror" else partial(replaced_and_vacuumed, source)
        with interrupted_at(monkeypatch, step, work) as calls:
            try:
                source.export(mirror, mode=mode, durability="none")
                is_over = True
            except refusals:
                is_over = False
        if calls[0] <= step:
            break
        ended, refused = ended + is_over, refused + (not is_over)
        found = tl.open(mirror, durability="none")
        assert contents(found) in ([new] if is_over else [*shown, new])
        report = found.maintenance.fsck("all", files=True)
        assert report.is_sound, (step, report.findings)
        step += 2 if step < 8 else 6
        if mode == "full" and place == "mirror":  # the mirror has a version that the source lacks
            continue
        tl.open(tmp_path / "lake", durability="none").export(mirror, mode=mode, durability="none")
        assert contents(tl.open(mirror, durability="none")) == contents(tl.open(tmp_path / "lake", durability="none"))
    assert ended
    assert refused


def test_export_continues_after_a_vacuum_of_the_mirror(shop: tl.Lakehouse, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    shop.export(mirror, durability="none", mode="minimal")
    for _ in range(2):
        (mirror / "_probe").mkdir(exist_ok=True)
        (mirror / "_probe/left").write_text("garbage")
        age(mirror)
        swept = tl.open(mirror, durability="none")
        assert swept.maintenance.vacuum(grace="1 minute").version is not None
        assert shop.export(mirror, durability="none", mode="minimal").files == 0, "nothing has changed"
        shop.table("shop.orders").append(ROWS)
        assert shop.export(mirror, durability="none", mode="minimal").files
        assert contents(tl.open(mirror, durability="none")) == contents(shop)
    swept.table("shop.orders").append(ROWS)
    with pytest.raises(tl.CommitConflict, match="was written to"):
        shop.export(mirror, durability="none", mode="minimal")
