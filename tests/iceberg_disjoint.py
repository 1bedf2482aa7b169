"""Tables, statements and races for the tests of concurrent statements on one table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableUpdate
from test_iceberg_rebase import check_whole
from test_iceberg_staging import BY_CITY, Lake, rows

from iceberg_storage import Store
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.staging.changed_rows import own_manifests
from trinitylake.iceberg_storage.staging.staged_table import StagedTable

Change = Callable[[Table], object]


def filled(store: Store) -> Lake:
    """A table partitioned by city: ids 1, 2, 3 in "a" and 11, 12 in "b", one file each, and 21 in "c"."""
    lake = Lake(store, partition_spec=BY_CITY)
    staged = lake.begin()
    staged.table.append(cities(a=[1, 2, 3], b=[11, 12], c=[21]))
    lake.commit(staged)
    return lake


def cities(**ids: Iterable[int]) -> pa.Table:
    return pa.concat_tables([rows(*numbers, city=city) for city, numbers in ids.items()])


def contents(lake: Lake) -> dict[str, list[int]]:
    """Ids by city."""
    found: dict[str, list[int]] = {}
    for row in lake.begin().table.scan().to_arrow().to_pylist():
        found.setdefault(row["city"], []).append(row["id"])
    return {city: sorted(numbers) for city, numbers in sorted(found.items())}


def live_files(staged: StagedTable, branch: str = "main") -> list[DataFile]:
    head = staged.metadata.snapshot_by_name(branch)
    assert head is not None
    return [
        entry.data_file for manifest in head.manifests(staged.io) for entry in manifest.fetch_manifest_entry(staged.io)
    ]


def rewrite(staged: StagedTable, city: str, operation: Operation = Operation.REPLACE, **properties: str) -> None:
    """Compact the files of a city, as an engine does: the summary contains only `properties`."""
    table = staged.table
    old = [file for file in live_files(staged) if file.partition[0] == city]
    rewritten = table.scan(EqualTo("city", city)).to_arrow()
    new = list(_dataframe_to_data_files(table.metadata, rewritten, staged.io))
    producer = SnapshotProducer(table.metadata, staged.io, operation, properties)
    updates, requirements = producer.remove(old).add(new).updates()
    staged.commit(requirements, updates)


def raced(lake: Lake, winner: Change, loser: Callable[[StagedTable], object]) -> StagedTable:
    """Like `race`, but the loser receives its staged table."""
    first, second = lake.begin(), lake.begin()
    loser(second)
    second.finish()
    winner(first.table)
    lake.commit(first)
    return second


def land(lake: Lake, staged: StagedTable) -> None:
    """Rebase and commit. Checks that no data file is written again, and that files that became unused are reported."""
    data = [path for path in staged.written_paths if path.endswith(".parquet")]
    old = {
        staged.io.path_of(uri)
        for update in snapshots_of(staged)
        for uri in (update.manifest_list, *(one.manifest_path for one in own_manifests(staged.io, update)))
    }
    staged.reapply(lake.path)
    assert [path for path in staged.written_paths if path.endswith(".parquet")] == data
    now = {staged.io.path_of(update.manifest_list) for update in snapshots_of(staged)}
    assert old - now <= set(staged.superseded_paths)
    lake.commit(staged)
    used = referenced(staged)
    for path in staged.superseded_paths:
        assert path not in used
        lake.storage.delete(path)
    leftover = {path for path in staged.written_paths if path.endswith(".avro")} - used - set(staged.superseded_paths)
    assert leftover == set(), "every written manifest is used or superseded"
    check_whole(lake)


def snapshots_of(staged: StagedTable) -> list:
    updates: list[TableUpdate] = [update for commit in staged._commits for update in commit.updates]
    return [update.snapshot for update in updates if update.action == "add-snapshot"]  # type: ignore[union-attr]


def referenced(staged: StagedTable) -> set[str]:
    """Paths of the manifest lists and manifests that the metadata references."""
    uris = [snapshot.manifest_list for snapshot in staged.metadata.snapshots]
    uris += [one.manifest_path for snapshot in staged.metadata.snapshots for one in snapshot.manifests(staged.io)]
    return {staged.io.path_of(uri) for uri in uris}


STATEMENTS: dict[str, Change] = {
    "delete a partition": lambda table: table.delete("city = 'a'"),
    "delete a row": lambda table: table.delete("city = 'a' and id = 2"),
    "delete by a column that is no partition": lambda table: table.delete("id = 2"),
    "overwrite a partition": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="city = 'a'"),
    "overwrite part of a file": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="id = 2"),
    "overwrite where nothing is": lambda table: table.overwrite(cities(a=[5]), overwrite_filter="city = 'd'"),
    "replace a partition": lambda table: table.dynamic_partition_overwrite(cities(a=[5])),
    "upsert": lambda table: table.upsert(cities(a=[2, 5])),
    "several": lambda table: (table.delete("id = 1"), table.append(cities(a=[6])), table.delete("id in (2, 6)")),
}


ELSEWHERE: dict[str, Change] = {
    "append": lambda table: table.append(cities(b=[13])),
    "delete": lambda table: table.delete("city = 'b'"),
    "overwrite": lambda table: table.dynamic_partition_overwrite(cities(b=[14])),
    "rewrite": lambda table: table.overwrite(cities(b=[15]), overwrite_filter="id = 11"),
}


DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


def delete_first_row(
    staged: StagedTable, city: str, add: pa.Table | None = None, bounds: bool = False, again: bool = False
) -> None:
    """Delete the first row of a city by a position delete, as an engine with merge-on-read does.

    Args:
        add: rows to append in the same snapshot, as an UPDATE of an engine does.
        bounds: whether the bounds of the delete file name its data file.
        again: whether the delete file replaces the one of the city, and deletes two rows.
    """
    table = staged.table
    (data,) = [
        file for file in live_files(staged) if file.partition[0] == city and file.content == DataFileContent.DATA
    ]
    uri = f"{table.location()}/data/{city}-{uuid.uuid4()}-deletes.parquet"
    positions = [0, 1] if again else [0]
    with staged.io.new_output(uri).create() as file:
        written = {"file_path": [data.file_path] * len(positions), "pos": pa.array(positions, pa.int64())}
        pq.write_table(pa.table(written, DELETES), file)
    path = {2147483546: data.file_path.encode()} if bounds else {}
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=data.partition,
        record_count=len(positions),
        file_size_in_bytes=len(staged.io.new_input(uri)),
        lower_bounds=path,
        upper_bounds=path,
    )
    deletes.spec_id = data.spec_id
    operation = Operation.DELETE if add is None else Operation.OVERWRITE
    producer = SnapshotProducer(table.metadata, staged.io, operation).add([deletes])
    producer.add(() if add is None else _dataframe_to_data_files(table.metadata, add, staged.io))
    for old in live_files(staged) if again else ():
        if old.content != DataFileContent.DATA and old.partition == data.partition:
            producer.remove([old])
    updates, requirements = producer.updates()
    staged.commit(requirements, updates)
