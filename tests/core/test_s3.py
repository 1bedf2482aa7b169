"""A lakehouse on S3: all operations, races with one winner, and secrets that are never written."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

import s3_server
import trinitylake as tl
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, S3Server
from trinitylake import _core, core
from waiting import PATIENCE_SECONDS

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
WRITERS = 24
ROUNDS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.serve() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.new_bucket()


@pytest.fixture
def root(bucket: str) -> str:
    return f"s3://{bucket}/some/folder/lake"


@pytest.fixture
def lake(root: str, server: S3Server) -> tl.Lakehouse:
    """Version 1 has `nyc.t` with three rows and the view `nyc.v`."""
    lake = tl.create(root, name="on s3", order=4, storage_options=server.storage_options)
    with lake.transaction(message="load", author="etl") as txn:
        txn.create_namespace("nyc", {"owner": "ops"})
        txn.create_table("nyc.t", ROWS).append(ROWS)
        txn.create_view("nyc.v", "SELECT 1")
    return lake


def ids(reader: tl.Lakehouse | tl.LakehouseVersion | tl.Transaction, name: str = "nyc.t") -> list[int]:
    return sorted(reader.table(name).scan().to_arrow()["id"].to_pylist())


def at_once(count: int, work: Callable[[int], object]) -> list[object]:
    """Results, or the errors, of `count` threads that start together."""
    barrier = threading.Barrier(count)

    def run(number: int) -> object:
        barrier.wait()
        try:
            return work(number)
        except tl.TrinityLakeError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_lakehouse_lives_its_whole_life_on_s3(lake: tl.Lakehouse, root: str, server: S3Server) -> None:
    assert lake.uri == f"{root}/"
    other = tl.open(f"{root}/", storage_options=server.storage_options)
    assert (other.name, other.version, other.namespaces()) == ("on s3", 1, ["nyc"])
    with other.transaction() as txn:
        txn.table("nyc.t").delete("id = 1")
        txn.create_table("nyc.u", ROWS, partition_spec=["name"]).append(ROWS)
        assert (ids(txn), ids(lake)) == ([2, 3], [1, 2, 3])
    assert lake.version == 2
    assert (ids(lake), ids(lake, "nyc.u"), ids(lake.at(1))) == ([2, 3], [1, 2, 3], [1, 2, 3])
    assert lake.table("nyc.u").scan(filter="name = 'b'", columns=["id"]).to_arrow().to_pylist() == [{"id": 2}]
    lake.table("nyc.t").upsert({"id": [3, 4], "name": ["changed", "new"]}, on=["id"])
    lake.rename_table("nyc.u", "nyc.renamed")
    assert [str(change) for _, change in lake.diff(2)] == ["table nyc.renamed", "table nyc.u", "table nyc.t"]
    assert lake.rollback(1) == 5
    assert (ids(lake), lake.tables()) == ([1, 2, 3], ["nyc.t"])
    assert lake.maintenance.expire(before=4) == [0, 1, 2, 3]
    fresh = tl.open(root, storage_options=server.storage_options)
    assert [entry.version for entry in fresh.log(None)] == [5, 4]
    with pytest.raises(tl.VersionExpired):
        fresh.at(3)
    assert ids(fresh) == [1, 2, 3]


def test_a_lakehouse_may_fill_a_whole_bucket(bucket: str, server: S3Server) -> None:
    lake = tl.create(f"s3://{bucket}", storage_options=server.storage_options)
    lake.create_namespace("nyc")
    assert core.root_path(1) in server.files(bucket)
    assert tl.open(f"s3://{bucket}/", storage_options=server.storage_options).namespaces() == ["nyc"]


def test_two_lakehouses_in_one_bucket_do_not_see_each_other(bucket: str, server: S3Server) -> None:
    """The name `lake` is a prefix of `lake2`, but its folder does not contain `lake2`."""
    first = tl.create(f"s3://{bucket}/lake", storage_options=server.storage_options)
    second = tl.create(f"s3://{bucket}/lake2", storage_options=server.storage_options)
    second.create_namespace("second")
    assert (first.version, first.namespaces(), second.namespaces()) == (0, [], ["second"])
    with pytest.raises(tl.ObjectAlreadyExists):
        tl.create(f"s3://{bucket}/lake", storage_options=server.storage_options)
    assert tl.create(f"s3://{bucket}/lake", exist_ok=True, storage_options=server.storage_options).version == 0
    with pytest.raises(tl.NotALakehouse, match=f"s3://{bucket}/lak/"):
        tl.open(f"s3://{bucket}/lak", storage_options=server.storage_options)


def test_pyiceberg_reads_the_metadata_from_s3_with_its_own_file_io(
    lake: tl.Lakehouse, root: str, server: S3Server
) -> None:
    lake.table("nyc.t").append({"id": [4], "name": ["d"]})
    location = lake.table("nyc.t").iceberg.metadata_location
    assert location.startswith(f"{root}/nyc/t-")
    table = StaticTable.from_metadata(location, properties=server.pyiceberg_properties)
    assert "trinitylake" not in type(table.io).__module__
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    assert len(table.history()) == 2
    assert [file.file.record_count for file in table.scan().plan_files()] in ([1, 3], [3, 1])


def test_pyiceberg_names_of_options_and_the_environment_work_too(
    lake: tl.Lakehouse, root: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**server.pyiceberg_properties, "allow_http": "true"}
    assert ids(tl.open(root, storage_options=options)) == [1, 2, 3]
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert ids(tl.open(root)) == [1, 2, 3]


def test_two_handles_commit_from_many_threads_and_lose_nothing(lake: tl.Lakehouse, root: str, server: S3Server) -> None:
    handles = (lake, tl.open(root, storage_options=server.storage_options))

    def work(number: int) -> None:
        for step in range(4):
            handles[number % 2].create_namespace(f"w{number}.n{step}")
        handles[number % 2].table("nyc.t").append({"id": [100 + number], "name": ["w"]})

    assert at_once(4, work) == [None] * 4
    assert lake.namespaces() == sorted(["nyc", *(f"w{worker}.n{step}" for worker in range(4) for step in range(4))])
    assert ids(lake) == [1, 2, 3, 100, 101, 102, 103]
    committed = [one.id for entry in lake.log(None) for one in entry.transactions]
    assert len(committed) == len(set(committed)) == 1 + 4 * 5


def commit_eight(root: str, options: dict[str, str], worker: int) -> None:
    lake = tl.open(root, storage_options=options)
    for number in range(8):
        lake.create_namespace(f"p{worker}.n{number}")
        if number % 4 == 0:
            lake.table("nyc.t").append({"id": [worker * 100 + number], "name": ["p"]})


def test_processes_commit_at_the_same_time_and_lose_nothing(lake: tl.Lakehouse, root: str, server: S3Server) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=commit_eight, args=(root, server.storage_options, worker)) for worker in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
    assert lake.namespaces() == sorted(
        ["nyc", *(f"p{worker}.n{number}" for worker in (1, 2, 3) for number in range(8))]
    )
    assert ids(lake) == [1, 2, 3, 100, 104, 200, 204, 300, 304]


def test_one_of_many_writers_creates_a_file(bucket: str, server: S3Server) -> None:
    stores = [_core.Storage(f"s3://{bucket}", server.storage_options) for _ in range(WRITERS)]
    for round in range(ROUNDS):
        path = core.root_path(round)
        creators = [partial(store.put, path, b"writer %d" % number) for number, store in enumerate(stores)]
        outcomes = at_once(WRITERS, lambda number, creators=creators: creators[number]())  # type: ignore[misc]
        winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert Counter(type(outcome) for outcome in outcomes)[tl.ObjectAlreadyExists] == WRITERS - 1
        assert stores[0].get(path) == b"writer %d" % winners[0]


def test_one_of_many_writers_gets_the_next_version(lake: tl.Lakehouse, root: str, server: S3Server) -> None:
    handles = [tl.open(root, storage_options=server.storage_options) for _ in range(WRITERS)]
    transactions = [handle.begin(message=f"writer {number}") for number, handle in enumerate(handles)]
    for number, transaction in enumerate(transactions):
        transaction.create_namespace("prize", {"winner": str(number)})
    outcomes = at_once(WRITERS, lambda number: transactions[number].commit())
    winners = [number for number, outcome in enumerate(outcomes) if outcome == 2]
    assert len(winners) == 1
    losers = [outcome for outcome in outcomes if isinstance(outcome, tl.CommitConflict)]
    assert len(losers) == WRITERS - 1
    assert {winner.message for loser in losers for winner in loser.winners} == {f"writer {winners[0]}"}
    assert lake.version == 2
    assert lake.namespace("prize").properties == {"winner": str(winners[0])}


def test_many_creators_make_one_lakehouse(bucket: str, server: S3Server) -> None:
    uri = f"s3://{bucket}/race"
    outcomes = at_once(8, lambda number: tl.create(uri, name=str(number), storage_options=server.storage_options))
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, tl.Lakehouse)]
    assert sum(isinstance(outcome, tl.ObjectAlreadyExists) for outcome in outcomes) == 7
    assert tl.open(uri, storage_options=server.storage_options).name == winner.name
    assert len([key for key in server.files(bucket) if "_lakehouse_def_" in key]) == 1, (
        "the losers deleted their definitions"
    )


@pytest.mark.parametrize(
    ("store", "finding"),
    [
        (s3_server.unconditional, "ignores the condition"),
        (s3_server.two_steps, "writers at once created the same file"),
    ],
    ids=["ignores-the-condition", "checks-then-writes"],
)
def test_a_store_that_lets_two_creators_win_is_refused(
    store: Callable[[s3_server.Put], s3_server.Put], finding: str
) -> None:
    with s3_server.serve(store) as server:
        bucket = server.new_bucket()
        with pytest.raises(tl.StorageError, match=finding) as caught:
            tl.create(f"s3://{bucket}/lake", storage_options=server.storage_options)
        assert not caught.value.retryable
        assert "If-None-Match" in str(caught.value)
        assert server.files(bucket) == {}, "nothing is left behind"
        with pytest.raises(tl.NotALakehouse):
            tl.open(f"s3://{bucket}/lake", storage_options=server.storage_options)


def test_a_bucket_that_does_not_exist_is_named(server: S3Server) -> None:
    for call in (tl.create, tl.open):
        with pytest.raises(tl.StorageError, match=r"s3://no-such-bucket/lake/.*bucket does not exist") as caught:
            call("s3://no-such-bucket/lake", storage_options=server.storage_options)
        assert not caught.value.retryable


def errors_of_all_kinds(lake: tl.Lakehouse, server: S3Server) -> Iterator[BaseException]:
    options = server.storage_options
    nowhere = {**options, "endpoint": "http://127.0.0.1:1", "max_retries": "0"}
    calls: list[Callable[[], object]] = [
        lambda: tl.open("s3://no-such-bucket/lake", storage_options=options),
        lambda: tl.open("s3://bucket/lake", storage_options=nowhere),
        lambda: tl.create(lake.uri, storage_options=options),
        lambda: tl.open(f"{lake.uri}not/here", storage_options=options),
        lambda: tl.open(lake.uri, storage_options={**options, "colour": "red"}),
        lambda: tl.open(lake.uri, storage_options={**options, "aws_secret_access_key": SECRET_KEY + "x"}),
        lambda: tl.open(f"s3://{ACCESS_KEY}:{SESSION_TOKEN}@bucket/lake"),
        lambda: tl.open(f"s3://bucket/lake?X-Amz-Security-Token={SESSION_TOKEN}"),
        lambda: lake.table("nyc.none"),
        lambda: lake.at(1000),
        lambda: lake._storage.get("not/there"),
        lambda: lake._storage.put("_latest_hint.txt", b""),
    ]
    for call in calls:
        with pytest.raises(tl.TrinityLakeError) as caught:
            call()
        yield caught.value


def test_no_secret_is_stored_logged_or_shown(
    lake: tl.Lakehouse,
    bucket: str,
    server: S3Server,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for library in ("botocore", "boto3", "urllib3"):  # the test's own client signs with the same keys
            caplog.set_level(logging.CRITICAL, logger=library)
        lake.table("nyc.t").append(ROWS)
        transaction = lake.begin()
        transaction.table("nyc.t").delete("id = 1")
        objects = [lake, lake._storage, lake._core, lake.at(), lake.at()._state(), transaction, transaction._core]
        objects += [lake.table("nyc.t"), lake.table("nyc.t").iceberg, lake.table("nyc.t").iceberg.io, lake.log()]
        seen += [repr(one) for one in objects] + [str(one) for one in objects]
        seen += [str(lake.table("nyc.t").iceberg.io.properties), str(lake._definition), str(lake.properties)]
        transaction.commit()
        for error in errors_of_all_kinds(lake, server):
            seen += [str(error), repr(error), repr(pickle.dumps(error)), str(vars(error)), repr(error.__cause__)]
    seen += [caplog.text, *capfd.readouterr()]
    stored = server.files(bucket)
    assert len(stored) > 10
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        for text in seen:
            assert secret not in text
        for key, data in stored.items():
            assert secret not in key
            assert secret.encode() not in data, key


def test_a_key_pasted_into_a_root_is_not_repeated_though_it_holds_slashes() -> None:
    """Secret keys of AWS are base64. Most contain a slash, which looks like the end of the part before the `@`."""
    assert "/" in SECRET_KEY
    with pytest.raises(tl.InvalidLocation) as caught:
        tl.open(f"s3://{ACCESS_KEY}:{SECRET_KEY}@bucket/lake")
    for secret in (ACCESS_KEY, SECRET_KEY, SECRET_KEY.partition("/")[2]):
        assert secret not in str(caught.value)


#: Commands, each with the exit code that it must have.
COMMANDS = """
import sys
from trinitylake.cli import main

for arguments, code in eval(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
        found = 0
    except SystemExit as ended:
        found = ended.code or 0
    assert found == code, (arguments, found)
print("ended")
"""


def test_the_command_line_prints_no_secret_even_when_it_traces(lake: tl.Lakehouse, root: str, server: S3Server) -> None:
    environment = {**os.environ, **server.environment, "RUST_LOG": "trace", "RUST_BACKTRACE": "1"}
    commands = (
        (["ls", "--root", root], 0),
        (["log", "--root", root, "--json"], 0),
        (["stats", "--root", root], 0),
        (["show", "nyc.t", "--root", root], 0),
        (["ls", "--root", f"{root}/not/here"], 4),
        (["ls", "--root", "s3://no-such-bucket/lake", "--json"], 1),
    )
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, repr(commands)], env=environment, capture_output=True, text=True
    )
    printed = done.stdout + done.stderr
    assert "ended" in done.stdout, printed
    assert "nyc" in printed
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert secret not in printed


def test_https_needs_a_trusted_certificate_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server.serve_tls(tmp_path) as server:
        root = f"s3://{server.new_bucket()}/lake"
        with pytest.raises(tl.StorageError, match="certificate"):
            tl.create(root, storage_options={**server.storage_options, "max_retries": "0"})
        monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
        with tl.create(root, storage_options=server.storage_options).transaction() as txn:
            txn.create_namespace("nyc")
        assert tl.open(root, storage_options=server.storage_options).namespaces() == ["nyc"]
