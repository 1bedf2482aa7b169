"""Concurrent catalogs over one lakehouse: compatible commits succeed, others raise a conflict, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from orders import ROWS, SCHEMA
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import StringType

import trinitylake as tl
from local_files import local_path
from trinitylake.iceberg import TrinityLakeCatalog, load

TABLE = ("sales", "orders")
THREADS = 4


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A lakehouse with one empty table."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    catalog = load(lake)
    catalog.create_namespace("sales")
    catalog.create_table(TABLE, SCHEMA)
    return lake.uri


def at_once(tasks: list[Callable[[], object]]) -> list[BaseException | None]:
    """Start all tasks at the same time. Returns the error of each task."""
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], object]) -> BaseException | None:
        barrier.wait()
        try:
            task()
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def numbered(first: int, rows: int = 2) -> pa.Table:
    ids = list(range(first, first + rows))
    return pa.table({"name": ["x"] * rows, "id": ids, "paid": [None] * rows}, schema=SCHEMA.as_arrow())


def ids(catalog: TrinityLakeCatalog) -> list[int]:
    found: list[int] = catalog.load_table(TABLE).scan().to_arrow()["id"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("handles", ["own", "shared"])
def test_appends_from_many_threads_all_land(root: str, handles: str) -> None:
    """Appends from many threads all succeed, with a separate lakehouse handle for each catalog, as in processes, and
    with one table handle for all threads."""
    shared = load(root).load_table(TABLE)
    tables = [shared if handles == "shared" else load(root).load_table(TABLE) for _ in range(THREADS)]
    appends = 3

    def task(number: int) -> Callable[[], None]:
        def append() -> None:
            for turn in range(appends):
                tables[number].append(numbered(10 * number + 2 * turn))

        return append

    assert at_once([task(number) for number in range(THREADS)]) == [None] * THREADS
    catalog = load(root)
    assert ids(catalog) == sorted(10 * n + i for n in range(THREADS) for i in range(2 * appends))
    table = catalog.load_table(TABLE)
    snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
    assert len(snapshots) == THREADS * appends
    head, length = table.metadata.current_snapshot_id, 0
    while head is not None:  # the history has no forks
        head, length = snapshots[head].parent_snapshot_id, length + 1
    assert length == THREADS * appends


def test_an_append_is_rebased_without_a_retry_of_the_client(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale append succeeds although PyIceberg's own retries are switched off, because the catalog rebases it."""
    catalog = load(root)
    catalog.load_table(TABLE).transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    stale = [catalog.load_table(TABLE) for _ in range(3)]
    for number, table in enumerate(stale):
        table.append(numbered(10 * number))
    assert ids(catalog) == [0, 1, 10, 11, 20, 21]
    assert [table.metadata.current_snapshot() is not None for table in stale] == [True] * 3
    assert len(stale[2].scan().to_arrow()) == 6


def test_a_rebased_append_writes_no_data_file_twice(root: str) -> None:
    catalog = load(root)
    one, other = catalog.load_table(TABLE), catalog.load_table(TABLE)
    one.append(numbered(0))
    other.append(numbered(10))
    folder = Path(other.location().removeprefix("file://"))
    assert len(list(folder.rglob("*.parquet"))) == 2
    planned = {task.file.file_path for task in other.scan().plan_files()}
    assert {local_path(path) for path in planned} == set(folder.rglob("*.parquet"))


def test_an_append_is_rebased_on_a_schema_change(root: str) -> None:
    stale = load(root).load_table(TABLE)
    with load(root).load_table(TABLE).update_schema() as update:
        update.add_column("more", StringType())
    stale.append(ROWS)
    assert stale.schema().column_names == ["name", "id", "paid", "more"]
    assert stale.scan().to_arrow()["more"].null_count == 2


def test_an_append_without_a_new_required_column_fails(root: str) -> None:
    stale = load(root).load_table(TABLE)
    with load(root).load_table(TABLE).update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", StringType(), required=True)
    before = load(root).load_table(TABLE).metadata
    with pytest.raises(ValidationException, match="column must is required now"):
        stale.append(ROWS)
    assert load(root).load_table(TABLE).metadata == before


def test_of_schema_changes_made_at_once_one_lands(root: str) -> None:
    tables = [load(root).load_table(TABLE) for _ in range(THREADS)]

    def task(number: int) -> Callable[[], None]:
        def change() -> None:
            with tables[number].update_schema() as update:
                update.add_column(f"column_{number}", StringType())

        return change

    errors = at_once([task(number) for number in range(THREADS)])
    assert errors.count(None) == 1
    assert all(isinstance(error, CommitFailedException) for error in errors if error is not None)
    names = load(root).load_table(TABLE).schema().column_names
    assert names == [*SCHEMA.column_names, f"column_{errors.index(None)}"]


def test_property_changes_made_at_once_all_land(root: str) -> None:
    tables = [load(root).load_table(TABLE) for _ in range(THREADS)]

    def task(number: int) -> Callable[[], object]:
        change = tables[number].transaction().set_properties({f"key_{number}": "1"})
        return change.commit_transaction

    assert at_once([task(number) for number in range(THREADS)]) == [None] * THREADS
    properties = load(root).load_table(TABLE).properties
    assert [properties.get(f"key_{number}") for number in range(THREADS)] == ["1"] * THREADS


def test_a_delete_keeps_what_was_appended_meanwhile(root: str) -> None:
    load(root).load_table(TABLE).append(numbered(0))
    stale = load(root).load_table(TABLE)
    load(root).load_table(TABLE).append(numbered(10))
    stale.delete("id = 0")
    assert ids(load(root)) == [1, 10, 11]


def test_a_delete_conflicts_with_appended_rows_that_it_matches(root: str) -> None:
    load(root).load_table(TABLE).append(numbered(0))
    stale = load(root).load_table(TABLE)
    load(root).load_table(TABLE).append(numbered(0))
    with pytest.raises((CommitFailedException, ValidationException)):
        stale.delete("id = 0")
    assert ids(load(root)) == [0, 0, 1, 1]
    stale.refresh().delete("id = 0")
    assert ids(load(root)) == [1, 1]


def test_of_creations_made_at_once_one_lands(root: str) -> None:
    catalogs = [load(root) for _ in range(THREADS)]
    tables = at_once([lambda c=c: c.create_table("sales.new", SCHEMA) for c in catalogs])  # type: ignore[misc]
    assert tables.count(None) == 1
    assert all(isinstance(error, TableAlreadyExistsError) for error in tables if error is not None)
    namespaces = at_once([lambda c=c: c.create_namespace("new") for c in catalogs])  # type: ignore[misc]
    assert namespaces.count(None) == 1
    assert all(isinstance(error, NamespaceAlreadyExistsError) for error in namespaces if error is not None)
    staged = [c.create_table_transaction("sales.newer", SCHEMA) for c in catalogs]
    creations = at_once([one.commit_transaction for one in staged])
    assert creations.count(None) == 1
    assert all(
        isinstance(error, CommitFailedException | TableAlreadyExistsError) for error in creations if error is not None
    )


def test_of_drops_made_at_once_one_lands(root: str) -> None:
    catalogs = [load(root) for _ in range(THREADS)]
    errors = at_once([lambda c=c: c.drop_table(TABLE) for c in catalogs])  # type: ignore[misc]
    assert errors.count(None) == 1
    assert all(isinstance(error, NoSuchTableError) for error in errors if error is not None)


def test_an_append_and_a_drop_end_in_one_order(root: str) -> None:
    table = load(root).load_table(TABLE)
    appended, dropped = at_once([lambda: table.append(ROWS), lambda: load(root).drop_table(TABLE)])
    assert dropped is None
    assert appended is None or isinstance(appended, NoSuchTableError | CommitFailedException)
    assert not load(root).table_exists(TABLE)


def test_an_unknown_outcome_raises_commit_state_unknown_and_deletes_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown outcome raises `CommitStateUnknownException`, so that PyIceberg keeps the manifests, which it deletes
    after a failed commit."""
    catalog = load(root)
    table = catalog.load_table(TABLE)
    written: list[AddSnapshotUpdate] = []

    def unclear(*arguments: object, **keywords: object) -> int:
        raise tl.CommitStateUnknown("the storage did not answer")

    monkeypatch.setattr(tl.Transaction, "commit", unclear)
    original = TrinityLakeCatalog.commit_table

    def recording(self: TrinityLakeCatalog, table, requirements, updates):  # type: ignore[no-untyped-def]
        written.extend(update for update in updates if isinstance(update, AddSnapshotUpdate))
        return original(self, table, requirements, updates)

    monkeypatch.setattr(TrinityLakeCatalog, "commit_table", recording)
    with pytest.raises(CommitStateUnknownException, match="did not answer"):
        table.append(ROWS)
    (update,) = written
    for manifest in update.snapshot.manifests(table.io):
        assert table.io.new_input(manifest.manifest_path).exists()
        for entry in manifest.fetch_manifest_entry(table.io):
            assert table.io.new_input(entry.data_file.file_path).exists()
