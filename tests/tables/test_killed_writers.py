"""Processes with a writer are killed at any moment: every number is in the table once, and none is missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trinitylake as tl

KILLS = 1000 if os.environ.get("TRINITYLAKE_DEEP") else 12
PROGRAM = """
import os, sys, time
import trinitylake as tl
root, parent = sys.argv[1], os.getpid()
import trinitylake.tables.ingestion.table_writer as table_writer
table_writer.COMMITS_PER_FULL_COMPACTION, table_writer.PAUSES_PER_COMPACTION = 20, 0
warm = tl.create("memory://warm")  # imports what a child needs
warm.create_namespace("raw")
with warm.create_table("raw.events", {"id": "bigint"}).writer(dead_letter_table="raw.dead") as writer:
    writer.write([{"id": 1}, {"id": "bad"}])
while sys.stdin.readline():  # one child for each kill, so that a kill does not cost the imports
    if (child := os.fork()) == 0:
        sys.excepthook = lambda *error: time.sleep(60)  # of a writer that was fenced, which is killed later
        lake = tl.open(root, durability="none")
        with lake.table("raw.events").writer(max_delay="4 ms", producer="p", dead_letter_table="raw.dead") as writer:
            number = writer.last_sequence()
            number = -1 if number is None else number
            while True:
                number += 1
                writer.write([{"id": number if number % 50 else "bad"}], sequence=number)
                time.sleep(0.001)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


@pytest.mark.timeout(3600)
def test_numbers_of_killed_writers_have_no_gap_and_no_duplicate(tmp_path: Path) -> None:
    """Every number is in the table once, although processes are killed at random: between two requests of a commit, a
    claim or a compaction.
    """
    choose = random.Random(17)
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.events", {"id": "bigint"})
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, lake.uri]
    parents = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for number in range(KILLS):
            children = []
            for parent in parents[: 1 + number % 2]:  # every second time a second writer takes the producer over
                assert parent.stdin is not None
                assert parent.stdout is not None
                parent.stdin.write("begin\n")
                parent.stdin.flush()
                children.append((parent, int(parent.stdout.readline())))
            time.sleep(0.02 + choose.random() * 0.6)
            for parent, child in children:
                os.kill(child, signal.SIGKILL)  # a fenced process has ended already
                assert parent.stdout is not None
                assert parent.stdout.readline() == "ended\n"
    finally:
        for parent in parents:
            parent.kill()
            parent.wait()
    with lake.table("raw.events").writer(producer="p") as writer:
        last = writer.last_sequence()
    assert last is not None
    assert last > KILLS
    found = sorted(lake.table("raw.events").scan().to_arrow()["id"].to_pylist())
    dead = sorted(lake.table("raw.dead").scan().to_arrow()["sequence"].to_pylist())
    assert found == [number for number in range(last + 1) if number % 50]
    assert dead == list(range(0, last + 1, 50))
    assert lake.maintenance.fsck().is_sound
