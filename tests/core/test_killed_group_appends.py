"""Group appends of killed processes, mixed with deletes, merges, compaction and expiry.

Each thread appends its numbers in order and reports each one that was acknowledged. Whatever is killed at whatever
moment, each acknowledged number is in the table once, and of the others at most the next one of each thread.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl

FORK = multiprocessing.get_context("fork")
SCHEMA = pa.schema([("thread", pa.string()), ("number", pa.int64()), ("state", pa.string())])
KILLS = int(os.environ.get("TRINITYLAKE_GROUP_KILLS", "8"))
PROCESSES, THREADS = 2, 6


def append_for_ever(uri: str, name: str, reports: Path) -> None:
    """Threads of one process that append to one table and report what was acknowledged."""
    lake = tl.open(uri, durability="none")

    def work(thread: int) -> None:
        table = lake.table("raw.events")
        key = f"{name}-{thread}"
        with open(reports / key, "ab", buffering=0) as report:
            for number in range(1_000_000):
                table.append({"thread": [key], "number": [number], "state": ["new"]}, message=f"{key} {number}")
                report.write(b"%d\n" % number)

    for thread in range(THREADS):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    time.sleep(1000)


def change_rows(lake: tl.Lakehouse, stop: threading.Event, chance: random.Random) -> None:
    """Deletes, merges, compactions and expiries that remove no number and add none."""
    while not stop.is_set():
        table = lake.table("raw.events")
        with suppress(tl.CommitConflict):
            match chance.randrange(5):
                case 0:
                    table.delete("state = 'never'")
                case 1:
                    keys = table.scan(limit=3, columns=["thread", "number"]).to_arrow()
                    marked = keys.append_column("state", pa.array(["merged"] * len(keys)))
                    table.merge(marked, on=["thread", "number"]).when_matched_update().execute()
                case 2:
                    table.maintenance.compact()
                case 3:
                    table.maintenance.expire_snapshots()
                case 4:
                    lake.maintenance.expire(keep=50)
        time.sleep(chance.random() / 20)


@pytest.mark.parametrize("coordination", ["none", "queue"])
def test_killed_processes_lose_and_repeat_no_acknowledged_append(tmp_path: Path, coordination: str) -> None:
    uri, reports = str(tmp_path / "lake"), tmp_path / "reports"
    reports.mkdir()
    lake = tl.create(uri, durability="none", properties={"commit.coordination": coordination})
    lake.create_namespace("raw")
    lake.create_table("raw.events", SCHEMA)
    chance = random.Random(1)
    stop = threading.Event()
    running = []

    def begin(number: int) -> None:
        child = FORK.Process(target=append_for_ever, args=(uri, f"p{number}", reports), daemon=True)
        child.start()
        running.append(child)

    for number in range(PROCESSES):
        begin(number)
    changes = threading.Thread(target=change_rows, args=(tl.open(uri, durability="none"), stop, chance))
    changes.start()
    try:
        for number in range(PROCESSES, PROCESSES + KILLS):
            time.sleep(0.5 + chance.random())
            victim = running.pop(chance.randrange(len(running)))
            victim.kill()
            victim.join()
            begin(number)
    finally:
        stop.set()
        for child in running:
            child.kill()
            child.join()
        changes.join()
    assert lake.maintenance.fsck(files=True).is_sound
    rows = lake.table("raw.events").scan().to_arrow()
    landed: dict[str, list[int]] = defaultdict(list)
    for row in rows.to_pylist():
        landed[row["thread"]].append(row["number"])
    acknowledged = 0
    for report in reports.iterdir():
        done = [int(line) for line in report.read_text().split()]
        acknowledged += len(done)
        numbers = sorted(landed.pop(report.name, []))
        assert numbers == list(range(len(numbers))), f"{report.name}: a number twice, or a gap"
        assert len(done) <= len(numbers) <= len(done) + 1, f"{report.name}: {len(done)} acknowledged"
    assert not landed
    processes = [{one.message.split("-")[0] for one in entry.transactions} for entry in lake.log(10_000)]
    groups = sum(len(entry.transactions) > 1 for entry in lake.log(10_000))
    assert groups > 3
    assert (max(map(len, processes)) > 1) == (coordination == "queue"), "a version with appends of several processes"
    assert acknowledged > 50
