"""A distributed garbage collection, as on the executors of an engine, deletes the same files as a local one.

This process plays the engine: it only passes lists between the steps.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from conformance.reachable import Reachable, files_below
from full_lakehouse import ROWS, full_lakehouse
from trinitylake import _core

#: Kinds of files in the order in which they are read.
SORTS = ("root", "node", "table", "metadata", "external metadata", "manifest list", "manifest")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def full(root: Path) -> tl.Lakehouse:
    return full_lakehouse(root)


def links(storage: _core.Storage, sort: str, names: set[str]) -> set[tuple[str, str]]:
    found = _core.gc_links(storage, pa.array([sort] * len(names), pa.string()), pa.array(sorted(names)))
    return set(zip(found["sort"].to_pylist(), found["name"].to_pylist(), strict=True))


class Engine:
    """Simulates an engine, and counts the reads of each file.

    Attributes:
        files: the reachable files.
        folders: their folders.
    """

    def __init__(self, lake: tl.Lakehouse, *, dry_run: bool = False) -> None:
        self.lake, self.storage = lake, lake._storage
        self.collection = lake._core.begin_distributed_gc(None, dry_run)
        self.read: list[str] = []
        self.named: set[tuple[str, str]] = {("root", str(number)) for number in self.collection.roots}
        for sort in SORTS:
            done: set[str] = set()
            while names := {name for one, name in self.named if one == sort} - done:
                self.read += names
                self.named |= links(self.storage, sort, names)
                done |= names

    def judged(self) -> dict[str, str]:
        """The verdict on each file."""
        places, listed = _core.split_walk(self.storage, 8)
        batches = [listed]
        for place in places:
            walk = _core.Walk(self.storage, [place])
            while (batch := walk.next()) is not None:
                batches.append(batch)
        files = pa.Table.from_batches(batches).combine_chunks()
        classifier = _core.Classifier(self.storage, self.collection.before_millis, self.collection.oldest)
        marks = pa.array([self.mark(path) for path in files["path"].to_pylist()], pa.string())
        columns = (files[name].combine_chunks() for name in ("path", "size_bytes", "modified_millis"))
        verdicts = classifier.classify(*columns, marks)
        assert files.num_rows == len(set(files["path"].to_pylist())), "a file was listed twice"
        return dict(zip(files["path"].to_pylist(), verdicts["verdict"].to_pylist(), strict=True))

    def mark(self, path: str) -> str:
        if any((sort, path) in self.named for sort in (*SORTS, "kept")):
            return "reached"
        parts = path.split("/")
        lies = {
            sort
            for end in range(1, len(parts) + 1)
            for sort in ("foreign", "folder")
            if (sort, "/".join(parts[:end])) in self.named
        }
        return "foreign" if "foreign" in lies else "table" if lies else ""

    def sweep(self, judged: dict[str, str]) -> tuple[int, int]:
        """Collect garbage. Returns the version of the fence and the number of deleted files."""
        garbage = [path for path, verdict in judged.items() if verdict == "garbage"]
        version, fresh = self.collection.fence(True)
        return version, _core.delete_garbage(self.storage, pa.array(garbage, pa.string()), fresh)


def test_a_collection_in_pieces_deletes_the_same_files(full: tl.Lakehouse, root: Path) -> None:
    reachable = Reachable(root).files
    whole = full.maintenance.vacuum(dry_run=True, paths=True)
    engine = Engine(full)
    judged = engine.judged()

    def of(verdict: str) -> set[str]:
        return {path for path, one in judged.items() if one == verdict}

    assert of("garbage") == set(whole.deleted_paths)
    assert of("unknown") == set(whole.unknown_paths) == {"notes/readme.txt"}
    assert len(of("kept")) == whole.total_kept.files
    assert len(of("foreign")) == whole.foreign.files > 0
    assert len(engine.read) == len(set(engine.read)), "a file was read twice"

    version, deleted = engine.sweep(judged)
    assert version == full.version
    assert deleted == len(whole.deleted_paths)
    assert not files_below(root) & set(whole.deleted_paths)
    assert reachable <= files_below(root)
    assert full.at("tag:early").table("shop.gone").scan().to_arrow().num_rows == 10
    assert full.maintenance.fsck(files=True).is_sound
    assert full.maintenance.vacuum().version is None, "nothing is left to do"


def test_files_committed_after_the_mark_are_not_deleted(full: tl.Lakehouse, root: Path) -> None:
    engine = Engine(full)
    full.create_table("shop.late", ROWS).append(ROWS)
    full.table("shop.items").append(ROWS)
    full.tags.create("later", version=full.version - 1)
    known = {path for sort, path in engine.named if sort not in ("folder", "foreign")}
    doomed = {path for path in files_below(root) - known if not path.startswith(("_expired/", "_latest_hint"))}
    version, deleted = engine.sweep(dict.fromkeys(doomed, "garbage"))
    assert version == full.version
    assert 0 < deleted < len(doomed)
    assert Reachable(root).files <= files_below(root)
    assert full.table("shop.late").scan().to_arrow().num_rows == 10
    assert full.maintenance.fsck(files=True).is_sound

    before = files_below(root)
    full.table("shop.late").append(ROWS)
    again, _ = engine.sweep(dict.fromkeys(files_below(root) - before - {"_latest_hint.txt"}, "garbage"))
    assert again == version, "one fence for both sweeps"
    assert Reachable(root).files <= files_below(root)
    assert full.table("shop.late").scan().to_arrow().num_rows == 20


def test_missing_manifest_aborts_gc(full: tl.Lakehouse) -> None:
    """A missing manifest stops the collection before any deletion, because it may have listed any file."""
    table = full.table("shop.orders").iceberg
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://")).unlink()
    with pytest.raises(tl.CorruptFile, match=r"\.avro"):
        Engine(full)
    with pytest.raises(tl.CorruptFile, match=r"\.avro"):
        full.maintenance.vacuum()
