"""Group append: concurrent appends of threads to one table share a commit. Each one succeeds once or fails alone."""

from __future__ import annotations

import gc
import linecache
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, StringType

import trinitylake as tl
from slow_s3 import slow_s3
from trinitylake.base.commit_info import CommitInfo
from trinitylake.tables import group_append
from trinitylake.tables.append_batch import Batch, to_ipc
from trinitylake.tables.autocommit_table import AutocommitTable
from trinitylake.tables.group_append import groups_of
from trinitylake.tables.table_locks import table_locks
from waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
DEEP = bool(os.environ.get("TRINITYLAKE_DEEP"))


@pytest.fixture
def events(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A lakehouse with the table `raw.events`."""
    lake.create_namespace("raw")
    lake.create_table("raw.events", SCHEMA, partition_spec="day")
    return lake


def rows(*ids: int, day: str = "mon") -> pa.Table:
    return pa.table({"id": ids, "day": [day] * len(ids)}, schema=SCHEMA)


def together(lake: tl.Lakehouse, *appends: Callable[[], object]) -> list[Future[object]]:
    """Run appends in one group: the first leads, and waits for the table lock until all others wait for it."""
    table_id = lake.table("raw.events").id
    groups = groups_of(lake._core, table_id, Batch)
    futures: list[Future[object]] = []

    def arrived() -> int:
        done = sum(future.done() for future in futures)
        return done + len(groups._waiting) + (groups._leader is not None)

    with ThreadPoolExecutor(len(appends)) as threads, table_locks.held([table_id]):
        for append in appends:
            futures.append(threads.submit(append))
            wait_until(lambda: arrived() >= len(futures))
    return futures


def appending(lake: tl.Lakehouse, data: Any, **arguments: Any) -> Callable[[], object]:
    return lambda: lake.table("raw.events").append(data, **arguments)


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("raw.events").scan().to_arrow()["id"].to_pylist())


def test_a_group_shares_files_and_a_version_and_keeps_its_transactions_apart(events: tl.Lakehouse) -> None:
    before = events.version
    table = events.table("raw.events")
    futures = together(
        events,
        appending(events, rows(1, 2), message="one", author="ann"),
        appending(events, rows(3), message="two", author="bob"),
        appending(events, rows(4, day="tue")),
        lambda: table.append([{"id": 5, "day": "tue"}], message="four"),
    )
    assert [future.result().rows_inserted for future in futures] == [2, 1, 1, 1]  # type: ignore[attr-defined]
    assert events.version == before + 1
    [entry] = events.log(1)
    logged = [(one.message, one.author, one.summary) for one in entry.transactions]
    assert logged == [
        ("one", "ann", "append +2 rows raw.events"),
        ("two", "bob", "append +1 row raw.events"),
        ("", "", "append +1 row raw.events"),
        ("four", "", "append +1 row raw.events"),
    ]
    assert len({one.id for one in entry.transactions}) == 4
    for one in entry.transactions:
        assert events.transactions.outcome(one.id) == ("committed", entry.version)
    iceberg = events.table("raw.events").iceberg
    assert len(iceberg.snapshots()) == 1
    assert len(iceberg.inspect.files()) == 2, "one file for each partition"
    assert len(iceberg.inspect.manifests()) == 1
    assert ids(events) == [1, 2, 3, 4, 5]
    assert table._version == before + 1, "the handle of a follower shows the version of its rows"
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]


def in_transaction(lake: tl.Lakehouse, *appends: pa.Table, **options: Any) -> Callable[[], object]:
    def run() -> int | None:
        with lake.transaction(**options) as txn:
            for append in appends:
                assert txn.table("raw.events").append(append).rows_inserted == len(append)
        return txn.version

    return run


@pytest.mark.parametrize("first", range(4))
def test_transactions_and_sql_that_only_append_share_a_version(events: tl.Lakehouse, first: int) -> None:
    """Whichever leads. Two appends of one transaction make one data file."""
    before = events.version
    appends = [
        appending(events, rows(1), message="one", author="ann"),
        in_transaction(events, rows(2), rows(3), message="two", author="bob", properties={"job": "nightly"}),
        in_transaction(events, rows(4), message="three", id=f"chosen-{first}"),
        lambda: events.sql("INSERT INTO raw.events VALUES (5, 'mon')"),
    ]
    futures = together(events, *appends[first:], *appends[:first])
    assert all(future.exception() is None for future in futures)
    assert events.version == before + 1
    [entry] = events.log(1)
    logged = {(one.message, one.author, one.summary, one.properties.get("job")) for one in entry.transactions}
    assert logged == {
        ("one", "ann", "append +1 row raw.events", None),
        ("two", "bob", "append +2 rows raw.events", "nightly"),
        ("three", "", "append +1 row raw.events", None),
        ("", "", "append +1 row raw.events", None),
    }
    assert {one.isolation for one in entry.transactions} == {"snapshot"}
    for one in entry.transactions:
        assert events.transactions.outcome(one.id) == ("committed", entry.version)
    assert len(events.table("raw.events").iceberg.inspect.files()) == 1
    assert ids(events) == [1, 2, 3, 4, 5]
    with events.transaction(id=f"chosen-{first}") as again:
        again.table("raw.events").append(rows(4))
    assert again.version == before + 1, "an id commits once"
    assert ids(events) == [1, 2, 3, 4, 5]


@pytest.mark.sample(6)
@pytest.mark.parametrize("coordination", ["none", "queue"])
@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("id", ["committed-before", "used-twice"])
def test_an_id_commits_once_and_fails_no_other_append_of_its_group(
    events: tl.Lakehouse, id: str, first: int, coordination: str
) -> None:
    """If another thread commits or restarts a transaction with the same id, only this append of a group fails; of two
    transactions with one id in a group, only one is committed."""
    events.alter({"commit.coordination": coordination})
    if id == "committed-before":
        in_transaction(events, rows(1), id=id)()
    appends = [appending(events, rows(2)), *[in_transaction(events, rows(1), id=id)] * 2]
    futures = together(events, *appends[first:], *appends[:first])
    results = [future.result() for future in futures]
    assert ids(events) == [1, 2]
    assert events.transactions.outcome(id) == ("committed", results[1 - first])
    assert results[1 - first] == results[2 - first]


def test_rows_of_a_writer_share_a_version_with_other_appends(events: tl.Lakehouse) -> None:
    """A writer that read the table after writing its rows always committed alone, and two servers competed."""
    with events.table("raw.events").writer(max_delay="0 s") as writer:
        futures = together(events, appending(events, rows(1)), lambda: writer.write(rows(2)).result())
    assert all(future.exception() is None for future in futures)
    assert len(events.log(1)[0].transactions) == 2
    assert ids(events) == [1, 2]


@pytest.mark.parametrize("way", ["group", "queue", "transaction"])
def test_appends_of_different_columns_share_a_version(
    lake: tl.Lakehouse, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing column gets its default value, also if another append of the group has the column."""
    lake.alter({"commit.coordination": "queue" if way == "queue" else "none"})
    lake.create_namespace("raw")
    table = lake.create_table("raw.events", {"id": "bigint", "x": "bigint"}, properties={"format-version": "3"})
    with table.update_schema() as update:
        update.add_column("size", LongType(), default_value=7)
    given = [{"id": [1]}, {"size": [2], "id": [2]}, {"x": [3]}, {"id": [4]}]
    if way == "transaction":
        with lake.transaction() as txn:
            for data in given:
                txn.table("raw.events").append(data)
    else:
        if way == "queue":
            monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
        assert not any(future.exception() for future in together(lake, *[appending(lake, data) for data in given]))
        assert len(lake.log(1)[0].transactions) == len(given)
    found = lake.table("raw.events").scan().to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in found if row["id"]) == [(1, None, 7), (2, None, 2), (4, None, 7)]
    assert [tuple(row.values()) for row in found if row["id"] is None] == [(None, 3, 7)]


def test_transactions_that_did_more_than_append_commit_by_themselves(events: tl.Lakehouse) -> None:
    def reading() -> None:
        with events.transaction() as txn:
            txn.table("raw.events").append(rows(2))
            assert txn.table("raw.events").count() == 2, "the transaction sees its own row"

    def checked() -> None:
        with events.transaction() as txn:
            txn.table("raw.events").append(rows(3))
            txn.add_check("SELECT count(*) > 0 FROM raw.events")

    def describing() -> None:
        with events.transaction() as txn:
            txn.table("raw.events").append(rows(4))
            txn.create_namespace("other")

    events.table("raw.events").append(rows(1))
    before = events.version
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(run) for run in (reading, checked, describing)]
    assert all(future.exception() is None for future in futures)
    assert sum(len(entry.transactions) for entry in events.log(events.version - before)) == 3
    assert ids(events) == [1, 2, 3, 4]


def test_rows_of_a_transaction_are_those_of_the_append(events: tl.Lakehouse) -> None:
    """Arrow shares memory with its caller, who may change it before the commit."""
    numbers = np.array([1, 2, 3])
    with events.transaction() as txn:
        txn.table("raw.events").append(pa.table({"id": pa.array(numbers), "day": ["mon"] * 3}))
        numbers[:] = 0
    assert ids(events) == [1, 2, 3]
    txn = events.begin()
    with pytest.raises(tl.InvalidArgument, match="dya"):
        txn.table("raw.events").append({"dya": ["mon"]})
    txn.table("raw.events").append(rows(4))
    txn.rollback()
    assert ids(events) == [1, 2, 3]


def test_rows_that_do_not_fit_fail_alone(events: tl.Lakehouse) -> None:
    futures = together(
        events,
        appending(events, {"id": ["no number"], "day": ["mon"]}),
        appending(events, rows(1)),
        appending(events, {"id": [2], "dya": ["mon"]}),
        appending(events, rows(3)),
        appending(events, {"id": [4]}),
    )
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [tl.InvalidArgument, type(None), tl.InvalidArgument, *[type(None)] * 2]
    assert "dya" in str(errors[2])
    assert ids(events) == [1, 3, 4]


def test_rows_wait_for_a_changed_table_and_fit_it_or_fail(events: tl.Lakehouse) -> None:
    """Another process changes the columns while rows wait for a commit."""
    stale = events.table("raw.events")
    other = tl.open(events.uri) if not events.uri.startswith("memory") else events
    with other.table("raw.events").update_schema() as update:
        update.delete_column("id")
    futures = together(
        events, appending(events, {"day": ["mon"]}), lambda: stale.append(rows(1)), appending(events, {"day": ["tue"]})
    )
    assert [type(future.exception()) for future in futures] == [type(None), tl.InvalidArgument, type(None)]
    assert events.table("raw.events").count() == 2


def test_a_dropped_table_fails_every_append(events: tl.Lakehouse) -> None:
    futures = together(
        events, lambda: events.table("raw.events").append(rows(1)), lambda: events.table("raw.events").append(rows(2))
    )
    assert all(future.exception() is None for future in futures)
    handles = [events.table("raw.events") for _ in range(3)]
    events.drop_table("raw.events")
    for handle in handles:
        with pytest.raises(tl.ObjectNotFound):
            handle.append(rows(3))


def test_a_lone_append_does_not_wait_for_the_last_group(events: tl.Lakehouse) -> None:
    together(events, *(appending(events, rows(id)) for id in range(5)))
    groups = groups_of(events._core, events.table("raw.events").id, Batch)
    groups._last_size, groups._last_seconds, groups._last_end = 5, 1e6, time.monotonic() - 1e6
    appending(events, rows(9))()  # otherwise the writer would wait for hours
    assert ids(events) == [0, 1, 2, 3, 4, 9]


def test_a_group_is_bounded(events: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_append, "MAX_MEMBERS", 2)
    before = events.version
    together(events, *(appending(events, rows(id)) for id in range(7)))
    sizes = [len(entry.transactions) for entry in reversed(events.log(events.version - before))]
    assert sizes == [3, 3, 1]
    assert ids(events) == list(range(7))


@pytest.mark.parametrize(("limit", "value"), [("MAX_ROWS", 3), ("MAX_SIZE_BYTES", 60), ("MAX_TEXT_LENGTH", 10)])
def test_a_group_is_bounded_in_rows_bytes_and_text(
    events: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(group_append, limit, value)
    before = events.version
    together(events, *(appending(events, rows(id, id), message="1234") for id in range(4)))
    assert 2 < events.version - before + 1 <= 4
    assert ids(events) == sorted([*range(4)] * 2)


class Interrupt:
    """Raises KeyboardInterrupt in one thread, at the n-th line that it executes in the given modules.

    Python itself raises it after a call or at the begin of a function: not at a `try:`, and not at the end of a `with`,
    whose line is traced again before `__exit__` is called.
    """

    MODULES = ("group_append.py", "autocommit_table.py")

    def __init__(self, line: int) -> None:
        self.left = line
        self._visits = Counter[tuple[FrameType, int]]()

    def __call__(self, append: Callable[[], object]) -> object:
        sys.settrace(self._call)
        try:
            return append()
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.endswith(self.MODULES) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        place = frame, frame.f_lineno
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        self._visits[place] += event == "line"
        is_exit = source.startswith("with ") and self._visits[place] % 2 == 0
        if event == "line" and not is_exit and source not in ("try:", "finally:"):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("coordination", ["none", "queue"])
@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_ctrl_c_at_any_line_loses_no_other_append(
    victim: int, coordination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line of a leader or follower (a third of them, besides deep runs), the other appends land once."""
    lake = tl.create(f"memory://{uuid.uuid4()}", properties={"commit.coordination": coordination})
    if coordination == "queue":
        monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    lake.create_namespace("raw")
    seen = Counter[str]()
    for line in count(1) if DEEP else count(1 + victim, 3):
        lake.create_table("raw.events", SCHEMA)
        interrupt = Interrupt(line)
        appends: list[Callable[[], object]] = [appending(lake, rows(number)) for number in range(3)]
        appends[victim] = partial(interrupt, appends[victim])
        futures = together(lake, *appends, in_transaction(lake, rows(3)))
        landed = Counter(ids(lake))
        for number, future in enumerate(futures):
            if number != victim:
                is_withdrawn = number == 3 and isinstance(future.exception(), tl.CommitConflict)
                assert is_withdrawn or future.exception() is None, f"line {line}: {future.exception()!r}"
                assert landed[number] == (0 if is_withdrawn else 1), f"line {line}"
                seen["withdrawn"] += is_withdrawn
        error = futures[victim].exception()
        assert landed[victim] <= 1, f"line {line}"
        if interrupt.left > 0:
            assert error is None
            assert landed[victim] == 1
            break
        assert isinstance(error, KeyboardInterrupt), f"line {line}: {error!r}"
        seen[f"landed {landed[victim]}"] += 1
        lake.table("raw.events").append(rows(9))  # no thread waits for the dead leader
        lake.drop_table("raw.events")
    assert seen["landed 0"] > 3
    assert victim == 1 or seen["landed 1"] > 0


def lose_race(*_: object, **__: object) -> None:
    """Report a lost race, as if another process had changed the table. Then the group appends in the queue."""
    raise group_append.LostRace


@pytest.mark.parametrize("fault", ["", "fail", "lose", "refuse"])
def test_ctrl_c_at_any_request_of_the_queue_answers_every_append(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the leader of a group reaches the program, and each append of the group is committed or fails. The n-th
    write of the leader raises KeyboardInterrupt, for every n, before or after the store executes the write, or after
    the store has begun to refuse all writes. Rows of a dead process are in the queue, too, and another process leads
    afterwards."""
    monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    is_appending = False

    def interrupt(*_: object) -> None:
        handled.set()
        if is_appending:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    gc.disable()  # Python ignores an exception in a callback of the garbage collector, and Hypothesis has one
    try:
        with slow_s3(0, 0) as s3:
            lake = tl.create(s3.uri("lake"), storage_options=s3.options, properties={"commit.coordination": "queue"})
            other = tl.open(lake.uri, storage_options=s3.options)
            lake.create_namespace("raw")
            lake.create_table("raw.events", SCHEMA)
            seen = Counter[str]()
            number, is_interrupted = 0, True
            while is_interrupted:
                number += 1
                first, handled, writes = 10 * number, Event(), count(1)
                queued_by_a_dead_process(other, rows(first + 9))

                def strike(
                    key: str, number: int = number, handled: Event = handled, writes: count[int] = writes
                ) -> str:
                    if (write := next(writes)) == number:
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                        handled.wait(0.2)  # some calls cannot be interrupted, and end first
                    return fault if write == number or (write > number and fault == "refuse") else ""

                followers = [
                    appending(lake, rows(first + 1)),
                    in_transaction(lake, rows(first + 2)),
                    in_transaction(lake, rows(first + 3)),
                ]
                error: BaseException | None = None
                with following(lake, *followers) as futures:
                    s3.on_put = strike
                    try:
                        is_appending = True
                        lake.table("raw.events").append(rows(first))
                    except KeyboardInterrupt as raised:
                        error = raised
                    is_appending = False
                s3.on_put = lambda key: ""
                is_interrupted = handled.is_set()
                other.table("raw.events").append(rows(first + 4))
                found = Counter(ids(other))
                assert found[first] <= 1
                assert error is not None or found[first] == 1
                assert found[first + 9] == 1, "the rows of the dead process must be there once"
                for id, future in enumerate(futures, first + 1):
                    failure = future.exception()
                    is_withdrawn = isinstance(failure, tl.CommitConflict) and id > first + 1
                    step = f"write {number}: {failure!r}"
                    assert failure is None or is_withdrawn or fault == "refuse", step
                    is_unknown = isinstance(failure, tl.CommitStateUnknown)
                    assert found[id] == (failure is None) or (is_unknown and found[id] == 1), step
                    seen[f"{type(failure).__name__} after {type(error).__name__}"] += 1
                lake.table("raw.events").append(rows(first + 5))  # no thread waits for the dead leader
            failed = "CommitStateUnknown" if fault == "refuse" else "CommitConflict"
            assert seen[f"{failed} after KeyboardInterrupt"]
            assert seen["NoneType after KeyboardInterrupt"] or fault == "refuse"
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def following(lake: tl.Lakehouse, *appends: Callable[[], object]) -> Iterator[list[Future[object]]]:
    """Run appends as members of the group that the next append in this thread leads. Waits for them at the end."""
    table_id = lake.table("raw.events").id
    groups = groups_of(lake._core, table_id, Batch)
    futures: list[Future[object]] = []
    is_locked = Event()

    def arrive() -> None:
        with table_locks.held([table_id]):
            is_locked.set()
            for count, append in enumerate(appends, 1):
                wait_until(lambda: groups._leader is not None)
                futures.append(threads.submit(append))
                wait_until(lambda count=count: len(groups._waiting) == count)  # type: ignore[misc]

    with ThreadPoolExecutor(len(appends) + 1) as threads:
        arrived = threads.submit(arrive)
        is_locked.wait()
        yield futures
        arrived.result()


def lakes_with_queue(tmp_path: Path) -> tuple[tl.Lakehouse, tl.Lakehouse]:
    """Two handles as in two processes: none knows what the other one does."""
    lake = tl.create(str(tmp_path / "lake"), durability="none", properties={"commit.coordination": "queue"})
    lake.create_namespace("raw")
    lake.create_table("raw.events", SCHEMA)
    return lake, tl.open(lake.uri, durability="none")


def queued_by_a_dead_process(lake: tl.Lakehouse, rows: pa.Table, columns: Schema | None = None) -> str:
    """Leave rows in the queue, like a process that is killed while it waits. Returns the id of the transaction."""
    table = lake.table("raw.events")
    batch = Batch(rows, None, None, CommitInfo("of the dead process"))  # type: ignore[arg-type]
    entry = table._log_entry(batch)  # type: ignore[attr-defined]
    columns = columns or table.iceberg.schema()
    lake._core.queue_appends(table.id, ("raw", "events"), [entry], to_ipc(rows, columns)).wait()
    return str(entry.id)


def test_a_process_appends_rows_that_another_one_has_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, other = lakes_with_queue(tmp_path)
    id = queued_by_a_dead_process(lake, rows(1, 2))
    assert ids(other) == []
    monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    done = other.table("raw.events").append(rows(3), message="of the other one")
    assert ids(other) == [1, 2, 3]
    [entry] = other.log(1)
    logged = [(one.message, one.summary) for one in entry.transactions]
    assert logged == [
        ("of the other one", "append +1 row raw.events"),
        ("of the dead process", "append +2 rows raw.events"),
    ]
    assert other.transactions.outcome(id) == ("committed", done.version)
    assert not list((tmp_path / "lake" / "_queue").glob("*"))


def test_a_transaction_that_loses_a_race_waits_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rebasing alone it lost to a writer that begins without reading: a server could not commit for a minute."""
    lake, other = lakes_with_queue(tmp_path)
    txn = lake.begin(isolation="snapshot")
    txn.table("raw.events").append(rows(1))
    other.table("raw.events").append(rows(2))
    queued: list[int] = []
    append_in_queue = AutocommitTable._append_in_queue

    def watched(self: AutocommitTable, batch: Batch, *arguments: Any) -> group_append.Committed:
        queued.append(batch.rows.num_rows)
        return append_in_queue(self, batch, *arguments)

    monkeypatch.setattr(AutocommitTable, "_append_in_queue", watched)
    txn.commit()
    assert queued == [1]
    assert ids(other) == [1, 2]


@pytest.mark.parametrize("change", ["rename", "drop", "drop and add"])
def test_a_queued_append_is_repeated_for_the_columns_that_its_caller_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Rows wait in the queue with all columns of the table. When another process renamed or dropped a column that the
    caller had not named, the append failed. A new column of the same name got NULL instead of its default value."""
    lake, other = lakes_with_queue(tmp_path)
    table = lake.create_table("raw.wide", {"id": "bigint", "extra": "bigint"}, properties={"format-version": "3"})
    append_in_queue = AutocommitTable._append_in_queue

    def after_the_change(self: AutocommitTable, batch: Batch, *arguments: Any) -> group_append.Committed:
        monkeypatch.setattr(AutocommitTable, "_append_in_queue", append_in_queue)
        with other.table("raw.wide").update_schema() as update:
            if change == "rename":
                update.rename_column("extra", "more")
            else:
                update.delete_column("extra")
        if change == "drop and add":
            with other.table("raw.wide").update_schema() as update:
                update.add_column("extra", LongType(), default_value=7)
        return append_in_queue(self, batch, *arguments)

    monkeypatch.setattr(AutocommitTable, "_append_in_queue", after_the_change)
    monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    table.append({"id": [1]})
    [row] = other.table("raw.wide").scan().to_arrow().to_pylist()
    assert list(row.values()) == {"rename": [1, None], "drop": [1], "drop and add": [1, 7]}[change]


def test_queued_rows_that_do_not_fit_any_more_are_left_to_their_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, other = lakes_with_queue(tmp_path)
    queued_by_a_dead_process(lake, rows(1))
    with other.table("raw.events").update_schema() as update:
        update.rename_column("day", "weekday")
    monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    other.table("raw.events").append({"id": [2], "weekday": ["tue"]})
    assert ids(other) == [2]


@pytest.mark.parametrize("in_queue", [False, True])
def test_rows_of_a_transaction_are_never_written_to_another_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_queue: bool
) -> None:
    """If a column is renamed and another column gets its name, waiting rows are written to the right column. In the
    queue the transactions conflict, because another process may have begun to write their rows."""
    lake, _ = lakes_with_queue(tmp_path)
    transactions = [lake.begin(isolation="snapshot") for _ in range(3)]
    for number, txn in enumerate(transactions):
        txn.table("raw.events").append(rows(number))
    with lake.table("raw.events").update_schema() as update:
        update.rename_column("day", "weekday")
    with lake.table("raw.events").update_schema() as update:
        update.add_column("day", StringType())
    if in_queue:
        monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    futures = together(lake, *[txn.commit for txn in transactions])
    found = lake.table("raw.events").scan().to_arrow().to_pylist()
    if in_queue:
        assert [type(future.exception()) for future in futures] == [tl.CommitConflict] * 3
        assert not found
        queued_by_a_dead_process(lake, rows(7), lake.at(3).table("raw.events").iceberg.schema())
        lake.table("raw.events").append({"id": [8], "day": ["tue"]})
        assert ids(lake) == [8], "rows for other columns are left to their own process"
    else:
        assert all(future.exception() is None for future in futures)
        assert sorted(found, key=lambda row: row["id"]) == [
            {"id": number, "weekday": "mon", "day": None} for number in range(3)
        ]


def test_rows_that_fail_in_the_queue_are_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, other = lakes_with_queue(tmp_path)
    handle = lake.table("raw.events")
    other.drop_table("raw.events")
    monkeypatch.setattr(AutocommitTable, "_append_group", lose_race)
    with pytest.raises(tl.ObjectNotFound):
        handle.append(rows(1))
    assert "roll back" in lake.log(1)[0].transactions[0].message


class Companion:
    """A transaction in the log with a given outcome."""

    def __init__(self, version: int | None, is_unknown: bool) -> None:
        self.id, self.committed_version, self.is_unknown = "some-id", version, is_unknown


@pytest.mark.parametrize("error", [tl.CommitStateUnknown("no reply"), tl.StorageError("reset"), KeyboardInterrupt()])
@pytest.mark.parametrize("outcome", ["committed", "unknown", "not committed"])
def test_a_follower_gets_the_outcome_of_its_transaction(error: BaseException, outcome: str) -> None:
    """A leader may be interrupted after its commit has succeeded."""
    groups = group_append.AppendGroups[Batch]()
    batch = Batch(rows(1), None, None, CommitInfo())  # type: ignore[arg-type]
    table = SimpleNamespace(_definition="definition")
    leads: list[str] = []

    def lead(take: Any, own: group_append.Member[Batch]) -> group_append.Committed:
        leads.append("")
        wait_until(lambda: len(groups._waiting) == 1 or len(leads) > 1)
        own.table = table  # type: ignore[assignment]
        for member in take(lambda batch: True):
            member.companion = Companion(7 if outcome == "committed" else None, outcome == "unknown")  # type: ignore
        if len(leads) == 1:
            raise error
        return group_append.Committed("alone", 8)  # type: ignore[arg-type]

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(groups.append, lambda: batch, lead)
        wait_until(lambda: bool(leads))
        second = threads.submit(groups.append, lambda: batch, lead)
    assert first.exception() is error
    if outcome == "committed":
        assert second.result() == (table, 7)
    elif outcome == "unknown":
        assert isinstance(second.exception(), tl.CommitStateUnknown)
        assert "some-id" in str(second.exception())
    elif isinstance(error, KeyboardInterrupt):
        assert second.result() == ("alone", 8), "the follower leads the next group"
    else:
        assert second.result() is None, "it appends alone"
    assert groups._leader is None
    assert not groups._waiting


@pytest.mark.parametrize("fault", ["refuse", "fail", "lose"])
def test_a_failed_write_at_any_step_lands_each_append_once_or_fails_it(fault: str) -> None:
    """Any write of the group is refused, fails, or is executed with a lost reply."""
    with slow_s3(0, 0) as s3:
        lake = tl.create(s3.uri("lake"), storage_options=s3.options)
        lake.create_namespace("raw")
        lake.create_table("raw.events", SCHEMA)
        lake.table("raw.events").append(rows(0))
        number, errors = 0, 0
        while number < 40:
            writes: list[str] = []

            def strike(key: str, number: int = number, writes: list[str] = writes) -> str:
                writes.append(key)
                return fault if len(writes) == number + 1 and "hint" not in key else ""

            first = 10 + 10 * number
            s3.on_put = strike
            futures = together(lake, *(appending(lake, rows(first + n)) for n in range(3)))
            s3.on_put = lambda key: ""
            landed = Counter(id for id in ids(lake) if id >= first)
            for n, future in enumerate(futures):
                expected = 1 if future.exception() is None else 0
                assert landed[first + n] == expected, (number, writes, future.exception())
                errors += future.exception() is not None
            number += 1
            if len(writes) < number:
                break
        else:
            pytest.fail("the group never ends")
        assert number > 6
        assert errors == 0 or fault == "refuse", "other faults are repeated"
