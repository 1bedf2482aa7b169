"""Processes that export and vacuum, on a disk and on an S3 server, and are killed at random moments."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from test_vacuum_soak import copied, s3_in_a_process_of_its_own

import trinitylake as tl
from conformance.reachable import Reachable, files_below

FORK = multiprocessing.get_context("fork")
ROWS = pa.schema([("id", pa.int64())])
ROUNDS = 12 if os.environ.get("TRINITYLAKE_DEEP") else 5


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A folder for lakehouses, with its storage options."""
    if request.param == "disk":
        yield str(tmp_path), {}
        return
    with s3_in_a_process_of_its_own() as (bucket, options):
        yield f"s3://{bucket}", options


def killed_after(seconds: float, work: Callable[[], object]) -> None:
    """Run `work` in a process, and kill the process after some seconds if it is still running."""

    def run() -> None:
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9), process.exitcode


@pytest.mark.timeout(600)
def test_a_mirror_shows_the_old_or_the_new_state_whenever_its_export_is_killed(
    place: tuple[str, dict[str, str]],
) -> None:
    """The new root is written after all other files."""
    folder, options = place
    root, target = f"{folder}/lake", f"{folder}/mirror"
    lake = tl.create(root, storage_options=options, durability="none")
    lake.create_namespace("shop")
    for name in ("a", "b"):
        lake.create_table(f"shop.{name}", ROWS)

    def export() -> None:
        source = tl.open(root, storage_options=options, durability="none")
        source.export(target, storage_options=options, durability="none", mode="minimal")

    def rows_there() -> dict[str, int]:
        mirror = tl.open(target, storage_options=options, durability="none")
        return {name: mirror.table(name).scan().to_arrow().num_rows for name in mirror.tables()}

    export()
    shown = rows_there()
    chance = random.Random(1)
    began = time.monotonic()
    export()
    longest = 3 * (time.monotonic() - began) + 0.2
    for number in range(ROUNDS):
        with lake.transaction() as txn:  # the export must contain both tables or neither
            for name in ("a", "b"):
                txn.table(f"shop.{name}").append(pa.table({"id": [number]}, ROWS))
        new = {"shop.a": number + 1, "shop.b": number + 1}
        killed_after(chance.random() * longest, export)
        found = rows_there()
        assert found in (shown, new)
        shown = found
    export()
    assert rows_there() == {"shop.a": ROUNDS, "shop.b": ROUNDS}
    report = tl.open(target, storage_options=options).maintenance.fsck("all", files=True)
    assert report.is_sound, report.findings


@pytest.mark.timeout(600)
def test_a_vacuum_that_is_killed_again_and_again_leaves_what_is_reached_and_nothing_else_at_last(
    place: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    folder, options = place
    uri = f"{folder}/lake"
    lake = tl.create(uri, storage_options=options, durability="none", txn_ttl_millis=1)
    lake.create_namespace("shop")
    lake.create_table("shop.a", ROWS)
    for number in range(10):
        lake.table("shop.a").append(pa.table({"id": [number]}, ROWS))
    lake.tags.create("named", version=6)
    lake.table("shop.a").overwrite(pa.table({"id": [100]}, ROWS))
    lake.maintenance.expire(keep=1)
    time.sleep(2.5)  # stores date files in whole seconds

    def vacuum() -> None:
        tl.open(uri, storage_options=options, durability="none").maintenance.vacuum(grace="0 s")

    began = time.monotonic()
    lake.maintenance.vacuum(grace="0 s", dry_run=True)
    longest = 3 * (time.monotonic() - began) + 0.2
    chance = random.Random(2)
    for _ in range(ROUNDS):
        killed_after(chance.random() * longest, vacuum)
    time.sleep(2.5)
    vacuum()
    fresh = tl.open(uri, storage_options=options, durability="none")
    assert fresh.table("shop.a").scan().to_arrow()["id"].to_pylist() == [100]
    assert fresh.at("tag:named").table("shop.a").scan().to_arrow().num_rows > 0
    root = copied(uri, options, tmp_path / "copy") if options else Path(uri)
    # The newest fence may have become the latest version after the last vacuum read it.
    assert Reachable(root, uri if options else None).files <= files_below(root)
    fresh.maintenance.expire(keep=1)
    time.sleep(2.5)
    fresh.maintenance.vacuum(grace="0 s")
    root = copied(uri, options, tmp_path / "again") if options else Path(uri)
    assert files_below(root) == Reachable(root, uri if options else None).files
