"""`table.maintenance`: compaction of small files, rewriting of manifests, expiry of snapshots."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import DoubleType, StringType

import trinitylake as tl
from local_files import lake_on_disk
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.tables import compaction
from trinitylake.tables.maintenance import MIN_FILES

lake = lake_on_disk("ns")


def rows(*ids: int, city: str | None = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "city": pa.array([city] * len(ids), pa.string())})


def filled(lake: tl.Lakehouse, count: int, **options: Any) -> tl.Table:
    """A table with `count` files of one row each."""
    table = lake.create_table("ns.t", rows(), **options)
    for id in range(count):
        table.append(rows(id))
    table.refresh()
    return table


def ids(table: tl.Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def files(table: tl.Table) -> dict[str, int]:
    return {task.file.file_path: task.file.record_count for task in table.iceberg.scan().plan_files()}


def test_small_files_become_one(lake: tl.Lakehouse) -> None:
    table = filled(lake, 8)
    before = lake.version
    seen: list[tuple[int, int]] = []
    result = table.maintenance.compact(progress=lambda done, total: seen.append((done, total)))
    assert (result.files_removed, result.files_added) == (8, 1)
    assert result.bytes_removed > result.bytes_added > 0
    assert sorted(seen) == [(done, 8) for done in range(1, 9)]
    assert list(files(table).values()) == [8]
    assert ids(table) == list(range(8))
    assert ids(lake.at(before).table("ns.t")) == list(range(8)), "older versions keep their files"
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    version = lake.version
    assert table.maintenance.compact() == (0, 0, 0, 0)
    assert lake.version == version, "a compaction without work commits no version"


def test_few_files_and_large_ones_are_left_alone(lake: tl.Lakehouse) -> None:
    table = filled(lake, 4)
    assert table.maintenance.compact().files_removed == 0
    assert table.maintenance.compact(min_files=5, target_file_size_bytes=1).files_removed == 0
    assert table.maintenance.compact(min_files=4, filter="id >= 2").files_removed == 0
    assert table.maintenance.compact(min_files=2, filter="id >= 2").files_removed == 2
    assert sorted(files(table).values()) == [1, 1, 2]


def test_files_of_one_partition_are_joined(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", rows(), partition_spec=["city"])
    for id in range(4):
        table.append(pa.concat_tables([rows(id), rows(10 + id, city="b"), rows(20 + id, city=None)]))
    result = table.maintenance.compact(min_files=2)
    assert (result.files_removed, result.files_added) == (12, 3)
    assert sorted(task.file.partition[0] or "" for task in table.iceberg.scan().plan_files()) == ["", "a", "b"]
    with table.update_spec() as spec:
        spec.add_identity("id")
    assert table.maintenance.compact(filter="city = 'b'", min_files=1).files_added == 4
    assert ids(table) == [*range(4), *range(10, 14), *range(20, 24)]
    assert len(list(table.scan(filter="city = 'b' and id = 11").iceberg.plan_files())) == 1


def into(lake: tl.Lakehouse, change: Callable[[Any], object]) -> None:
    with lake.table("ns.t").update_spec() as spec:
        change(spec)


#: Initial partition specs, each with a change of the spec.
CHANGES: dict[str, tuple[list[str] | None, Callable[[Any], object]]] = {
    "no longer": (["city"], lambda spec: spec.remove_field("city")),
    "for the first time": (None, lambda spec: spec.add_identity("city")),
    "more finely": (["city"], lambda spec: spec.add_identity("n")),
    "less finely": (["city", "n"], lambda spec: spec.remove_field("n")),
    "by another column": (["city"], lambda spec: spec.remove_field("city").add_identity("n")),
    "by more than are written at once": (None, lambda spec: spec.add_identity("id")),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("sort_by", [None, "id"])
@pytest.mark.parametrize("change", CHANGES)
def test_one_compaction_is_enough_after_a_change_of_partitioning(
    lake: tl.Lakehouse, change: str, sort_by: str | None
) -> None:
    """A compaction groups files by the new partitions."""
    spec, changed = CHANGES[change]
    table = lake.create_table("ns.t", {"id": "bigint", "city": "text", "n": "int"}, partition_spec=spec)

    def append(n_files: int) -> None:
        for _ in range(n_files):
            given = [{"id": id, "city": f"c{id % 6}", "n": id // 6 % 2} for id in range(90)]
            lake.table("ns.t").append(given)

    append(6)
    into(lake, changed)
    append(4)
    table = lake.table("ns.t")
    folder = Path(table.location.removeprefix("file://"))
    before, expected = set(folder.rglob("*.parquet")), sorted(ids(table))
    with lake.transaction() as txn:
        done = txn.table("ns.t").maintenance.compact(sort_by=sort_by)  # reads the rows that it has written
        assert txn.table("ns.t").maintenance.compact().files_removed == 0
    assert done.files_removed == len(before), "all files are rewritten, small ones too"
    table = lake.table("ns.t")
    tasks = list(table.iceberg.scan().plan_files())
    in_partition = Counter(str(task.file.partition) for task in tasks)
    assert set(in_partition.values()) == {1} if sort_by is None else max(in_partition.values()) < MIN_FILES
    assert done.files_added == len(tasks)
    assert {task.file.spec_id for task in tasks} == {table.iceberg.spec().spec_id}
    assert ids(table) == expected
    assert len(set(folder.rglob("*.parquet")) - before) == len(tasks), "files of intermediate steps are deleted"


def test_files_of_a_partition_are_few_or_many_whatever_their_size(lake: tl.Lakehouse) -> None:
    """`min_files` counts all small files of a partition, not the files of one group that is written together."""
    table = filled(lake, 20)
    largest = max(task.file.file_size_in_bytes for task in table.iceberg.scan().plan_files())
    options: dict[str, Any] = {"min_files": 8, "target_file_size_bytes": largest * 3 // 2}
    assert table.maintenance.compact(dry_run=True, **options).files_removed == 20
    assert table.maintenance.compact(**options).files_removed == 20
    assert ids(table) == list(range(20))
    assert table.maintenance.compact(**options).files_removed == 0


def test_rows_are_sorted(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", rows())
    for part in ((5, 1, 9), (2, 8, 0), (7, 3, 4)):
        table.append(rows(*part))
    result = table.maintenance.compact(sort_by="id desc")
    assert (result.files_removed, result.files_added) == (3, 1)
    (path,) = files(table)
    assert pq.read_table(path.removeprefix("file://"))["id"].to_pylist() == [9, 8, 7, 5, 4, 3, 2, 1, 0]
    table.append(pa.table({"id": pa.array([None, 6], pa.int64()), "city": ["z", "a"]}))
    table.maintenance.compact(sort_by=["id nulls first"])
    (path,) = files(table)
    assert pq.read_table(path.removeprefix("file://"))["id"].to_pylist() == [None, *range(10)]
    with pytest.raises(InvalidArgument, match="no column 'x'"):
        table.maintenance.compact(sort_by=["x"])
    with pytest.raises(InvalidArgument, match="by columns"):
        table.maintenance.compact(sort_by=["bucket(4, id)"])


def test_columns_that_came_and_went_are_right_afterwards(lake: tl.Lakehouse) -> None:
    from pyiceberg.types import LongType

    table = filled(lake, 3)
    with table.update_schema() as update:
        update.rename_column("city", "town")
        update.add_column("n", LongType())
    table.append({"id": [7], "town": ["c"], "n": [1]})
    table.maintenance.compact(min_files=2)
    assert len(files(table)) == 1
    found = table.scan().to_arrow().sort_by("id").to_pylist()
    assert found[0] == {"id": 0, "town": "a", "n": None}
    assert found[3] == {"id": 7, "town": "c", "n": 1}


def test_a_column_that_was_dropped_and_added_again_has_no_old_values(lake: tl.Lakehouse) -> None:
    """Files with equal names of columns can have different columns."""
    table = filled(lake, 2)
    with table.update_schema() as update:
        update.delete_column("city")
    with table.update_schema() as update:
        update.add_column("city", StringType())
    for id in (2, 3):
        table.append(rows(id, city="b"))
    table.refresh()
    assert table.maintenance.compact(min_files=2).files_added == 1
    read = table.scan().to_arrow().sort_by("id")
    assert read.to_pydict() == {"id": [0, 1, 2, 3], "city": [None, None, "b", "b"]}


def test_appends_that_come_meanwhile_stay(lake: tl.Lakehouse) -> None:
    filled(lake, 6)
    txn = lake.begin()
    assert txn.table("ns.t").maintenance.compact().files_removed == 6
    lake.table("ns.t").append(rows(100))
    lake.table("ns.t").append(rows(101))
    txn.commit()
    table = lake.table("ns.t")
    assert ids(table) == [*range(6), 100, 101]
    assert sorted(files(table).values()) == [1, 1, 6]


def test_a_delete_from_the_same_files_is_a_conflict(lake: tl.Lakehouse) -> None:
    """Otherwise the compacted file would restore the deleted rows."""
    filled(lake, 6)
    txn = lake.begin()
    txn.table("ns.t").maintenance.compact()
    lake.table("ns.t").delete("id = 3")
    with pytest.raises(CommitConflict, match="removed by another commit"):
        txn.commit()
    assert ids(lake.table("ns.t")) == [0, 1, 2, 4, 5]


def test_a_compaction_begins_again_after_a_delete(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(lake, 6)
    attempts: list[int] = []
    run = compaction._Writing.run

    def interrupted(self: Any, groups: Any, **arguments: Any) -> Any:
        attempts.append(len(groups))
        if len(attempts) == 1:
            other = threading.Thread(target=lambda: tl.open(lake.uri, durability="none").table("ns.t").delete("id = 3"))
            other.start()
            other.join()
        return run(self, groups, **arguments)

    monkeypatch.setattr(compaction._Writing, "run", interrupted)
    assert table.maintenance.compact().files_removed == 5
    assert len(attempts) == 2
    assert ids(table) == [0, 1, 2, 4, 5]


def test_every_append_lands_while_the_table_is_compacted(lake: tl.Lakehouse) -> None:
    filled(lake, 5)
    table = lake.table("ns.t")

    def work(start: int) -> None:
        own = tl.open(lake.uri, durability="none").table("ns.t")
        for id in range(start, start + 6):
            own.append(rows(id))

    with ThreadPoolExecutor(2) as threads:
        writing = [threads.submit(work, start) for start in (100, 200)]
        while not all(one.done() for one in writing):
            table.maintenance.compact(min_files=2)
    assert [one.result() for one in writing] == [None] * 2
    table.maintenance.compact(min_files=2)
    assert ids(table) == [*range(5), *range(100, 106), *range(200, 206)]
    assert len(files(table)) == 1


def test_a_compaction_that_breaks_off_leaves_nothing(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(lake, 6)
    folder = Path(lake.uri.removeprefix("file://"))
    before = sorted(folder.rglob("*.parquet"))
    next(iter(folder.rglob("*.parquet"))).unlink()
    with pytest.raises(tl.CorruptFile):
        table.maintenance.compact()
    assert sorted(folder.rglob("*.parquet")) == [file for file in before if file.exists()]


def test_manifests_are_rewritten_by_partition(lake: tl.Lakehouse) -> None:
    table = lake.create_table(
        "ns.t", rows(), partition_spec=["city"], properties={"commit.manifest-merge.enabled": "false"}
    )
    for id in range(6):
        table.append(pa.concat_tables([rows(id), rows(10 + id, city="b")]))
    before = sorted(files(table))
    assert table.maintenance.rewrite_manifests() == (6, 1)
    assert sorted(files(table)) == before
    assert len(ids(table)) == 12
    assert table.maintenance.rewrite_manifests() == (1, 1)
    lake.alter_table(table.name, {"commit.manifest.target-size-bytes": "3000"})
    assert table.maintenance.rewrite_manifests().manifests_after > 1
    assert len(ids(table)) == 12


def test_rewritten_manifests_are_redone_over_appends(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", rows(), properties={"commit.manifest-merge.enabled": "false"})
    for id in range(4):
        table.append(rows(id))
    txn = lake.begin()
    txn.table("ns.t").maintenance.rewrite_manifests()
    lake.table("ns.t").append(rows(100))
    txn.commit()
    table.refresh()
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.iceberg.io)
    assert [one.content for one in manifests] == [ManifestContent.DATA]
    assert ids(table) == [0, 1, 2, 3, 100]


def test_snapshots_expire_by_number_and_age(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", rows(), properties={"history.expire.min-snapshots-to-keep": "100"})
    for id in range(6):
        table.append(rows(id))
    all_ids = [one.snapshot_id for one in table.snapshots()]
    with table._writing() as iceberg:
        iceberg.manage_snapshots().create_tag(all_ids[1], "kept").commit()
    assert table.maintenance.expire_snapshots() == []
    assert table.maintenance.expire_snapshots(older_than=timedelta(days=1)) == []
    assert table.maintenance.expire_snapshots(older_than="1 h") == []
    assert table.maintenance.expire_snapshots(keep=4) == [all_ids[0]]
    assert table.maintenance.expire_snapshots(older_than=datetime.now(UTC)) == all_ids[2:5]
    # The log has no gap. PyIceberg kept the entry of the tagged snapshot, so later times of expired snapshots found it.
    assert [entry.snapshot_id for entry in lake.table("ns.t").iceberg.metadata.snapshot_log] == all_ids[5:]
    assert [one.snapshot_id for one in table.snapshots()] == [all_ids[1], all_ids[5]]
    assert ids(table) == list(range(6))
    assert table.iceberg.scan(snapshot_id=all_ids[1]).to_arrow().num_rows == 2
    with pytest.raises(InvalidArgument, match="time zone"):
        table.maintenance.expire_snapshots(older_than=datetime(2024, 1, 1))
    for wrong in ({"keep": 0}, {"keep": "1"}, {"older_than": 3}):
        with pytest.raises(InvalidArgument):
            table.maintenance.expire_snapshots(**wrong)  # type: ignore[arg-type]


def test_upkeep_of_a_table_has_a_message_and_an_author(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.up", {"x": "bigint"})
    for number in range(6):
        table.append({"x": [number]})
    for run in (table.maintenance.compact, table.maintenance.rewrite_manifests):
        run(message="nightly", author="cron")
        assert [lake.log(1)[0].message, lake.log(1)[0].author] == ["nightly", "cron"]
    table.maintenance.expire_snapshots(keep=1, message="weekly", author="ann")
    assert [lake.log(1)[0].message, lake.log(1)[0].author] == ["weekly", "ann"]


def test_an_empty_table_needs_no_upkeep(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", rows())
    assert table.maintenance.compact() == (0, 0, 0, 0)
    assert table.maintenance.rewrite_manifests() == (0, 0)
    assert table.maintenance.expire_snapshots(keep=1) == []
    with pytest.raises(InvalidArgument):
        lake.at(lake.version).table("ns.t").maintenance.compact()


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_change_that_comes_to_nothing_in_a_race_keeps_its_file(lake: tl.Lakehouse, is_saved: bool) -> None:
    """The metadata file that the commit without a change names was deleted: the table could not be read."""
    table = filled(lake, 3)
    late = lake.begin()
    late.table("ns.t").maintenance.expire_snapshots(keep=1)
    if is_saved:
        late.save()
        late = lake.resume(late.id)
    table.maintenance.expire_snapshots(keep=1)
    late.commit()
    assert not lake.maintenance.fsck(files=True).findings
    lake.table("ns.t").append(rows(3))
    assert ids(lake.table("ns.t")) == [0, 1, 2, 3]


def test_a_property_that_both_set_alike_keeps_its_file(lake: tl.Lakehouse) -> None:
    table = filled(lake, 1)
    late = lake.begin()
    with late.table("ns.t").iceberg.transaction() as update:
        update.set_properties({"who": "both"})
    with table.iceberg.transaction() as update:
        update.set_properties({"who": "both"})
    late.commit()
    assert not lake.maintenance.fsck(files=True).findings


@pytest.mark.parametrize("format_version", [2, 3])
def test_rewritten_manifests_keep_the_entries_of_files(lake: tl.Lakehouse, format_version: int) -> None:
    """Entries that are copied as bytes into another manifest keep all their values, also inherited row ids."""
    table = lake.create_table(
        "ns.t", rows(), partition_spec=["city"], properties={"format-version": str(format_version)}
    )
    for id in range(25):  # enough appends to merge manifests
        table.append(pa.concat_tables([rows(id), rows(1000 + id, city="b")]))
    table.delete("id = 3")

    def state() -> dict[str, tuple[Any, ...]]:
        snapshot = table.iceberg.current_snapshot()
        assert snapshot is not None
        entries = [
            entry
            for manifest in snapshot.manifests(table.iceberg.io)
            for entry in manifest.fetch_manifest_entry(table.iceberg.io)
        ]
        return {
            entry.data_file.file_path: (
                entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                *(repr(dict(value) if isinstance(value, Mapping) else value) for value in entry.data_file._data),
            )
            for entry in entries
        }

    before = state()
    assert len(before) == 49
    lower = {pq.read_table(path.removeprefix("file://"))["id"][0].as_py() for path in before}
    assert lower == {*range(25), *range(1000, 1025)} - {3}
    table.maintenance.rewrite_manifests()
    assert state() == before
    table.append(rows(5000))
    table.delete("id = 7")
    after = state()
    assert len(after) == 49
    assert len(before.items() & after.items()) == 48
    assert table.scan("id = 12").to_arrow()["id"].to_pylist() == [12], "bounds are those of the file"
    assert not lake.maintenance.fsck(files=True).findings


def test_an_entry_of_an_older_schema_is_rewritten(lake: tl.Lakehouse) -> None:
    """Bytes cannot be copied if the type of a partition value has another size now."""
    some = pa.table({"id": pa.array([1], pa.int64()), "part": pa.array([0.5], pa.float32())})
    table = lake.create_table("ns.t", some, partition_spec=["part"])
    for _ in range(4):
        table.append(some)
    with table._writing() as iceberg, iceberg.update_schema() as update:
        update.update_column("part", DoubleType())
    table.append(pa.table({"id": [2], "part": [0.25]}))
    table.maintenance.rewrite_manifests()
    assert sorted(task.file.partition[0] for task in table.iceberg.scan().plan_files()) == [0.25, *[0.5] * 4]
    table.delete("id = 2")
    assert ids(table) == [1] * 4
    assert not lake.maintenance.fsck(files=True).findings
