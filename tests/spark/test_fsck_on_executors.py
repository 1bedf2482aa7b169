"""fsck by the executors of Spark finds the same as the core, which is another implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.lakehouse.fsck import FsckReport
from trinitylake.spark.fsck import Checker, Subtree

VIEWS = 300


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A tree of several levels, with messages in its inner nodes."""
    lake = tl.create(str(tmp_path / "lake"), order=5, durability="none", node_file_max_size_bytes=65_536)
    with lake.transaction() as txn:
        txn.create_namespace("n")
    for first in range(0, VIEWS, 50):
        with lake.transaction() as txn:
            for number in range(first, first + 50):
                txn.create_view(f"n.view{number:04d}", f"SELECT {number}", dialect="spark")
    with lake.transaction() as txn:
        for number in range(0, VIEWS, 10):
            txn.drop_view(f"n.view{number:04d}")
        txn.create_view("n.late", "SELECT 1", dialect="spark")
    return lake


def both(spark: SparkSession, lake: tl.Lakehouse) -> FsckReport:
    """The report of the executors, compared with that of the core."""
    found, own = lake.maintenance.fsck(engine=spark), lake.maintenance.fsck()
    assert [one.path for one in found.findings] == [one.path for one in own.findings]
    assert (found.versions, found.nodes) == (own.versions, own.nodes)
    return found


def test_a_sound_version_is_read_completely(spark: SparkSession, lake: tl.Lakehouse) -> None:
    nodes = lake.at().nodes()
    assert max(nodes["height"].to_pylist()) >= 1
    assert sum(nodes["n_messages"].to_pylist()) > 0
    found = both(spark, lake)
    assert found.findings == ()
    assert (found.nodes, found.definitions) == (nodes.num_rows, len(lake.views("n")) + 1)
    assert len(lake.views("n")) == VIEWS - VIEWS // 10 + 1
    older = lake.maintenance.fsck(1, engine=spark)
    assert (older.findings, older.definitions) == ((), 1)
    with pytest.raises(tl.InvalidArgument, match="one version"):
        lake.maintenance.fsck("all", engine=spark)
    with pytest.raises(tl.InvalidArgument, match="without `engine`"):
        lake.maintenance.fsck(engine=spark, repair=True)


def test_every_damaged_file_is_found_by_both(spark: SparkSession, lake: tl.Lakehouse) -> None:
    root = Path(lake.uri.removeprefix("file://"))
    definitions = [next(root.rglob(f"*view-view{number:04d}*")) for number in (5, 155, 299)]
    for definition in definitions:
        definition.write_bytes(b"\xff\xff")
    assert [finding.path for finding in both(spark, lake).findings] == sorted(
        str(definition.relative_to(root)) for definition in definitions
    )
    leaves = [node["path"] for node in lake.at().nodes().to_pylist() if node["height"] == 0]
    torn, gone = root / leaves[0], root / leaves[-1]
    torn.write_bytes(torn.read_bytes()[:-100])
    gone.unlink()
    found = both(spark, lake)
    assert {leaves[0], leaves[-1]} <= {finding.path for finding in found.findings}
    assert found.nodes == lake.at().nodes().num_rows - 2


def test_subtree_in_a_wrong_place_is_found(lake: tl.Lakehouse) -> None:
    definition = lake._definition
    sizes = tl.core.KeySizes(
        definition.namespace_name_max_size_bytes,
        definition.table_name_max_size_bytes,
        definition.view_name_max_size_bytes,
    )
    checker = Checker(7, sizes)
    leaf = next(node["path"] for node in lake.at().nodes().to_pylist() if node["height"] == 0 and node["n_keys"])
    found = checker.check(lake._storage, Subtree(leaf, height=3, below="A"))
    messages = " ".join(problem.message for problem in found.problems)
    assert "its height is 0 where 3 is expected" in messages
    assert "its key table has 5 rows, not 7" in messages
    assert "outside of its range" in messages
