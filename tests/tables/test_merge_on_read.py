"""Merge-on-read: statements write delete files, and the rows equal those of a dictionary, also after lost races."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import StaticTable

import trinitylake as tl
from local_files import lake_on_disk
from position_deletes import delete_positions
from trinitylake.iceberg_storage.delete_files import file_key, is_vector, referenced_data_file
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.snapshot_counts import live_rows

DEEP = bool(os.environ.get("TRINITYLAKE_DEEP"))
MODES = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}


lake = lake_on_disk("n")


@pytest.fixture(params=["2", "3"])
def table(lake: tl.Lakehouse, request: pytest.FixtureRequest) -> tl.Table:
    """Two files of ten rows, with the values of `v` 0 to 19."""
    table = lake.create_table(
        "n.t", {"id": "bigint", "v": "bigint"}, properties={**MODES, "format-version": request.param}
    )
    for start in (0, 10):
        table.append({"id": range(start, start + 10), "v": range(start, start + 10)})
    return table


def rows(table: tl.Table) -> dict[int, int]:
    """The values of a table by id."""
    found = table.scan().to_arrow()
    by_id = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(by_id) == found.num_rows, "a row exists twice"
    assert table.count() == found.num_rows
    return by_id


def check_pyiceberg(table: tl.Table) -> None:
    stock = StaticTable.from_metadata(table.iceberg.metadata_location).scan().to_arrow()
    assert dict(zip(stock["id"].to_pylist(), stock["v"].to_pylist(), strict=True)) == rows(table)


def files(table: tl.Table, content: DataFileContent) -> list[DataFile]:
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    io = table.iceberg.io
    entries = [entry for manifest in read_list(io, snapshot) for entry in read_entries(io, manifest)]
    return [entry.data_file for entry in entries if entry.data_file.content == content]


def data_paths(table: tl.Table) -> set[str]:
    return {file.file_path for file in files(table, DataFileContent.DATA)}


def deletes(table: tl.Table) -> dict[str, int]:
    """The number of deleted positions by data file; asserts that each has one delete file."""
    found = files(table, DataFileContent.POSITION_DELETES)
    by_file = {referenced_data_file(file) or "": file.record_count for file in found}
    assert len(by_file) == len(found), "a data file has two delete files"
    assert len({file_key(file) for file in found}) == len(found)
    assert by_file.keys() <= data_paths(table), "a delete file of a removed data file is left"
    return by_file


def summary(table: tl.Table) -> dict[str, str]:
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    counted = ("delete", "position", "dvs", "total-records")
    found = snapshot.summary.additional_properties.items()
    return {"operation": snapshot.summary.operation.value} | {
        name: value for name, value in found if any(word in name for word in counted) and value != "0"
    }


def test_delete_writes_one_delete_file_for_each_data_file(lake: tl.Lakehouse, table: tl.Table) -> None:
    before = data_paths(table)
    assert table.delete("id in (3, 4, 15)").rows_deleted == 3
    assert sorted(deletes(table).values()) == [1, 2]
    kind = {"added-dvs": "2"} if table.iceberg.metadata.format_version == 3 else {"added-position-delete-files": "2"}
    counts = {"added-delete-files": "2", "added-position-deletes": "3"}
    totals = {"total-delete-files": "2", "total-position-deletes": "3", "total-records": "20"}
    assert summary(table) == {"operation": "delete", **counts, **kind, **totals}
    lake.sql("DELETE FROM n.t WHERE id = 5")
    table.refresh()
    assert sorted(deletes(table).values()) == [1, 3]
    assert data_paths(table) == before
    assert live_rows(summary(table)) == table.count() == 16
    check_pyiceberg(table)


def test_a_file_without_remaining_rows_is_removed_with_its_delete_file(table: tl.Table) -> None:
    table.delete("id in (3, 15)")
    table.delete("id < 10")
    assert list(deletes(table).values()) == [1]
    assert len(data_paths(table)) == 1
    table.delete("v >= 10 and v != 15")
    assert files(table, DataFileContent.DATA) == files(table, DataFileContent.POSITION_DELETES) == []
    assert rows(table) == {}


def test_update_and_merge_leave_unchanged_rows_in_their_files(lake: tl.Lakehouse, table: tl.Table) -> None:
    before = data_paths(table)
    lake.sql("UPDATE n.t SET v = -v WHERE id in (1, 2)")
    assert lake.table("n.t").upsert({"id": [1, 3, 20], "v": [-1, 33, 20]}, on="id") == (1, 1)
    merge = lake.table("n.t").merge({"id": [4, 5], "v": [0, 1]}, on="id")
    merge.when_matched_delete(condition="source.v = 0").when_matched_update().execute()
    lake.table("n.t").overwrite({"id": [6], "v": [66]}, "id = 6")
    table.refresh()
    assert before <= data_paths(table)
    changed = {1: -1, 2: -2, 3: 33, 5: 1, 6: 66, 20: 20}
    assert rows(table) == {id: id for id in range(20) if id != 4} | changed
    assert sum(deletes(table).values()) == 6
    check_pyiceberg(table)


def test_each_statement_follows_its_own_property(lake: tl.Lakehouse) -> None:
    statements: dict[str, Callable[[tl.Table], object]] = {
        "delete": lambda table: table.delete("id = 1"),
        "delete of overwrite": lambda table: table.overwrite({"id": [9], "v": [9]}, "id = 1"),
        "update": lambda table: lake.sql("UPDATE n.t SET v = 9 WHERE id = 1"),
        "merge": lambda table: table.merge({"id": [1], "v": [9]}, on="id").when_matched_update().execute(),
        "merge of upsert": lambda table: table.upsert({"id": [1], "v": [9]}, on="id"),
        "delete of SQL": lambda table: lake.sql("DELETE FROM n.t WHERE id = 1"),
    }
    for name, run in statements.items():
        for mode in ("delete", "update", "merge"):
            table = lake.create_table(
                "n.t", {"id": "bigint", "v": "bigint"}, properties={f"write.{mode}.mode": "Merge-On-Read"}
            )
            table.append({"id": range(5), "v": range(5)})
            run(table)
            table.refresh()
            assert bool(files(table, DataFileContent.POSITION_DELETES)) == (mode == name.split()[0]), (name, mode)
            lake.drop_table("n.t")


def test_a_damaged_deletion_vector_is_reported(lake: tl.Lakehouse) -> None:
    table = lake.create_table("n.t", {"id": "bigint"}, properties={**MODES, "format-version": "3"})
    table.append({"id": range(10)})
    table.delete("id = 3")
    (vector,) = files(table, DataFileContent.POSITION_DELETES)
    path = Path(vector.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(tl.CorruptFile, match="deletion vector"):
        tl.open(lake.uri).table("n.t").scan().to_arrow()


def test_compaction_applies_deletes_of_enough_rows(lake: tl.Lakehouse, table: tl.Table) -> None:
    lake.alter_table("n.t", {"write.target-file-size-bytes": "600"})  # with this size, no file is small
    table.refresh()
    table.delete("id in (3, 15, 16, 17)")
    (worn,) = [path for path, count in deletes(table).items() if count == 3]
    table.maintenance.compact(min_deleted_percent=20)
    assert worn not in data_paths(table)
    assert list(deletes(table).values()) == [1]
    lake.alter_table("n.t", {"maintenance.compact.min-deleted-percent": "11"})
    assert "n.t" not in lake.maintenance.run().compacted
    lake.alter_table("n.t", {"maintenance.compact.min-deleted-percent": "10"})
    assert lake.maintenance.run().compacted["n.t"].files_removed == 1
    table.refresh()
    assert deletes(table) == {}
    assert rows(table) == {id: id for id in range(20) if id not in (3, 15, 16, 17)}


def test_files_of_deletes_are_files_of_the_table(lake: tl.Lakehouse, table: tl.Table, tmp_path: Path) -> None:
    """Export, relocation, garbage collection and fsck treat delete files of this library like those of engines."""
    table.delete("id in (3, 15)")
    table.delete("id = 4")
    expected = {id: id for id in range(20) if id not in (3, 4, 15)}
    assert lake.maintenance.fsck("all").is_sound
    lake.maintenance.vacuum(grace="0 s")
    assert rows(table) == expected
    lake.export(str(tmp_path / "export"), mode="minimal")
    exported = tl.open(str(tmp_path / "export"))
    assert exported.maintenance.fsck("all").is_sound
    assert rows(exported.table("n.t")) == expected
    check_pyiceberg(exported.table("n.t"))
    (tmp_path / "lake").rename(tmp_path / "moved")
    moved = tl.open(str(tmp_path / "moved"), durability="none")
    moved.maintenance.relocate()
    assert rows(moved.table("n.t")) == expected
    assert moved.maintenance.fsck("all").is_sound
    check_pyiceberg(moved.table("n.t"))


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_transactions_that_change_different_rows_of_a_file_both_commit(
    lake: tl.Lakehouse, table: tl.Table, isolation: str
) -> None:
    """Two transactions change random rows of the same files. Both commit if no row is changed by both."""
    chance = random.Random(f"{isolation} {table.iceberg.metadata.format_version}")
    expected = rows(table)
    both = refused = 0
    for step in range(40 if DEEP else 16):
        ids = sorted(expected)
        changes = [_change(chance, chance.sample(ids, chance.randint(1, 2)), 100 * step + n) for n in range(2)]
        first, second = (lake.begin(isolation=isolation) for _ in range(2))
        for txn, (_, run) in zip((first, second), changes, strict=True):
            run(txn)
        first.commit()
        overlap = changes[0][0].keys() & changes[1][0].keys()
        if overlap:
            with pytest.raises(tl.CommitConflict):
                second.commit()
            refused += 1
        else:
            second.commit()
            both += 1
        for change, _ in changes[: 1 if overlap else 2]:
            expected |= {id: value for id, value in change.items() if value is not None}
            expected = {id: value for id, value in expected.items() if change.get(id, value) is not None}
        table.refresh()
        assert rows(table) == expected, step
        if len(expected) < 8:
            fresh = range(max(expected) + 1, max(expected) + 13)
            table.append({"id": fresh, "v": fresh})
            expected |= {id: id for id in fresh}
        if step % 8 == 7:
            check_pyiceberg(table)
            assert lake.maintenance.fsck("all").is_sound
            lake.maintenance.vacuum(grace="0 s")
    assert both > 5
    assert refused > 0


Change = tuple[dict[int, int | None], Callable[[tl.Transaction], object]]


def _change(chance: random.Random, ids: list[int], value: int) -> Change:
    """New values of rows (None for deleted ones), and the statement that makes the change."""
    listed = ", ".join(map(str, ids))
    match chance.randrange(4):
        case 0:
            return dict.fromkeys(ids), lambda txn: txn.table("n.t").delete(f"id in ({listed})")
        case 1:
            return dict.fromkeys(ids), lambda txn: txn.sql(f"DELETE FROM n.t WHERE id in ({listed})")
        case 2:
            return dict.fromkeys(ids, value), lambda txn: txn.sql(f"UPDATE n.t SET v = {value} WHERE id in ({listed})")
    data = {"id": ids, "v": [value] * len(ids)}
    return dict.fromkeys(ids, value), lambda txn: txn.table("n.t").upsert(data, on="id")


def test_a_statement_that_finds_no_row_conflicts_with_a_delete_of_its_rows(lake: tl.Lakehouse, table: tl.Table) -> None:
    """Write skew: each transaction deletes a row if the other one exists."""
    first, second = (lake.begin(isolation="serializable") for _ in range(2))
    for txn, own, other in ((first, 1, 2), (second, 2, 1)):
        assert txn.table("n.t").scan(f"id = {other}").count() == 1
        txn.table("n.t").delete(f"id = {own}")
    first.commit()
    with pytest.raises(tl.CommitConflict):
        second.commit()


def test_statements_of_one_transaction_are_rebased_together(lake: tl.Lakehouse, table: tl.Table) -> None:
    with lake.begin() as txn:
        txn.table("n.t").delete("id = 1")
        txn.sql("UPDATE n.t SET v = 0 WHERE id = 2")
        txn.table("n.t").delete("id = 12")
        lake.table("n.t").delete("id in (3, 13)")
    table.refresh()
    assert rows(table) == {id: id for id in range(20) if id not in (1, 3, 12, 13)} | {2: 0}
    check_pyiceberg(table)
    assert lake.maintenance.fsck("all").is_sound


def test_compaction_is_rebased_on_appends_and_refused_by_deletes(lake: tl.Lakehouse, table: tl.Table) -> None:
    table.delete("id = 1")
    for statement, is_refused in (("append", False), ("delete", True)):
        txn = lake.begin()
        txn.table("n.t").maintenance.compact(min_files=1)
        other = lake.table("n.t")
        other.append({"id": [20], "v": [20]}) if statement == "append" else other.delete("id = 2")
        if is_refused:
            with pytest.raises(tl.CommitConflict):
                txn.commit()
        else:
            txn.commit()
    table.refresh()
    assert rows(table) == {id: id for id in range(21) if id not in (1, 2)}


def test_the_log_counts_each_deleted_row_once(lake: tl.Lakehouse, table: tl.Table) -> None:
    for filter, count in (("id in (3, 15)", 2), ("id = 4", 1), ("id < 10", 8)):
        table.delete(filter)
        assert f"-{count} " in str(next(iter(lake.log())))


def test_deletes_of_engines_are_part_of_the_vector_after_an_upgrade(lake: tl.Lakehouse) -> None:
    """The delete file stays, because it may list rows of other data files."""
    table = lake.create_table("n.t", {"id": "bigint", "v": "bigint"}, properties=MODES)
    for start in (0, 10):
        table.append({"id": range(start, start + 10), "v": range(start, start + 10)})
    for task in list(table.scan().iceberg.plan_files()):
        delete_positions(table, task, [0, 1])
        table.refresh()
    table.delete("id = 2")
    lake.alter_table(table.name, {"format-version": "3"})
    table.refresh()
    table.delete("id in (3, 13)")
    vectors = [file for file in files(table, DataFileContent.POSITION_DELETES) if is_vector(file)]
    assert sorted(file.record_count for file in vectors) == [3, 4]
    expected = {id: id for id in range(20) if id not in (0, 1, 2, 3, 10, 11, 13)}
    assert rows(table) == expected
    check_pyiceberg(table)
    assert lake.maintenance.fsck("all").is_sound
    table.maintenance.compact()
    assert rows(table) == expected
    assert files(table, DataFileContent.POSITION_DELETES) == []


def test_manifests_of_delete_files_are_merged(lake: tl.Lakehouse) -> None:
    table = lake.create_table("n.t", {"id": "bigint"}, properties={**MODES, "format-version": "3"})
    for start in range(0, 60, 2):
        table.append({"id": [start, start + 1]})
    for id in range(0, 60, 2):
        table.delete(f"id = {id}")
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert len(read_list(table.iceberg.io, snapshot)) < 25
    assert len(files(table, DataFileContent.POSITION_DELETES)) == 30
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(1, 60, 2))
