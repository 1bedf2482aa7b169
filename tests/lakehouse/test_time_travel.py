"""Earlier versions: reads, comparisons and rollback."""

from __future__ import annotations

import os
import random
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake import core
from trinitylake.lakehouse import history as history_module
from trinitylake.lakehouse.history import Change

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def history(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Version 1 adds `nyc` and `nyc.t`, 2 three rows, 3 a view and removes a row, 4 removes the view."""
    with lake.transaction(message="one") as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.t", ROWS)
    lake.table("nyc.t").append(ROWS)
    with lake.transaction(message="three") as txn:
        txn.create_view("nyc.v", "SELECT 1")
        txn.table("nyc.t").delete("id = 1")
    lake.drop_view("nyc.v")
    return lake


def test_every_version_reads_as_it_was_committed(history: tl.Lakehouse) -> None:
    counts = [history.at(version).table("nyc.t").scan().count() for version in (1, 2, 3, 4)]
    assert counts == [0, 3, 2, 2]
    assert [history.at(version).views() for version in (0, 2, 3, 4)] == [[], [], ["nyc.v"], []]


def test_a_frozen_version_ignores_later_commits(history: tl.Lakehouse) -> None:
    frozen = history.at()
    history.table("nyc.t").append(ROWS)
    history.drop_namespace("nyc", cascade=True)
    assert frozen.version == 4
    assert frozen.exists("nyc.t")
    assert frozen.table("nyc.t").scan().count() == 2


def test_a_timestamp_finds_the_newest_version_at_that_moment(history: tl.Lakehouse) -> None:
    for entry in history.log(None):
        assert history.at(entry.created_at).version == entry.version
        assert history.at(entry.created_at.isoformat()).version == entry.version
    created = history.at(2).created_at
    assert history.at(created - timedelta(milliseconds=1)).version == 1
    assert history.at(created.astimezone(UTC).astimezone().replace(tzinfo=None)).version == 2
    assert history.at(datetime(9999, 1, 1, tzinfo=UTC)).version == 4


def test_an_object_without_history_is_not_found(history: tl.Lakehouse) -> None:
    with pytest.raises(tl.VersionNotFound, match="99"):
        history.at(99)
    with pytest.raises(tl.VersionNotFound):
        history.at(datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(tl.VersionNotFound, match="-99"):
        history.at(-99)
    with pytest.raises(tl.InvalidArgument, match="yesterday"):
        history.at("yesterday")


def test_times_in_errors_are_dates(history: tl.Lakehouse) -> None:
    created = history.log(None)[-1].created_at
    oldest = f"{created:%Y-%m-%dT%H:%M:%S}.{created.microsecond // 1000:03}Z"
    expected = "no version is as old as 2000-01-01T00:00:00.000Z: the lakehouse was created at " + oldest
    with pytest.raises(tl.VersionNotFound) as refused:
        history.at(datetime(2000, 1, 1, tzinfo=UTC))
    assert str(refused.value) == expected
    assert history.at(oldest).version == 0  # the time in the error is a valid reference
    with pytest.raises(tl.VersionNotFound, match=r"no version is as old as 1969-12-31T23:59:00\.000Z"):
        history.at(datetime(1969, 12, 31, 23, 59, tzinfo=UTC))
    with pytest.raises(tl.VersionNotFound, match=r"no version is as old as 0001-01-01T00:00:00\.000Z"):
        history.at(datetime.min)


def test_a_table_of_a_frozen_version_refuses_writes(history: tl.Lakehouse) -> None:
    table = history.at(2).table("nyc.t")
    for write in (
        lambda: table.append(ROWS),
        lambda: table.delete("id = 1"),
        lambda: table.update_schema().__enter__(),
    ):
        with pytest.raises(tl.InvalidArgument, match=r"read-only.*version 2"):
            write()
    with pytest.raises(Exception, match=r"(?i)read-only"):
        table.iceberg.append(ROWS)
    assert history.version == 4


def test_the_log_is_newest_first_and_limited(history: tl.Lakehouse) -> None:
    assert [entry.version for entry in history.log(None)] == [4, 3, 2, 1, 0]
    assert [entry.version for entry in history.log(limit=2)] == [4, 3]
    assert [entry.version for entry in history.log(limit=2, before=3)] == [2, 1]
    assert [entry.message for entry in history.log(None)] == ["", "three", "", "one", ""]
    times = [entry.created_at for entry in history.log(None)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


def test_a_diff_names_what_was_added_removed_and_changed(history: tl.Lakehouse) -> None:
    assert history.diff(0, 1).added == [Change("namespace", "nyc"), Change("table", "nyc.t")]
    three = history.diff(2, 3)
    assert (three.added, three.removed, three.changed) == ([("view", "nyc.v")], [], [("table", "nyc.t")])
    assert history.diff(3).removed == [("view", "nyc.v")]
    assert history.diff(1, 4).changed == [("table", "nyc.t")], (
        "a view that was created and dropped is not in the difference"
    )
    assert not history.diff(4, 4)
    assert str(history.diff(3, 2)) == "- view nyc.v\n~ table nyc.t"


def test_rolling_back_makes_a_new_version_with_the_old_content(history: tl.Lakehouse) -> None:
    assert history.rollback(2, message="bad load", author="ops") == 5
    assert history.table("nyc.t").scan().count() == 3
    assert not history.diff(2, 5)
    newest = history.log(1)[0]
    assert (newest.version, newest.rollback_from, newest.message, newest.author) == (5, 4, "bad load", "ops")
    assert history.at(4).table("nyc.t").scan().count() == 2, "the versions that were rolled back stay readable"
    with pytest.raises(tl.VersionNotFound):
        history.rollback(77)


def test_transaction_conflicts_with_a_rollback_of_its_table(history: tl.Lakehouse) -> None:
    txn = history.begin()
    txn.table("nyc.t").delete("id = 2")
    history.rollback(2)
    with pytest.raises(tl.CommitConflict):
        txn.commit()
    assert history.table("nyc.t").scan().count() == 3


def test_expired_versions_are_gone_and_newer_ones_stay(root: str, lake: tl.Lakehouse) -> None:
    for number in range(5):
        lake.create_namespace(f"n{number}")
    assert lake.maintenance.expire(before=3, dry_run=True) == [0, 1, 2]
    assert tl.open(root).at(1).namespaces() == ["n0"]
    assert lake.maintenance.expire(before=3) == [0, 1, 2]
    for reader in (lake, tl.open(root)):
        with pytest.raises(tl.VersionExpired, match="1"):
            reader.at(1)
        assert reader.at(3).namespaces() == ["n0", "n1", "n2"]
        assert [entry.version for entry in reader.log(None)] == [5, 4, 3]


def test_a_handle_continues_on_the_latest_version_after_expiry_by_another(root: str, lake: tl.Lakehouse) -> None:
    """A handle whose known version another process has expired finds the latest version. Otherwise its next write would
    create a version below the expiry boundary."""
    lake.create_namespace("nyc")
    handle = tl.open(root)
    assert handle.version == 1
    for number in range(4):
        lake.create_namespace(f"n{number}")
    assert lake.maintenance.expire(before=lake.version) == [0, 1, 2, 3, 4]
    assert handle.version == 5
    handle.create_namespace("x")
    assert lake.version == 6
    assert lake.exists("x")


def test_transaction_on_an_expired_base_raises_transaction_expired(root: str, lake: tl.Lakehouse) -> None:
    """A commit on an expired base raises TransactionExpired, instead of writing a root below the expiry boundary with
    an unknown outcome."""
    lake.create_namespace("nyc")
    handle = tl.open(root)
    txn = handle.begin()
    txn.create_namespace("late")
    for number in range(4):
        lake.create_namespace(f"n{number}")
    lake.maintenance.expire(before=lake.version)
    with pytest.raises(tl.errors.TransactionExpired):
        txn.commit()
    txn.rollback()
    assert not lake.exists("late")
    handle.create_namespace("late")
    assert lake.version == 6


def test_expiry_before_a_time_of_expired_versions_does_nothing(lake: tl.Lakehouse) -> None:
    """Expiry before a time whose versions have expired does nothing, so that a job can run every night with a fixed
    date."""
    for number in range(3):
        lake.create_namespace(f"n{number}")
        time.sleep(0.002)
    first, second = (lake.at(version).created_at for version in (0, 1))
    assert lake.maintenance.expire(before=second) == [0]
    assert lake.maintenance.expire(before=second) == []
    assert lake.maintenance.expire(before=first) == []
    assert lake.maintenance.expire(before=first - timedelta(days=1)) == []
    assert [entry.version for entry in lake.log()] == [3, 2, 1]


def test_full_log_is_read_lazily(lake: tl.Lakehouse) -> None:
    """`log(None)` reads versions when they are accessed, not a million roots at once."""
    for number in range(600):
        lake.create_namespace(f"n{number}")
    fresh = tl.open(lake.uri)

    def reads() -> int:
        return fresh._storage.counters()["get"]

    log, before = fresh.log(None), reads()
    assert before < 300
    assert (len(log), log[0].version, next(iter(log)).version) == (601, 600, 600)
    assert reads() == before, "the first page was read already"
    assert [entry.version for entry in log] == list(range(600, -1, -1))
    assert [entry.version for entry in reversed(log)] == list(range(601))
    assert (log[-1].version, log[300].version, [entry.version for entry in log[1:4]]) == (0, 300, [599, 598, 597])
    assert len(log._page[1]) <= history_module.PAGE, "one page is held"
    assert [entry.version for entry in fresh.log(None, before=2)] == [1, 0]
    assert list(fresh.log(None, before=0)) == []
    with pytest.raises(IndexError):
        log[601]
    lake.maintenance.expire(before=400)
    with pytest.raises(tl.VersionExpired):
        log[590]


def test_the_age_of_a_version_is_that_of_its_file(tmp_path: Path) -> None:
    """The age of a version is measured by the clock of the store. Otherwise versions of a writer whose clock is eight
    days behind would expire within minutes."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for number in range(5):
        lake.create_namespace(f"n{number}")
    lake.alter(minimum_versions_to_keep=1)
    now = time.time()
    roots = [tmp_path / "lake" / core.root_path(version) for version in range(7)]
    for version, root in enumerate(roots):
        os.utime(root, (now, now - 86400 * (8.5 - version)))
    # By the times of their files, versions 0 to 6 are between eight and a half and two and a half days old. By the log,
    # all are new.
    assert lake.maintenance.expire(dry_run=True) == [0, 1]
    assert lake.maintenance.expire() == [0, 1]
    assert not list((tmp_path / "lake").glob("_probe/*"))


def test_default_retention_keeps_young_and_newest_versions(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    assert lake.maintenance.expire(dry_run=True) == [], "no version is seven days old"
    lake.alter(maximum_version_age_millis=1, minimum_versions_to_keep=2)
    lake.create_namespace("b")
    time.sleep(0.02)
    assert lake.maintenance.expire() == [0, 1]


def test_version_references_have_one_syntax() -> None:
    """References to versions have the same syntax in Python, on the command line and in its shell."""
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("a")
    lake.tags.create("first")
    time.sleep(0.01)
    for reference, version in [
        (1, 1),
        (-1, 1),
        ("1", 1),
        ("-1", 1),
        ("-2", 0),
        (None, 2),
        ("tag:first", 1),
        (" 2 ", 2),
        ("1 ms ago", 2),
    ]:
        assert lake.at(reference).version == version, reference


@pytest.mark.parametrize("reference", ["2 hours ago", "2000-01-01"])
def test_a_time_before_the_first_version_raises_version_not_found(reference: str) -> None:
    """A time before the first version raises VersionNotFound. The error said that "2 hours ago" was not a reference."""
    with pytest.raises(tl.VersionNotFound, match="version"):
        tl.create(f"memory://{uuid.uuid4()}").at(reference)


def test_a_time_without_a_zone_is_in_utc_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    naive = (datetime.now(UTC) + timedelta(seconds=1)).replace(tzinfo=None)
    for zone in ("Pacific/Kiritimati", "Pacific/Honolulu", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert lake.at(naive).version == lake.at(naive.isoformat()).version == 0
        with pytest.raises(tl.VersionNotFound):
            lake.at(naive - timedelta(hours=1))
    monkeypatch.undo()
    time.tzset()


def test_one_statement_reads_several_versions_with_at(lake: tl.Lakehouse) -> None:
    """One statement can read several versions with `AT`, alone, in joins and through a view. The oracle is a dictionary
    of each version's rows."""
    lake.create_namespace("nyc")
    lake.create_table("nyc.t", {"id": "bigint", "value": "bigint"})
    lake.create_view("nyc.v", "SELECT id, value + 1 AS value FROM t", dialect="duckdb")
    numbers = random.Random(4)
    rows: dict[int, int] = {}
    known: dict[int, dict[int, int]] = {lake.version: {}}
    for _ in range(12):
        rows |= {numbers.randrange(20): numbers.randrange(100) for _ in range(3)}
        lake.table("nyc.t").overwrite([{"id": id, "value": value} for id, value in rows.items()])
        known[lake.version] = dict(rows)
    kept = lake.version - 3
    lake.tags.create("kept", kept)
    latest = lake.version
    for _ in range(20):
        one, other = numbers.choice(list(known)), numbers.choice(list(known))
        sql = (
            f"SELECT id, a.value, b.value, (SELECT count(*) FROM nyc.t) FROM nyc.t AS a AT (VERSION => {one}) "
            f"JOIN nyc.v b AT (VERSION => {other - latest}) USING (id) ORDER BY id"
        )
        both = sorted(known[one].keys() & known[other].keys())
        expected = [(id, known[one][id], known[other][id] + 1, len(rows)) for id in both]
        assert lake.sql(sql).fetchall() == expected
        assert lake.at(other).sql(sql.replace("count(*) FROM nyc.t)", f"{len(rows)})")).fetchall() == expected
    tagged = known[kept]
    time = lake.at(kept).created_at
    for at in ("VERSION => 'tag:kept'", f"TIMESTAMP => '{time.isoformat()}'", f"TIMESTAMP => TIMESTAMPTZ '{time}'"):
        assert dict(lake.sql(f"SELECT nyc.t.id, t.value FROM nyc.t AT ({at})").fetchall()) == tagged
    with lake.transaction() as txn:
        txn.sql(f"DELETE FROM nyc.t WHERE id NOT IN (SELECT id FROM nyc.t AT (VERSION => {kept}))")
        txn.sql("UPDATE nyc.t SET value = o.value FROM nyc.t AS o AT (VERSION => 'tag:kept') WHERE o.id = nyc.t.id")
    assert dict(lake.sql("FROM nyc.t").fetchall()) == tagged


def test_versions_in_sql_may_be_parameters(history: tl.Lakehouse) -> None:
    count = "SELECT ? AS a, count(*) FROM nyc.t AT (VERSION => ?) WHERE id < ?"
    assert history.sql(count, ["x", 2, 3]).fetchall() == [("x", 2)]
    assert history.sql(count, ["x", 3, 3]).fetchall() == [("x", 1)]
    named = "SELECT $v, count(*) FROM nyc.t AT (VERSION => $v) WHERE id < $most"
    assert history.sql(named, {"v": 2, "most": 9}).fetchall() == [(2, 3)]
    before = datetime.now(UTC)
    assert history.sql("SELECT count(*) FROM nyc.t AT (TIMESTAMP => ?)", [before]).fetchall() == [(2,)]
    assert history.sql("SELECT count(*) FROM table_changes('nyc.t', ?, ?) WHERE id >= ?", [2, 3, 1]).fetchone() == (1,)
    copied = "INSERT INTO nyc.t SELECT id + ? FROM nyc.t AT (VERSION => ?) WHERE id = ?"
    assert history.sql(copied, [10, 2, 1]).fetchone() == (0, 0, 1, history.version)
    assert sorted(row["id"] for row in history.table("nyc.t").scan()) == [2, 3, 11]
    for parameters in (["x", 2], ["x", 2, 3, 4]):
        with pytest.raises(tl.InvalidArgument):
            history.sql(count, parameters).fetchall()
    with pytest.raises(tl.InvalidArgument, match="not a constant"):
        history.sql("FROM nyc.t AT (VERSION => ?)")


def test_errors_name_the_version_that_was_read(history: tl.Lakehouse) -> None:
    for read in (
        lambda: history.at(4).view("nyc.v"),
        lambda: history.at(4).sql("FROM nyc.v"),
        lambda: history.sql("FROM nyc.v AT (VERSION => 4)"),
        lambda: history.at(4).tables("bronx"),
    ):
        with pytest.raises(tl.ObjectNotFound, match="in version 4"):
            read()
    with pytest.raises(tl.VersionNotFound, match="99"):
        history.sql("FROM nyc.t AT (VERSION => 99)")
