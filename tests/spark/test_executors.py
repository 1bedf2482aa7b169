"""The extension inside Spark's Python workers: they are forked, short-lived, and may fork again."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import trinitylake as tl
from trinitylake.spark import archives_on_path, planning_workers, worker_daemon


def test_workers_read_the_lakehouse_before_and_after_they_fork(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Workers read the lakehouse before and after a fork, although locks, threads and connections of the parent do not
    work in the child."""
    lake.create_namespace("nyc")
    lake.create_table("nyc.flights", pa.table({"id": [1, 2, 3]})).append(pa.table({"id": [1, 2, 3]}))
    uri = lake.uri

    def count(opened: tl.Lakehouse) -> int:
        return opened.table("nyc.flights").scan().to_arrow().num_rows

    def work(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            opened = tl.open(uri, durability="none")
            counts = [count(opened)]
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, bytes([count(opened), tl.open(uri, durability="none").version]))
                os._exit(0)
            os.close(writer)
            counts += os.read(reader, 2)
            os.close(reader)
            os.waitpid(child, 0)
            counts.append(count(opened))
            yield pa.record_batch({"counts": pa.array([counts] * batch.num_rows, pa.list_(pa.int64()))})

    found = spark.range(0, 4, 1, 4).mapInArrow(work, "counts array<long>").collect()
    assert [row.counts for row in found] == [[3, 3, lake.version, 3]] * 4


def test_workers_are_forked_with_this_package_loaded(spark: SparkSession) -> None:
    """With the daemon of this package, workers have imported Iceberg, Arrow and pandas when they start. These imports
    take longer than most tasks."""

    def of_the_daemon(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        maps = Path(f"/proc/{os.getppid()}/maps").read_text()
        for batch in batches:
            loaded = ["trinitylake/_core" in maps, "pyarrow/_dataset" in maps]
            yield pa.record_batch({"loaded": pa.array([loaded] * batch.num_rows, pa.list_(pa.bool_()))})

    found = spark.range(0, 2, 1, 2).mapInArrow(of_the_daemon, "loaded array<boolean>").collect()
    assert [row.loaded for row in found] == [[True, True]] * 2


def test_a_module_that_cannot_be_loaded_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be imported, such as the data source with PySpark 3.5, does not end the daemon, on which all
    tasks depend."""
    begun = []
    monkeypatch.setattr(archives_on_path, "install", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(worker_daemon, "NEEDED", ("pyspark.sql.not_in_this_version", "trinitylake.spark.functions"))
    monkeypatch.setattr("pyspark.daemon.manager", lambda: begun.append("trinitylake.spark.functions" in sys.modules))
    worker_daemon.main()
    assert begun == [True]


def test_no_task_reads_what_archives_hold(spark: SparkSession) -> None:
    """A task does not read the lists of entries of Spark's archives again, such as the 26,000 entries of
    Iceberg's jar."""

    def finders(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            assert importlib.util.find_spec("a_module_that_nobody_has") is None  # the search visits all archives
            archives = {
                os.path.basename(path): type(found).__name__
                for path, found in sys.path_importer_cache.items()
                if path.endswith((".jar", ".zip"))
            }
            kinds = [archives["pyspark.zip"], *(kind for name, kind in archives.items() if "iceberg" in name)]
            kinds += ["zipimporter" for kind in sys.path_importer_cache.values() if type(kind) is zipimporter]
            yield pa.record_batch({"kinds": pa.array([kinds] * batch.num_rows, pa.list_(pa.string()))})

    for row in spark.range(0, 2, 1, 2).mapInArrow(finders, "kinds array<string>").collect():
        assert row.kinds == ["ArchiveFinder", "ArchiveFinder"]


def test_no_task_looks_for_garbage_among_what_is_loaded(spark: SparkSession) -> None:
    """A garbage collection after a task skips imported objects. Otherwise each collection would visit all objects of
    pandas, Arrow and Iceberg, and copy most of the memory that the worker shares with the daemon."""

    def watched(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"left_out": pa.array([gc.get_freeze_count()] * batch.num_rows, pa.int64())})

    for row in spark.range(0, 2, 1, 2).mapInArrow(watched, "left_out long").collect():
        assert row.left_out > 50_000


@pytest.fixture
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Install the import hook, and remove it at the end of the test."""
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    archives_on_path.install()
    archives_on_path.install()
    assert sys.path_hooks.count(archives_on_path.ArchiveFinder) == 1
    return monkeypatch


def test_modules_in_archives_are_found(tmp_path: Path, path_of_modules: pytest.MonkeyPatch) -> None:
    """Modules in jars and other archives are found: some packages for Spark contain Python modules."""
    for name, entry in (("brings.jar", "brought/by_a_jar.py"), ("plain.jar", "only/M.class"), ("a.zip", "zipped.py")):
        archive = tmp_path / name
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr(entry, "WORTH = 7")
            if name == "brings.jar":
                opened.writestr("brought/__init__.py", "")
        path_of_modules.syspath_prepend(str(archive))
    assert importlib.import_module("brought.by_a_jar").WORTH == 7
    assert importlib.import_module("zipped").WORTH == 7
    assert importlib.util.find_spec("only") is None
    for name in ("brings.jar", "plain.jar", "a.zip"):
        assert isinstance(sys.path_importer_cache[str(tmp_path / name)], archives_on_path.ArchiveFinder)


def test_an_archive_that_changed_is_read_again(tmp_path: Path, path_of_modules: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "later.zip"
    for name in ("is_there_at_first", "is_there_later"):
        with zipfile.ZipFile(archive, "a") as opened:
            opened.writestr(f"{name}.py", "WORTH = 7")
        path_of_modules.syspath_prepend(str(archive))  # clears the caches of all finders
        assert importlib.import_module(name).WORTH == 7


def test_a_planning_process_prepares_itself_once(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """A process in which Spark plans reads the lists of archives only once, and leaves imported objects out of garbage
    collections."""

    class WorkerState(DataSource):
        @classmethod
        def name(cls) -> str:
            return "worker_state"

        def schema(self) -> str:
            importlib.import_module("trinitylake.spark.source")
            kinds = [type(found).__name__ for found in sys.path_importer_cache.values()]
            state = "lists read again" if "zipimporter" in kinds else "archives known"
            return f"`{state}, left out: {gc.get_freeze_count() > 20_000}` int"

    spark.dataSource.register(WorkerState)
    [_, after] = [spark.read.format("worker_state").load().columns for _ in range(2)]
    assert after == ["archives known, left out: True"]


def test_only_processes_that_spark_forked_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of the data source does not change imports and garbage collection of a program."""
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(gc, "callbacks", list(gc.callbacks))
    planning_workers.spare_repeated_work()
    assert archives_on_path.ArchiveFinder not in sys.path_hooks
    assert planning_workers._leave_out_what_is_old not in gc.callbacks
