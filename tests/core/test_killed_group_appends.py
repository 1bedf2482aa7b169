"""Histories of group appends, deletes, merges and maintenance, in processes that are killed at any moment.

Each thread appends its numbers in order and reports each that was acknowledged. Other threads delete and merge rows.
The message of each transaction says what it did, so a dictionary of rows can repeat the log. Required are:

- each acknowledged number is in the log once, and of the others at most the next one of each thread;
- each version that was read contains the rows that the log up to that version results in: the order of the versions is
  a serial order, with all rows of a group;
- a transaction that began after another one was acknowledged is in a later version.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from slow_s3 import SlowS3, slow_s3

FORK = multiprocessing.get_context("fork")
SCHEMA = pa.schema([("thread", pa.string()), ("number", pa.int64()), ("bucket", pa.int64()), ("state", pa.string())])
#: Kills of each of the four histories.
KILLS = 250 if os.environ.get("TRINITYLAKE_DEEP") else int(os.environ.get("TRINITYLAKE_GROUP_KILLS", "12"))
PROCESSES, THREADS, BUCKETS = 2, 4, 7
MAX_APPENDS_PER_KILL, LINE_SIZE_BYTES = 50, 40
#: Rows of a table: the state of each number of each thread.
Rows = dict[tuple[str, int], str]


def append_and_change_for_ever(uri: str, options: dict[str, str], name: str, reports: Path) -> None:
    """Threads of one process that append to one table and report what was acknowledged, and one that changes rows."""
    lake = tl.open(uri, durability="none", storage_options=options)

    def append(key: str) -> None:
        table = lake.table("raw.events")
        with open(reports / key, "ab", buffering=0) as report:
            for number in range(1_000_000):
                begin = time.monotonic()
                row = {"thread": [key], "number": [number], "bucket": [number % BUCKETS], "state": ["new"]}
                table.append(row, message=f"append {key} {number}")
                report.write(b"%7d %15f %15f\n" % (number, begin, time.monotonic()))

    def change(key: str) -> None:
        chance = random.Random(key)
        while True:
            table = lake.table("raw.events")
            with suppress(tl.CommitConflict):
                match chance.randrange(4):
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

    def work(task: Any, key: str) -> None:
        try:
            task(key)
        except BaseException:
            (reports / f"error of {key}").write_text(traceback.format_exc())

    for thread in range(THREADS):
        threading.Thread(target=work, args=(append, f"{name}-{thread}"), daemon=True).start()
    work(change, f"{name}-changes")


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


class Reaper:
    """Kills one of the running processes, at a random time or at a random request."""

    def __init__(self, chance: random.Random, reports: Path, s3: SlowS3 | None) -> None:
        self.running: list[Any] = []
        self._chance, self._reports, self._s3, self._requests_left = chance, reports, s3, -1
        if s3 is not None:
            s3.on_put = self._on_put

    def kill_one(self) -> None:
        """Kill a process after some more appends were acknowledged, and wait for its end."""
        enough = self._reported() + self._chance.randrange(1, MAX_APPENDS_PER_KILL)
        deadline = time.monotonic() + 60
        while self._reported() < enough:
            assert time.monotonic() < deadline, "no process writes any more"
            time.sleep(0.01)
        if self._s3 is None:
            time.sleep(self._chance.random() * 0.05)
            self._chance.choice(self.running).kill()
        else:
            self._requests_left = self._chance.randrange(1, 10)
        ended = wait([child.sentinel for child in self.running], timeout=60)
        assert ended, "no process sends requests any more"
        for child in [child for child in self.running if child.sentinel in ended]:
            child.join()
            self.running.remove(child)

    def _reported(self) -> int:
        return sum(path.stat().st_size for path in self._reports.iterdir()) // LINE_SIZE_BYTES

    def _on_put(self, key: str) -> str:
        self._requests_left -= 1
        if self._requests_left != 0:
            return ""
        self._chance.choice(self.running).kill()
        return self._chance.choice(["", "fail"])  # the file is created, or it is not


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ["disk", "s3"])
@pytest.mark.parametrize("coordination", ["none", "queue"])
def test_histories_with_kills_have_a_serial_order(tmp_path: Path, coordination: str, store: str) -> None:
    reports, chance = tmp_path / "reports", random.Random(1)
    reports.mkdir()
    with slow_s3(0.006, 0.002) if store == "s3" else nullcontext() as s3:
        uri, options = (str(tmp_path / "lake"), {}) if s3 is None else (s3.uri("lake"), s3.options)
        opened = partial(tl.open, uri, durability="none", storage_options=options)
        lake = tl.create(
            uri, durability="none", properties={"commit.coordination": coordination}, storage_options=options
        )
        lake.create_namespace("raw")
        lake.create_table("raw.events", SCHEMA)
        observer, reaper = Observer(opened()), Reaper(chance, reports, s3)
        try:
            for number in range(PROCESSES + KILLS):
                arguments = (uri, options, f"p{number}", reports)
                child = FORK.Process(target=append_and_change_for_ever, args=arguments, daemon=True)
                child.start()
                reaper.running.append(child)
                if number >= PROCESSES:
                    reaper.kill_one()
                if number % 3 == 0:
                    observer.look()
        finally:
            for child in reaper.running:
                child.kill()
                child.join()
        observer.look()
        assert lake.maintenance.fsck(files=True).is_sound
    errors = [path.read_text() for path in reports.glob("error of *")]
    assert not errors, errors[0]
    observer.check(reports)
    groups = [messages for messages in observer.log.values() if len(messages) > 1]
    assert len(groups) > 3
    shared = any(len({message.split(" ")[1].split("-")[0] for message in group}) > 1 for group in groups)
    assert shared == (coordination == "queue"), "a version with appends of several processes"
    assert {"delete", "merge"} <= {message.split(" ")[0] for messages in observer.log.values() for message in messages}
    print(f"{coordination} on {store}: {KILLS} kills, {len(observer.log)} versions, {len(observer.reads)} reads")
