"""Rebase of merge-on-read snapshots of engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent
from test_iceberg_staging import Lake, ids

from iceberg_disjoint import (
    ELSEWHERE,
    STATEMENTS,
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
from trinitylake.iceberg_storage.staging.row_conflicts import may_delete_from
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store("remote", tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    return filled(store)


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
    """A delete file that replaces an earlier one is rebased: it replaces the earlier file in the manifests of
    deletes.
    """
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
    """An update conflicts only through the data files that its delete files name, not through all files of the
    partition."""
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
