"""Tables of format version 3: every row has a unique id, for all writers and orders of commits.

The expected ids are computed from the stored files by Iceberg's specification ("Row Lineage") with PyIceberg's plain
Avro reader, and compared with the counters of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, UpgradeFormatVersionUpdate
from pyiceberg.typedef import Record
from test_iceberg_staging import BY_CITY, Lake, ids, rows

from iceberg_disjoint import delete_first_row, rewrite
from iceberg_storage import Store, make_store
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage import metadata as metadata_module
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict

UPGRADE = UpgradeFormatVersionUpdate.model_validate({"format-version": 3})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store("disk", tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    """A table of format version 3 with the rows 1, 2 and 3."""
    lake = Lake(store, partition_spec=BY_CITY, properties={"format-version": "3"})
    change(lake, lambda table: table.append(rows(1, 2, 3)))
    return lake


def change(lake: Lake, statement: Callable[[Table], object]) -> StagedTable:
    staged = lake.begin()
    statement(staged.table)
    return lake.commit(staged)


def race(lake: Lake, winner: Callable[[Table], object], loser: Callable[[Table], object]) -> StagedTable:
    """Change the table twice from the same state, and commit `winner`. Returns the staged table of `loser`."""
    second = lake.begin()
    loser(second.table)
    second.finish()
    change(lake, winner)
    return second


def records(staged: StagedTable, uri: str) -> list[dict[int, Any]]:
    """The records of an Avro file as dictionaries by field id, including nested records."""

    def by_id(fields: tuple[Any, ...], row: Record) -> dict[int, Any]:
        return {
            field.field_id: by_id(field.field_type.fields, row[at]) if field.field_type.is_struct else row[at]
            for at, field in enumerate(fields)
        }

    with AvroFile[Record](staged.io.new_input(uri)) as file:
        return [by_id(file.schema.fields, row) for row in file]


def first_row_ids(staged: StagedTable, snapshot: Snapshot) -> Iterator[tuple[str, int | None, int]]:
    """URI, first row id and number of rows of each live data file of a snapshot."""
    for manifest in records(staged, snapshot.manifest_list):
        if manifest[517] != ManifestContent.DATA.value:
            assert manifest.get(520) is None, "manifests of delete files have no row ids"
            continue
        following = manifest.get(520)
        for entry in records(staged, manifest[500]):
            file = entry[2]
            if entry[0] == ManifestEntryStatus.DELETED.value:
                continue
            first = file.get(142)
            if entry[0] == ManifestEntryStatus.ADDED.value:
                assert first is None, "a file that is added gets its row ids from the commit"
            if first is None and following is not None:
                first = following
                following += file[103]
            yield file[100], first, file[103]


def row_ids(lake: Lake, snapshot: Snapshot | None = None) -> dict[int, int]:
    """The row ids of a snapshot, or the current one, by column `id`."""
    metadata_module.cache.clear()
    staged = lake.begin()
    snapshot = snapshot or staged.table.current_snapshot()
    assert snapshot is not None
    found: dict[int, int] = {}
    for uri, first, count in first_row_ids(staged, snapshot):
        assert first is not None
        with staged.io.new_input(uri).open() as stream:
            read = pq.ParquetFile(pa.BufferReader(stream.read())).read().to_pylist()
        assert len(read) == count
        for position, row in enumerate(read):
            stored = row.get("_row_id")
            found[row["id"]] = first + position if stored is None else stored
    assert len(set(found.values())) == len(found), "no row id twice"
    return found


#: Keeps all snapshots in the metadata, so that all of them are checked.
ALL_SNAPSHOTS = {"history.expire.min-snapshots-to-keep": str(2**31 - 1)}


def check_ids(lake: Lake) -> None:
    """Check that each row keeps one id, below the counter, and ranges of snapshots do not overlap."""
    metadata = lake.begin().metadata
    known: dict[int, int] = {}
    end = 0
    for snapshot in metadata.snapshots:
        assert snapshot.first_row_id is not None
        assert snapshot.added_rows is not None
        assert snapshot.first_row_id >= end
        end = snapshot.first_row_id + snapshot.added_rows
        found = row_ids(lake, snapshot)
        assert all(known.get(id, row_id) == row_id for id, row_id in found.items()), "a row keeps its id"
        new = {row_id for id, row_id in found.items() if id not in known}
        assert not new & set(known.values()), "no row id is used again"
        assert all(snapshot.first_row_id <= row_id < end for row_id in new)
        known |= found
    assert metadata.next_row_id == end


def test_rows_of_an_append_have_ids_of_their_own(lake: Lake) -> None:
    change(lake, lambda table: table.append(pa.concat_tables([rows(4, 5, city="b"), rows(6, city="a")])))
    check_ids(lake)
    assert row_ids(lake)[1] == 0
    assert sorted(row_ids(lake).values()) == [0, 1, 2, 3, 4, 5]
    assert lake.begin().metadata.next_row_id == 6


def test_an_append_that_lost_a_race_gets_ids_from_what_won(lake: Lake) -> None:
    """Two rows would have the same id, and a merge by the id would lose one of them."""
    loser = race(lake, lambda table: table.append(rows(4)), lambda table: table.append(rows(5, 6)))
    staged = loser.table.current_snapshot()
    assert staged is not None
    assert staged.first_row_id == 3
    loser.reapply(lake.path)
    lake.commit(loser)
    assert row_ids(lake) == {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5}
    check_ids(lake)


def test_a_transaction_of_several_statements_is_redone_with_all_their_ids(lake: Lake) -> None:
    def loser(table: Table) -> None:
        table.append(rows(10))
        table.append(rows(11, 12, city="b"))
        table.delete("city = 'b'")
        table.append(rows(13))

    staged = race(lake, lambda table: table.append(rows(4, city="c")), loser)
    staged.reapply(lake.path)
    lake.commit(staged)
    assert lake.ids() == [1, 2, 3, 4, 10, 13]
    check_ids(lake)


def test_ids_stay_when_manifests_are_merged(lake: Lake) -> None:
    change(lake, lambda table: table.transaction().set_properties(ALL_SNAPSHOTS).commit_transaction())
    for id in range(4, 40):
        change(lake, lambda table, id=id: table.append(rows(id)))
    head = lake.begin().table.current_snapshot()
    assert head is not None
    assert any(len(records(lake.begin(), one[500])) > 1 for one in records(lake.begin(), head.manifest_list))
    check_ids(lake)


def test_ids_stay_when_a_file_goes_out_of_a_shared_manifest(lake: Lake) -> None:
    change(lake, lambda table: table.append(pa.concat_tables([rows(4, city="b"), rows(5, 6, city="c")])))
    change(lake, lambda table: table.delete("city = 'b'"))
    assert lake.ids() == [1, 2, 3, 5, 6]
    check_ids(lake)
    removed = [
        entry[2]
        for snapshot in lake.begin().metadata.snapshots
        for manifest in records(lake.begin(), snapshot.manifest_list)
        for entry in records(lake.begin(), manifest[500])
        if entry[0] == ManifestEntryStatus.DELETED.value
    ]
    assert [file[142] is not None for file in removed] == [True], "the entry of a removed file has its row ids"


def test_an_upgraded_table_gives_ids_to_all_rows_at_its_next_snapshot(store: Store) -> None:
    lake = Lake(store, partition_spec=BY_CITY)
    change(lake, lambda table: table.append(rows(1, 2)))
    change(lake, lambda table: table.append(rows(3)))
    upgrade = lake.begin()
    upgrade.commit((), (UPGRADE,))
    lake.commit(upgrade)
    metadata = lake.begin().metadata
    assert (metadata.format_version, metadata.next_row_id) == (3, 0)
    assert [first for _, first, _ in first_row_ids(lake.begin(), metadata.snapshots[-1])] == [None, None]
    change(lake, lambda table: table.append(rows(4, 5)))
    found = row_ids(lake)
    assert sorted(found.values()) == [0, 1, 2, 3, 4]
    change(lake, lambda table: table.append(rows(6)))
    assert {id: row_id for id, row_id in row_ids(lake).items() if id < 6} == found
    assert lake.begin().metadata.next_row_id == 6


def test_an_upgraded_table_leaves_room_for_files_that_a_manifest_carried_over(store: Store) -> None:
    """After an upgrade to format version 3, rows of a manifest that only carries files over count for the next row id,
    so that no two manifests share ids."""
    lake = Lake(store, partition_spec=BY_CITY)
    change(lake, lambda table: table.append(rows(4, 5, city="c")))
    change(lake, lambda table: table.append(pa.concat_tables([rows(1, 2, city="a"), rows(3, city="b")])))
    change(lake, lambda table: table.delete("city = 'b'"))
    change(lake, lambda table: table.transaction().upgrade_table_version(3).commit_transaction())
    change(lake, lambda table: table.append(rows(6, city="d")))
    assert sorted(row_ids(lake)) == [1, 2, 4, 5, 6]


def test_a_table_of_format_version_1_is_upgraded(store: Store) -> None:
    lake = Lake(store, properties={"format-version": "1"})
    change(lake, lambda table: table.append(rows(1, 2)))
    for _ in range(2):
        change(lake, lambda table: table.transaction().upgrade_table_version(3).commit_transaction())
    assert lake.begin().metadata.format_version == 3
    staged = lake.begin()
    with pytest.raises(ValueError, match="Cannot downgrade"):
        staged.table.transaction().upgrade_table_version(2)
    change(lake, lambda table: table.append(rows(3)))
    metadata_module.cache.clear()
    assert lake.ids() == [1, 2, 3]
    assert sorted(row_ids(lake).values()) == [0, 1, 2]


@pytest.mark.parametrize("before", ["1", "2"])
def test_the_property_format_version_upgrades_a_table(store: Store, before: str) -> None:
    """`set_properties({"format-version": "3"})` upgrades the table, as in Iceberg for Java."""
    lake = Lake(store, properties={"format-version": before})
    change(lake, lambda table: table.append(rows(1, 2)))
    staged = lake.begin()
    with staged.table.transaction() as transaction:
        transaction.set_properties({"format-version": "3", "color": "red"})
        assert transaction.table_metadata.format_version == 3
        transaction.append(rows(3))
    lake.commit(staged)
    metadata = lake.begin().metadata
    assert metadata.format_version == 3
    assert metadata.properties["color"] == "red"
    assert "format-version" not in metadata.properties
    assert sorted(row_ids(lake).values()) == [0, 1, 2]


@pytest.mark.parametrize("version", ["2", "4", "x"])
def test_a_property_format_version_that_is_no_upgrade_is_refused(lake: Lake, version: str) -> None:
    staged = lake.begin()
    with pytest.raises(InvalidArgument, match="the table has format version 3"):
        staged.table.transaction().set_properties({"format-version": version}).commit_transaction()
    assert not staged.changed


def test_an_upgrade_by_a_property_is_redone_after_a_lost_race(store: Store) -> None:
    lake = Lake(store)
    change(lake, lambda table: table.append(rows(1)))
    loser = race(
        lake,
        lambda table: table.append(rows(2)),
        lambda table: table.transaction().set_properties({"format-version": "3"}).commit_transaction(),
    )
    assert lake.path is not None
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.begin().metadata.format_version == 3
    assert lake.ids() == [1, 2]


def test_an_append_of_version_2_that_meets_an_upgrade_gets_ids(store: Store) -> None:
    lake = Lake(store)
    change(lake, lambda table: table.append(rows(1)))
    loser, upgrade = lake.begin(), lake.begin()
    loser.table.append(rows(2, 3))
    loser.finish()
    upgrade.commit((), (UPGRADE,))
    lake.commit(upgrade)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert sorted(row_ids(lake).values()) == [0, 1, 2]
    assert lake.begin().metadata.next_row_id == 3


def test_two_upgrades_are_one(store: Store) -> None:
    lake = Lake(store)
    loser, winner = lake.begin(), lake.begin()
    for staged in (loser, winner):
        staged.commit((), (UPGRADE,))
        staged.table.append(rows(*((1,) if staged is winner else (2, 3))))
        staged.finish()
    lake.commit(winner)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert row_ids(lake) == {1: 0, 2: 1, 3: 2}
    check_ids(lake)


def test_a_saved_transaction_keeps_what_rows_got(lake: Lake, store: Store) -> None:
    staged = lake.begin()
    staged.table.append(rows(7, 8))
    saved = staged.saved()
    store.put_many([staged.finish()])
    change(lake, lambda table: table.append(rows(4)))
    resumed = StagedTable.resume(("ns", "t"), saved, lake.io)
    assert resumed.metadata.next_row_id == 5
    resumed.reapply(lake.path)
    lake.commit(resumed)
    assert row_ids(lake) == {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5}
    check_ids(lake)


def test_an_engine_s_compaction_is_redone_and_the_other_files_keep_their_ids(lake: Lake) -> None:
    change(lake, lambda table: table.append(pa.concat_tables([rows(4, city="b"), rows(5, 6, city="c")])))
    loser = lake.begin()
    rewrite(loser, "a")
    loser.finish()
    change(lake, lambda table: table.append(rows(7, city="d")))
    before = row_ids(lake)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5, 6, 7]
    after = row_ids(lake)
    assert {id: after[id] for id in (4, 5, 6, 7)} == {id: before[id] for id in (4, 5, 6, 7)}


def test_rows_that_moved_with_ids_of_their_own_transaction_are_not_redone_with_others(lake: Lake) -> None:
    """A transaction that appends rows and moves them to another file, which has their row ids in a column, conflicts
    with another append: rebased, the ids in the column would belong to rows of the other append."""

    def moved(staged: StagedTable) -> StagedTable:
        staged.table.append(rows(8, 9, city="n"))
        rewrite(staged, "n")
        staged.finish()
        return staged

    loser = moved(lake.begin())
    change(lake, lambda table: table.append(rows(4)))
    with pytest.raises(TableConflict, match="row ids that another commit uses"):
        loser.reapply(lake.path)
    lake.commit(moved(lake.begin()))  # without a concurrent commit, the commit succeeds
    assert lake.ids() == [1, 2, 3, 4, 8, 9]


def test_a_snapshot_with_ids_that_are_taken_is_refused(lake: Lake) -> None:
    donor = lake.begin()
    donor.table.append(rows(4))
    (update, *others) = donor._commits[0].updates
    assert isinstance(update, AddSnapshotUpdate)
    for wrong, reason in (
        ({"first_row_id": 2}, "the table's next-row-id is 3"),
        ({"first_row_id": None}, "without first row id"),
        ({"added_rows": None}, "without added rows"),
        ({"sequence_number": 1}, "its snapshot has the number 1"),
    ):
        bad = update.model_copy(update={"snapshot": update.snapshot.model_copy(update=wrong)})
        staged = lake.begin()
        with pytest.raises((ValueError, CommitFailedException), match=reason):
            staged.commit((), (bad, *others))
        assert not staged.changed
    staged = lake.begin()
    staged.commit((), (update, *others))
    lake.commit(staged)
    check_ids(lake)


def test_whole_files_are_deleted_and_overwritten(lake: Lake) -> None:
    change(lake, lambda table: table.append(pa.concat_tables([rows(4, 5, city="b"), rows(6, city="c")])))
    change(lake, lambda table: table.delete("id = 6"))  # the file is deleted by its bounds
    change(lake, lambda table: table.dynamic_partition_overwrite(rows(7, city="b")))
    assert lake.ids() == [1, 2, 3, 7]
    check_ids(lake)
    change(lake, lambda table: table.overwrite(rows(8, 9)))
    assert lake.ids() == [8, 9]
    change(lake, lambda table: table.upsert(rows(10)))
    assert lake.ids() == [8, 9, 10]
    check_ids(lake)
    operations = [one.summary.operation for one in lake.begin().metadata.snapshots if one.summary is not None]
    assert operations.count(Operation.DELETE) == 3


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        (lambda table: table.delete("id = 2"), [1, 3]),
        (lambda table: table.overwrite(rows(5, city="z"), "id = 2"), [1, 3, 5]),
        (lambda table: table.delete("city = 'a' and id < 3"), [3]),
    ],
)
def test_rows_that_move_to_another_file_keep_their_ids(lake: Lake, statement: Any, left: list[int]) -> None:
    """Rows that a delete moves to another file keep their row ids. Otherwise they would look like new rows."""
    change(lake, statement)
    assert lake.ids() == left
    check_ids(lake)


def test_snapshots_of_pyiceberg_are_refused(lake: Lake) -> None:
    staged = lake.begin()
    with pytest.raises(InvalidArgument, match="format version 3"):
        staged.table.transaction().update_snapshot()
    assert not staged.changed


def test_rows_that_moved_before_they_had_ids_are_not_redone_where_they_have(store: Store) -> None:
    """Rebased after a commit that gives ids to all rows of an upgraded table, moved rows would get other ids."""
    lake = Lake(store, partition_spec=BY_CITY)
    change(lake, lambda table: table.append(rows(1, 2, 3)))
    change(lake, lambda table: table.transaction().upgrade_table_version(3).commit_transaction())
    loser = race(lake, lambda table: table.append(rows(4, city="b")), lambda table: table.delete("id = 2"))
    with pytest.raises(TableConflict, match="another commit assigned row ids"):
        loser.reapply(lake.path)
    change(lake, lambda table: table.delete("id = 2"))
    assert lake.ids() == [1, 3, 4]
    first = lake.begin().metadata.snapshots[1]
    assert {id: row_id for id, row_id in row_ids(lake, first).items() if id != 2} == row_ids(lake)


def test_a_filter_that_finds_no_row_in_a_file_leaves_it(lake: Lake) -> None:
    change(lake, lambda table: table.append(rows(10, 12, city="b")))
    change(lake, lambda table: table.delete("id in (1, 2, 3, 11)"))
    assert lake.ids() == [10, 12]
    before = lake.begin().metadata
    change(lake, lambda table: table.delete("id = 11"))
    assert lake.begin().metadata.snapshots == before.snapshots


def test_delete_that_lost_a_race_is_validated_against_the_winner(lake: Lake) -> None:
    staged = race(lake, lambda table: table.append(rows(4)), lambda table: table.delete("city = 'a'"))
    with pytest.raises(TableConflict, match="added files that may hold such rows"):
        staged.reapply(lake.path)
    staged = race(lake, lambda table: table.append(rows(5, city="b")), lambda table: table.delete("city = 'a'"))
    staged.reapply(lake.path)
    lake.commit(staged)
    assert lake.ids() == [5]
    check_ids(lake)


def test_rows_of_a_file_with_deleted_rows_keep_their_ids(lake: Lake) -> None:
    """A row id follows from the position in the file, which counts deleted rows as well."""
    staged = lake.begin()
    delete_first_row(staged, "a")
    lake.commit(staged)
    change(lake, lambda table: table.append(rows(4, city="b")))
    change(lake, lambda table: table.delete("id = 2"))
    assert lake.ids() == [3, 4]
    assert row_ids(lake) == {3: 2, 4: 3}
    change(lake, lambda table: table.delete("city = 'a'"))
    assert lake.ids() == [4]
    check_ids(lake)


def test_deletes_conflict_with_a_rewrite_of_their_file_and_not_with_an_append(lake: Lake) -> None:
    loser = lake.begin()
    rewrite(loser, "a")
    loser.finish()
    winner = lake.begin()
    delete_first_row(winner, "a")
    lake.commit(winner)
    with pytest.raises(TableConflict, match="may have deleted rows from files that are replaced here"):
        loser.reapply(lake.path)
    change(lake, lambda table: table.append(rows(5, 6, city="b")))
    loser = lake.begin()
    delete_first_row(loser, "b")
    loser.finish()
    change(lake, lambda table: table.append(rows(4)))
    before = lake.ids()
    loser.reapply(lake.path)
    lake.commit(loser)
    assert len(lake.ids()) == len(before) - 1


def test_metadata_without_the_counter_is_damaged(lake: Lake, store: Store) -> None:
    import json

    from trinitylake.errors import CorruptFile

    text = json.loads(store.get(lake.path))
    del text["next-row-id"]
    path = "ns/t-0badcafe/metadata/00009-none.metadata.json"
    store.put(path, json.dumps(text).encode())
    with pytest.raises(CorruptFile, match="next-row-id is missing"):
        StagedTable.load(("ns", "t"), path, io=lake.io)


def test_all_rows_can_be_deleted(lake: Lake) -> None:
    change(lake, lambda table: table.delete(AlwaysTrue()))
    assert ids(lake.begin()) == []
    check_ids(lake)
    change(lake, lambda table: table.append(rows(4)))
    assert row_ids(lake) == {4: 3}, "ids of deleted rows are not used again"
