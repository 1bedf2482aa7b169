"""Writers, `trinitylake ingest` and `POST /ingest` under kills: each row is in the table once, and none is missing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from free_port import free_port
from killed_processes import Reaper, Store, kills, store_on
from trinitylake import rest
from trinitylake.cli.app import app


def arguments(store: Store, file: Path) -> list[str]:
    options = [f"--option={key}={value}" for key, value in store.options.items()]
    names = ["--producer", "p", "--dead-letter", "raw.dead", "--max-delay", "20 ms"]
    return ["ingest", "--root", store.uri, "raw.events", str(file), *names, *options]


def follow(store: Store, file: Path) -> None:
    app([*arguments(store, file), "--follow"])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("on", ["disk", "s3"])
def test_killed_followers_of_a_file_write_each_row_once(tmp_path: Path, on: str) -> None:
    """Every second process starts while the previous one still runs, and takes over its producer."""
    file, chance, stop = tmp_path / "events.json", random.Random(3), threading.Event()
    file.touch()
    written = 0

    def grow() -> None:
        nonlocal written
        with file.open("ab", buffering=0) as stream:
            while not stop.is_set():
                line = json.dumps({"id": written if written % 50 else "bad"}).encode() + b"\n"
                middle = chance.randrange(len(line))
                stream.write(line[:middle])  # a line arrives in two parts
                time.sleep(0.001)
                stream.write(line[middle:])
                written += 1

    with store_on(on, tmp_path) as store:
        lake = store.create("none")
        lake.create_namespace("raw")
        lake.create_table("raw.events", {"id": "bigint"})
        reaper = Reaper(follow, random.Random(4), lambda: lake.at().version, store, max_steps=3)
        thread = threading.Thread(target=grow)
        thread.start()
        try:
            for number in range(kills(4, 100)):
                for _ in range(1 + number % 2 - len(reaper.alive())):
                    reaper.begin(store, file)
                reaper.kill_one()
        finally:
            reaper.kill_all()
            stop.set()
            thread.join()
        ended = CliRunner().invoke(app, arguments(store, file))
        assert ended.exit_code == 0, ended.output
        found = sorted(lake.table("raw.events").scan().to_arrow()["id"].to_pylist())
        dead = lake.table("raw.dead").count()
        assert lake.maintenance.fsck().is_sound
    assert found == [number for number in range(written) if number % 50]
    assert dead == len(range(0, written, 50))


def serve(store: Store, port: int) -> None:
    server = rest.serve(store.open(), port=port)
    server.start()
    time.sleep(1000)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("coordination", "on"), [("none", "disk"), ("queue", "s3")])
def test_requests_to_killed_servers_write_each_row_once(tmp_path: Path, coordination: str, on: str) -> None:
    """Clients repeat a request without an answer, at one of two servers, with the same sequence number."""
    ports, stop = [free_port(), free_port()], threading.Event()
    acknowledged: dict[str, int] = defaultdict(int)
    refusals: list[bytes] = []

    def send(name: str) -> None:
        chance = random.Random(name)
        while not stop.is_set():
            sequence = acknowledged[name]
            rows = "".join(json.dumps({"client": name, "number": 3 * sequence + row}) + "\n" for row in range(3))
            headers = {"Content-Type": "application/x-ndjson", "Producer": name, "Sequence": str(sequence)}
            url = f"http://127.0.0.1:{chance.choice(ports)}/ingest/raw/events"
            request = urllib.request.Request(url, rows.encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    assert answer.status == 200
            except urllib.error.HTTPError as error:
                refusals.extend([] if error.code >= 500 or error.code == 409 else [error.read()])
            except OSError:
                time.sleep(0.02)
            else:
                acknowledged[name] += 1

    with store_on(on, tmp_path) as store:
        lake = store.create(coordination)
        lake.create_namespace("raw")
        lake.create_table("raw.events", {"client": "text", "number": "bigint"})
        reaper = Reaper(serve, random.Random(5), lambda: sum(acknowledged.values()), store, max_steps=25)
        clients = [threading.Thread(target=send, args=(f"client-{number}",)) for number in range(6)]
        try:
            for port in ports:
                reaper.begin(store, port)
            for client in clients:
                client.start()
            for _ in range(kills(4, 100)):
                reaper.kill_one()
                running = {child.name for child in reaper.alive()}
                for port in ports:
                    if str(port) not in running:
                        reaper.begin(store, port)
        finally:
            stop.set()
            for client in clients:
                client.join()
            reaper.kill_all()
        found = defaultdict(list)
        for row in lake.table("raw.events").scan().to_arrow().to_pylist():
            found[row["client"]].append(row["number"])
        assert lake.maintenance.fsck().is_sound
    assert not refusals, refusals[0]
    assert len(found) == len(clients)
    for name, numbers in found.items():
        assert sorted(numbers) == list(range(len(numbers))), f"{name}: a row is missing or duplicated"
        assert len(numbers) // 3 - acknowledged[name] in (0, 1)
        assert len(numbers) % 3 == 0, "only a part of a request was written"


# Writers


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
    """Killed at random between two requests of a commit, a claim or a compaction."""
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
