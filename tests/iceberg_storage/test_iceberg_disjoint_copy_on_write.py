"""Rebase of copy-on-write snapshots of engines: the removed files stand for the rows that the statement read."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField
from test_iceberg_rebase import set_properties
from test_iceberg_staging import Lake

from iceberg_disjoint import Change, cities, contents, filled, land, live_files, raced, rewrite
from iceberg_storage import Store, make_store
from trinitylake.iceberg_storage.staging.row_conflicts import OverlappingFiles
from trinitylake.iceberg_storage.staging.staged_table import TableConflict


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store("remote", tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    return filled(store)


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
    """Missing bounds exclude no file. The bounds of a column do not include nulls and NaN, and bounds of an older type
    cannot be decoded.
    """
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
    """Partitions that an engine replaced completely are replaced again after a rebase. Spark's INSERT OVERWRITE of
    dynamic partitions sets `replace-partitions` in the summary.
    """
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
