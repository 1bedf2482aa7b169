"""Statements that remove rows, redone on newer metadata: what concerns other rows does not stand in their way."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Not
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from iceberg_storage import Store, make_store
from test_iceberg_reapply import check_whole, race, set_properties
from test_iceberg_staging import BY_CITY, Lake, ids, rows
from trinitylake.iceberg_storage.extended_pyiceberg.append import AppendFiles
from trinitylake.iceberg_storage.extended_pyiceberg.rewrite import RewriteFiles
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedIcebergTable
from trinitylake.iceberg_storage.staging.changed_files import own_manifests
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict
from trinitylake.iceberg_storage.staging.touched_files import TouchedFiles, may_delete_from

Change = Callable[[Table], object]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store("remote", tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    """Partitioned by city: 1, 2, 3 in "a", 11, 12 in "b" in one file each, 21 in "c"."""
    lake = Lake(store, partition_spec=BY_CITY)
    filled = lake.begin()
    filled.table.append(cities(a=[1, 2, 3], b=[11, 12], c=[21]))
    lake.commit(filled)
    return lake


def cities(**ids: Iterable[int]) -> pa.Table:
    return pa.concat_tables([rows(*numbers, city=city) for city, numbers in ids.items()])


def contents(lake: Lake) -> dict[str, list[int]]:
    """Ids by city."""
    found: dict[str, list[int]] = {}
    for row in lake.begin().table.scan().to_arrow().to_pylist():
        found.setdefault(row["city"], []).append(row["id"])
    return {city: sorted(numbers) for city, numbers in sorted(found.items())}


def live_files(staged: StagedTable, branch: str = "main") -> list[DataFile]:
    head = staged.metadata.snapshot_by_name(branch)
    assert head is not None
    return [
        entry.data_file for manifest in head.manifests(staged.io) for entry in manifest.fetch_manifest_entry(staged.io)
    ]


def rewrite(staged: StagedTable, city: str, operation: Operation = Operation.REPLACE, **properties: str) -> None:
    """What an engine sends: the files of one city become a single one, in a snapshot that says no more than that."""
    table = staged.table
    assert isinstance(table, StagedIcebergTable)
    old = [file for file in live_files(staged) if file.partition[0] == city]
    rewritten = table.scan(EqualTo("city", city)).to_arrow()
    new = list(_dataframe_to_data_files(table.metadata, rewritten, staged.io))
    transaction = table.transaction_on(table.metadata)
    id = table.metadata.new_snapshot_id()
    producer = RewriteFiles(transaction, staged.io, transaction.added_files, operation, properties, "main", id, {})
    for file in old:
        producer.delete_data_file(file)
    for file in new:
        producer.append_data_file(file)
    updates, requirements = producer._commit()
    staged.commit(requirements, updates)


def raced(lake: Lake, winner: Change, loser: Callable[[StagedTable], object]) -> StagedTable:
    """As `race`, for losers that need the staged table."""
    first, second = lake.begin(), lake.begin()
    loser(second)
    second.finish()
    winner(first.table)
    lake.commit(first)
    return second


def land(lake: Lake, staged: StagedTable) -> None:
    """Redo and commit; no data file is written again, and what became useless is told of."""
    data = [path for path in staged.written_paths if path.endswith(".parquet")]
    old = {
        staged.io.path_of(uri)
        for update in snapshots_of(staged)
        for uri in (update.manifest_list, *(one.manifest_path for one in own_manifests(staged.io, update)))
    }
    staged.reapply(lake.path)
    assert [path for path in staged.written_paths if path.endswith(".parquet")] == data
    now = {staged.io.path_of(update.manifest_list) for update in snapshots_of(staged)}
    assert old - now <= set(staged.superseded_paths)
    lake.commit(staged)
    used = referenced(staged)
    for path in staged.superseded_paths:
        assert path not in used
        lake.storage.delete(path)
    leftover = {path for path in staged.written_paths if path.endswith(".avro")} - used - set(staged.superseded_paths)
    assert leftover == set(), "no manifest is left that nobody knows of"
    check_whole(lake)


def snapshots_of(staged: StagedTable) -> list:
    updates: list[TableUpdate] = [update for commit in staged._commits for update in commit.updates]
    return [update.snapshot for update in updates if update.action == "add-snapshot"]  # type: ignore[union-attr]


def referenced(staged: StagedTable) -> set[str]:
    """Manifest lists and manifests that the metadata leads to."""
    uris = [snapshot.manifest_list for snapshot in staged.metadata.snapshots]
    uris += [one.manifest_path for snapshot in staged.metadata.snapshots for one in snapshot.manifests(staged.io)]
    return {staged.io.path_of(uri) for uri in uris}


STATEMENTS: dict[str, Change] = {
    "delete a partition": lambda table: table.delete("city = 'a'"),
    "delete a row": lambda table: table.delete("city = 'a' and id = 2"),
    "delete by a column that is no partition": lambda table: table.delete("id = 2"),
    "overwrite a partition": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="city = 'a'"),
    "overwrite part of a file": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="id = 2"),
    "overwrite where nothing is": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="city = 'd'"),
    "replace a partition": lambda table: table.dynamic_partition_overwrite(cities(a=[5])),
    "upsert": lambda table: table.upsert(cities(a=[2, 5])),
    "several": lambda table: (table.delete("id = 1"), table.append(cities(a=[6])), table.delete("id in (2, 6)")),
}
ELSEWHERE: dict[str, Change] = {
    "append": lambda table: table.append(cities(b=[13])),
    "delete": lambda table: table.delete("city = 'b'"),
    "overwrite": lambda table: table.dynamic_partition_overwrite(cities(b=[14])),
    "rewrite": lambda table: table.overwrite(cities(b=[15]), overwrite_filter="id = 11"),
}


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


def test_what_was_added_and_removed_meanwhile_does_not_count_against_an_append(lake: Lake) -> None:
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


def test_under_snapshot_isolation_of_the_table_rows_may_have_come(lake: Lake) -> None:
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
        loser.reapply(lake.path)  # `write.update.isolation-level` is what counts here
    loser = race(lake, lambda table: table.delete("id = 9"), lambda table: table.delete("city = 'a' and id < 10"))
    with pytest.raises(TableConflict, match="removed"):
        loser.reapply(lake.path)


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
    with pytest.raises(TableConflict, match="which replace removes, was removed by somebody else"):
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
    with pytest.raises(TableConflict, match="was removed by somebody else"):
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
def test_what_an_engine_removed_looked_for_rows_where_its_files_lie(
    lake: Lake, operation: Operation, winner: Change, expected: dict[str, list[int]] | None
) -> None:
    """Spark's UPDATE and DELETE in a transaction conflicted with whatever came to other partitions, where the same
    statements without a transaction pass: an engine sends no condition, and nothing was taken from its files."""
    loser = raced(lake, winner, lambda staged: rewrite(staged, "a", operation))
    if expected is not None:
        land(lake, loser)
        assert contents(lake) == expected
    else:
        with pytest.raises(TableConflict, match="leave room for rows that it would have found"):
            loser.reapply(lake.path)


def test_bounds_exclude_nothing_where_they_say_nothing() -> None:
    """Nulls and NaN lie outside of the bounds of a column, and bounds of an older type cannot be read."""
    schema = IcebergSchema(NestedField(1, "id", LongType()), NestedField(2, "speed", DoubleType()))

    def file(lower: int, upper: int, nulls: int | None, **more: Any) -> DataFile:
        bounds = [{1: pack("<q", number), **more} for number in (lower, upper)]
        counts = {} if nulls is None else {1: nulls}
        made = DataFile.from_args(
            partition=Record(), lower_bounds=bounds[0], upper_bounds=bounds[1], null_value_counts=counts
        )
        made.spec_id = 0
        return made

    touched = TouchedFiles([file(1, 3, 0), file(10, 12, 1)], schema)
    assert not touched.may_meet(file(4, 9, 0))
    assert touched.may_meet(file(3, 4, 0))
    assert touched.may_meet(file(4, 9, 2))
    assert touched.may_meet(file(4, 9, None))
    unreadable = file(4, 9, 0)
    unreadable.lower_bounds[1] = b"\0"
    assert touched.may_meet(unreadable)
    slow, fast = ({2: pack("<d", speed)} for speed in (1.0, 9.0))
    no_bounds = DataFile.from_args(partition=Record(), lower_bounds=slow, upper_bounds=slow, null_value_counts={2: 0})
    no_bounds.spec_id = 0
    other = DataFile.from_args(partition=Record(), lower_bounds=fast, upper_bounds=fast, null_value_counts={2: 0})
    other.spec_id = 0
    assert TouchedFiles([no_bounds], schema).may_meet(other)  # either may hold NaN
    other.spec_id = 1
    assert TouchedFiles([no_bounds], schema).may_meet(other)  # partitions of two specs may overlap


def test_what_an_engine_removed_is_redone_if_the_table_asks_for_snapshot_isolation(lake: Lake) -> None:
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
    """Spark's INSERT OVERWRITE of dynamic partitions says so in the summary."""
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

    # On main anything may happen, also to the same rows.
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


def test_an_engine_that_moves_the_branch_once_for_several_snapshots_loses_none(lake: Lake) -> None:
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


def test_what_a_statement_looked_for_is_saved_with_it(lake: Lake, store: Store) -> None:
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
    """Another engine gave the bounds of a `long` in three bytes."""
    loser, winner = lake.begin(), lake.begin()
    loser.table.delete("id = 31")
    loser.finish()
    table = winner.table
    assert isinstance(table, StagedIcebergTable)
    (file,) = _dataframe_to_data_files(table.metadata, cities(a=[31]), winner.io)
    for bounds in (file.lower_bounds, file.upper_bounds):
        bounds[1] = bounds[1][:3]
    producer = AppendFiles(table.transaction_on(table.metadata), winner.io, table.added_files, {}, "main")
    updates, requirements = producer.append_data_file(file)._commit()
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
    """Some filters come back from JSON as ones that fit no column any more; nothing could be redone by them."""
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


def delete_first_row(
    staged: StagedTable, city: str, add: pa.Table | None = None, bounds: bool = False, again: bool = False
) -> None:
    """Position deletes, as an engine sends them that merges on read; with rows to add, as its UPDATE does.

    With `bounds` the file tells which data file it is about. With `again` it replaces the city's delete file.
    """
    table = staged.table
    assert isinstance(table, StagedIcebergTable)
    (data,) = [
        file for file in live_files(staged) if file.partition[0] == city and file.content == DataFileContent.DATA
    ]
    uri = f"{table.location()}/data/{city}-{uuid.uuid4()}-deletes.parquet"
    positions = [0, 1] if again else [0]
    with staged.io.new_output(uri).create() as file:
        written = {"file_path": [data.file_path] * len(positions), "pos": pa.array(positions, pa.int64())}
        pq.write_table(pa.table(written, DELETES), file)
    path = {2147483546: data.file_path.encode()} if bounds else {}
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=data.partition,
        record_count=len(positions),
        file_size_in_bytes=len(staged.io.new_input(uri)),
        lower_bounds=path,
        upper_bounds=path,
    )
    deletes.spec_id = data.spec_id
    operation = Operation.DELETE if add is None else Operation.OVERWRITE
    transaction, id = table.transaction_on(table.metadata), table.metadata.new_snapshot_id()
    producer = RewriteFiles(transaction, staged.io, table.added_files, operation, {}, "main", id, {})
    producer.append_data_file(deletes)
    for new in () if add is None else _dataframe_to_data_files(table.metadata, add, staged.io):
        producer.append_data_file(new)
    for old in live_files(staged) if again else ():
        if old.content != DataFileContent.DATA and old.partition == data.partition:
            producer.delete_data_file(old)
    updates, requirements = producer._commit()
    staged.commit(requirements, updates)


DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


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
    """What Spark's UPDATE and DELETE send for a table that merges on read conflicted with every other commit."""

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
    """A second DELETE on a data file replaces the file of the first: in the manifests of deletes, not of data."""
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
        (lambda s: s.table.append(cities(a=[2])), None, "leave room"),
        (lambda s: s.table.append(cities(a=[2])), cities(a=[101]), "leave room"),
        (lambda s: rewrite(s, "a"), None, "which somebody else removed"),
        (lambda s: s.table.delete("id = 2"), None, "which somebody else removed"),
        (lambda s: s.table.delete("city = 'a'"), cities(a=[101]), "which somebody else removed"),
        (lambda s: delete_first_row(s, "a"), cities(a=[101]), "may have deleted rows"),
        (lambda s: s.table.delete("city = 'a'"), None, None),
        (lambda s: delete_first_row(s, "a"), None, None),
    ],
    ids=["found", "found by update", "compacted", "rewritten", "gone", "updated twice", "all gone", "deleted twice"],
)
def test_deletes_that_are_merged_on_read_conflict_by_the_rules_of_iceberg(
    lake: Lake, winner: Callable[[StagedTable], object], add: pa.Table | None, why: str | None
) -> None:
    """A row that two UPDATEs change must not be there twice, and positions hold in no other file than their own. A
    row that is deleted twice is gone, so that passes."""
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
    """Files of deleted rows say which data file they are about: a partition of many files is no one thing."""
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
