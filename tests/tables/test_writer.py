"""`table.writer()`: rows of many small writes are committed together; no row is lost, duplicated or dropped
silently.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.tables.ingestion import table_writer
from waiting import PATIENCE_SECONDS, in_threads

COLUMNS = {"id": "bigint", "name": "varchar", "at": "timestamptz", "price": "decimal(9, 2)"}


@pytest.fixture
def lake() -> tl.Lakehouse:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("raw")
    lake.create_table("raw.events", COLUMNS)
    return lake


def ids(lake: tl.Lakehouse, table: str = "raw.events") -> list[int]:
    return sorted(lake.table(table).scan(columns=["id"]).to_arrow()["id"].to_pylist())


def test_writes_of_many_threads_share_a_version(lake: tl.Lakehouse) -> None:
    before = lake.version
    with lake.table("raw.events").writer(max_delay="10 seconds") as writer:
        futures: list[Any] = []

        def write(first: int) -> None:
            futures.extend(writer.write([{"id": id}]) for id in range(first, first + 50))

        in_threads(write, range(0, 400, 50))
        assert not any(future.done() for future in futures), "the delay has not passed"
        writer.flush()
        assert {future.result() for future in futures} == {before + 1} == {lake.version}
    assert ids(lake) == list(range(400))


def test_rows_are_committed_after_max_delay_rows_or_bytes(lake: tl.Lakehouse) -> None:
    table = lake.table("raw.events")
    with table.writer(max_delay="50 ms") as writer:
        assert writer.write([{"id": 1}]).result(timeout=PATIENCE_SECONDS) == lake.version
    with table.writer(max_delay="1 hour", max_rows=3) as writer:
        futures = [writer.write([{"id": 2}]), writer.write([{"id": 3}, {"id": 4}])]
        assert futures[0].result(timeout=PATIENCE_SECONDS) == futures[1].result(timeout=PATIENCE_SECONDS)
    with table.writer(max_delay="1 hour", max_size_bytes=1000) as writer:
        assert writer.write([{"id": 5, "name": "x" * 1000}]).result(timeout=PATIENCE_SECONDS)
    assert ids(lake) == [1, 2, 3, 4, 5]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
def test_rows_become_what_separate_appends_make_of_them(seed: int) -> None:
    lake, choose = tl.create(f"memory://{uuid.uuid4()}"), random.Random(seed)
    lake.create_namespace("raw")
    schema = {**COLUMNS, "tags": "array(varchar)", "part": "row(a bigint, b varchar)"}
    for name in ("events", "expected", "singly", "expected_singly"):
        lake.create_table(f"raw.{name}", schema)
    values: dict[str, list[Any]] = {
        "id": [1, None, 2.0, 2.5, "7", "x", Decimal(3)],
        "name": ["a", None, 5, 1.5, True],
        "at": [datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z", None, "yesterday"],
        "price": [Decimal("1.10"), 1, 0.5, "2.25", 1.005, None],
        "tags": [["a"], [], None, [1]],
        "part": [{"a": 1}, {"b": "x"}, {"a": 1, "c": 2}, None],
        "zz": [1, None],
    }
    likely = [*schema, *schema, "zz"]

    def row() -> dict[str, Any]:
        names = choose.sample(likely, choose.randint(1, 3))
        return {name: choose.choice(values[name][: choose.choice([2, 8])]) for name in names}

    writes = [[row() for _ in range(choose.randint(0, 3))] for _ in range(40)]

    def append(table: str, rows: list[dict[str, Any]]) -> bool:
        try:
            lake.table(table).append(rows)
        except tl.InvalidArgument:
            return False
        return True

    expected = [append("raw.expected", rows) for rows in writes]
    with lake.table("raw.events").writer(max_delay="1 hour") as writer:
        futures = [writer.write(rows) for rows in writes]
        with pytest.raises(tl.InvalidArgument):
            writer.flush()
        assert [future.exception() is None for future in futures] == expected

    def rows_of(table: str) -> list[str]:
        return sorted(json.dumps(one, default=str) for one in lake.table(table).scan().to_arrow().to_pylist())

    assert 0 < sum(expected) < 40
    assert rows_of("raw.events") == rows_of("raw.expected")
    bad = [one for rows in writes for one in rows if not append("raw.expected_singly", [one])]
    with lake.table("raw.singly").writer(max_delay="1 hour", dead_letter_table="dead.letters") as writer:
        futures = [writer.write(rows) for rows in writes]
        writer.flush()
        assert sum(future.rows_rejected for future in futures) == len(bad) == lake.table("dead.letters").count()
    assert rows_of("raw.singly") == rows_of("raw.expected_singly")


def test_rejected_rows_are_in_the_dead_letter_table_in_the_same_version(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(producer="p", dead_letter_table="raw.dead") as writer:
        future = writer.write([{"id": 1}, {"id": "one", "name": "é"}, {"id": 3, "nme": "x"}], sequence=8)
    letters = lake.table("raw.dead").scan().to_arrow().to_pylist()
    assert [(one["row"], one["producer"], one["sequence"]) for one in letters] == [
        ('{"id": "one", "name": "é"}', "p", 8),
        ('{"id": 3, "nme": "x"}', "p", 8),
    ]
    assert "cannot cast VARCHAR to BIGINT" in letters[0]["error"]
    assert "no column nme" in letters[1]["error"]
    assert abs(datetime.now(UTC) - letters[0]["time"]).total_seconds() < 60
    assert (future.result(), future.rows_rejected) == (lake.version, 2)
    [transaction] = lake.log(1)[0].transactions
    assert "raw.events" in transaction.summary
    assert "raw.dead" in transaction.summary
    with lake.table("raw.events").writer(dead_letter_table="raw.dead") as writer:
        assert writer.write(pa.table({"nope": [1, 2]})).result(timeout=PATIENCE_SECONDS) == lake.version
    assert lake.table("raw.dead").count() == 4
    assert ids(lake) == [1]


def test_columns_that_are_added_while_the_writer_is_open_are_written(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(max_delay="10 ms", dead_letter_table="raw.dead") as writer:
        writer.write([{"id": 1}]).result()
        with lake.table("raw.events").update_schema() as update:
            from pyiceberg.types import StringType

            update.add_column("more", StringType())
        assert writer.write([{"id": 2, "more": "x"}, {"id": 3}]).result()
    assert lake.table("raw.events").scan("more = 'x'").count() == 1
    assert not lake.exists("raw.dead")


def test_failed_write_fails_alone_and_close_raises_errors_that_were_not_seen(lake: tl.Lakehouse) -> None:
    writer = lake.table("raw.events").writer(max_delay="1 hour")
    good, bad = writer.write([{"id": 1}]), writer.write([{"id": 1}, {"id": "x"}])
    writer.write([{"id": 3}])
    with pytest.raises(tl.InvalidArgument, match="x"):
        writer.flush()
    assert good.result()
    assert ids(lake) == [1, 3], "rows of a write land together or not at all"
    assert isinstance(bad.exception(), tl.InvalidArgument)
    seen = writer.write([{"id": "x"}])
    thread = threading.Thread(target=seen.exception)
    thread.start()
    time.sleep(0.05)
    writer.flush()
    thread.join()
    writer.write([{"id": "x"}])
    with pytest.raises(tl.InvalidArgument, match="x"):
        writer.close()
    writer.close()
    with pytest.raises(tl.InvalidArgument, match="is closed"):
        writer.write([{"id": 1}])


@pytest.mark.parametrize("is_one_commit", [True, False])
def test_producer_ends_with_its_first_write_that_does_not_fit(lake: tl.Lakehouse, is_one_commit: bool) -> None:
    """Otherwise the corrected rows of the refused write would count as duplicates."""
    writer = lake.table("raw.events").writer(max_delay="1 hour", producer="p")
    other = writer.write([{"id": 100}], producer="q", sequence=1)
    writer.write([{"id": 1}], sequence=1)
    refused = writer.write([{"id": 2}, {"id": "x"}], sequence=2)
    if is_one_commit:
        writer.write([{"id": 3}], sequence=3)
    with pytest.raises(tl.InvalidArgument, match="x"):
        writer.flush()
    assert isinstance(refused.exception(), tl.InvalidArgument)
    with pytest.raises(tl.InvalidArgument, match="x"):
        writer.write([{"id": 4}], sequence=4)
    assert other.result()
    writer.close()
    with lake.table("raw.events").writer(producer="p") as writer:
        assert writer.last_sequence() == 1
        writer.write([{"id": 2}], sequence=2)
    assert ids(lake) == [1, 2, 100]


def test_deeply_nested_rows_are_rejected(lake: tl.Lakehouse) -> None:
    """A row of 400 levels is rejected alone, instead of failing all rows of its write with a RecursionError."""
    deep: object = 1
    for _ in range(400):
        deep = {"a": deep}
    with lake.table("raw.events").writer(dead_letter_table="raw.rejected") as writer:
        future = writer.write([{"id": 1}, {"id": deep}])
    assert future.rows_rejected == 1
    assert ids(lake) == [1]
    assert "at most 30 levels" in lake.table("raw.rejected").to_arrow()["error"][0].as_py()


def test_open_writer_notices_a_rollback(lake: tl.Lakehouse) -> None:
    """Continuing with the next number would leave a gap."""
    writer = lake.table("raw.events").writer(max_delay="20 ms", producer="p")
    version = writer.write([{"id": 1}], sequence=1).result()
    writer.write([{"id": 2}], sequence=2).result()
    lake.rollback(version)
    with pytest.raises(tl.ProducerFenced, match="from 2 to 1"):
        writer.write([{"id": 3}], sequence=3).result()
    writer.close()
    assert ids(lake) == [1]


def test_exception_in_the_block_commits_what_was_written(lake: tl.Lakehouse) -> None:
    def write() -> None:
        with lake.table("raw.events").writer(max_delay="1 hour") as writer:
            writer.write([{"id": 1}])
            writer.write([{"id": "x"}])
            raise KeyError("of the caller")

    with pytest.raises(KeyError) as raised:
        write()
    assert "some rows of the writer were not written" in raised.value.__notes__[0]
    assert ids(lake) == [1]


@pytest.mark.parametrize("kind", ["rows", "arrays", "table", "batches"])
def test_rows_may_be_changed_after_write(lake: tl.Lakehouse, kind: str) -> None:
    row, numbers = {"id": 0}, np.zeros(1, np.int64)
    table = pa.table({"id": pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(numbers)])})
    with lake.table("raw.events").writer(max_delay="1 hour") as writer:
        for number in range(3):
            row["id"] = numbers[0] = number
            data = {"rows": [row], "arrays": {"id": numbers}, "table": table, "batches": iter(table.to_batches())}
            writer.write(data[kind])
    assert ids(lake) == [0, 1, 2]


# Producers


def test_a_rollback_of_the_table_rolls_back_its_producers(lake: tl.Lakehouse) -> None:
    """Otherwise rows that are sent again would count as duplicates."""

    def send(producer: str, *numbers: int) -> list[bool]:
        with lake.table("raw.events").writer(producer=producer) as writer:
            futures = [writer.write([{"id": number}], sequence=number) for number in numbers]
        return [future.is_duplicate for future in futures]

    send("p", 0, 1)
    version = lake.version
    send("p", 2, 3)
    send("q", 10)
    open_writer = lake.table("raw.events").writer(producer="p")
    open_writer.write([{"id": 4}], sequence=4).result()
    lake.rollback(version, objects=["raw.events"])
    with pytest.raises(tl.ProducerFenced):
        open_writer.write([{"id": 5}], sequence=5).result()
    open_writer.close()
    assert send("p", 1, 2, 3) == [True, False, False]
    assert send("q", 10) == [False]
    assert sorted(lake.table("raw.events").scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 10]


def test_sequence_is_stored_with_the_rows_and_found_again(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(producer="sensor-7") as writer:
        assert writer.last_sequence() is None
        for number in (3, 5, 9):
            writer.write([{"id": number}], sequence=number)
        with pytest.raises(tl.InvalidArgument, match="not greater than the last one, 9"):
            writer.write([{"id": 9}], sequence=9)
    lake.rename_table("raw.events", "raw.renamed")
    lake.maintenance.expire(before=lake.version)
    with lake.table("raw.renamed").writer(producer="sensor-7") as writer:
        assert writer.last_sequence() == 9
        futures = [writer.write([{"id": number}], sequence=number) for number in range(3, 12)]
        writer.flush()
        assert [future.is_duplicate for future in futures] == [True] * 7 + [False] * 2
        assert writer.last_sequence() == 11
        assert writer.last_sequence("another") is None
    assert ids(lake, "raw.renamed") == [3, 5, 9, 10, 11]
    lake.create_table("raw.events", COLUMNS)
    with lake.table("raw.events").writer(producer="sensor-7") as writer:
        assert writer.last_sequence() is None, "another table has no rows of this producer"
    with lake.table("raw.events").writer() as writer:
        with pytest.raises(tl.InvalidArgument, match="needs producer"):
            writer.write([], sequence=1)
        with pytest.raises(tl.InvalidArgument, match="needs sequence"):
            writer.write([], producer="x")
        for wrong in (-1, True, 1.5, 1 << 63):
            with pytest.raises(tl.InvalidArgument, match="an integer from 0"):
                writer.write([], producer="x", sequence=wrong)  # type: ignore[arg-type]


def test_rollback_takes_rows_and_sequence_back(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(producer="p") as writer:
        version = writer.write([{"id": 1}], sequence=1).result()
        writer.write([{"id": 2}], sequence=2).result()
    lake.rollback(version)
    with lake.table("raw.events").writer(producer="p") as writer:
        assert writer.last_sequence() == 1
        writer.write([{"id": 2}], sequence=2)
    assert ids(lake) == [1, 2]


def test_writer_that_was_taken_over_is_fenced_and_other_producers_go_on(lake: tl.Lakehouse) -> None:
    """A fenced writer does not write its rows a second time."""
    table = lake.table("raw.events")
    old, new = table.writer(max_delay="1 hour"), lake.table("raw.events").writer(max_delay="1 hour")
    old.write([{"id": 1}], producer="p", sequence=1)
    old.flush()
    late = old.write([{"id": 2}], producer="p", sequence=2)
    other = old.write([{"id": 100}], producer="q", sequence=1)
    assert new.last_sequence("p") == 1
    new.write([{"id": 2}], producer="p", sequence=2)
    new.flush()
    with pytest.raises(tl.ProducerFenced, match="belongs to another writer"):
        old.flush()
    assert isinstance(late.exception(), tl.ProducerFenced)
    assert other.result() == lake.version
    with pytest.raises(tl.ProducerFenced):
        old.write([{"id": 3}], producer="p", sequence=3)
    old.close()
    new.close()
    assert ids(lake) == [1, 2, 100]


def test_producer_that_comes_back_is_taken_over_again(lake: tl.Lakehouse) -> None:
    """A writer that gets a partition of a topic back does not use its former claim."""
    one, two = lake.table("raw.events").writer(), lake.table("raw.events").writer()
    for number, (writer, last) in enumerate([(one, None), (two, 0), (one, 1), (one, 2), (two, 3)]):
        assert writer.last_sequence("p") == last
        writer.write([{"id": number}], producer="p", sequence=number)
        if number != 2:  # the next `last_sequence` waits for this write
            writer.flush()
    one.close()
    two.close()
    assert ids(lake) == [0, 1, 2, 3, 4]


def test_racing_writers_of_one_producer_write_each_number_once(lake: tl.Lakehouse) -> None:
    """Each writer reads the last number, writes the following ones, and gives way when it is fenced."""
    fenced = []
    all_are_open = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def produce() -> None:
        mine, is_first = tl.open(lake.uri), True
        while True:
            try:
                with mine.table("raw.events").writer(max_delay="1 ms", producer="p") as writer:
                    if is_first:
                        is_first = all_are_open.wait() < 0
                    for number in range((writer.last_sequence() or 0) + 1, 101):
                        writer.write([{"id": number}], sequence=number)
                        time.sleep(0.001)
                return
            except tl.ProducerFenced:
                fenced.append(1)
                time.sleep(random.random() / 4)

    in_threads(lambda _: produce(), range(3))
    assert fenced
    assert ids(lake) == list(range(1, 101))


# Slow and failing stores


@contextmanager
def failing_commits(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception | None], after: bool = False
) -> Iterator[None]:
    """Make the next commits raise these errors, before or after they commit. None means that the commit succeeds."""
    from trinitylake.lakehouse.transaction import Transaction

    commit = Transaction.commit

    def failing(self: Transaction, **options: Any) -> int:
        error = errors.pop(0) if errors else None
        if error is None or after:
            version = commit(self, **options)
        if error is not None:
            raise error
        return version

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", failing)
        yield


def test_retryable_error_is_retried_and_another_one_fails_the_producer(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "FIRST_PAUSE_SECONDS", 0.01)
    writer = lake.table("raw.events").writer(max_delay="1 hour")
    assert writer.last_sequence("p") is None
    busy: list[Exception | None] = [tl.StorageError("busy", retryable=True), tl.CommitConflict("raced")]
    with failing_commits(monkeypatch, busy):
        writer.write([{"id": 1}], producer="p", sequence=1)
        writer.flush()
    with failing_commits(monkeypatch, [tl.PermissionDenied("no")]):
        future = writer.write([{"id": 2}], producer="p", sequence=2)
        with pytest.raises(tl.PermissionDenied):
            writer.flush()
    assert isinstance(future.exception(), tl.PermissionDenied)
    with pytest.raises(tl.PermissionDenied):  # otherwise number 2 would be missing for ever
        writer.write([{"id": 3}], producer="p", sequence=3)
    writer.write([{"id": 4}])
    writer.close()
    assert ids(lake) == [1, 4]
    monkeypatch.setattr(table_writer, "RETRY_SECONDS", 0.0)
    with failing_commits(monkeypatch, [tl.StorageError("busy", retryable=True)]):
        writer = lake.table("raw.events").writer()
        writer.write([{"id": 5}])
        with pytest.raises(tl.StorageError, match="busy"):
            writer.close()


def test_commit_without_an_answer_is_settled(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the core reports such a commit is tested in `tests/core`."""
    monkeypatch.setattr(table_writer, "FIRST_PAUSE_SECONDS", 0.01)
    from trinitylake.lakehouse.transaction import Transaction

    outcomes: list[str] = []
    rollback = Transaction.rollback

    def settled(self: Transaction) -> None:
        outcomes.append(self.status.name)
        if self.version is not None:
            raise tl.CommitConflict("it was committed")
        rollback(self)

    monkeypatch.setattr(Transaction, "rollback", settled)
    for after, id in ((False, 1), (True, 2)):
        with (
            failing_commits(monkeypatch, [tl.CommitStateUnknown("no answer")], after=after),
            lake.table("raw.events").writer() as writer,
        ):
            future = writer.write([{"id": id}])
        assert future.result() == lake.version
    assert ids(lake) == [1, 2]
    assert outcomes == ["OPEN", "COMMITTED"]


def test_write_waits_while_the_buffer_is_full(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    from trinitylake.lakehouse.transaction import Transaction

    commit, may_commit = Transaction.commit, threading.Event()

    def slow(self: Transaction, **options: Any) -> int:
        assert may_commit.wait(PATIENCE_SECONDS)
        return commit(self, **options)

    monkeypatch.setattr(Transaction, "commit", slow)
    written = []
    with lake.table("raw.events").writer(max_delay="1 ms", max_rows=10) as writer:

        def write() -> None:
            for id in range(50):
                writer.write([{"id": id}])
                written.append(id)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert 10 <= len(written) <= 20, "at most one buffer is committed and one is filled"
        may_commit.set()
        thread.join()
    assert ids(lake) == list(range(50))


def test_callback_cannot_wait_for_its_own_writer(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(max_delay="1 hour") as writer:
        errors: list[BaseException] = []

        def flush(future: Any) -> None:
            try:
                writer.flush()
            except tl.InvalidArgument as error:
                errors.append(error)

        future = writer.write([{"id": 1}])
        future.add_done_callback(flush)
        writer.flush()
    assert "whose thread runs the callback" in str(errors[0])


def test_dropped_table_fails_the_writes(lake: tl.Lakehouse) -> None:
    with lake.table("raw.events").writer(max_delay="1 ms") as writer:
        writer.write([{"id": 1}]).result()
        lake.drop_table("raw.events")
        assert isinstance(writer.write([{"id": 2}]).exception(), tl.ObjectNotFound)
        lake.create_table("raw.events", COLUMNS)
        with pytest.raises(tl.ObjectNotFound, match="another table has its name"):
            writer.write([{"id": 3}]).result()
    assert ids(lake) == []


# Small files


def files(lake: tl.Lakehouse) -> int:
    snapshot = lake.table("raw.events").iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["total-data-files"] or 0)


@pytest.mark.parametrize("compacts", [True, False])
def test_table_that_is_fed_by_many_commits_has_few_files(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    monkeypatch.setattr(table_writer, "PAUSES_PER_COMPACTION", 0)
    monkeypatch.setattr(table_writer, "COMMITS_PER_FULL_COMPACTION", 20)
    if not compacts:
        lake.alter(properties={"maintenance.compact": "false"})
    most = 0
    with lake.table("raw.events").writer(producer="p") as one, lake.table("raw.events").writer(producer="q") as two:
        for number in range(40):
            one.write([{"id": number}], sequence=number)
            two.write([{"id": 100 + number}], sequence=number)
            one.flush()
            two.flush()
            most = max(most, files(lake))
    assert ids(lake) == [*range(40), *range(100, 140)]
    assert most <= 40 if compacts else most == 80
    for name in ("p", "q"):
        assert lake.table("raw.events").writer(producer=name).last_sequence() == 39


def test_compaction_that_lost_against_another_one_gives_way(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Two processes with the same number of commits compact the same files."""
    from trinitylake.lakehouse.lakehouse import Lakehouse

    monkeypatch.setattr(table_writer, "COMMITS_PER_COMPACTION", 8)
    monkeypatch.setattr(table_writer, "COMMITS_PER_FULL_COMPACTION", 8)
    compact, raced = Lakehouse._compact, []

    def race(self: Lakehouse, table: tuple[str, str], target: int | None) -> None:
        with self.begin() as transaction:
            transaction.table(table).maintenance.compact()
            compact(self, table)
            raced.append(1)

    monkeypatch.setattr(Lakehouse, "_compact", race)
    with lake.table("raw.events").writer() as writer:
        for number in range(8):
            writer.write([{"id": number}])
            writer.flush()
    assert raced == [1]
    assert (files(lake), ids(lake)) == (1, list(range(8)))
    assert not recwarn.list

    def fail(self: Lakehouse, table: tuple[str, str], target: int | None) -> None:
        raise tl.StorageError("no space")

    monkeypatch.setattr(Lakehouse, "_compact", fail)

    def write() -> None:
        with lake.table("raw.events").writer() as writer:
            for number in range(8, 16):
                writer.write([{"id": number}])
                writer.flush()

    with pytest.warns(UserWarning, match=r"small files of table raw.events could not be compacted: no space"):
        write()
    assert ids(lake) == list(range(16))


# asyncio, processes and the end of the interpreter


def test_writes_are_awaited_in_asyncio(lake: tl.Lakehouse) -> None:
    async def main() -> set[int]:
        async with lake.aio.table("raw.events").writer(max_delay="50 ms", producer="p") as writer:
            assert await writer.last_sequence() is None
            await writer.write([{"id": 0}], sequence=0)
            tasks = [asyncio.ensure_future(writer.write([{"id": id}], sequence=1, producer=f"p{id}")) for id in (1, 2)]
            cancelled = asyncio.ensure_future(writer.write([{"id": 3}], producer="q", sequence=1))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            versions = set(await asyncio.gather(*tasks))
            with pytest.raises(tl.InvalidArgument):
                await writer.write([{"id": "x"}], sequence=9)
            return versions

    versions = asyncio.run(main())
    assert versions <= set(range(lake.version + 1))
    assert ids(lake) in ([0, 1, 2], [0, 1, 2, 3]), "rows in the buffer of a cancelled task are still written"

    async def plain() -> int:
        with lake.table("raw.events").writer(max_delay="1 ms") as writer:
            return await asyncio.wrap_future(writer.write([{"id": 9}]))

    assert asyncio.run(plain()) == lake.version


def test_error_of_a_write_whose_task_was_cancelled_is_raised_by_close(lake: tl.Lakehouse) -> None:
    async def main() -> None:
        writer = lake.table("raw.events").writer(max_delay="1 h")
        waiting = asyncio.wrap_future(writer.write([{"id": "x"}]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 0.01)
        await asyncio.sleep(0)
        with pytest.raises(tl.InvalidArgument, match="id"):
            await asyncio.to_thread(writer.close)

    asyncio.run(main())


def _in_child(writer: Any, answers: Any) -> None:
    with pytest.raises(tl.InvalidArgument, match="open another one after a fork"):
        writer.write([{"id": 2}])
    with pytest.raises(tl.InvalidArgument, match="after a fork"):
        writer.flush()
    writer.close()
    answers.put("done")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_forked_child_leaves_the_rows_to_its_parent(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake")
    lake.create_namespace("raw")
    lake.create_table("raw.events", COLUMNS)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with lake.table("raw.events").writer(max_delay="1 hour") as writer:
        writer.write([{"id": 1}])
        child = context.Process(target=_in_child, args=(writer, answers))
        child.start()
        assert answers.get(timeout=PATIENCE_SECONDS) == "done"
        child.join()
    assert child.exitcode == 0
    assert ids(lake) == [1]


@pytest.mark.parametrize("end", ["pass", "raise ValueError", "os._exit(1)"])
def test_rows_of_a_writer_that_was_not_closed_are_committed_when_the_interpreter_exits(
    tmp_path: Path, end: str
) -> None:
    lake = tl.create(tmp_path / "lake")
    lake.create_namespace("raw")
    lake.create_table("raw.events", COLUMNS)
    program = f"""
import os, trinitylake as tl
writer = tl.open({str(tmp_path / "lake")!r}).table("raw.events").writer(max_delay="1 hour")
writer.write([{{"id": 1}}])
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == int(end != "pass"), done.stderr
    assert ids(lake) == ([] if "_exit" in end else [1]), done.stderr


def test_writers_are_for_managed_tables_of_the_latest_version(lake: tl.Lakehouse, tmp_path: Path) -> None:
    other = tl.create(tmp_path / "other")
    other.create_namespace("raw")
    other.create_table("raw.events", COLUMNS)
    for table in (lake.at().table("raw.events"), lake.begin().table("raw.events")):
        with pytest.raises(tl.InvalidArgument, match="commits its own transactions"):
            table.writer()
    lake.create_table("raw.outside", metadata_location=other.table("raw.events").iceberg.metadata_location)
    with pytest.raises(tl.InvalidArgument, match="only managed tables have writers"):
        lake.table("raw.outside").writer()
