"""Registration by executors of files that a garbage collection may delete before the registration."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake import _core
from trinitylake.definitions import new_view_def, serialize
from trinitylake.spark import registration

VIEW = serialize(new_view_def({"spark": "SELECT 1"}))


def old(*paths: Path) -> None:
    """Makes files an hour old."""
    for path in paths:
        os.utime(path, (time.time() - 3600,) * 2)


def collect(lake: tl.Lakehouse, root: Path) -> None:
    """Run a vacuum that deletes a file."""
    (root / "_queue").mkdir(exist_ok=True)
    garbage = root / f"_queue/{0:020d}-{uuid.uuid4()}.binpb"
    garbage.write_bytes(b"x")
    old(garbage)
    assert lake.maintenance.vacuum(grace="1 minute").version is not None


def test_definition_files_that_may_have_been_collected_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Executors do not register definition files that a vacuum may have deleted as unreferenced."""
    root = tmp_path / "lake"
    lake = tl.create(root, durability="none")
    lake.create_namespace("ns")
    path, other = (_core.definition_path("view", "ns", name, 1024) for name in ("v", "w"))
    lake._storage.put_many([(one, _core.encode_definition_file(one, VIEW)) for one in (path, other)])
    old(root / path)

    def view(name: str, location: str) -> list[dict[str, str]]:
        return [{"kind": "view", "namespace": "ns", "name": name, "location": location}]

    lake.register(view("v", path))
    collect(lake, root)
    old(root / other)
    before = lake.version
    # Files that the latest version references are not deleted.
    lake.register(view("v2", path), engine=spark)
    collection = lake._core.begin_distributed_gc(0)
    collection.fence(False)
    with pytest.raises(tl.TransactionExpired, match="may be deleted by a garbage collection"):
        lake.register(view("w", other), engine=spark)
    with pytest.raises(tl.TransactionExpired, match="is missing"):
        lake.register(view("x", f"{other[:-6]}0.binpb"), engine=spark)
    assert (lake.version, lake.views("ns")) == (before + 2, ["ns.v", "ns.v2"])
    collection.end(True)
    lake.register(view("w", other), engine=spark)
    assert lake.views("ns") == ["ns.v", "ns.v2", "ns.w"]


def test_what_executors_wrote_before_a_collection_is_not_registered(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a garbage collection runs before a slow registration commits, the registration conflicts with its version,
    because the files of the executors may be deleted."""
    root = tmp_path / "lake"
    lake = tl.create(root, durability="none")
    lake.create_namespace("ns")
    check_parts = registration._check_parts

    def slow(parts: object) -> None:
        old(*(path for path in root.rglob("*") if path.is_file()))
        collect(tl.open(root, durability="none"), root)
        check_parts(parts)

    monkeypatch.setattr(registration, "_check_parts", slow)
    objects = [{"kind": "view", "namespace": "ns", "name": "v", "definition": VIEW}]
    with pytest.raises(tl.CommitConflict):
        lake.register(objects, engine=spark)
    assert lake.views("ns") == []
    assert lake.maintenance.fsck("all", files=True).is_sound
