"""Rebase of statements that remove rows: changes of other rows do not conflict."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Not
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, TimestampType, TimestamptzType
from test_iceberg_rebase import race, set_properties
from test_iceberg_staging import Lake, ids, rows

from iceberg_disjoint import ELSEWHERE, STATEMENTS, Change, cities, contents, filled, land
from iceberg_storage import Store, make_store
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
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
    """A saved filter that does not fit any column after it was read from JSON is replaced by a filter for all rows, so
    that the transaction can be rebased."""
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
