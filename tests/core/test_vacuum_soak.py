"""Writers and readers in processes that are killed now and then, during maintenance and vacuum on real storage.

`TRINITYLAKE_SOAK_SECONDS=n`, or `make soak`, runs it for that long on each kind of storage.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

import s3_server
import trinitylake as tl
from conformance.reachable import Reachable, files_below

FORK = multiprocessing.get_context("fork")
SECONDS = float(os.environ.get("TRINITYLAKE_SOAK_SECONDS", "0")) or 6.0
#: Interval of the kills.
KILL_SECONDS = 5.0 if SECONDS > 30 else 0.8
TABLES = ("shop.a", "shop.b")
ROWS = pa.schema([("id", pa.int64())])


class Actor:
    """A process that is started again after each kill. Its output is written to a file."""

    def __init__(self, name: str, folder: Path, work: Callable[[Callable[[str], None], random.Random], None]) -> None:
        self.name = name
        self.said = folder / f"{name}.txt"
        self._work = work
        self._lives = 0
        self.process: BaseProcess = self._start()

    def _start(self) -> BaseProcess:
        self._lives += 1
        process = FORK.Process(target=self._run, args=(self._lives,))
        process.start()
        return process

    def _run(self, life: int) -> None:
        out = os.open(self.said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            self._work(lambda text: os.write(out, f"{text}\n".encode()) and None, random.Random(f"{self.name}{life}"))
        except BaseException:
            os.write(out, f"failed {traceback.format_exc()!r}\n".encode())
        os._exit(0)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def revive(self) -> None:
        self.process = self._start()

    def lines(self) -> list[str]:
        return self.said.read_text().splitlines() if self.said.exists() else []


def say_if_expired(lake: tl.Lakehouse, version: int, say: Callable[[str], None], error: tl.VersionExpired) -> None:
    """Context manager: a read of an expired version, or one that expires during the read, raises `VersionExpired`.

    The storage decides whether the version has expired: missing files of a retained version fail the test.
    """
    boundary = max((int(path.removeprefix("_expired/")) for path, _, _ in lake._storage.list("_expired/")), default=0)
    if boundary <= version:
        raise AssertionError(
            f"version {version} is kept, since the boundary is {boundary}, and yet: {error}"
        ) from error
    say("late")


def writing(
    open_lake: Callable[[], tl.Lakehouse], number: int
) -> Callable[[Callable[[str], None], random.Random], None]:
    def work(say: Callable[[str], None], chance: random.Random) -> None:
        lake = open_lake()
        while True:
            row = (number << 48) + chance.getrandbits(47)
            table = chance.choice(TABLES)
            txn = lake.begin()
            try:
                with txn:
                    txn.table(table).append(pa.table({"id": [row]}, ROWS))
                    if chance.random() < 0.2:  # longer than the grace period
                        time.sleep(chance.random() * 4)
                    if chance.random() < 0.2:  # the transaction reads its own rows
                        txn.table(table).scan().to_arrow()
            except (tl.CommitConflict, tl.TransactionExpired, tl.CommitStateUnknown):
                continue
            except tl.VersionExpired as error:
                say_if_expired(lake, txn.base_version, say, error)
                continue
            say(f"{table} {row}")

    return work


def rows_in(reader: tl.LakehouseVersion, table: str) -> int:
    rows: int = reader.table(table).scan().to_arrow().num_rows
    return rows


def reading(
    open_lake: Callable[[], tl.Lakehouse], first: int
) -> Callable[[Callable[[str], None], random.Random], None]:
    def work(say: Callable[[str], None], chance: random.Random) -> None:
        lake = open_lake()
        while True:
            if chance.random() < 0.1:  # a tagged version never expires
                named = lake.at("tag:named")
                assert {table: rows_in(named, table) for table in TABLES} == dict.fromkeys(TABLES, 1)
                say("named")
                continue
            version = max(lake.version - chance.randrange(12), first)
            try:
                past = lake.at(version)
                for table in TABLES:
                    rows_in(past, table)
            except tl.VersionExpired as error:
                say_if_expired(lake, version, say, error)
                continue
            say("read")

    return work


def collecting(open_lake: Callable[[], tl.Lakehouse]) -> Callable[[Callable[[str], None], random.Random], None]:
    def work(say: Callable[[str], None], chance: random.Random) -> None:
        lake = open_lake()
        while True:
            try:
                if chance.random() < 0.5:
                    done = lake.maintenance.run()
                    # If two processes compact the same files, or one takes longer than the grace period, the table is
                    # compacted later.
                    for why in done.skipped.values():
                        say(f"skipped {why.message[:200]!r}")
                    say(f"compacted {sum(one.files_removed for one in done.compacted.values())}")
                    vacuumed = done.vacuumed
                else:
                    lake.maintenance.expire(keep=6 + chance.randrange(6))
                    vacuumed = lake.maintenance.vacuum(grace="2 s")
            except (tl.CommitConflict, tl.VersionExpired):  # another collection may expire a marked version
                continue
            assert vacuumed is not None
            say(f"deleted {vacuumed.total_deleted.files}")
            time.sleep(0.2)

    return work


@contextmanager
def s3_in_a_process_of_its_own() -> Iterator[tuple[str, dict[str, str]]]:
    """An S3 server in another process, so that processes are forked without its threads."""
    reading, writing = FORK.Pipe(duplex=False)

    def run() -> None:
        with s3_server.serve() as server:
            writing.send((server.new_bucket(), server.storage_options))
            time.sleep(3600 * 24)

    process = FORK.Process(target=run, daemon=True)
    process.start()
    try:
        yield reading.recv()
    finally:
        process.kill()
        process.join()


def copied(uri: str, options: dict[str, str], folder: Path) -> Path:
    """Copy all objects below an S3 root to files."""
    bucket, prefix = uri.removeprefix("s3://").split("/", 1)
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint"],
        region_name=options["region"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        aws_session_token=options["session_token"],
    )
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", ()):
            path = folder / entry["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, entry["Key"], str(path))
    return folder


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if request.param == "disk":
        yield str(tmp_path / "lake"), {}
        return
    with s3_in_a_process_of_its_own() as (bucket, options):
        yield f"s3://{bucket}/lake", options


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_gc_never_deletes_reachable_files(place: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """The classic error of garbage collection: a sweep deletes the files of a commit that it has not seen."""
    uri, options = place

    def open_lake() -> tl.Lakehouse:
        return tl.open(uri, storage_options=options, durability="none")

    lake = tl.create(
        uri,
        storage_options=options,
        durability="none",
        txn_ttl_millis=2000,
        maximum_version_age_millis=2000,
        minimum_versions_to_keep=6,
        properties={"maintenance.grace": "2 s"},
    )
    lake.create_namespace("shop")
    for table in TABLES:
        lake.create_table(table, ROWS).append(pa.table({"id": [-1]}, ROWS))
    lake.tags.create("named")
    writers = [Actor(f"writer{number}", tmp_path, writing(open_lake, number)) for number in range(4)]
    readers = [Actor(f"reader{number}", tmp_path, reading(open_lake, lake.version)) for number in range(2)]
    collectors = [Actor(f"collector{number}", tmp_path, collecting(open_lake)) for number in range(2)]
    actors = [*writers, *readers, *collectors]
    chance = random.Random(1)
    kills = 0
    end = time.monotonic() + SECONDS

    def have_said(what: str) -> bool:
        return any(line.startswith(what) for actor in actors for line in actor.lines())

    def is_enough() -> bool:
        return have_said("failed") or all(map(have_said, ("shop.", "read", "named")))

    while time.monotonic() < end or not is_enough():
        time.sleep(KILL_SECONDS)
        victim = chance.choice(actors)
        victim.kill()
        victim.revive()
        kills += 1
    for actor in actors:
        actor.kill()

    said = {actor.name: actor.lines() for actor in actors}
    failed = [line for lines in said.values() for line in lines if line.startswith("failed")]
    assert not failed, failed[0]
    acknowledged = [line.split() for one in writers for line in said[one.name] if line != "late"]
    deleted = sum(int(line.split()[1]) for one in collectors for line in said[one.name] if line.startswith("deleted"))
    reads = sum(line == "read" for one in readers for line in said[one.name])
    named = sum(line == "named" for one in readers for line in said[one.name])
    late = sum(line == "late" for lines in said.values() for line in lines)
    compacted = sum(
        int(line.split()[1]) for one in collectors for line in said[one.name] if line.startswith("compacted")
    )
    print(
        f"{uri}: {len(acknowledged)} commits, {reads} reads, {named} of what has a name, "
        f"{compacted} files compacted, {deleted} deleted, "
        f"{late} times what was read had expired meanwhile, {kills} processes killed"
    )
    # In a short run on a busy machine, no collection may have ended.
    assert deleted or SECONDS < 30
    lake = open_lake()
    present = {table: set(lake.table(table).scan().to_arrow()["id"].to_pylist()) for table in TABLES}
    lost = [(table, row) for table, row in acknowledged if int(row) not in present[table]]
    assert not lost, f"acknowledged, but missing: {lost[:5]}"

    time.sleep(4.5)  # all files are older than the shortest grace period
    lake.maintenance.expire(keep=1)
    lake.maintenance.vacuum(grace="0 s")
    assert open_lake().maintenance.fsck(files=True).is_sound
    root = copied(uri, options, tmp_path / "copy") if options else Path(uri)
    reachable = Reachable(root, uri if options else None).files
    assert files_below(root) == reachable
