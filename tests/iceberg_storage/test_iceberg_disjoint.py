"""Transactions that change different rows of one table both commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Not
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, StringType, TimestampType, TimestamptzType
from test_iceberg_rebase import race, set_properties
from test_iceberg_staging import Lake, ids, rows

from iceberg_disjoint import (
    ELSEWHERE,
    STATEMENTS,
    Change,
    cities,
    contents,
    delete_first_row,
    filled,
    land,
    live_files,
    raced,
    rewrite,
)
from iceberg_storage import Store, make_store
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.staging.row_conflicts import OverlappingFiles, may_delete_from
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store("remote", tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    return filled(store)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_redone_when_only_other_rows_changed(lake: Lake, statement: str, elsewhere: str) -> None:
    serial = lake.begin()
    ELSEWHERE[elsewhere](serial.table)
    STATEMENTS[statement](serial.table)
    loser = race(lake, ELSEWHERE[elsewhere], STATEMENTS[statement])
    land(lake, loser)
    assert lake.ids() == ids(serial)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize(
    ("winner", "loser", "why"),
    [
        (lambda t: t.append(cities(a=[2])), lambda t: t.delete("id = 2"), "added files that may hold"),
        (lambda t: t.append(cities(a=[9])), lambda t: t.delete("city = 'a'"), "added files that may hold"),
        (lambda t: t.append(cities(d=[9])), lambda t: t.overwrite(cities(d=[8]), "city = 'd'"), "added files"),
        (lambda t: t.append(cities(d=[9])), lambda t: t.dynamic_partition_overwrite(cities(d=[8])), "added files"),
        (lambda t: t.append(cities(d=[9])), lambda t: t.upsert(cities(e=[9])), "upsert depends on the rows it found"),
        (lambda t: t.delete("id = 1"), lambda t: t.delete("id = 2"), "removed"),
        (lambda t: t.delete("id = 1"), lambda t: t.upsert(cities(a=[1])), "removed files that may have held such rows"),
        (lambda t: t.delete("city = 'a'"), lambda t: t.dynamic_partition_overwrite(cities(a=[4])), "removed"),
        (lambda t: t.append(cities(a=[9])), lambda t: (t.delete("id = 9"), t.append(cities(b=[16]))), "added files"),
    ],
)
def test_a_statement_conflicts_when_rows_that_it_looked_for_changed(
    lake: Lake, winner: Change, loser: Change, why: str
) -> None:
    staged = race(lake, winner, loser)
    before = staged.metadata
    with pytest.raises(TableConflict, match="assert-ref-snapshot-id") as caught:
        staged.reapply(lake.path)
    assert why in caught.value.requirement
    assert staged.metadata is before


def test_append_ignores_rows_that_were_added_and_removed_meanwhile(lake: Lake) -> None:
    loser = race(lake, lambda table: table.delete("city = 'a'"), lambda table: table.append(cities(a=[4])))
    land(lake, loser)
    assert contents(lake) == {"a": [4], "b": [11, 12], "c": [21]}


@pytest.mark.parametrize("rounds", [3])
def test_a_statement_is_redone_as_often_as_needed(lake: Lake, rounds: int) -> None:
    loser = lake.begin()
    loser.table.overwrite(cities(a=[5]), overwrite_filter="id = 2")
    for number in range(rounds):
        winner = lake.begin()
        winner.table.append(cities(b=[30 + number]))
        lake.commit(winner)
        loser.reapply(lake.path)
        loser.finish()
    winner = lake.begin()
    winner.table.delete("city = 'c'")
    lake.commit(winner)
    land(lake, loser)
    assert contents(lake) == {"a": [1, 3, 5], "b": [11, 12, 30, 31, 32]}


def test_added_rows_are_no_conflict_under_snapshot_isolation_of_the_table(lake: Lake) -> None:
    change = lake.begin()
    set_properties(**{"write.delete.isolation-level": "snapshot"})(change.table)
    lake.commit(change)
    loser = race(lake, lambda table: table.append(cities(a=[9])), lambda table: table.delete("city = 'a'"))
    land(lake, loser)
    assert contents(lake)["a"] == [9]
    loser = race(
        lake,
        lambda table: table.append(cities(a=[10])),
        lambda table: table.overwrite(cities(a=[8]), overwrite_filter="city = 'a'"),
    )
    with pytest.raises(TableConflict, match="overwrite depends on the rows it found"):
        loser.reapply(lake.path)  # only `write.update.isolation-level` applies here
    loser = race(lake, lambda table: table.delete("id = 9"), lambda table: table.delete("city = 'a' and id < 10"))
    with pytest.raises(TableConflict, match="removed"):
        loser.reapply(lake.path)


@pytest.mark.parametrize("name_is_taken", [False, True])
def test_a_filter_on_a_column_that_was_renamed_conflicts(store: Store, name_is_taken: bool) -> None:
    lake = Lake(store)
    filled = lake.begin()
    filled.table.append(rows(1, city="a"))
    lake.commit(filled)

    def winner(table: Table) -> None:
        table.append(rows(2, city="b"))
        with table.update_schema() as update:
            update.rename_column("city", "town")
        if name_is_taken:
            with table.update_schema() as update:
                update.add_column("city", StringType())

    staged = race(lake, winner, lambda table: table.delete("city = 'a'"))
    with pytest.raises(TableConflict, match="assert-current-schema-id"):
        staged.reapply(lake.path)


def test_a_delete_is_redone_after_a_column_was_added_and_the_partitions_changed(lake: Lake) -> None:
    def evolve(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("note", StringType())
        with table.update_spec() as update:
            update.remove_field("city")
            update.add_field("id", BucketTransform(4), "bucket")
        table.append(rows(40, city="b").append_column("note", pa.array(["new"])))

    loser = race(lake, evolve, lambda table: table.delete("city = 'a' and id = 2"))
    land(lake, loser)
    assert contents(lake) == {"a": [1, 3], "b": [11, 12, 40], "c": [21]}


def test_statements_on_a_branch_are_redone_there(lake: Lake) -> None:
    staged = lake.begin()
    head = staged.table.current_snapshot()
    assert head is not None
    staged.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    lake.commit(staged)

    def statement(table: Table) -> None:
        table.delete("city = 'a'", branch="audit")
        table.append(cities(d=[50]), branch="audit")

    # Changes of main do not conflict, even if they concern the same rows.
    loser = race(lake, lambda table: table.append(cities(a=[9])), statement)
    land(lake, loser)
    assert contents(lake)["a"] == [1, 2, 3, 9]
    assert sorted(lake.begin().table.scan().use_ref("audit").to_arrow()["id"].to_pylist()) == [11, 12, 21, 50]
    loser = race(
        lake, lambda table: table.append(cities(b=[9]), branch="audit"), lambda t: t.delete("id = 9", branch="audit")
    )
    with pytest.raises(TableConflict, match="branch audit moved"):
        loser.reapply(lake.path)


def test_a_branch_made_of_a_redone_snapshot_takes_over_what_was_committed_meanwhile(lake: Lake) -> None:
    def statement(table: Table) -> None:
        table.append(cities(a=[4]))
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
        table.delete("id = 4", branch="audit")

    loser = race(lake, lambda table: table.append(cities(b=[13])), statement)
    land(lake, loser)
    assert sorted(lake.begin().table.scan().use_ref("audit").to_arrow()["id"].to_pylist()) == [1, 2, 3, 11, 12, 13, 21]


def test_history_that_expired_meanwhile_conflicts(lake: Lake) -> None:
    def winner(table: Table) -> None:
        table.append(cities(b=[13]))
        table.append(cities(b=[14]))
        gone = table.metadata.snapshots[1].snapshot_id
        table.maintenance.expire_snapshots().by_id(gone).commit()

    staged = race(lake, winner, lambda table: table.delete("city = 'a'"))
    with pytest.raises(TableConflict, match="has expired since"):
        staged.reapply(lake.path)


@pytest.mark.parametrize("version", ["1", "2"])
def test_two_appends_of_one_transaction_keep_what_was_committed_meanwhile(store: Store, version: str) -> None:
    lake = Lake(store, properties={"format-version": version})

    def loser(table: Table) -> None:
        table.append(rows(1))
        table.append(rows(2))

    staged = race(lake, lambda table: table.append(rows(3)), loser)
    staged.reapply(lake.path)
    lake.commit(staged)
    assert lake.ids() == [1, 2, 3]


def test_filter_of_a_statement_is_saved_with_it(lake: Lake, store: Store) -> None:
    staged = lake.begin()
    staged.table.delete("city = 'a'")
    staged.table.upsert(cities(b=[11]))
    saved = staged.saved()
    store.put_many([staged.finish()])
    for winner, outcome in ((cities(c=[22]), [11, 12, 21, 22]), (cities(a=[9]), "conflict")):
        first = lake.begin()
        first.table.append(winner)
        lake.commit(first)
        resumed = StagedTable.resume(("ns", "t"), saved, lake.io)
        if outcome == "conflict":
            with pytest.raises(TableConflict, match="delete depends on the rows it found"):
                resumed.reapply(lake.path)
        else:
            resumed.reapply(lake.path)
            assert ids(resumed) == outcome


def test_bounds_that_cannot_be_read_exclude_no_file(lake: Lake) -> None:
    """Bounds that cannot be decoded, such as a `long` of three bytes from another engine, exclude no file."""
    loser, winner = lake.begin(), lake.begin()
    loser.table.delete("id = 31")
    loser.finish()
    table = winner.table
    (file,) = _dataframe_to_data_files(table.metadata, cities(a=[31]), winner.io)
    for bounds in (file.lower_bounds, file.upper_bounds):
        bounds[1] = bounds[1][:3]
    updates, requirements = SnapshotProducer(table.metadata, winner.io, Operation.APPEND).add([file]).updates()
    winner.commit(requirements, updates)
    lake.commit(winner)
    with pytest.raises(TableConflict, match="may hold such rows"):
        loser.reapply(lake.path)


@pytest.mark.parametrize(
    ("looked_for", "is_kept"),
    [
        (EqualTo("id", 1), True),
        (And(In("city", ["a", "b"]), Not(EqualTo("id", 7))), True),
        (EqualTo("seen", datetime(2026, 1, 1)), True),
        (EqualTo("seen_in_utc", datetime(2026, 1, 1, tzinfo=UTC)), False),
        (EqualTo("hash", b"\xff"), False),
    ],
)
def test_a_saved_filter_matches_all_rows_that_the_statement_looked_for(
    looked_for: BooleanExpression, is_kept: bool
) -> None:
    """A filter that fits no column after it was read from JSON becomes a filter for all rows."""
    schema = IcebergSchema(
        NestedField(1, "id", LongType()),
        NestedField(2, "city", StringType()),
        NestedField(3, "seen", TimestampType()),
        NestedField(4, "seen_in_utc", TimestamptzType()),
        NestedField(5, "hash", BinaryType()),
    )
    saved = json.dumps(RowsRead("delete", looked_for).to_json(schema))
    found = bind(schema, RowsRead.from_json(json.loads(saved)).filter, case_sensitive=True)
    assert found == bind(schema, looked_for if is_kept else AlwaysTrue(), case_sensitive=True)


def test_an_append_is_redone_on_a_branch_that_went_back_and_a_delete_is_not(lake: Lake) -> None:
    more = lake.begin()
    more.table.append(cities(b=[13]))
    lake.commit(more)
    first = more.metadata.snapshots[0].snapshot_id

    def back(table: Table) -> None:
        table.manage_snapshots().rollback_to_snapshot(first).commit()

    staged = lake.begin()
    staged.table.delete("city = 'a'")
    loser = race(lake, back, lambda table: table.append(cities(a=[4])))
    with pytest.raises(TableConflict, match="does not descend from it"):
        staged.reapply(lake.path)
    land(lake, loser)
    assert contents(lake) == {"a": [1, 2, 3, 4], "b": [11, 12], "c": [21]}


# Copy-on-write


def test_a_compaction_is_redone_over_appends_and_deletes_elsewhere(lake: Lake) -> None:
    more = lake.begin()
    more.table.append(cities(a=[4]))
    lake.commit(more)

    def winner(table: Table) -> None:
        table.append(cities(a=[5], b=[13]))
        table.delete("city = 'c'")

    loser = raced(lake, winner, lambda staged: rewrite(staged, "a"))
    land(lake, loser)
    assert contents(lake) == {"a": [1, 2, 3, 4, 5], "b": [11, 12, 13]}
    head = loser.table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.summary.operation, head.summary["total-records"]) == (Operation.REPLACE, "8")
    assert len([file for file in live_files(loser) if file.partition[0] == "a"]) == 2


def test_a_compaction_conflicts_if_a_file_that_it_replaces_was_removed(lake: Lake) -> None:
    loser = raced(lake, lambda table: table.delete("id = 2"), lambda staged: rewrite(staged, "a"))
    with pytest.raises(TableConflict, match="which replace removes, was removed by another commit"):
        loser.reapply(lake.path)


def test_appends_and_statements_about_other_files_are_redone_over_a_compaction(lake: Lake) -> None:
    for statement, expected in (
        (lambda table: table.append(cities(a=[4])), [1, 2, 3, 4]),
        (lambda table: table.upsert(cities(a=[5])), [1, 2, 3, 4, 5]),
    ):
        first, second = lake.begin(), lake.begin()
        statement(second.table)
        second.finish()
        rewrite(first, "a")
        lake.commit(first)
        land(lake, second)
        assert contents(lake)["a"] == expected
    first, second = lake.begin(), lake.begin()
    second.table.delete("id = 2")
    rewrite(first, "a")
    lake.commit(first)
    with pytest.raises(TableConflict, match="was removed by another commit"):
        second.reapply(lake.path)


@pytest.mark.parametrize("operation", [Operation.OVERWRITE, Operation.DELETE])
@pytest.mark.parametrize(
    ("winner", "expected"),
    [
        (lambda t: t.append(cities(b=[13])), {"a": [1, 2, 3], "b": [11, 12, 13], "c": [21]}),
        (lambda t: t.delete("city = 'b'"), {"a": [1, 2, 3], "c": [21]}),
        (lambda t: t.append(cities(a=[9])), {"a": [1, 2, 3, 9], "b": [11, 12], "c": [21]}),
        (lambda t: t.append(cities(a=[2])), None),
    ],
    ids=["another partition", "deleted elsewhere", "other values", "values between"],
)
def test_removed_files_of_an_engine_stand_for_rows_of_their_partition(
    lake: Lake, operation: Operation, winner: Change, expected: dict[str, list[int]] | None
) -> None:
    """In a transaction, UPDATE and DELETE of an engine, which sends no condition, do not conflict with changes of other
    partitions: the partitions of the removed files limit the rows that the statement looked for."""
    loser = raced(lake, winner, lambda staged: rewrite(staged, "a", operation))
    if expected is not None:
        land(lake, loser)
        assert contents(lake) == expected
    else:
        with pytest.raises(TableConflict, match="do not exclude rows that the statement would have read"):
            loser.reapply(lake.path)


def test_missing_bounds_exclude_nothing() -> None:
    """Bounds do not include nulls and NaN, and bounds of an older type cannot be decoded."""
    schema = IcebergSchema(NestedField(1, "id", LongType()), NestedField(2, "speed", DoubleType()))
    table = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t")

    def file(lower: int, upper: int, nulls: int | None, **more: Any) -> DataFile:
        bounds = [{1: pack("<q", number), **more} for number in (lower, upper)]
        counts = {} if nulls is None else {1: nulls}
        made = DataFile.from_args(
            partition=Record(), lower_bounds=bounds[0], upper_bounds=bounds[1], null_value_counts=counts
        )
        made.spec_id = 0
        return made

    touched = OverlappingFiles([file(1, 3, 0), file(10, 12, 1)], table)
    assert not touched.may_overlap(file(4, 9, 0))
    assert touched.may_overlap(file(3, 4, 0))
    assert touched.may_overlap(file(4, 9, 2))
    assert touched.may_overlap(file(4, 9, None))
    unreadable = file(4, 9, 0)
    unreadable.lower_bounds[1] = b"\0"
    assert touched.may_overlap(unreadable)
    slow, fast = ({2: pack("<d", speed)} for speed in (1.0, 9.0))
    no_bounds = DataFile.from_args(partition=Record(), lower_bounds=slow, upper_bounds=slow, null_value_counts={2: 0})
    no_bounds.spec_id = 0
    other = DataFile.from_args(partition=Record(), lower_bounds=fast, upper_bounds=fast, null_value_counts={2: 0})
    other.spec_id = 0
    assert OverlappingFiles([no_bounds], table).may_overlap(other)  # either may hold NaN
    other.spec_id = 1
    assert OverlappingFiles([no_bounds], table).may_overlap(other)  # partitions of two specs may overlap


def test_removal_of_an_engine_is_redone_under_snapshot_isolation_of_the_table(lake: Lake) -> None:
    change = lake.begin()
    levels = {f"write.{name}.isolation-level": "snapshot" for name in ("delete", "update", "merge")}
    set_properties(**levels)(change.table)
    lake.commit(change)
    loser = raced(
        lake, lambda table: table.append(cities(a=[4])), lambda staged: rewrite(staged, "a", Operation.OVERWRITE)
    )
    land(lake, loser)
    assert contents(lake)["a"] == [1, 2, 3, 4]


def test_partitions_that_an_engine_replaced_whole_are_replaced_again(lake: Lake) -> None:
    """Spark's INSERT OVERWRITE of dynamic partitions sets `replace-partitions` in the summary."""
    replacing = {"replace-partitions": "true"}
    loser = raced(
        lake,
        lambda table: (table.append(cities(b=[13])), table.delete("city = 'c'")),
        lambda staged: rewrite(staged, "a", Operation.OVERWRITE, **replacing),
    )
    land(lake, loser)
    assert contents(lake) == {"a": [1, 2, 3], "b": [11, 12, 13]}
    loser = raced(
        lake,
        lambda table: table.append(cities(a=[4])),
        lambda staged: rewrite(staged, "a", Operation.OVERWRITE, **replacing),
    )
    with pytest.raises(TableConflict, match="of a partition that snapshot"):
        loser.reapply(lake.path)


def test_several_snapshots_of_one_commit_are_all_redone(lake: Lake) -> None:
    staged, other = lake.begin(), lake.begin()
    other.table.append(cities(a=[4]))
    other.table.append(cities(a=[5]))
    (first, _), (second, move) = (commit.updates for commit in other._commits)
    staged.commit(other._commits[0].requirements, (first, second, move))
    winner = lake.begin()
    winner.table.append(cities(b=[13]))
    lake.commit(winner)
    land(lake, staged)
    assert contents(lake) == {"a": [1, 2, 3, 4, 5], "b": [11, 12, 13], "c": [21]}


# Merge-on-read


@pytest.mark.parametrize("statement", ["delete a partition", "delete a row", "replace a partition"])
def test_deletes_that_were_merged_on_read_count_as_changes_of_their_partition(lake: Lake, statement: str) -> None:
    for city, expected in (("b", None), ("a", TableConflict)):
        winner, loser = lake.begin(), lake.begin()
        STATEMENTS[statement](loser.table)
        loser.finish()
        delete_first_row(winner, city)
        lake.commit(winner)
        if expected is None:
            loser.reapply(lake.path)
            assert 11 not in ids(loser)
            assert 12 in ids(loser)
        else:
            with pytest.raises(expected, match="may have deleted"):
                loser.reapply(lake.path)


def test_a_compaction_conflicts_if_rows_were_deleted_from_its_files(lake: Lake) -> None:
    for city, expected in (("b", None), ("a", TableConflict)):
        winner, loser = lake.begin(), lake.begin()
        rewrite(loser, "a")
        loser.finish()
        delete_first_row(winner, city)
        lake.commit(winner)
        if expected is None:
            loser.reapply(lake.path)
            assert ids(loser) == [1, 2, 3, 12, 21]
        else:
            with pytest.raises(expected, match="may have deleted rows from files that are replaced here"):
                loser.reapply(lake.path)


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("add", [None, cities(a=[101])], ids=["delete", "update"])
@pytest.mark.parametrize("elsewhere", [*ELSEWHERE, "merge on read"])
def test_deletes_that_are_merged_on_read_are_redone(
    lake: Lake, elsewhere: str, add: pa.Table | None, bounds: bool
) -> None:
    """Merge-on-read deletes of an engine are rebased. UPDATE and DELETE of Spark conflicted with every other commit."""

    def winner(staged: StagedTable) -> None:
        ELSEWHERE[elsewhere](staged.table) if elsewhere in ELSEWHERE else delete_first_row(staged, "b", cities(b=[102]))

    serial = lake.begin()
    winner(serial)
    delete_first_row(serial, "a", add, bounds)
    first, second = lake.begin(), lake.begin()
    delete_first_row(second, "a", add, bounds)
    delete_first_row(second, "c")
    second.finish()
    winner(first)
    lake.commit(first)
    land(lake, second)
    assert lake.ids() == sorted(set(ids(serial)) - {21})
    summary = second.table.current_snapshot().summary
    assert summary is not None
    assert int(summary["total-position-deletes"]) == 2 + (elsewhere == "merge on read")


def test_a_delete_file_that_was_replaced_is_replaced_again(lake: Lake) -> None:
    """A rebase replaces the earlier delete file in the manifests of deletes."""
    first = lake.begin()
    delete_first_row(first, "a")
    lake.commit(first)
    loser = raced(
        lake, lambda table: table.append(cities(b=[13])), lambda staged: delete_first_row(staged, "a", again=True)
    )
    land(lake, loser)
    assert contents(lake) == {"a": [3], "b": [11, 12, 13], "c": [21]}
    live = [file for file in live_files(loser) if file.content == DataFileContent.POSITION_DELETES]
    assert [file.record_count for file in live] == [2]


@pytest.mark.parametrize(
    ("winner", "add", "why"),
    [
        (lambda s: s.table.append(cities(a=[2])), None, "bounds do not exclude rows"),
        (lambda s: s.table.append(cities(a=[2])), cities(a=[101]), "bounds do not exclude rows"),
        (lambda s: rewrite(s, "a"), None, "which another commit removed"),
        (lambda s: s.table.delete("id = 2"), None, "which another commit removed"),
        (lambda s: s.table.delete("city = 'a'"), cities(a=[101]), "which another commit removed"),
        (lambda s: delete_first_row(s, "a"), cities(a=[101]), "may have deleted rows"),
        (lambda s: s.table.delete("city = 'a'"), None, None),
        (lambda s: delete_first_row(s, "a"), None, None),
    ],
    ids=["found", "found by update", "compacted", "rewritten", "gone", "updated twice", "all gone", "deleted twice"],
)
def test_deletes_that_are_merged_on_read_conflict_by_the_rules_of_iceberg(
    lake: Lake, winner: Callable[[StagedTable], object], add: pa.Table | None, why: str | None
) -> None:
    """Two UPDATEs of one row conflict, because the row would be there twice. Positions apply only to their own file.
    Two deletes of one row do not conflict."""
    first, second = lake.begin(), lake.begin()
    delete_first_row(second, "a", add)
    second.finish()
    winner(first)
    lake.commit(first)
    if why is None:
        land(lake, second)
        assert 1 not in lake.ids()
    else:
        with pytest.raises(TableConflict, match=why):
            second.reapply(lake.path)


def test_an_update_elsewhere_in_the_partition_counts_only_for_its_own_files(lake: Lake) -> None:
    """It conflicts only through the data files that its delete files name."""
    more = lake.begin()
    more.table.append(cities(d=[1, 2]))
    lake.commit(more)
    winner, loser = lake.begin(), lake.begin()
    delete_first_row(winner, "d", bounds=True)
    moved = lake.begin()
    assert not moved.changed
    rewrite(loser, "d")
    loser.finish()
    lake.commit(winner)
    with pytest.raises(TableConflict, match="may have deleted rows from files that are replaced here"):
        loser.reapply(lake.path)
    (deletes,) = [file for file in live_files(winner) if file.content != DataFileContent.DATA]
    others = [file for file in live_files(winner) if file.content == DataFileContent.DATA and file.partition[0] == "a"]
    own = [file for file in live_files(winner) if file.content == DataFileContent.DATA and file.partition[0] == "d"]
    assert (may_delete_from(deletes, others), may_delete_from(deletes, own)) == (False, True)
