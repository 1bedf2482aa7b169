"""`upsert` and `merge`, compared with a dictionary, and unusual values, keys and files."""

from __future__ import annotations

import decimal
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trinitylake as tl
from local_files import lake_on_disk
from merged_rows import content, files, numbers, pairs
from position_deletes import delete_positions
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.iceberg_storage.data_files import file_sizes, parquet_batches
from trinitylake.tables.merging import file_rewrite, matching
from trinitylake.tables.merging.join_keys import DenseKeys
from trinitylake.tables.merging.row_operations import differing
from waiting import in_threads

lake = lake_on_disk("ns")


keys_and_values = st.dictionaries(st.integers(0, 30), st.integers(0, 3), max_size=20)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["upsert", "append", "delete", "merge"]), keys_and_values), max_size=6))
def test_merging_is_what_a_dictionary_does(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    lake = tl.create(f"memory://{tmp_path_factory.mktemp('x').name}-{id(steps)}", durability="none", exist_ok=True)
    lake.create_namespace("ns", exist_ok=True)
    name = f"ns.t{lake.version}"
    table = lake.create_table(name, numbers([]), partition_spec=["bucket(3, id)"] if len(steps) % 2 else None)
    model: dict[int, int] = {}
    for verb, rows in steps:
        data = numbers(list(rows), list(rows.values()))
        if verb == "append":
            new = {id: n for id, n in rows.items() if id not in model}
            table.append(numbers(list(new), list(new.values())))
            model |= new
        elif verb == "upsert":
            changed = sum(id in model and model[id] != n for id, n in rows.items())
            assert table.upsert(data, on="id") == (changed, len(rows.keys() - model.keys()))
            model |= rows
        elif verb == "delete":
            merge = table.merge(data, on="id").when_matched_delete(condition="target.n <= source.n")
            gone = {id for id, n in rows.items() if id in model and model[id] <= n}
            assert merge.execute() == (0, len(gone), 0)
            model = {id: n for id, n in model.items() if id not in gone}
        else:
            result = (
                table.merge(data, on="id")
                .when_matched_delete(condition="source.n = 0")
                .when_matched_update({"n": "target.n + source.n"}, condition="source.n > 1")
                .when_not_matched_insert(condition="source.n < 3")
                .execute()
            )
            known = {id: n for id, n in rows.items() if id in model}
            fresh = {id: n for id, n in rows.items() if id not in model and n < 3}
            updated = {id: model[id] + n for id, n in known.items() if n > 1}
            gone = {id for id, n in known.items() if n == 0}
            assert result == (len(updated), len(gone), len(fresh))
            model = {id: n for id, n in (model | updated | fresh).items() if id not in gone}
        assert pairs(table) == model


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
@pytest.mark.parametrize("changed", [0, 57, 99])
def test_rows_before_the_first_change_stay(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, changed: int
) -> None:
    """A file is read until a changed row is found, and then read again for the rows before it."""
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", 10)
    monkeypatch.setattr(file_rewrite, "KEPT_PARTS_SIZE_BYTES", kept_bytes)
    table = lake.create_table("ns.t", numbers([]).schema)
    table.append(numbers(list(range(100))))
    before = set(files(table))
    assert table.upsert(numbers(list(range(100))), on="id") == (0, 0)
    assert set(files(table)) == before
    given = {number: number for number in range(100)} | {changed: -1}
    assert table.upsert(numbers(list(given), list(given.values())), on="id") == (1, 0)
    assert pairs(table) == given
    assert table.upsert(numbers([200]), on="id") == (0, 1)


def small_row_groups(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Limit batches and row groups to a few rows."""
    monkeypatch.setattr(parquet_batches, "BATCH_ROWS", rows)
    monkeypatch.setattr(file_sizes, "ROW_GROUP_SIZE_BYTES", rows * 8)


@pytest.mark.parametrize("failing", [0, 3, 9])
def test_error_of_the_file_writer_is_raised_and_leaves_no_file(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: int
) -> None:
    small_row_groups(monkeypatch, 10)
    table = lake.create_table("ns.t", numbers([]).schema)
    table.append(numbers(list(range(100))))
    before, on_disk = content(table), set(tmp_path.rglob("*.parquet"))
    groups = iter(range(1000))
    write = pq.ParquetWriter.write

    def fail(self: Any, rows: pa.Table, row_group_size: int | None = None) -> None:
        if next(groups) == failing:
            raise OSError("no space left")
        write(self, rows, row_group_size)

    monkeypatch.setattr(pq.ParquetWriter, "write", fail)
    with pytest.raises(OSError, match="no space left"):
        table.upsert(numbers(list(range(100)), [-1] * 100), on="id")
    monkeypatch.undo()
    assert content(lake.table("ns.t")) == before
    assert set(tmp_path.rglob("*.parquet")) == on_disk


def test_a_table_of_keys_alone_is_merged(lake: tl.Lakehouse) -> None:
    """A table whose only columns are keys can be merged, although no other column of a file has to be read."""
    table = lake.create_table("ns.t", pa.schema([("id", pa.int64())]))
    table.append({"id": [1, 2, 3]})
    assert table.upsert({"id": [3, 4]}, on="id") == (0, 1)
    assert table.merge({"id": [1, 9]}, on="id").when_matched_delete().execute() == (0, 1, 0)
    assert sorted(row["id"] for row in content(table)) == [2, 3, 4]


def test_rows_in_time_zones_and_nested_values(lake: tl.Lakehouse) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("where", pa.struct([("x", pa.float64()), ("names", pa.map_(pa.string(), pa.int64()))])),
        ]
    )
    row = {"id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC), "tags": ["a"], "where": {"x": 1.0, "names": [("k", 1)]}}
    other = {"id": 2, "at": None, "tags": None, "where": None}
    table = lake.create_table("ns.t", schema)
    table.append(pa.Table.from_pylist([row, other], schema))
    assert table.upsert(pa.Table.from_pylist([row, other], schema), on="id") == (0, 0)
    for change in ({"tags": ["a", None]}, {"tags": []}, {"where": {"x": 1.0, "names": [("k", 2)]}}, {"where": None}):
        assert table.upsert(pa.Table.from_pylist([row | change], schema), on="id") == (1, 0)
        assert table.scan(filter="id = 1").to_arrow().to_pylist() == [row | change]
    given = pa.table({"id": [1, 2], "at": pa.array([datetime(2024, 6, 1)] * 2, pa.timestamp("us", "Europe/Berlin"))})
    merge = table.merge(given, on="id").when_matched_update(condition="target.at IS NULL OR source.at > target.at")
    assert merge.execute() == (2, 0, 0)
    assert table.scan().to_arrow()["at"].to_pylist() == [datetime(2024, 6, 1, tzinfo=UTC)] * 2


def test_columns_that_the_data_does_not_have_keep_their_values(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", pa.table({"id": [1], "a": [1], "b": [1]}))
    table.append({"id": [1, 2], "a": [1, 2], "b": [1, 2]})
    assert table.upsert({"id": [2, 3], "b": [20, 30]}, on="id") == (1, 1)
    assert content(table) == [{"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 2, "b": 20}, {"id": 3, "a": None, "b": 30}]


def test_columns_that_were_renamed_and_added_since(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", pa.table({"key": [1], "n": [1]}), partition_spec=["bucket(2, key)"])
    table.append({"key": [1, 2, 3], "n": [1, 2, 3]})
    with table.update_schema() as update:
        update.rename_column("key", "id")
        update.add_column("extra", __import__("pyiceberg.types").types.StringType())
    assert table.upsert({"id": [2, 4], "n": [2, 4], "extra": ["x", "y"]}, on="id") == (1, 1)
    assert [row["extra"] for row in content(table)] == [None, "x", None, "y"]
    with table.update_schema() as update:
        update.delete_column("n")
    assert table.upsert({"id": [1], "extra": ["z"]}, on="id") == (1, 0)
    assert [row["extra"] for row in content(table)] == ["z", "x", None, "y"]


def test_a_row_moves_to_the_partition_of_its_new_value(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", {"id": "bigint", "city": "text"}, partition_spec=["city"])
    table.append({"id": [1, 2, 3], "city": ["a", "a", None]})
    assert table.upsert({"id": [2, 3], "city": ["b", "a"]}, on="id") == (2, 0)
    assert content(table) == [{"id": 1, "city": "a"}, {"id": 2, "city": "b"}, {"id": 3, "city": "a"}]
    assert {task.file.partition[0] for task in table.iceberg.scan().plan_files()} == {"a", "b"}


def test_deleted_positions_of_an_engine_stay_deleted(lake: tl.Lakehouse) -> None:
    """A row that position deletes removed must not match, and must not come back when its file is rewritten."""
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1, 2, 3, 4]))
    (task,) = table.iceberg.scan().plan_files()
    delete_positions(table, task, [0, 2])
    assert pairs(table) == {2: 2, 4: 4}
    assert table.upsert(numbers([1, 4], [10, 40]), on="id") == (1, 1)
    assert pairs(table) == {1: 10, 2: 2, 4: 40}
    table.upsert(numbers([2], [20]), on="id")
    assert pairs(table) == {1: 10, 2: 20, 4: 40}


def test_a_merge_sees_the_writes_of_its_transaction(lake: tl.Lakehouse) -> None:
    lake.create_table("ns.t", numbers([]))
    with lake.transaction() as txn:
        table = txn.table("ns.t")
        table.append(numbers([1, 2]))
        assert table.merge(numbers([2, 3], [5, 6]), on="id").when_matched_update().execute() == (1, 0, 0)
        assert table.upsert(numbers([2, 3], [7, 8]), on="id") == (1, 1)
        table.delete("id = 1")
    assert pairs(lake.table("ns.t")) == {2: 7, 3: 8}


def test_a_saved_transaction_is_resumed_with_its_merge_and_redone(lake: tl.Lakehouse) -> None:
    lake.create_table("ns.t", numbers([])).append(numbers([1, 2]))
    txn = lake.begin(id="handed-over")
    txn.table("ns.t").merge(
        numbers([2, 3], [20, 30]), on="id"
    ).when_matched_update().when_not_matched_insert().execute()
    txn.save()
    lake.table("ns.t").append(numbers([100]))
    resumed = tl.open(lake.uri, durability="none").resume("handed-over")
    assert resumed.table("ns.t").upsert(numbers([3], [31]), on="id") == (1, 0)
    resumed.commit()
    assert pairs(lake.table("ns.t")) == {1: 1, 2: 20, 3: 31, 100: 100}


def test_others_may_change_other_rows_meanwhile(lake: tl.Lakehouse) -> None:
    lake.create_table("ns.t", numbers([])).append(numbers([1, 2]))
    txn = lake.begin()
    txn.table("ns.t").merge(numbers([2], [20]), on="id").when_matched_update().execute()
    lake.table("ns.t").append(numbers([50]))
    txn.commit()
    assert pairs(lake.table("ns.t")) == {1: 1, 2: 20, 50: 50}
    lost = lake.begin()
    lost.table("ns.t").merge(numbers([7], [70]), on="id").when_not_matched_insert().execute()
    lake.table("ns.t").append(numbers([7]))
    with pytest.raises(CommitConflict, match="merge depends on the rows it found"):
        lost.commit()


def test_a_generator_is_read_once_though_the_merge_is_redone(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be empty in the second attempt."""
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1, 2]))
    reads = 0

    def data() -> Iterator[pa.RecordBatch]:
        nonlocal reads
        reads += 1
        yield from numbers([2, 3], [20, 30]).to_batches()

    attempts = 0
    from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedIcebergTable

    begin = StagedIcebergTable.transaction

    def interrupted(self: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            other = threading.Thread(target=lambda: tl.open(lake.uri, durability="none").table("ns.t").delete("id = 2"))
            other.start()
            other.join()
        return begin(self)

    monkeypatch.setattr(StagedIcebergTable, "transaction", interrupted)
    result = table.merge(data(), on="id").when_matched_update().when_not_matched_insert().execute()
    assert attempts > 2
    assert reads == 1
    assert result == (0, 0, 2)
    assert pairs(table) == {1: 1, 2: 20, 3: 30}


def test_merges_from_threads_all_count(lake: tl.Lakehouse) -> None:
    lake.create_table("ns.t", numbers([])).append(numbers([1, 2], [0, 0]))

    def work(_: int) -> None:
        own = tl.open(lake.uri, durability="none").table("ns.t")
        for _ in range(3):
            own.merge(numbers([1, 2]), on="id").when_matched_update({"n": "target.n + 1"}).execute()

    in_threads(work, range(3))
    assert pairs(lake.table("ns.t")) == {1: 9, 2: 9}


def test_a_condition_that_breaks_off_changes_nothing(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", {"id": "bigint", "s": "text"})
    table.append({"id": [1], "s": ["x"]})
    version, before = lake.version, files(table)
    for condition in ("source.s::INTEGER = 1", "error('stop')", "target.nothing = 1", "1 = 1; SELECT 2", "(SELECT 1"):
        merge = table.merge({"id": [1], "s": ["y"]}, on="id").when_matched_update(condition=condition)
        with pytest.raises(InvalidArgument, match="merge"):
            merge.execute()
    assert lake.version == version
    assert files(table) == before


def test_a_condition_reads_nothing_but_the_two_rows(lake: tl.Lakehouse, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1]))
    merge = table.merge(numbers([1]), on="id").when_matched_delete(
        condition=f"(SELECT count(*) FROM read_csv('{secret}')) > 0"
    )
    with pytest.raises(InvalidArgument, match="disabled"):
        merge.execute()


def test_a_merge_refuses_invalid_clauses(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]))
    merge = table.merge(numbers([1]), on="id").when_matched_update()
    with pytest.raises(InvalidArgument, match="never reached"):
        merge.when_matched_delete()
    with pytest.raises(InvalidArgument, match="no clause"):
        table.merge(numbers([1]), on="id").execute()
    assert merge.execute() == (0, 0, 0)
    with pytest.raises(InvalidArgument, match="executed already"):
        merge.execute()
    with pytest.raises(InvalidArgument, match="no primary key"):
        table.merge(numbers([1])).when_matched_delete().execute()
    with pytest.raises(InvalidArgument, match="has no column x"):
        table.merge(numbers([1]), on="x")
    with pytest.raises(InvalidArgument, match="has no column x"):
        table.merge(numbers([1]), on="id").when_matched_update({"x": "1"}).execute()
    with pytest.raises(InvalidArgument, match="missing from the data: id"):
        table.merge({"n": [1]}, on="id").when_matched_delete().execute()
    with pytest.raises(InvalidArgument, match="cannot cast"):
        table.merge({"id": ["x"]}, on="id").when_matched_delete().execute()
    frozen = lake.at(lake.version).table("ns.t")
    with pytest.raises(InvalidArgument):
        frozen.merge(numbers([1]), on="id").when_matched_delete().execute()
    nested = lake.create_table("ns.u", pa.schema([("s", pa.struct([("x", pa.int64())]))]))
    with pytest.raises(InvalidArgument, match="cannot be a key"):
        nested.upsert({"s": [{"x": 1}]}, on="s")


def test_a_thousand_columns(lake: tl.Lakehouse) -> None:
    names = [f"c{number}" for number in range(1000)]
    table = lake.create_table("ns.t", pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)]))
    table.append(pa.table({"id": [1, 2], **{name: [0, 0] for name in names}}))
    assert table.upsert(pa.table({"id": [2, 3], **{name: [1, 1] for name in names}}), on="id") == (1, 1)
    merge = table.merge(pa.table({"id": [1]}), on="id").when_matched_update({"c7": "target.c999 + 5"})
    assert merge.execute() == (1, 0, 0)
    assert sorted(table.scan(columns=["c7"]).to_arrow()["c7"].to_pylist()) == [1, 1, 5]


def test_all_rows_of_a_file_may_go(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1, 2]))
    table.append(numbers([3]))
    assert table.merge(numbers([1, 2]), on="id").when_matched_delete().execute() == (0, 2, 0)
    assert pairs(table) == {3: 3}
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "delete"


def test_columns_that_differ_are_found_in_every_type() -> None:
    entries = pa.map_(pa.string(), pa.int64())
    left = pa.table(
        {
            "x": [1.0, float("nan"), None, 1.0, 1.0],
            "l": pa.array([[1, 2], None, [], [3], [None]], pa.list_(pa.int64())),
            "m": pa.array([[("a", 1)], [], None, [("b", 2)], [("c", None)]], entries),
        }
    )
    assert not differing(left, left).any()
    right = pa.table(
        {
            "x": [1.0, float("nan"), None, 1.0, 2.0],
            "l": pa.array([[1, 3], None, None, [3], [None]], pa.list_(pa.int64())),
            "m": pa.array([[("a", 1)], [], None, [("b", 3)], [("c", None)]], entries),
        }
    )
    assert differing(left, right).tolist() == [True, False, True, True, True]


def test_a_condition_that_is_null_does_not_hold(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([1, 2, 3]).schema)
    table.append(numbers([1, 2, 3]))
    data = pa.table({"id": [1, 2, 4, 5], "n": pa.array([None, 20, None, 50], pa.int64())})
    merge = table.merge(data, on="id").when_matched_delete(condition="source.n > 0")
    assert merge.when_not_matched_insert(condition="source.n > 0").execute() == (0, 1, 1)
    assert pairs(table) == {1: 1, 3: 3, 5: 50}


def test_null_is_a_value_of_a_column_of_any_type(lake: tl.Lakehouse) -> None:
    """A clause can set a column of any type to NULL, which DuckDB returns as an integer if it has no type."""
    row = {"l": [1], "s": {"a": 1}, "m": {"b": 2}, "d": Decimal("1.10"), "t": "x", "n": 3}
    types = {
        "l": pa.list_(pa.int64()),
        "s": pa.struct([("a", pa.int64())]),
        "m": pa.map_(pa.string(), pa.int64()),
        "d": pa.decimal128(10, 2),
        "t": pa.string(),
        "n": pa.int32(),
    }
    table = lake.create_table("ns.t", pa.schema([("id", pa.int64()), *types.items()]))
    table.append([{"id": 1, **row}, {"id": 2, **row}])
    merge = table.merge({"id": [1, 3]}, on="id").when_matched_update(dict.fromkeys(row, "NULL"))
    merge.when_not_matched_insert({"id": "source.id", **dict.fromkeys(row, "NULL")}).execute()
    found = {one.pop("id"): one for one in table.scan().to_arrow().to_pylist()}
    assert found[1] == found[3] == dict.fromkeys(row)
    assert found[2] == row | {"m": [("b", 2)]}


# Keys


@pytest.mark.parametrize("on", [["key"], ["id"], ["key", "id"]])
def test_ids_of_the_type_uuid_are_keys_and_values(lake: tl.Lakehouse, on: list[str]) -> None:
    """Arrow cannot count, join or compare UUIDs."""

    def row(number: int, mark: int = 0) -> dict[str, Any]:
        id = uuid.UUID(int=number).bytes
        return {"key": id, "id": number, "mark": uuid.UUID(int=mark).bytes, "part": {"mark": uuid.UUID(int=mark).bytes}}

    columns = {"key": "uuid", "id": "bigint", "mark": "uuid", "part": "struct<mark: uuid>"}
    table = lake.create_table("ns.ids", columns)
    table.append([row(number) for number in range(4)])
    assert table.upsert([row(1), row(2, 7), row(9)], on=on) == (1, 1)
    assert table.upsert([row(2, 7)], on=on) == (0, 0)
    with pytest.raises(InvalidArgument, match="more than once"):
        table.upsert([row(3), row(3)], on=on)
    table.merge([row(0)], on=on).when_matched_delete().execute()
    found = {one["id"]: (one["mark"], one["part"]["mark"]) for one in table.scan().to_arrow().to_pylist()}
    none, seven = uuid.UUID(int=0), uuid.UUID(int=7)
    assert found == {1: (none, none), 2: (seven, seven), 3: (none, none), 9: (none, none)}


def test_files_that_cannot_hold_a_key_stay_unread(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upsert does not compare every row with a filter of all keys."""
    table = lake.create_table("ns.t", numbers([]))
    for start in range(0, 60, 10):
        table.append(numbers(list(range(start, start + 10))))
    before = files(table)
    read: list[str] = []
    batches_of = matching.LiveRows.batches

    def counted(self: Any, task: Any, *args: Any) -> Any:
        read.append(task.file.file_path)
        return batches_of(self, task, *args)

    monkeypatch.setattr(matching.LiveRows, "batches", counted)
    assert table.upsert(numbers([11, 55, 100], [0, 55, 1]), on="id") == (1, 1)
    after = files(table)
    assert len(set(read)) == 2
    assert len(before.keys() & after.keys()) == 5, "only one of the two files had a changed row"
    read.clear()
    many = list(range(10)) + list(range(50, 60)) + list(range(1000, 1300))
    assert table.upsert(numbers(many, many), on="id") == (0, 300)
    assert len(set(read)) == 2, "two files are read for more keys than a filter can have"
    assert files(table).keys() >= after.keys(), "no row changed, so no file is replaced"
    assert sum(files(table).values()) == 361


def test_partitions_that_no_key_lies_in_stay_unread(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]), partition_spec=["bucket(16, id)"])
    table.append(numbers(list(range(400))))
    before = files(table)
    assert table.upsert(numbers([3, 500], [0, 0]), on="id") == (1, 1)
    assert len(before.keys() - files(table).keys()) == 1
    assert pairs(table) == {id: id for id in range(400)} | {3: 0, 500: 0}


def test_keys_that_come_twice_are_named(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([1]), primary_key=["id"])
    with pytest.raises(InvalidArgument, match=r"2 keys occur more than once.*\(id=7\), \(id=8\)"):
        table.upsert(numbers([7, 8, 9, 7, 8], [1, 2, 3, 4, 5]))
    assert table.upsert(numbers([1, 1], [1, 1]).slice(1)) == (0, 1)


def test_more_than_one_row_for_a_row_is_an_error(lake: tl.Lakehouse) -> None:
    """Unless a condition selects one of the rows, or nothing is changed."""
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([1, 2]))
    data = numbers([1, 1, 3, 3], [10, 20, 30, 40])
    with pytest.raises(InvalidArgument, match=r"more than one row of the data would change.*\(id=1\)"):
        table.merge(data, on="id").when_matched_update().execute()
    assert pairs(table) == {1: 1, 2: 2}
    merge = table.merge(data, on="id").when_matched_update(condition="source.n > 15").when_not_matched_insert()
    assert merge.execute() == (1, 0, 2)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [2, 20, 30, 40]


def test_a_null_in_a_key_equals_nothing(lake: tl.Lakehouse) -> None:
    table = lake.create_table("ns.t", numbers([]))
    table.append(numbers([None, 1], [5, 1]))
    assert table.upsert(numbers([None, 1], [7, 2]), on="id") == (1, 1)
    assert content(table) == [{"id": None, "n": 5}, {"id": None, "n": 7}, {"id": 1, "n": 2}]
    assert table.upsert(numbers([None, None], [8, 9]), on="id") == (0, 2)
    merge = table.merge(numbers([None]), on="id").when_matched_delete()
    assert merge.execute() == (0, 0, 0)


def test_nan_equals_nan_and_zero_equals_zero(lake: tl.Lakehouse) -> None:
    """Bounds do not include NaN, so a file with only NaN must not be left out."""
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    table = lake.create_table("ns.t", schema)
    table.append(pa.table({"x": [float("nan")], "n": [1]}))
    table.append(pa.table({"x": [0.0, 1.5], "n": [2, 3]}))
    assert table.upsert(pa.table({"x": [float("nan"), -0.0], "n": [10, 20]}), on="x") == (2, 0)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [3, 10, 20]
    again = pa.table({"x": [float("nan"), -0.0], "n": [10, 20]})
    assert table.upsert(again, on="x") == (0, 0), "NaN and -0.0 are unchanged values"
    with pytest.raises(InvalidArgument, match="more than once"):
        table.upsert(pa.table({"x": [0.0, -0.0], "n": [1, 2]}), on="x")


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "decimal": (pa.decimal128(20, 3), [decimal.Decimal("1.500"), decimal.Decimal("-2.000"), decimal.Decimal("7.125")]),
    "timestamptz": (pa.timestamp("us", "UTC"), [datetime(2024, 5, day, 12, tzinfo=UTC) for day in (1, 2, 3)]),
    "timestamp": (pa.timestamp("us"), [datetime(2024, 5, day, 12) for day in (1, 2, 3)]),
    "date": (pa.date32(), [date(1960, 1, 1), date(2024, 5, 1), date(2030, 1, 1)]),
    "text": (pa.string(), ["a" * 40, "ä", "z'\"\\"]),
    "binary": (pa.binary(), [b"\0", b"\xff" * 20, b""]),
    "fixed": (pa.binary(16), [bytes([n]) * 16 for n in (1, 200, 255)]),
    "boolean": (pa.bool_(), [True, False, None]),
    "float": (pa.float32(), [1.5, float("inf"), -1.0]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_many", [False, True])
def test_keys_of_every_type(lake: tl.Lakehouse, kind: str, is_many: bool) -> None:
    type, values = KEYS[kind]
    table = lake.create_table("ns.t", pa.schema([("k", type), ("part", pa.int64()), ("n", pa.int64())]))
    table.append(pa.table({"k": pa.array(values[:2], type), "part": [1, 1], "n": [1, 2]}))
    data = pa.table({"k": pa.array(values[1:], type), "part": [1, 1], "n": [20, 30]})
    if is_many:  # more than a filter lists
        more = pa.table({"k": pa.array([values[1]] * 300, type), "part": list(range(2, 302)), "n": [0] * 300})
        data = pa.concat_tables([data, more])
    assert table.upsert(data, on=["k", "part"]) == (1, data.num_rows - 1)
    found = table.scan(filter="n > 0").to_arrow()
    assert sorted(found["n"].to_pylist()) == [1, 20, 30]
    merge = table.merge(data, on=["k", "part"]).when_matched_update({"n": "source.n + 1"}, condition="source.n > 0")
    assert merge.execute().rows_updated == (1 if None in values else 2)


LEAST, MOST = -(1 << 63), (1 << 63) - 1
near = st.sampled_from([LEAST, -3, 0, 100, MOST - 60]).flatmap(
    lambda low: st.lists(st.one_of(st.none(), st.integers(low, low + 60)), min_size=1, max_size=30)
)


@given(keys=near, looked_up=st.lists(st.one_of(near, st.just([LEAST, 0, MOST, None])), max_size=4))
def test_keys_near_each_other_are_looked_up(keys: list[int | None], looked_up: list[list[int | None]]) -> None:
    """In an array from the smallest to the largest key. Numbers outside of it and nulls match nothing."""
    source = pa.table({"k": pa.array(keys, pa.int64())})
    known = {key: row for row, key in enumerate(keys) if key is not None}
    dense = DenseKeys.of(source, ["k"], rows=100)
    if not known or len(known) + keys.count(None) < len(keys):
        assert dense is None, "keys that occur twice are joined instead"
        return
    assert dense is not None
    for values in [*looked_up, keys]:
        column = pa.chunked_array([pa.array(values, pa.int64())])
        expected = [known.get(value, -1) if value is not None else -1 for value in values]
        assert dense.rows_of(column).tolist() == expected


def test_keys_far_from_each_other_are_joined(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array from the least to the greatest key would take more memory than all rows."""
    table = lake.create_table("ns.t", numbers([]).schema)
    table.append(numbers([LEAST, 5, MOST]))
    far = numbers([MOST, LEAST, 6], [1, 2, 3])
    assert DenseKeys.of(far, ["id"], rows=1000) is None
    assert table.upsert(far, on="id") == (2, 1)
    assert pairs(table) == {LEAST: 2, 5: 5, 6: 3, MOST: 1}
    monkeypatch.setattr(matching, "_chunks", None)
    assert table.upsert(numbers([5, 6, 7], [50, 60, 70]), on="id") == (2, 1), "keys in a small range are not joined"
