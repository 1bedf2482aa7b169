"""Tags and expiry: by version, time, age and count."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.base.durations import duration_text, milliseconds
from trinitylake.cli.app import app
from trinitylake.lakehouse.handle import Handle

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    """Five versions; the table `shop.t` has three rows in version 2 and six in version 3."""
    lake = tl.create(root, durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS).append(ROWS)
    lake.table("shop.t").append(ROWS)
    return lake


def rows_of(lake: tl.Lakehouse, name: str) -> int:
    return lake.at(f"tag:{name}").table("shop.t").scan().to_arrow().num_rows


def test_a_tag_outlives_the_versions_around_it(lake: tl.Lakehouse, root: str) -> None:
    taken = lake.tags.create("q3", version=3, message="end of the quarter")
    assert (taken.name, taken.version) == ("q3", 3)
    assert lake.log(1)[0].message == "end of the quarter"
    lake.drop_table("shop.t")
    lake.create_namespace("later")
    gone = lake.maintenance.expire(before=lake.version)
    assert 3 not in gone
    assert [number for number in gone if number in (2, 3, 4)] == [2, 4]
    for reader in (lake, tl.open(root)):
        assert rows_of(reader, "q3") == 3
        assert reader.tags.list() == [taken]
        assert reader.at(3).version == 3, "the version can also be read by its number"
        with pytest.raises(tl.VersionExpired):
            reader.at(2)
    lake.tags.drop("q3")
    assert lake.tags.list() == []
    with pytest.raises(tl.ObjectNotFound, match="q3"):
        lake.at("tag:q3")
    assert 3 in lake.maintenance.expire(before=lake.version), "a version without a tag expires"


def test_tag_without_a_version_names_the_latest(lake: tl.Lakehouse) -> None:
    before = lake.version
    assert lake.tags.create("now").version == before
    assert lake.tags.create("now", version=before).version == before, "creating the same tag again is allowed"
    assert lake.version == before + 1, "creating an existing tag commits nothing"
    with pytest.raises(tl.ObjectAlreadyExists, match="drop it first"):
        lake.tags.create("now")
    with pytest.raises(tl.VersionNotFound):
        lake.tags.create("never", version=99)
    for name in ("", "a/b", "x" * 101, "ä", "a b", ".", ".."):
        with pytest.raises(tl.InvalidName):
            lake.tags.create(name)
    with pytest.raises(tl.ObjectNotFound):
        lake.tags.drop("never")


def test_tag_of_a_version_that_expires_concurrently_is_removed(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a version expires while it is tagged, the tag is removed, because its root is deleted."""
    commit = Handle.change_definition
    other = tl.open(lake.uri)

    def late(self: Handle, change: object, message: str, author: str) -> None:
        monkeypatch.setattr(Handle, "change_definition", commit)
        other.maintenance.expire(before=other.version)
        commit(self, change, message, author)  # type: ignore[arg-type]

    monkeypatch.setattr(Handle, "change_definition", late)
    with pytest.raises(tl.VersionExpired):
        lake.tags.create("late", version=2)
    assert lake.tags.list() == []


def test_expiry_by_time_age_and_count(lake: tl.Lakehouse) -> None:
    """`expire` accepts a date, an ISO 8601 string, an age and a number of versions."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for before in (date(2000, 1, 1), "2000-01-01", "2000-01-01T00:00:00+00:00"):
        assert lake.maintenance.expire(before=before, dry_run=True) == []
    latest = lake.version
    for before in (tomorrow, tomorrow.date() + timedelta(days=1), tomorrow.isoformat()):
        assert lake.maintenance.expire(before=before, dry_run=True) == list(range(latest))
    assert lake.maintenance.expire(older_than="7 days", keep=1) == []
    assert lake.maintenance.expire(keep=2, dry_run=True) == list(range(latest - 1))
    for age in ("0 s", timedelta()):
        time.sleep(0.01)
        assert lake.maintenance.expire(older_than=age, dry_run=True) == list(range(latest - 2)), (
            "the settings keep three versions"
        )
    gone = lake.maintenance.expire(keep=1)
    assert gone == list(range(latest))
    assert gone.size_bytes > 0
    assert gone.oldest == latest
    assert gone.kept_size_bytes > 0
    with pytest.raises(tl.InvalidArgument, match="not both"):
        lake.maintenance.expire(before=1, keep=1)
    for wrong in ("yesterday", 1.5, b"x"):
        with pytest.raises(tl.InvalidArgument):
            lake.maintenance.expire(before=wrong)  # type: ignore[arg-type]


def test_durations_are_parsed() -> None:
    for text, millis in {
        "7 days": 604_800_000,
        "36h": 129_600_000,
        "1 week 2 days": 777_600_000,
        "1.5 h": 5_400_000,
        "90 s": 90_000,
        "250ms": 250,
    }.items():
        assert milliseconds(text) == millis, text
    for wrong in ("", "7", "days", "7 fortnights", "7 days!", 7, None, timedelta(days=-1)):
        with pytest.raises(tl.InvalidArgument):
            milliseconds(wrong)
    assert [duration_text(one) for one in (0, 250, 90_000, 777_600_000)] == [
        "0 seconds",
        "250 milliseconds",
        "1 minute 30 seconds",
        "1 week 2 days",
    ]


def test_tag_and_expire_commands(lake: tl.Lakehouse, root: str) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*arguments, "--root", root])
        assert result.exit_code == code, result.output
        return result.output

    assert "tag q3 is version 3" in run("tag", "create", "q3", "--at", "3")
    assert "q3" in run("tag", "ls")
    assert " ago" in run("tag", "ls")
    assert "would expire" in run("expire", "--keep", "1", "--dry-run")
    assert "expired; the oldest version is" in run("expire", "--before", str(lake.version))
    assert "nothing to expire" in run("expire", "--older-than", "7 days")
    assert rows_of(lake, "q3") == 3
    run("tag", "drop", "q3")
    assert "no tags" in run("tag", "ls")
    run("tag", "drop", "q3", code=4)
    run("expire", "--older-than", "soon", code=2)


def test_the_log_of_expired_versions_is_kept_in_a_table(lake: tl.Lakehouse) -> None:
    lake.alter({"maintenance.log-table": "audit.log"})
    lake.create_namespace("a", author="ann", message="first")
    for number in range(6):
        lake.create_namespace(f"a.n{number}", author=f"author {number % 2}")
    lake.tags.create("kept", 3)
    lake.rollback(lake.version - 1, author="ann", message="back")
    expected: dict[int, list[tuple[object, ...]]] = {}

    def note() -> None:
        for entry in lake.log(None):
            expected[entry.version] = [
                (entry.version, entry.created_at, one.id, one.author, one.message, one.summary, entry.rollback_from)
                for one in entry.transactions
            ]

    def kept() -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in lake.table("audit.log").scan())

    for keep in (5, 5, 2, 1):
        note()
        before = lake.maintenance.expire(keep=keep, dry_run=True)
        expired = lake.maintenance.expire(keep=keep, message="tidy")
        assert list(expired) == list(before)
        note()
        wanted = [row for version, rows in sorted(expected.items()) for row in rows if version < expired.oldest]
        assert kept() == wanted
    lake.create_namespace("b")
    version = lake.version
    lake.maintenance.expire(keep=100)
    assert lake.version == version, "nothing expires, so nothing is appended"
