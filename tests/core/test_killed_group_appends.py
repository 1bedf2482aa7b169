"""Histories of group appends, deletes, merges and maintenance, in processes that are killed at any moment.

Each thread appends its numbers in order and reports each that was acknowledged. Other threads delete and merge rows.
The message of each transaction says what it did, so a dictionary of rows can repeat the log. Required are:

- each acknowledged number is in the log once, and of the others at most the next one of each thread;
- each version that was read contains the rows that the log up to that version results in: the order of the versions is
  a serial order, with all rows of a group;
- a transaction that began after another one was acknowledged is in a later version.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from killed_processes import Reaper, Store, kills, store_on

SCHEMA = pa.schema([("thread", pa.string()), ("number", pa.int64()), ("bucket", pa.int64()), ("state", pa.string())])
PROCESSES, THREADS, BUCKETS = 2, 4, 7
LINE_SIZE_BYTES = 40
#: Rows of a table: the state of each number of each thread.
Rows = dict[tuple[str, int], str]


def append_for_ever(lake: tl.Lakehouse, reports: Path, key: str) -> None:
    """Append numbers in order, and report those that were acknowledged, with begin and end."""
    table = lake.table("raw.events")
    with open(reports / key, "ab", buffering=0) as report:
        for number in range(1_000_000):
            begin = time.monotonic()
            row = {"thread": [key], "number": [number], "bucket": [number % BUCKETS], "state": ["new"]}
            table.append(row, message=f"append {key} {number}")
            report.write(b"%7d %15f %15f\n" % (number, begin, time.monotonic()))


def change_for_ever(lake: tl.Lakehouse, key: str) -> None:
    """Delete and merge random rows, compact the table, and expire its snapshots."""
    chance = random.Random(key)
    for change in itertools.count(chance.randrange(4)):
        table = lake.table("raw.events")
        with suppress(tl.CommitConflict):
            match change % 4:
                case 0:
                    bucket = chance.randrange(BUCKETS)
                    table.delete(f"bucket = {bucket}", message=f"delete {bucket}")
                case 1:
                    found = table.scan(limit=3, columns=["thread", "number", "bucket"]).to_arrow()
                    keys = [[row["thread"], row["number"]] for row in found.to_pylist()]
                    marked = found.append_column("state", pa.array([key] * len(found)))
                    merge = table.merge(marked, on=["thread", "number"], message=f"merge {key} {json.dumps(keys)}")
                    merge.when_matched_update().execute()
                case 2:
                    table.maintenance.compact()
                case 3:
                    table.maintenance.expire_snapshots()
        time.sleep(chance.random() / 10)


def watched(work: Any, key: str, reports: Path) -> None:
    """Run the work of a thread, and report its exception."""
    try:
        work(key)
    except BaseException:
        (reports / f"error of {key}").write_text(traceback.format_exc())


def append_and_change_for_ever(store: Store, name: str, reports: Path) -> None:
    """Threads of one process that append to one table and report what was acknowledged, and one that changes rows."""
    lake = store.open()
    for thread in range(THREADS):
        append = partial(append_for_ever, lake, reports)
        threading.Thread(target=watched, args=(append, f"{name}-{thread}", reports), daemon=True).start()
    watched(partial(change_for_ever, lake), f"{name}-changes", reports)


class Observer:
    """A reader in the process of the test, which also expires versions after it has copied their log."""

    def __init__(self, lake: tl.Lakehouse) -> None:
        self.lake = lake
        self.log: dict[int, list[str]] = {}
        self.reads: list[tuple[float, int, Rows]] = []

    def look(self) -> None:
        """Read the rows of the latest version, copy the log, and expire old versions."""
        begin = time.monotonic()
        at = self.lake.at()
        rows = at.table("raw.events").scan().to_arrow().to_pylist()
        assert len({(row["thread"], row["number"]) for row in rows}) == len(rows), "a row is in a version twice"
        self.reads.append((begin, at.version, {(row["thread"], row["number"]): row["state"] for row in rows}))
        for entry in self.lake.log(100_000):
            if entry.version in self.log:
                break
            self.log[entry.version] = [one.message for one in entry.transactions]
        if len(self.reads) % 5 == 0:
            with suppress(tl.CommitConflict):
                self.lake.maintenance.expire(keep=50)

    def groups(self) -> list[list[str]]:
        """Commit messages of each version with several transactions."""
        return [messages for messages in self.log.values() if len(messages) > 1]

    def has_shared_groups(self) -> bool:
        """Whether a version has appends of several processes."""
        return any(len({message.split(" ")[1].split("-")[0] for message in group}) > 1 for group in self.groups())

    def has_all_kinds(self, coordination: str) -> bool:
        """Whether the log contains groups, also of several processes if there is a queue, and changes of rows."""
        kinds = {message.split(" ")[0] for messages in self.log.values() for message in messages}
        is_grouped = len(self.groups()) > 3 and (coordination == "none" or self.has_shared_groups())
        return is_grouped and {"delete", "merge"} <= kinds

    def check(self, reports: Path) -> None:
        """Repeat the log, and compare it with what was read and acknowledged."""
        assert sorted(self.log) == list(range(max(self.log) + 1))
        reads = defaultdict(list)
        for _, version, rows in self.reads:
            reads[version].append(rows)
        state: Rows = {}
        versions: dict[tuple[str, int], int] = {}
        for version, messages in sorted(self.log.items()):
            for message in messages:
                _apply(state, message)
                kind, *words = message.split(" ", 2)
                if kind == "append":
                    key = words[0], int(words[1])
                    assert versions.setdefault(key, version) == version, f"{key} is in two versions"
            assert all(rows == state for rows in reads[version]), f"version {version} has other rows than its log"
        done = list(_acknowledged(reports))
        latest = defaultdict(lambda: -1)
        for key, number in versions:
            latest[key] = max(latest[key], number)
        assert len(versions) == sum(number + 1 for number in latest.values()), "a number is missing"
        reported = defaultdict(int)
        for key, _, _, _ in done:
            reported[key] += 1
        for key, count in reported.items():
            assert count <= latest[key] + 1 <= count + 1, f"{key}: {count} were acknowledged, {latest[key] + 1} landed"
        began = [(begin, 0, version, "a read") for begin, version, _ in self.reads]
        began += [(begin, 1, versions[key, number], f"{key} {number}") for key, number, begin, _ in done]
        ended = sorted((end, versions[key, number]) for key, number, _, end in done)
        newest, position = -1, 0
        for begin, distance, version, what in sorted(began):
            while position < len(ended) and ended[position][0] < begin:
                newest, position = max(newest, ended[position][1]), position + 1
            assert version >= newest + distance, f"{what} is in version {version}, and began after {newest}"


def _apply(state: Rows, message: str) -> None:
    """Change the rows as the transaction with this message did."""
    kind, *words = message.split(" ", 2)
    match kind:
        case "append":
            state[words[0], int(words[1])] = "new"
        case "delete":
            for key in [key for key in state if key[1] % BUCKETS == int(words[0])]:
                del state[key]
        case "merge":
            state.update({(thread, n): words[0] for thread, n in json.loads(words[1]) if (thread, n) in state})


def _acknowledged(reports: Path) -> Iterator[tuple[str, int, float, float]]:
    """Thread, number, begin and end of each acknowledged append."""
    for report in reports.iterdir():
        for line in report.read_text().splitlines():
            number, begin, end = line.split()
            yield report.name, int(number), float(begin), float(end)


def begun(store: Store, coordination: str) -> tl.Lakehouse:
    """A lakehouse with the table of the tests."""
    lake = store.create(coordination)
    lake.create_namespace("raw")
    lake.create_table("raw.events", SCHEMA)
    return lake


def reported(reports: Path) -> int:
    """Number of acknowledgements so far."""
    return sum(path.stat().st_size for path in reports.iterdir()) // LINE_SIZE_BYTES


@pytest.mark.timeout(3600)
@pytest.mark.sample(2)
@pytest.mark.parametrize("on", ["disk", "s3"])
@pytest.mark.parametrize("coordination", ["none", "queue"])
def test_histories_with_kills_have_a_serial_order(tmp_path: Path, coordination: str, on: str) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    with store_on(on, tmp_path) as store:
        lake = begun(store, coordination)
        observer = Observer(store.open())
        reaper = Reaper(append_and_change_for_ever, random.Random(1), partial(reported, reports), store)
        try:
            for number in range(PROCESSES + kills(5, 250)):
                reaper.begin(store, f"p{number}", reports)
                if number >= PROCESSES:
                    reaper.kill_one()
                if number % 3 == 0:
                    observer.look()
            patience_ends = time.monotonic() + 100
            while not observer.has_all_kinds(coordination) and time.monotonic() < patience_ends:
                observer.look()
        finally:
            reaper.kill_all()
        observer.look()
        assert lake.maintenance.fsck(files=True).is_sound
    assert not (errors := [path.read_text() for path in reports.glob("error of *")]), errors[0]
    observer.check(reports)
    assert observer.has_all_kinds(coordination)
    assert observer.has_shared_groups() == (coordination == "queue")


def commit_ids_for_ever(store: Store, name: str, reports: Path) -> None:
    """Threads that commit the same chosen ids in order, in groups with other appends."""
    lake = store.open()

    def commit(key: str) -> None:
        number = max(lake.table("raw.events").scan("thread = 'id'").to_arrow()["number"].to_pylist(), default=0)
        with open(reports / key, "ab", buffering=0) as report:
            while True:
                with suppress(tl.CommitConflict):
                    txn = lake.begin(id=f"id-{number}", isolation="snapshot")
                    row = {"thread": ["id"], "number": [number], "bucket": [0], "state": [name]}
                    txn.table("raw.events").append(row)
                    report.write(b"%7d %15d %15d\n" % (number, txn.commit(), 0))
                    number += 1

    for thread in range(3):
        threading.Thread(target=watched, args=(commit, f"{name}-{thread}", reports), daemon=True).start()
    for thread in range(3, 5):
        append = partial(append_for_ever, lake, reports)
        threading.Thread(target=watched, args=(append, f"{name}-{thread}", reports), daemon=True).start()
    time.sleep(1000)


def _ids_in_groups(lake: tl.Lakehouse) -> list[str]:
    """The chosen ids that were committed in a version with other transactions."""
    groups = [entry.transactions for entry in lake.log(100_000) if len(entry.transactions) > 1]
    return [one.id for group in groups for one in group if one.id.startswith("id-")]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("coordination", "on"), [("none", "disk"), ("queue", "s3")])
def test_an_id_that_many_processes_begin_commits_once(tmp_path: Path, coordination: str, on: str) -> None:
    """Also in a group, whose log has the id as a companion of the leader's transaction."""
    reports = tmp_path / "reports"
    reports.mkdir()
    with store_on(on, tmp_path) as store:
        lake = begun(store, coordination)
        reaper = Reaper(commit_ids_for_ever, random.Random(2), partial(reported, reports), store)
        try:
            for number in range(PROCESSES + kills(4, 100)):
                reaper.begin(store, f"p{number}", reports)
                if number >= PROCESSES:
                    reaper.kill_one()
            patience_ends = time.monotonic() + 100
            # A group that waits in the queue has no chosen ids.
            while coordination == "none" and not _ids_in_groups(lake) and time.monotonic() < patience_ends:
                time.sleep(0.1)
        finally:
            reaper.kill_all()
        assert not (errors := [path.read_text() for path in reports.glob("error of *")]), errors[0]
        numbers = sorted(lake.table("raw.events").scan("thread = 'id'").to_arrow()["number"].to_pylist())
        assert numbers == list(range(len(numbers)))
        versions = defaultdict(set)
        for path in reports.iterdir():
            for line in path.read_text().splitlines():
                number, version, end = line.split()
                if end == "0":
                    versions[int(number)].add(int(version))
        assert len(numbers) - len(versions) in (0, 1), "only the last id may be committed without an acknowledgement"
        for number, known in versions.items():
            assert {("committed", version) for version in known} == {lake.transactions.outcome(f"id-{number}")}
        assert _ids_in_groups(lake) or coordination == "queue"
