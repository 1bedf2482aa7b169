"""Exports: copies that can be opened on their own, grow with each export, and are complete at any time."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake import _core
from trinitylake.cli.app import app
from trinitylake.iceberg_storage import table_export
from trinitylake.iceberg_storage.metadata import cache
from waiting import in_threads

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


class Killed(Exception):
    """The process died here."""


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", order=4, durability="none", properties={"root.buffer-size-bytes": "600"})
    with lake.transaction(id="first") as txn:
        txn.create_namespace("shop", {"owner": "ops"})
        txn.create_table("shop.orders", ROWS).append(ROWS)
        txn.create_table("shop.empty", ROWS)
        txn.create_view("shop.v", "SELECT 1")
    for number in range(12):
        lake.create_namespace(f"n{number:02}")
    lake.table("shop.orders").append(ROWS)
    lake.table("shop.orders").delete("id = 1")
    return lake


def _contents(lake: tl.Lakehouse | tl.LakehouseVersion) -> dict[str, object]:
    contents: dict[str, object] = {name: lake.namespace(name).properties for name in lake.namespaces()}
    contents |= {name: lake.view(name).sql for name in lake.views()}
    contents |= {name: lake.table(name).scan().to_arrow().sort_by("id").to_pydict() for name in lake.tables()}
    return contents


def _is_sound(root: Path) -> bool:
    cache.clear()
    report = tl.open(root, durability="none").maintenance.fsck("all", files=True)
    assert report.is_sound, report.findings
    return True


def test_a_minimal_export_opens_on_its_own_and_in_any_engine(shop: tl.Lakehouse, tmp_path: Path) -> None:
    done = shop.export(tmp_path / "copy", message="nightly", author="cron", durability="none", mode="minimal")
    assert (done.version, done.source_version) == (0, shop.version)
    expected = _contents(shop)
    shutil.move(tmp_path / "lake", tmp_path / "gone")
    cache.clear()
    copy = tl.open(tmp_path / "copy", durability="none")
    assert _contents(copy) == expected
    assert _is_sound(tmp_path / "copy")
    assert (copy.log(1)[0].message, copy.log(1)[0].author) == ("nightly", "cron")
    location = copy.table("shop.orders").iceberg.metadata_location
    assert StaticTable.from_metadata(location).scan().to_arrow().num_rows == 4
    assert "file:///" + str(tmp_path / "lake").lstrip("/") not in Path(location.removeprefix("file://")).read_text()
    assert len(copy.table("shop.orders").iceberg.metadata.snapshots) == 1
    assert copy.transactions.is_committed("first"), "ids that the original used are used in the copy, too"
    copy.table("shop.orders").append(ROWS)
    assert copy.table("shop.orders").scan().count() == 7


def test_a_second_export_copies_what_changed(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.export(tmp_path / "copy", durability="none", mode="minimal")
    again = shop.export(tmp_path / "copy", durability="none", mode="minimal")
    assert (again.version, again.files) == (0, 0), "nothing changed, so nothing is written"
    shop.table("shop.orders").append(ROWS)
    shop.drop_view("shop.v")
    shop.create_namespace("new")
    data_before = len(list((tmp_path / "copy").rglob("*.parquet")))
    done = shop.export(tmp_path / "copy", durability="none", mode="minimal")
    copy = tl.open(tmp_path / "copy", durability="none")
    assert (done.version, copy.version) == (1, 1)
    assert done.present < 5, "only files of the two changed objects of 14 are compared"
    assert _contents(copy) == _contents(shop)
    assert len(list((tmp_path / "copy").rglob("*.parquet"))) == data_before + 1
    assert _contents(copy.at(0)).keys() >= {"shop.v"}, "the previous export stays readable"
    assert _is_sound(tmp_path / "copy")


def test_a_full_export_has_every_version_under_its_number(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.maintenance.expire(before=3)
    for _ in range(2):
        shop.export(tmp_path / "full", mode="full", durability="none")
        full = tl.open(tmp_path / "full", durability="none")
        assert full.version == shop.version
        for entry in shop.log(None):
            assert _contents(full.at(entry.version)) == _contents(shop.at(entry.version))
            assert full.at(entry.version).entry == entry
        with pytest.raises(tl.VersionExpired):
            full.at(2)
        assert _is_sound(tmp_path / "full")
        shop.table("shop.orders").append(ROWS)
        shop.rollback(shop.version - 1)
    shop.maintenance.expire(before=shop.version)
    shop.create_namespace("later")
    shop.export(tmp_path / "full", mode="full", durability="none")
    assert _contents(tl.open(tmp_path / "full", durability="none")) == _contents(shop)


def test_partial_export_has_the_named_objects_and_is_updated(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.create_namespace("shop.deep")
    shop.create_table("shop.deep.t", ROWS)
    shop.export(tmp_path / "part", namespaces=["shop"], durability="none")
    shop.export(tmp_path / "one", tables=["shop.orders"], durability="none")
    part, one = tl.open(tmp_path / "part", durability="none"), tl.open(tmp_path / "one", durability="none")
    assert set(_contents(part)) == {"shop", "shop.deep", "shop.deep.t", "shop.orders", "shop.empty", "shop.v"}
    assert set(_contents(one)) == {"shop", "shop.orders"}
    shop.drop_table("shop.deep.t")
    shop.table("shop.orders").append(ROWS)
    shop.create_namespace("elsewhere")
    done = shop.export(tmp_path / "part", namespaces=["shop"], durability="none")
    assert done.version == 1
    assert shop.export(tmp_path / "part", namespaces=["shop"], durability="none").files == 0
    assert set(_contents(part)) == {"shop", "shop.deep", "shop.orders", "shop.empty", "shop.v"}
    assert part.table("shop.orders").scan().count() == 7
    assert _is_sound(tmp_path / "part")
    with pytest.raises(tl.InvalidArgument, match="other namespaces"):
        shop.export(tmp_path / "part", mode="minimal")
    with pytest.raises(tl.ObjectNotFound):
        shop.export(tmp_path / "x", namespaces=["nowhere"])
    with pytest.raises(tl.InvalidArgument, match="history"):
        shop.export(tmp_path / "x", namespaces=["shop"], mode="full")


def test_a_backup_becomes_a_lakehouse_again(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.export(tmp_path / "backup", mode="full", durability="none")
    expected, versions = _contents(shop), shop.version
    shutil.rmtree(tmp_path / "lake")
    cache.clear()
    lake = tl.restore(tmp_path / "backup", tmp_path / "lake", durability="none")
    assert lake.version == versions + 1
    assert _contents(lake) == expected
    assert lake.at(3).exists("shop.orders")
    lake.table("shop.orders").append(ROWS)
    assert _is_sound(tmp_path / "lake")
    with pytest.raises(tl.ObjectAlreadyExists):
        tl.restore(tmp_path / "backup", tmp_path / "lake")
    assert not any(name.startswith("trinitylake.") for name in lake.properties)


def test_targets_that_overlap_or_are_not_empty_are_refused(shop: tl.Lakehouse, tmp_path: Path) -> None:
    for target in (tmp_path / "lake" / "inside", tmp_path, tmp_path / "lake"):
        with pytest.raises(tl.InvalidLocation):
            shop.export(target, mode="minimal")
    other = tl.create(tmp_path / "other", durability="none")
    with pytest.raises(tl.InvalidArgument, match="not an export of this one"):
        shop.export(tmp_path / "other", mode="minimal")
    assert other.version == 0
    shop.export(tmp_path / "copy", durability="none", mode="minimal")
    with pytest.raises(tl.InvalidArgument, match="minimal"):
        shop.export(tmp_path / "copy", mode="full")
    tl.open(tmp_path / "copy", durability="none").create_namespace("own")
    with pytest.raises(tl.CommitConflict, match="written to"):
        shop.export(tmp_path / "copy", mode="minimal")
    assert tl.open(tmp_path / "copy").exists("own"), "changes of other writers in the copy stay"


def test_federated_tables_are_exported_under_their_local_name(shop: tl.Lakehouse, tmp_path: Path) -> None:
    elsewhere = tl.create(tmp_path / "elsewhere", durability="none")
    elsewhere.create_namespace("a")
    elsewhere.create_table("a.t", ROWS).append(ROWS)
    shop.create_table("shop.ext", metadata_location=elsewhere.table("a.t").iceberg.metadata_location)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = load_catalog("federated", type="sql", uri=uri, warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("a")
    catalog.create_table("a.b", ROWS.schema)
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}
    shop.create_table("shop.fed", catalog=properties, catalog_table="a.b")
    files = len(list((tmp_path / "elsewhere").rglob("*")))
    shop.export(tmp_path / "copy", durability="none", mode="minimal")
    copy = tl.open(tmp_path / "copy")
    assert copy.table("shop.ext").scan().count() == 3
    assert copy.table("shop.fed").type == "federated"
    assert len(list((tmp_path / "elsewhere").rglob("*"))) == files


def test_exported_objects_keep_unusual_names(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    names = ["ü" * 40, "a/b", "%2e%2e", "_expired", "x\u202ey", "C===", "a b", "-" * 90]
    for name in names:
        lake.create_namespace((name,))
        lake.create_table((name, "t.1"), ROWS).append(ROWS)
    lake.export(tmp_path / "copy", durability="none", mode="minimal")
    copy = tl.open(tmp_path / "copy")
    for name in names:
        assert copy.table((name, "t.1")).scan().count() == 3
    assert _is_sound(tmp_path / "copy")


@contextmanager
def _killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[list[int]]:
    """Make the `step`-th write to the target fail half-way."""
    calls = [0]

    def dies(original: Callable[..., Any], half: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
        def wrapped(*args: Any, **keywords: Any) -> Any:
            calls[0] += 1
            if calls[0] - 1 == step:
                if half is not None:
                    half(args)
                raise Killed
            return original(*args, **keywords)

        return wrapped

    copy = _core.copy_files

    def half_of(args: Any) -> None:
        source, target, files, *rest = args
        copy(source, target, files[: len(files) // 2], *rest)

    with monkeypatch.context() as patch:
        patch.setattr(_core, "copy_files", dies(copy, half_of))
        for name in ("publish_tree", "publish_version", "publish_boundary"):
            patch.setattr(_core, name, dies(getattr(_core, name)))
        patch.setattr(table_export, "put_same", dies(table_export.put_same))
        yield calls


@pytest.mark.parametrize("mode", ["minimal", "full"])
def test_a_killed_statement_leaves_the_old_or_the_new_state(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    states: list[dict[str, object]] = []
    target = tmp_path / "copy"
    for round_number in range(2):
        before = tmp_path / f"before-{round_number}"
        if target.exists():
            shutil.copytree(target, before)
        states.append(_contents(shop))
        allowed = [*states] if mode == "minimal" else [_contents(shop.at(entry.version)) for entry in shop.log(None)]
        step = 0
        while True:
            shutil.rmtree(target, ignore_errors=True)
            if before.exists():
                shutil.copytree(before, target)
            cache.clear()
            try:
                with _killed_at(monkeypatch, step):
                    shop.export(target, mode=mode, durability="none")
            except Killed:
                try:
                    found = _contents(tl.open(target, durability="none"))
                except tl.NotALakehouse:
                    assert round_number == 0
                else:
                    assert found in allowed
                    assert _is_sound(target)
                if step % 4 == 0:
                    shop.export(target, mode=mode, durability="none")
                    assert _contents(tl.open(target, durability="none")) == states[-1]
                    assert _is_sound(target)
                step += 1 if step < 12 else 5
                continue
            break
        assert step > 4
        shop.table("shop.orders").append(ROWS)
        shop.create_namespace(f"round{round_number}")


def test_exports_during_writes_equal_versions_of_the_source(shop: tl.Lakehouse, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        lake = tl.open(shop.uri, durability="none")
        for number in range(1000):
            if stop.is_set():
                return
            lake.create_namespace(f"w{number}")
            lake.table("shop.orders").append(ROWS)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = [shop.export(tmp_path / "copy", durability="none", mode="minimal") for _ in range(4)]
    finally:
        stop.set()
        writer.join()
    copy = tl.open(tmp_path / "copy", durability="none")
    for one in {export.version: export for export in done}.values():
        assert _contents(copy.at(one.version)) == _contents(shop.at(one.source_version))
    assert _is_sound(tmp_path / "copy")


def test_concurrent_exports_are_complete_or_refused(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.export(tmp_path / "copy", durability="none", mode="minimal")
    shop.table("shop.orders").append(ROWS)
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(tl.open(shop.uri).export(tmp_path / "copy", durability="none", mode="minimal").version)
        except tl.CommitConflict as conflict:
            outcomes.append(conflict)

    in_threads(lambda _: run(), range(4))
    assert len(outcomes) == 4
    assert any(isinstance(outcome, int) for outcome in outcomes)
    assert _contents(tl.open(tmp_path / "copy")) == _contents(shop)
    assert _is_sound(tmp_path / "copy")


def test_missing_file_fails_an_export_before_its_version_is_published(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.export(tmp_path / "copy", durability="none", mode="minimal")
    shop.table("shop.orders").append(ROWS)
    folder = Path(shop.table("shop.orders").location.removeprefix("file://"))
    newest = max(folder.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(tl.CorruptFile, match="bytes"):
        shop.export(tmp_path / "copy", durability="none", mode="minimal")
    newest.unlink()
    with pytest.raises(tl.CorruptFile, match="missing"):
        shop.export(tmp_path / "copy", durability="none", mode="minimal")
    assert tl.open(tmp_path / "copy").version == 0


def test_export_and_restore_commands(shop: tl.Lakehouse, tmp_path: Path) -> None:
    run = CliRunner().invoke
    root = str(tmp_path / "lake")
    done = run(app, ["export", str(tmp_path / "copy"), "--root", root, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["version"]) == (0, shop.version)
    assert "0 files written" in run(app, ["export", str(tmp_path / "copy"), "--root", root]).stdout
    back = run(app, ["restore", str(tmp_path / "copy"), "--root", str(tmp_path / "back"), "-m", "drill"])
    assert (back.exit_code, f"is at version {shop.version + 1}" in back.stdout) == (0, True)
    assert tl.open(tmp_path / "back").log(1)[0].transactions[0].message == "drill"
    assert run(app, ["export", root + "/x", "--root", root]).exit_code == 2
    assert run(app, ["export", str(tmp_path / "y"), "--root", root, "--mode", "half"]).exit_code == 2


def test_history_is_included_by_default_and_the_first_line_says_so(shop: tl.Lakehouse, tmp_path: Path) -> None:
    done = shop.export(tmp_path / "copy")
    assert (done.version, done.history_since) == (shop.version, 0)
    shop.create_namespace("later")
    assert shop.export(tmp_path / "copy").version == shop.version
    assert tl.open(tmp_path / "copy").at(1).version == 1
    part = shop.export(tmp_path / "part", tables=["shop.orders"])
    assert (part.version, part.history_since) == (0, None)
    shop.export(tmp_path / "one", mode="minimal")
    shop.create_namespace("latest")
    assert shop.export(tmp_path / "one").history_since is None, "a repeated export has the mode of the earlier one"

    def first_line(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["export", *arguments, "--root", shop.uri])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()[0]

    assert first_line(str(tmp_path / "copy")) == f"copied with history: versions 0 to {shop.version}"
    assert first_line(str(tmp_path / "one")) == f"copied without history: only version {shop.version}"
