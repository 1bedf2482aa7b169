"""Rebase of staged changes: changes that Iceberg's requirements allow are rebased, other changes conflict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertCurrentSchemaId, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType
from test_iceberg_staging import BY_CITY, Lake, ids, new_table, rows

import trinitylake as tl
from iceberg_storage import STORES, Store, make_store
from trinitylake.iceberg_storage import metadata as metadata_module
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict

Change = Callable[[Table], object]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    """A table with the rows 1, 2 and 3."""
    lake = Lake(store)
    filled = lake.begin()
    filled.table.append(rows(1, 2, 3))
    lake.commit(filled)
    return lake


def race(lake: Lake, winner: Change, loser: Change) -> StagedTable:
    """Change the table twice from the same state, and commit `winner`. Returns the staged table of `loser`."""
    first, second = lake.begin(), lake.begin()
    loser(second.table)
    second.finish()
    winner(first.table)
    lake.commit(first)
    return second


def check_whole(lake: Lake) -> None:
    """Check counters, ascending sequence numbers, and rows read by PyIceberg itself."""
    metadata_module.cache.clear()
    staged = lake.begin()
    metadata = staged.metadata
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    numbers = [snapshot.sequence_number for snapshot in metadata.snapshots]
    assert numbers == sorted(set(numbers))
    assert metadata.last_sequence_number == max(numbers, default=0)
    for name, ref in metadata.refs.items():
        assert ref.snapshot_id in snapshots, name
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert times == sorted(times)
    for snapshot in metadata.snapshots:
        total = 0
        for manifest in snapshot.manifests(staged.io):
            assert manifest.sequence_number <= snapshot.sequence_number
            for entry in manifest.fetch_manifest_entry(staged.io):
                assert entry.sequence_number is not None
                assert entry.sequence_number <= snapshot.sequence_number
                if entry.snapshot_id in snapshots:
                    assert entry.sequence_number == snapshots[entry.snapshot_id].sequence_number
                total += entry.data_file.record_count if entry.data_file.content == DataFileContent.DATA else 0
                assert lake.storage.exists(staged.io.path_of(entry.data_file.file_path))
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(total)
    if lake.storage.root.startswith("file:"):
        read = StaticTable.from_metadata(lake.storage.root + lake.path).scan().to_arrow()["id"].to_pylist()
        assert sorted(read) == ids(staged)


def test_two_appends_both_land(lake: Lake) -> None:
    loser = race(lake, lambda table: table.append(rows(4)), lambda table: table.append(rows(5, 6)))
    data = [path for path in loser.written_paths if path.endswith(".parquet")]
    before = loser.finish()[0]
    loser.reapply(lake.path)
    assert [path for path in loser.written_paths if path.endswith(".parquet")] == data, "no data is uploaded again"
    assert ids(loser) == [1, 2, 3, 4, 5, 6]
    assert loser.finish()[0] != before
    assert loser.finish()[0].startswith("ns/t-0badcafe/metadata/00003-")
    assert before in loser.superseded_paths
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    snapshot = loser.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (snapshot.summary["added-records"], snapshot.summary["total-records"]) == ("2", "6")
    assert snapshot.sequence_number == 3
    check_whole(lake)


def test_a_race_can_be_lost_many_times(lake: Lake) -> None:
    loser = lake.begin()
    loser.table.append(rows(100))
    loser.table.append(rows(101))
    for id in range(4, 30):
        winner = lake.begin()
        winner.table.append(rows(id))
        lake.commit(winner)
        if id % 2:
            loser.reapply(lake.path)
            loser.finish()
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [*range(1, 30), 100, 101]
    for path in loser.superseded_paths:
        lake.storage.delete(path)
    check_whole(lake)


def test_an_append_to_an_empty_table_is_redone(store: Store) -> None:
    lake = Lake(store)
    loser = race(lake, lambda table: table.append(rows(1)), lambda table: table.append(rows(2)))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2]
    check_whole(lake)


def test_several_appends_of_one_pyiceberg_transaction_are_redone_in_order(lake: Lake) -> None:
    def appends(table: Table) -> None:
        with table.transaction() as change:
            change.append(rows(5), snapshot_properties={"batch": "one"})
            change.append(rows(6), snapshot_properties={"batch": "two"})

    loser = race(lake, lambda table: table.append(rows(4)), appends)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    batches = [s.summary["batch"] for s in loser.metadata.snapshots[-2:] if s.summary is not None]
    assert batches == ["one", "two"]
    check_whole(lake)


def test_an_append_is_redone_after_rows_were_deleted(lake: Lake) -> None:
    loser = race(lake, lambda table: table.delete("id = 2"), lambda table: table.append(rows(4)))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 3, 4]
    check_whole(lake)


def test_an_append_is_redone_when_manifests_were_merged_meanwhile(store: Store) -> None:
    lake = Lake(store)
    for id in range(9):
        staged = lake.begin()
        staged.table.append(rows(id))
        lake.commit(staged)

    def many(start: int) -> Change:
        def change(table: Table) -> None:
            for id in range(start, start + 5):
                table.append(rows(id))

        return change

    loser = race(lake, many(20), many(30))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [*range(9), *range(20, 25), *range(30, 35)]
    check_whole(lake)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize(
    ("loser", "word"),
    [
        (lambda table: table.delete("id = 1 or id = 4"), "delete"),
        (lambda table: table.delete("id > 1"), "delete"),
        (lambda table: table.overwrite(rows(9)), "overwrite"),
        (lambda table: table.overwrite(rows(9), overwrite_filter=EqualTo("id", 4)), "overwrite"),
        (lambda table: table.upsert(rows(1, 4, city="z")), "upsert"),
        (lambda table: table.upsert(rows(4)), "upsert"),
    ],
    ids=["part of a file", "rows", "everything", "nothing matched", "update", "insert only"],
)
def test_statement_conflicts_if_rows_of_its_filter_were_added(lake: Lake, loser: Change, word: str) -> None:
    staged = race(lake, lambda table: table.append(rows(4)), loser)
    before = staged.metadata
    with pytest.raises(TableConflict, match="assert-ref-snapshot-id") as caught:
        staged.reapply(lake.path)
    assert word in caught.value.requirement
    assert staged.metadata is before
    assert staged.base_metadata_path != lake.path, "a conflict leaves the staged table as it was"


def test_statement_is_redone_if_no_row_changed(lake: Lake) -> None:
    def owner(table: Table) -> None:
        with table.transaction() as change:
            change.set_properties({"owner": "ops"})

    for loser, expected in (
        (lambda table: table.overwrite(rows(7, 8)), [7, 8]),
        (lambda table: table.delete("id = 7"), [8]),
        (lambda table: table.upsert(rows(8, 9, city="z")), [8, 9]),
    ):
        staged = race(lake, owner, loser)
        staged.reapply(lake.path)
        lake.commit(staged)
        assert lake.ids() == expected
    assert lake.begin().table.properties["owner"] == "ops"
    check_whole(lake)


def test_a_row_level_commit_of_another_engine_conflicts(lake: Lake) -> None:
    """Spark's MERGE says nothing about what it read: two that insert the same key conflict."""

    staged = lake.begin()
    other = lake.begin()
    other.table.append(rows(5))
    snapshot = other.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    merged = snapshot.model_copy(
        update={"summary": snapshot.summary.model_copy(update={"operation": Operation.OVERWRITE})}
    )
    staged.commit(
        (AssertRefSnapshotId(ref="main", snapshot_id=snapshot.parent_snapshot_id),),
        (
            AddSnapshotUpdate(snapshot=merged),
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=merged.snapshot_id),
        ),
    )
    winner = lake.begin()
    winner.table.append(rows(5))
    lake.commit(winner)
    with pytest.raises(TableConflict, match=r"overwrite removes rows; snapshot .* added files"):
        staged.reapply(lake.path)


def test_a_schema_change_is_redone_if_the_schema_did_not_change(lake: Lake) -> None:
    def widen(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("note", StringType())
        data = rows(5).append_column("note", pa.array(["hello"]))
        table.append(data)

    loser = race(lake, lambda table: table.append(rows(4)), widen)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5]
    assert lake.begin().table.scan("id = 5").to_arrow()["note"].to_pylist() == ["hello"]
    check_whole(lake)


@pytest.mark.parametrize("ours", ["schema", "append after schema"])
def test_two_schema_changes_conflict(lake: Lake, ours: str) -> None:
    def change(table: Table, column: str, append: bool) -> None:
        with table.update_schema() as update:
            update.add_column(column, StringType())
        if append:
            table.append(rows(5))

    staged = race(lake, lambda table: change(table, "a", False), lambda table: change(table, "b", ours != "schema"))
    with pytest.raises(TableConflict, match=r"assert-(current-schema-id|last-assigned-field-id)"):
        staged.reapply(lake.path)


def test_rows_written_before_a_column_was_added_are_redone_under_the_new_schema(lake: Lake) -> None:
    def widen(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("note", StringType())

    loser = race(lake, widen, lambda table: table.append(rows(4)))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.begin().table.scan("id = 4").to_arrow()["note"].to_pylist() == [None]
    snapshot = lake.begin().table.current_snapshot()
    assert snapshot is not None
    assert snapshot.schema_id == 1
    check_whole(lake)


def test_rows_that_lack_a_column_that_became_required_conflict(store: Store) -> None:
    def require(table: Table) -> None:
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.update_column("city", required=True)

    lake = Lake(store)
    staged = race(lake, require, lambda table: table.append(rows(4)))
    with pytest.raises(TableConflict, match="city is required now"):
        staged.reapply(lake.path)


def test_rows_are_redone_under_the_partition_spec_they_were_written_with(lake: Lake) -> None:
    def partition(table: Table) -> None:
        with table.update_spec() as update:
            update.add_identity("city")
        table.append(rows(4, city="b"))

    loser = race(lake, partition, lambda table: table.append(rows(5)))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5]
    files = {file["file_path"]: file["spec_id"] for file in lake.begin().table.inspect.files().to_pylist()}
    assert sorted(files.values()) == [0, 0, 1]
    assert lake.begin().table.scan("city = 'b'").to_arrow()["id"].to_pylist() == [4]
    check_whole(lake)


def test_two_changes_of_the_partition_spec_conflict(store: Store) -> None:
    lake = Lake(store, partition_spec=BY_CITY)

    def spec(name: str) -> Change:
        return lambda table: table.update_spec().add_field("id", IdentityTransform(), name).commit()

    staged = race(lake, spec("a"), spec("b"))
    with pytest.raises(TableConflict, match="partition"):
        staged.reapply(lake.path)


def test_two_sort_orders_conflict(lake: Lake) -> None:
    def sort(column: str) -> Change:
        return lambda table: table.update_sort_order().asc(column, IdentityTransform()).commit()

    staged = race(lake, sort("id"), sort("city"))
    with pytest.raises(TableConflict, match="sort"):
        staged.reapply(lake.path)


def set_properties(**properties: str) -> Change:
    return lambda table: table.transaction().set_properties(properties).commit_transaction()


def test_different_properties_are_both_set(lake: Lake) -> None:
    loser = race(lake, set_properties(a="1", same="x"), set_properties(b="2", same="x"))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.begin().table.properties == {
        "a": "1",
        "b": "2",
        "same": "x",
        "gc.enabled": "false",
        "write.parquet.compression-codec": "zstd",
    }


def test_the_same_property_set_to_different_values_conflicts(lake: Lake) -> None:
    staged = race(lake, set_properties(a="1"), set_properties(a="2"))
    with pytest.raises(TableConflict, match="'a' was changed by both"):
        staged.reapply(lake.path)


def test_a_property_removed_by_both_conflicts(lake: Lake) -> None:
    first = lake.begin()
    set_properties(a="1")(first.table)
    lake.commit(first)

    def remove(table: Table) -> None:
        table.transaction().remove_properties("a").commit_transaction()

    staged = race(lake, remove, remove)
    with pytest.raises(TableConflict, match="'a'"):
        staged.reapply(lake.path)


def test_tags_of_both_are_kept_and_the_same_tag_conflicts(lake: Lake) -> None:
    snapshot = lake.begin().metadata.snapshots[0].snapshot_id

    def tag(name: str) -> Change:
        return lambda table: table.manage_snapshots().create_tag(snapshot, name).commit()

    loser = race(lake, tag("a"), tag("b"))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert set(lake.begin().metadata.refs) == {"main", "a", "b"}

    def tag_own(table: Table) -> None:
        table.append(rows(9))
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_tag(head.snapshot_id, "mine").commit()

    loser = race(lake, lambda table: table.append(rows(8)), tag_own)
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.begin().table.scan().use_ref("mine").to_arrow().num_rows == 5
    check_whole(lake)

    loser = race(
        lake,
        tag("c"),
        lambda table: table.manage_snapshots().create_tag(table.metadata.snapshots[1].snapshot_id, "c").commit(),
    )
    with pytest.raises(TableConflict, match="assert-ref-snapshot-id"):
        loser.reapply(lake.path)


def test_going_back_to_an_older_snapshot_conflicts_with_an_append(lake: Lake) -> None:
    more = lake.begin()
    more.table.append(rows(4))
    lake.commit(more)
    first = more.metadata.snapshots[0].snapshot_id
    staged = race(
        lake,
        lambda table: table.append(rows(5)),
        lambda table: table.manage_snapshots().rollback_to_snapshot(first).commit(),
    )
    with pytest.raises(TableConflict, match="assert-ref-snapshot-id: main moved"):
        staged.reapply(lake.path)


def test_appends_to_different_branches_both_land(lake: Lake) -> None:
    head = lake.begin().metadata.snapshots[0].snapshot_id
    staged = lake.begin()
    staged.table.manage_snapshots().create_branch(head, "audit").commit()
    lake.commit(staged)
    loser = race(lake, lambda table: table.append(rows(4)), lambda table: table.append(rows(5), branch="audit"))
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4]
    assert sorted(lake.begin().table.scan().use_ref("audit").to_arrow()["id"].to_pylist()) == [1, 2, 3, 5]
    check_whole(lake)


def test_a_snapshot_that_got_a_tag_is_not_expired(lake: Lake) -> None:
    more = lake.begin()
    more.table.append(rows(4))
    lake.commit(more)
    first = more.metadata.snapshots[0].snapshot_id
    staged = race(
        lake,
        lambda table: table.manage_snapshots().create_tag(first, "keep").commit(),
        lambda table: table.maintenance.expire_snapshots().by_id(first).commit(),
    )
    with pytest.raises(TableConflict, match="was given a branch or tag"):
        staged.reapply(lake.path)


def test_an_append_is_redone_after_old_snapshots_were_expired(lake: Lake) -> None:
    more = lake.begin()
    more.table.append(rows(4))
    lake.commit(more)
    first = more.metadata.snapshots[0].snapshot_id
    loser = race(
        lake,
        lambda table: table.maintenance.expire_snapshots().by_id(first).commit(),
        lambda table: table.append(rows(5)),
    )
    loser.reapply(lake.path)
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 4, 5]
    assert len(lake.begin().metadata.snapshots) == 2
    check_whole(lake)


def test_a_requirement_on_something_else_is_checked_again(lake: Lake) -> None:
    def widen(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("note", IntegerType())

    staged = lake.begin()
    staged.commit((AssertCurrentSchemaId.model_validate({"current-schema-id": 0}),), ())
    other = lake.begin()
    other.table.append(rows(5))
    update = other._commits[0].updates
    requirement = AssertCurrentSchemaId.model_validate({"current-schema-id": 0})
    staged.commit((*other._commits[0].requirements, requirement), update)
    winner = lake.begin()
    widen(winner.table)
    lake.commit(winner)
    with pytest.raises(TableConflict, match="assert-current-schema-id"):
        staged.reapply(lake.path)


def test_a_table_that_was_replaced_conflicts(lake: Lake, store: Store) -> None:
    staged = lake.begin()
    staged.table.append(rows(4))
    other = Lake(store)
    with pytest.raises(TableConflict, match="assert-table-uuid"):
        staged.reapply(other.path)


def test_a_table_that_is_new_here_cannot_be_redone_on_another(lake: Lake) -> None:
    staged = new_table(lake.io, "ns/t")
    with pytest.raises(TableConflict, match="assert-create"):
        staged.reapply(lake.path)


def test_if_one_of_several_changes_conflicts_none_is_redone(lake: Lake) -> None:
    def changes(table: Table) -> None:
        table.append(rows(5))
        set_properties(a="2")(table)

    staged = race(lake, set_properties(a="1"), changes)
    before = (staged.metadata, staged.base_metadata_path)
    with pytest.raises(TableConflict):
        staged.reapply(lake.path)
    assert (staged.metadata, staged.base_metadata_path) == before


def test_table_is_usable_after_a_rebase(lake: Lake) -> None:
    loser = race(lake, lambda table: table.append(rows(4)), lambda table: table.append(rows(5)))
    loser.reapply(lake.path)
    loser.table.delete("id = 4")
    with loser.table.update_schema() as update:
        update.update_column("id", LongType(), doc="the number")
    loser.table.append(rows(6))
    lake.commit(loser)
    assert lake.ids() == [1, 2, 3, 5, 6]
    check_whole(lake)


def people(*emails: str, first: int = 1) -> pa.Table:
    return pa.table({"id": range(first, first + len(emails)), "email": pa.array(emails, pa.string())})


@pytest.mark.parametrize("statement", ["append", "delete", "update", "delete file", "compact"])
def test_a_transaction_that_began_before_an_erasure_brings_no_row_back(tmp_path: Path, statement: str) -> None:
    """A transaction that began before an erasure cannot commit with the former manifests. A rewritten snapshot keeps
    its id, and a saved transaction keeps the files, so otherwise the latest version would have the erased rows again.
    """
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", {"id": "bigint", "email": "text"}).append(people("bob", "ann", "eve"))
    lake.table("raw.orders").append(people("ann", "dan", first=4))
    lake.begin(id="held").save()
    transaction = tl.open(tmp_path / "lake").begin()
    table = transaction.table("raw.orders")
    match statement:
        case "append":
            table.append(people("new", first=9))
            table.count()  # the rows are staged
        case "delete":
            table.delete("id = 3")
        case "update":
            transaction.sql("UPDATE raw.orders SET email = 'bo' WHERE id = 1")
        case "delete file":
            table.delete("id >= 4")
        case "compact":
            table.maintenance.compact()
    lake.erase("raw.orders", "email = 'ann'")
    expected = {1: "bob", 3: "eve", 5: "dan"}
    try:
        transaction.commit()
    except tl.CommitConflict:
        assert statement != "append"
    else:
        changes = {"append": {9: "new"}, "delete": {3: None}, "update": {1: "bo"}, "delete file": {5: None}}
        expected |= changes.get(statement, {})
    found = {
        row["id"]: row["email"] for row in tl.open(tmp_path / "lake").table("raw.orders").scan().to_arrow().to_pylist()
    }
    assert found == {id: email for id, email in expected.items() if email is not None}
    assert lake.maintenance.fsck(data=True).is_sound
