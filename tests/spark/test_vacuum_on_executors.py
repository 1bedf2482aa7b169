"""Vacuum on executors deletes the same files as one machine, whatever fails, and never deletes a reachable file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from dying_workers import let_workers_die
from pyspark.sql import SparkSession

import s3_server
import trinitylake as tl
from conformance.reachable import Reachable, files_below
from full_lakehouse import ROWS, full_lakehouse
from local_files import age
from trinitylake.lakehouse.vacuum_report import Vacuumed
from trinitylake.spark import vacuum

Batches = Iterable[pa.RecordBatch]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def full(root: Path) -> tl.Lakehouse:
    return full_lakehouse(root)


def comparable(done: Vacuumed) -> tuple[object, ...]:
    """The results that do not depend on times and on the order of tasks."""
    paths = sorted(done.deleted_paths), sorted(done.unknown_paths)
    return done.deleted, done.deleted_by_table, done.kept, done.young, done.unknown, done.foreign, *paths


def test_executors_delete_the_same_files_as_one_machine(spark: SparkSession, full: tl.Lakehouse, root: Path) -> None:
    reachable = Reachable(root).files
    one_machine = full.maintenance.vacuum(dry_run=True, paths=True)
    many = full.maintenance.vacuum(dry_run=True, paths=True, engine=spark)
    assert comparable(many) == comparable(one_machine)
    assert many.version is None
    assert many.foreign.files > 0
    assert many.unknown_paths == ["notes/readme.txt"]
    assert len(many.deleted) >= 4, many.deleted

    steps: list[tuple[str, int]] = []
    done = full.maintenance.vacuum(paths=True, engine=spark, progress=lambda *step: steps.append(step))
    assert comparable(done) == comparable(one_machine)
    assert done.version == full.version
    assert not files_below(root) & set(done.deleted_paths)
    assert reachable <= files_below(root)
    assert [what for what, _ in steps][-1] == "swept"
    assert steps[-1][1] == done.total_deleted.files
    assert full.at("tag:early").table("shop.gone").scan().to_arrow().num_rows == 10
    assert full.maintenance.fsck(files=True).is_sound
    assert full.maintenance.vacuum(engine=spark).version is None, "nothing is left to do"


def test_executors_delete_from_an_object_store(spark: SparkSession) -> None:
    """Executors delete from an object store. A test cannot set the age of files there, so it uses no grace period and
    no concurrent writer."""
    with s3_server.serve() as server:
        bucket = server.new_bucket()
        lake = tl.create(
            f"s3://{bucket}/lake", storage_options=server.storage_options, durability="none", txn_ttl_millis=1
        )
        lake.create_namespace("shop")
        for name in ("orders", "gone"):
            lake.create_table(f"shop.{name}", ROWS, partition_spec=["day"]).append(ROWS)
        lake.table("shop.orders").delete("id < 3")
        lake.drop_table("shop.gone")
        time.sleep(2.5)  # no version younger than two seconds expires
        lake.maintenance.expire(keep=1)
        one_machine = lake.maintenance.vacuum(dry_run=True, paths=True, grace="0 s")
        assert one_machine.deleted_by_table
        before = set(server.files(bucket))
        done = lake.maintenance.vacuum(paths=True, grace="0 s", engine=spark)
        assert comparable(done) == comparable(one_machine)
        assert before - set(server.files(bucket)) == {f"lake/{path}" for path in done.deleted_paths}
        assert sorted(lake.table("shop.orders").scan().to_arrow()["id"].to_pylist()) == list(range(3, 10))
        assert lake.maintenance.fsck(files=True).is_sound


def test_what_is_committed_while_executors_work_stays(spark: SparkSession, full: tl.Lakehouse, root: Path) -> None:
    """Files that are committed after executors have classified them as garbage are not deleted."""
    slow = full.begin()
    slow.create_table("shop.late", ROWS).append(ROWS)
    age(root)
    began = full.version

    def commit(what: str, _: int) -> None:
        if what == "marked" and full.version == began:
            slow.commit()

    done = full.maintenance.vacuum(paths=True, engine=spark, progress=commit)
    assert done.version == began + 2, "the collection came after the commit"
    assert full.table("shop.late").scan().to_arrow().num_rows == 10
    assert Reachable(root).files <= files_below(root)


def test_a_worker_that_dies_is_replaced(
    spark: SparkSession, full: tl.Lakehouse, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies is replaced. Each kind of task loses its worker once, during its work."""
    expected = comparable(full.maintenance.vacuum(dry_run=True, paths=True))
    let_workers_die(monkeypatch, vacuum, ["_read", "_classify", "_delete"], tmp_path)
    assert comparable(full.maintenance.vacuum(paths=True, engine=spark)) == expected
    assert {"_read", "_classify", "_delete"} <= {path.name for path in tmp_path.iterdir()}
    assert Reachable(root).files <= files_below(root)
    assert full.maintenance.vacuum().version is None


def test_what_spark_does_twice_counts_once(
    spark: SparkSession, full: tl.Lakehouse, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of tasks that Spark runs twice, because an executor was lost or slow, count once."""
    expected = comparable(full.maintenance.vacuum(dry_run=True, paths=True))
    for name in ("_read", "_classify", "_delete"):
        original = getattr(vacuum, name)

        def again(*given: object, original=original) -> Iterator[pa.RecordBatch]:
            *rest, batches = given
            known = list(batches)
            for _ in original(*rest, known):
                pass
            yield from original(*rest, known)

        monkeypatch.setattr(vacuum, name, again)
    assert comparable(full.maintenance.vacuum(paths=True, engine=spark)) == expected
    assert Reachable(root).files <= files_below(root)
    assert full.maintenance.vacuum().version is None


def test_another_collector_at_the_same_time_does_no_harm(spark: SparkSession, full: tl.Lakehouse, root: Path) -> None:
    """A concurrent collection of another process does no harm. It expires versions while executors read them, and
    deletes files that tasks then do not find."""
    doomed = full.maintenance.vacuum(dry_run=True, paths=True).deleted_paths
    words: list[str] = []

    def other(what: str, _: int) -> None:
        words.append(what)
        if words.count(what) == 1:
            full.table("shop.orders").append(ROWS)
            full.maintenance.expire(keep=1)
            age(root)
            full.maintenance.vacuum()

    try:
        full.maintenance.vacuum(engine=spark, progress=other)
    except tl.VersionExpired:
        full.maintenance.vacuum(engine=spark, progress=other)
    assert words[0] == "marked"
    assert not files_below(root) & set(doomed)
    assert Reachable(root).files <= files_below(root)
    assert full.maintenance.fsck(files=True).is_sound
    age(root)
    full.maintenance.vacuum()
    assert full.maintenance.vacuum(dry_run=True).total_deleted.files == 0


def test_what_cannot_be_read_ends_the_collection(spark: SparkSession, full: tl.Lakehouse, root: Path) -> None:
    """A missing manifest ends the collection, because it may have named any file."""
    table = full.table("shop.orders").iceberg
    (manifest, *_) = table.current_snapshot().manifests(table.io)
    Path(manifest.manifest_path.removeprefix("file://")).unlink()
    before = files_below(root)
    with pytest.raises(tl.CorruptFile, match=r"\.avro"):
        full.maintenance.vacuum(engine=spark)
    assert files_below(root) == before


DRIVER = """
import sys
import trinitylake as tl
from pyspark.sql import SparkSession
from trinitylake.spark import vacuum
from trinitylake.spark.runtime import use_this_python

vacuum.LOT_FILES = 20
use_this_python()
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
spark = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1").getOrCreate()
tl.open(sys.argv[1], durability="none").maintenance.vacuum(engine=spark)
"""


@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed_leaves_garbage_and_nothing_else(full: tl.Lakehouse, root: Path) -> None:
    doomed = {root / path for path in full.maintenance.vacuum(dry_run=True, paths=True).deleted_paths}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(root)], start_new_session=True)
    while all(path.exists() for path in doomed) and driver.poll() is None:
        time.sleep(0.01)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    gone = {path for path in doomed if not path.exists()}
    assert gone
    assert gone < doomed, "the vacuum ended before it was killed"
    assert Reachable(root).files <= files_below(root)
    age(root)
    full.maintenance.vacuum()
    assert not any(path.exists() for path in doomed)
    assert full.maintenance.fsck(files=True).is_sound


def test_plans_do_not_double_with_each_level(spark: SparkSession) -> None:
    """The plan of a level does not contain the plans of the earlier levels. Otherwise the plans would double with each
    level, and take the driver longer than the tasks."""
    found = [vacuum._planned(spark.range(3).toDF("id"))]
    for _ in range(8):
        found.append(vacuum._planned(vacuum._all(found).distinct().persist()))
    plan = found[-1]._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
    assert len(plan.splitlines()) == 1, plan
    assert sorted(row.id for row in found[-1].collect()) == [0, 1, 2]
    spark.catalog.clearCache()
    assert sorted(row.id for row in found[-1].collect()) == [0, 1, 2], "lost rows are computed again"
