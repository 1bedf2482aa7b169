"""`erase(history="rewrite")` keeps versions and tags, and removes the rows from all of their files."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from test_erase import ANN, FILTER, SCHEMA, holding, people

import trinitylake as tl
from local_files import age, age_instead_of_sleep
from position_deletes import delete_values
from s3_server import serve
from trinitylake import _core
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata import cache
from trinitylake.lakehouse import erasure
from trinitylake.lakehouse.file_search import TextSearch


@pytest.fixture(autouse=True)
def _files_age_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    age_instead_of_sleep(monkeypatch, erasure, tmp_path)


def live(table: tl.Table) -> list[dict[str, Any]]:
    return table.scan().to_arrow().sort_by("id").to_pylist()


def without_ann(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if ANN not in row.values()]


def test_versions_and_tags_of_a_quarter_stay_without_the_rows_of_one_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure keeps earlier versions and tags, such as the audited state of a quarter, without the erased rows."""
    monkeypatch.setattr(erasure, "time", time)  # the end of the first erasure has to be older, too
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    orders = lake.create_table("raw.orders", SCHEMA)
    orders.append(people("bob", ANN, "eve"))
    lake.tags.create("q3")
    lake.table("raw.orders").append(people(ANN, "dan", first=4))
    lake.table("raw.orders").delete("id = 3")
    saved = lake.begin(id="report")
    saved.create_namespace("reports")
    saved.save()
    versions = range(lake.version + 1)
    planned = lake.erase("raw.orders", FILTER, dry_run=True)
    assert (planned.versions, planned.tags, planned.transactions) == ((3, 4, 5, 6), ("q3",), ())
    assert planned.columns == ("email",)

    done = lake.erase("raw.orders", FILTER)
    assert {why.partition("; ")[2] for why in done.remaining.values()} == {
        "open saved transactions keep it: end report, and erase again"
    }
    lake.resume("report").commit()
    done = lake.erase("raw.orders", FILTER, reason="request 4711")
    assert done.is_verified, done
    assert holding(tmp_path / "lake", ANN) == []
    assert done.expired == ()
    assert [lake.at(number).version for number in versions] == list(versions)
    assert live(lake.at("tag:q3").table("raw.orders")) == [{"id": 1, "email": "bob"}, {"id": 3, "email": "eve"}]
    assert [row["id"] for row in live(lake.table("raw.orders"))] == [1, 5]
    # The log, the changed rows, and a rollback to the earlier state.
    assert {row["id"]: row["_change_type"] for row in changes(lake, 4, 6)} == {5: "insert", 3: "delete"}
    lake.rollback("tag:q3")
    lake.table("raw.orders").append(people("zoe", first=9))
    assert [row["id"] for row in live(lake.table("raw.orders"))] == [1, 3, 9]
    done.write(tmp_path / "certificate.json")
    report = lake.maintenance.fsck(
        "all",
        data=True,
        certificate=tmp_path / "certificate.json",
        filter=FILTER,
        key=tmp_path / "certificate.json.key",
    )
    assert report.is_sound, report.findings


def changes(lake: tl.Lakehouse, since: int, until: int) -> list[dict[str, Any]]:
    return lake.table("raw.orders").changes(since, until).read_all().to_pylist()


@pytest.mark.parametrize("kept_by", ["grace", "transaction"])
def test_the_erasing_process_shows_and_restores_no_row_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_by: str
) -> None:
    """The process that erases forgets cached metadata, also if no file could be deleted. Otherwise an earlier version
    would still have the rows, and an append after a rollback would write them into the latest version."""
    monkeypatch.setattr(erasure, "_COLLECTED_AFTER_SECONDS", 0)  # the files are too young to be deleted in any case
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN, "eve"))
    lake.table("raw.orders").append(people("dan", first=4))
    before = lake.version - 1
    assert live(lake.at(before).table("raw.orders"))[1]["email"] == ANN  # read, and cached
    if kept_by == "transaction":
        lake.begin(id="held").save()
    lake.erase("raw.orders", FILTER, grace="1 day" if kept_by == "grace" else None)
    assert [row["id"] for row in live(lake.at(before).table("raw.orders"))] == [1, 3]
    lake.rollback(before)
    lake.table("raw.orders").append(people("zoe", first=9))
    assert [row["id"] for row in live(tl.open(tmp_path / "lake").table("raw.orders"))] == [1, 3, 9]


EMAILS = [ANN, "bob@example.com", "eve@example.com", "dan@example.com", None]


class History:
    """A random history of a table, with the expected rows of each version in a dictionary."""

    def __init__(self, lake: tl.Lakehouse, seed: int) -> None:
        self.lake, self.random = lake, random.Random(seed)
        self.format = self.random.choice(["1", "2", "2", "3", "3"])
        mode = self.random.choice(["copy-on-write", "merge-on-read"])
        spec = self.random.choice([[], ["email"], ["bucket(3, email)"]])
        lake.create_namespace("raw")
        properties = {"format-version": self.format} | {
            f"write.{statement}.mode": mode for statement in ("delete", "update", "merge")
        }
        lake.create_table(
            "raw.orders", {"id": "bigint", "email": "varchar", "n": "int"}, partition_spec=spec, properties=properties
        )
        self.is_partitioned, self.column, self.next_id = bool(spec), "email", 1
        self.rows: dict[int, dict[str, Any]] = {}
        self.versions: dict[int, list[dict[str, Any]]] = {}
        self.copies: list[str] = []
        self.has_equality_deletes = False

    @property
    def table(self) -> tl.Table:
        return self.lake.table("raw.orders")

    def step(self) -> None:
        steps: list[Callable[[], object]] = [self.append, self.append, self.delete, self.update, self.compact, self.tag]
        steps += [self.rename, self.partition, self.copy, self.drop]
        if self.format == "2" and not self.is_partitioned:
            steps += [self.delete_by_values]
        if self.format == "2" and not self.has_equality_deletes:
            steps += [self.upgrade]
        self.random.choice(steps)()
        self.versions[self.lake.version] = [dict(row) for _, row in sorted(self.rows.items())]

    def append(self) -> None:
        new = [
            {"id": self.next_id + number, self.column: self.random.choice(EMAILS), "n": self.random.randrange(5)}
            for number in range(self.random.randrange(1, 12))
        ]
        self.next_id += len(new)
        self.table.append(new)
        self.rows |= {row["id"]: row for row in new}

    def delete(self) -> None:
        n = self.random.randrange(5)
        self.table.delete(f"n = {n} and id < {self.next_id - 3}")
        self.rows = {id: row for id, row in self.rows.items() if not (row["n"] == n and id < self.next_id - 3)}

    def update(self) -> None:
        n = self.random.randrange(5)
        self.lake.sql(f"UPDATE raw.orders SET n = 7 WHERE n = {n}")
        self.rows = {id: row | {"n": 7 if row["n"] == n else row["n"]} for id, row in self.rows.items()}

    def delete_by_values(self) -> None:
        value = self.random.choice(EMAILS[:-1])
        delete_values(self.table, pa.table({self.column: [value]}))
        self.rows = {id: row for id, row in self.rows.items() if row[self.column] != value}
        self.has_equality_deletes = True

    def compact(self) -> None:
        self.table.maintenance.compact(min_files=2)

    def tag(self) -> None:
        self.lake.tags.create(f"t{self.lake.version}")

    def rename(self) -> None:
        with self.table.update_schema() as change:
            change.rename_column(self.column, "mail" if self.column == "email" else "email")
        old, self.column = self.column, "mail" if self.column == "email" else "email"
        self.rows = {id: {"id": row["id"], self.column: row[old], "n": row["n"]} for id, row in self.rows.items()}

    def partition(self) -> None:
        with self.table.iceberg.update_spec() as change:
            change.add_field("n", f"bucket[{self.lake.version}]", f"part_{self.lake.version}")

    def copy(self) -> None:
        if self.versions and not self.copies:
            self.lake.rollback(self.random.choice(sorted(self.versions)), objects={"raw.orders": "raw.copy"})
            self.copies.append("raw.copy")

    def drop(self) -> None:
        before = self.lake.version
        self.lake.drop_table("raw.orders")
        self.lake.rollback(before, objects="raw.orders")

    def upgrade(self) -> None:
        self.table.iceberg.transaction().upgrade_table_version(3).commit_transaction()
        self.format = "3"


def counts(table: tl.Table) -> None:
    """Compare the totals in the summaries of all snapshots with their manifests."""
    iceberg = table.iceberg
    for snapshot in iceberg.snapshots():
        files = [
            entry.data_file
            for manifest in snapshot.manifests(iceberg.io)
            for entry in manifest.fetch_manifest_entry(iceberg.io)
        ]
        data = [file for file in files if file.content == 0]
        expected = {"total-data-files": len(data), "total-records": sum(file.record_count for file in data)}
        expected["total-delete-files"] = len(files) - len(data)
        assert {name: int(snapshot.summary[name] or 0) for name in expected} == expected


@pytest.mark.parametrize("seed", range(60 if os.environ.get("TRINITYLAKE_DEEP") else 4))
def test_a_random_history_equals_the_model_without_the_rows(tmp_path: Path, seed: int) -> None:
    lake = tl.create(tmp_path / "lake", order=5, durability="none")
    history = History(lake, seed)
    for _ in range(12):
        history.step()
    for number, rows in history.versions.items():
        assert live(lake.at(number).table("raw.orders")) == rows, f"version {number} before the erasure"
    ids = row_ids(history)
    filter = f"{history.column} = '{ANN}'"
    done = [lake.erase("raw.orders", filter)]
    done += [
        lake.erase(name, FILTER if "email" in lake.table(name).schema.names else f"mail = '{ANN}'")
        for name in history.copies
    ]
    done.append(lake.erase("raw.orders", filter))
    assert done[-1].is_verified, (seed, done[-1])
    assert holding(tmp_path / "lake", ANN) == []
    for number, rows in history.versions.items():
        table = lake.at(number).table("raw.orders")
        assert live(table) == without_ann(rows), f"version {number}"
        counts(table)
        if history.format == "1":
            stock = StaticTable.from_metadata(table.iceberg.metadata_location).scan().to_arrow()
            assert stock.sort_by("id").to_pylist() == without_ann(rows)
    assert {key: id for key, id in row_ids(history).items()} == {
        key: id for key, id in ids.items() if key[1] in {row["id"] for row in without_ann(history.versions[key[0]])}
    }
    report = lake.maintenance.fsck("all", data=True)
    assert report.is_sound, report.findings
    history.rows = {id: row for id, row in history.rows.items() if ANN not in row.values()}
    history.update()
    history.append()
    assert live(history.table) == [row for _, row in sorted(history.rows.items())]


def row_ids(history: History) -> dict[tuple[int, int], object]:
    columns = ["id", "_row_id", "_last_updated_sequence_number"]
    found: dict[tuple[int, int], object] = {}
    for number in history.versions:
        table = history.lake.at(number).table("raw.orders")
        if table.iceberg.metadata.format_version == 3:
            for id, *lineage in zip(
                *(table.scan(columns=columns).to_arrow()[name].to_pylist() for name in columns), strict=True
            ):
                found[number, id] = lineage
    return found


class Interrupting:
    """Raises `KeyboardInterrupt` before or after one write of an erasure, as if the process were killed there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self._left = at
        self._is_dead = False
        put, begin = LakehouseFileIO.put, erasure._ErasureRun.__init__

        def counted_put(io: LakehouseFileIO, *arguments: Any, **others: Any) -> None:
            self.pass_by()
            put(io, *arguments, **others)

        def with_counted_replace(run: Any, *arguments: Any) -> None:
            begin(run, *arguments)
            run._storage = CountedReplace(run._storage, self)

        monkeypatch.setattr(LakehouseFileIO, "put", counted_put)
        monkeypatch.setattr(erasure._ErasureRun, "__init__", with_counted_replace)
        for name in ("_collected", "_remove_empty_folders", "_verified", "_try_to_commit"):
            monkeypatch.setattr(erasure._ErasureRun, name, self.counted(getattr(erasure._ErasureRun, name)))
        # A killed process does not release its lease.
        end = erasure._Lease.__exit__
        monkeypatch.setattr(erasure._Lease, "__exit__", lambda *them: None if self._is_dead else end(*them))

    def pass_by(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._is_dead = True
            raise KeyboardInterrupt

    def counted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted_work(*arguments: Any) -> Any:
            self.pass_by()
            result = work(*arguments)
            self.pass_by()
            return result

        return counted_work


class CountedReplace:
    def __init__(self, storage: Any, interrupting: Interrupting) -> None:
        self._storage = storage
        self.replace = interrupting.counted(storage.replace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def test_a_second_call_finishes_after_a_crash_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "_COLLECTED_AFTER_SECONDS", 0.0)
    root, backup = tmp_path / "lake", tmp_path / "backup"
    lake = tl.create(root, durability="none")
    lake.create_namespace("raw")
    properties = {"format-version": "3", "write.delete.mode": "merge-on-read"}
    table = lake.create_table("raw.orders", SCHEMA, properties=properties)
    table.append(people("bob", ANN, "eve", "zoe"))
    lake.table("raw.orders").delete("id = 1 or id = 2")
    lake.tags.create("q3")
    lake.table("raw.orders").append(people(ANN, "dan", first=5))
    expected = {number: without_ann(live(lake.at(number).table("raw.orders"))) for number in range(3, lake.version + 1)}
    age(tmp_path / "lake", 2.1)  # a garbage collection keeps younger files
    shutil.copytree(root, backup)
    interruptions = 0
    step = 1 if os.environ.get("TRINITYLAKE_DEEP") else 3  # odd: before some writes, and after others
    for at in itertools.count(step=step):
        shutil.rmtree(root)
        shutil.copytree(backup, root)
        cache.clear()  # the cache has other content of the same files
        with monkeypatch.context() as patch:
            Interrupting(patch, at)
            try:
                tl.open(root).erase("raw.orders", FILTER)
                break
            except KeyboardInterrupt:
                interruptions += 1
        lake = tl.open(root)
        for number, rows in expected.items():
            assert without_ann(live(lake.at(number).table("raw.orders"))) == rows, (at, number)
        done = lake.erase("raw.orders", FILTER)
        assert done.is_verified, (at, done)
        assert holding(root, ANN) == []
        for number, rows in expected.items():
            assert live(lake.at(number).table("raw.orders")) == rows, (at, number)
        assert lake.maintenance.fsck("all", data=True).is_sound
        assert lake.transactions.list() == []
    assert interruptions * step > 15


def test_writers_in_other_handles_lose_no_row_and_bring_no_row_back(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN, "eve"))
    lake.table("raw.orders").append(people(ANN, "dan", first=4))
    kept = lake.version
    is_over, failures = threading.Event(), []
    appended: dict[int, list[int]] = {1: [], 2: []}

    def write(number: int) -> None:
        try:
            own = tl.open(tmp_path / "lake")
            while not is_over.is_set():
                id = number * 1000 + len(appended[number])
                own.table("raw.orders").append(people("other", first=id))
                appended[number].append(id)
                if len(appended[number]) % 5 == 2:
                    own.table("raw.orders").delete(f"id = {id}")
                    appended[number].remove(id)
                    appended[number].insert(0, 4_000_000)  # keeps the ids unique
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in appended]
    for thread in threads:
        thread.start()
    try:
        done = lake.erase("raw.orders", FILTER)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert done.is_verified, done
    assert holding(tmp_path / "lake", ANN) == []
    expected = {id for ids in appended.values() for id in ids if id != 4_000_000}
    assert {row["id"] for row in live(lake.table("raw.orders"))} == {1, 3, 5} | expected
    assert live(lake.at(kept).table("raw.orders")) == without_ann(live(lake.at(kept).table("raw.orders")))
    assert lake.maintenance.fsck(data=True).is_sound


def test_a_rollback_during_an_erasure_names_no_replaced_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A concurrent rollback does not make a metadata file the latest one whose content the erasure has replaced.
    Otherwise a writer that has read the former content could commit it with new rows."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN))
    past = lake.version
    lake.table("raw.orders").append(people("eve", first=3))
    other = tl.open(tmp_path / "lake")
    replace_metadata, late = erasure._ErasureRun._replace_metadata, []

    def after_rollback(run: Any, *arguments: Any) -> Any:
        if not late:
            other.rollback(past)
            late.append(other.begin())
            late[0].table("raw.orders").append(people("late", first=9))
        return replace_metadata(run, *arguments)

    monkeypatch.setattr(erasure._ErasureRun, "_replace_metadata", after_rollback)
    done = lake.erase("raw.orders", FILTER)
    assert done.is_verified, done
    try:
        late[0].commit()
        expected = [1, 9]
    except (tl.CommitConflict, tl.TransactionExpired):
        expected = [1]
    assert [row["id"] for row in live(lake.table("raw.orders"))] == expected
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.maintenance.fsck("all", data=True).is_sound


@pytest.mark.parametrize("moment", ["before the passes", "before the collection"])
def test_a_copy_under_another_name_is_found_and_can_be_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An erasure finds a copy of the table that a rollback created under another name and id. The copy can be erased,
    too."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN))
    past = lake.version
    lake.table("raw.orders").append(people("eve", first=3))
    other, copies = tl.open(tmp_path / "lake"), []
    rows = live(other.at(past).table("raw.orders"))  # its metadata is in the cache
    name = "_replace_metadata" if moment == "before the passes" else "_collected"
    step = getattr(erasure._ErasureRun, name)

    def after_copy(run: Any, *arguments: Any) -> Any:
        if not copies:
            copies.append(other.rollback(past, objects={"raw.orders": "raw.copy"}))
        return step(run, *arguments)

    monkeypatch.setattr(erasure._ErasureRun, name, after_copy)
    done = lake.erase("raw.orders", FILTER)
    if live(lake.table("raw.copy")) == rows:
        assert not done.is_verified
        assert "table raw.copy uses the file" in " ".join(done.remaining.values())
        done = lake.erase("raw.copy", FILTER)
    assert done.is_verified, done
    assert live(lake.table("raw.copy")) == without_ann(rows)
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.maintenance.fsck("all", data=True).is_sound


def test_a_second_erasure_stops_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN, "eve"))
    lake.table("raw.orders").append(people("dan", first=4))
    commit, others = erasure._ErasureRun._commit, [tl.open(tmp_path / "lake")]

    def after_another(run: Any, *arguments: Any) -> Any:
        if others:
            assert others.pop().erase("raw.orders", "email = 'dan'").files
            run_time[0] += 2
        return commit(run, *arguments)

    run_time = [0.0]
    monotonic = time.monotonic
    monkeypatch.setattr("trinitylake.lakehouse.erasure.time.monotonic", lambda: monotonic() + run_time[0])
    monkeypatch.setattr(erasure._ErasureRun, "_commit", after_another)
    with pytest.raises(tl.TrinityLakeError):
        lake.erase("raw.orders", FILTER)
    monkeypatch.undo()
    assert tl.open(tmp_path / "lake").erase("raw.orders", FILTER).is_verified
    assert [row["email"] for row in live(lake.table("raw.orders"))] == ["bob", "eve"]
    assert lake.maintenance.fsck("all", data=True).is_sound


@pytest.mark.parametrize("history", ["rewrite", "expire"])
def test_a_reader_on_s3_finds_the_new_files(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "time", time)  # no object can be made older
    with serve() as server:
        uri = f"s3://{server.new_bucket()}/lake"
        lake = tl.create(uri, storage_options=server.storage_options)
        lake.create_namespace("raw")
        properties = {"format-version": "2", "write.delete.mode": "merge-on-read"}
        lake.create_table("raw.orders", SCHEMA, properties=properties).append(people("bob", ANN, "eve"))
        past = lake.version
        lake.table("raw.orders").append(people(ANN, "dan", "zoe", first=4))
        lake.table("raw.orders").delete("id = 5")
        delete_values(lake.table("raw.orders"), pa.table({"email": [ANN]}))
        lake.table("raw.orders").append(people(ANN, "ann", first=8))
        reader = tl.open(uri, storage_options=server.storage_options)
        assert len(live(reader.at(past).table("raw.orders"))) == 3
        assert [row["id"] for row in live(reader.table("raw.orders"))] == [1, 3, 6, 8, 9]
        done = lake.erase("raw.orders", FILTER, history=history)
        assert done.is_verified, done
        for one in (lake, reader):
            assert [row["id"] for row in live(one.table("raw.orders"))] == [1, 3, 6, 9]
            if history == "rewrite":
                assert [row["id"] for row in live(one.at(past).table("raw.orders"))] == [1, 3]
        texts = TextSearch([ANN])
        assert not [path for path, *_ in lake._storage.list("") if texts.is_in_file(lake._storage.get(path))]
        assert lake.maintenance.fsck("all", data=True).is_sound


@pytest.mark.parametrize("kind", ["disk", "memory", "s3"])
def test_only_a_file_with_the_expected_content_is_replaced(tmp_path: Path, kind: str) -> None:
    with serve() as server:
        uri = {"disk": str(tmp_path / "lake"), "memory": f"memory://{uuid.uuid4()}"}.get(
            kind, f"s3://{server.new_bucket()}"
        )
        storage = _core.Storage(uri, server.storage_options if kind == "s3" else None)
        path = f"a/{uuid.uuid4()}.metadata.json"
        storage.put(path, b"first")
        assert storage.get(path) == b"first"  # and is cached
        assert storage.replace(path, b"first", b"second, which is longer")
        assert storage.get(path) == b"second, which is longer"
        assert storage.replace(path, b"first", b"second, which is longer")  # a repeated request
        assert not storage.replace(path, b"first", b"third")
        assert storage.get(path) == storage.uncached().get(path) == b"second, which is longer"
        with pytest.raises(tl.TrinityLakeError):
            storage.replace("a/missing.metadata.json", b"", b"new")
        assert [path for path, *_ in storage.list("a/")] == [path]
