"""A file that one table names as statistics and another as a manifest is read as a manifest."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyiceberg.table.statistics import StatisticsFile

import trinitylake as tl
from local_files import age

ROWS = pa.table({"id": [1, 2, 3]})


def test_a_manifest_that_another_table_names_as_statistics_is_read_by_a_vacuum(tmp_path: Path) -> None:
    """A vacuum reads a manifest that another table names as statistics. Otherwise a writer of one table could make
    vacuum skip the manifest, and delete the other table's rows."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop")
    theirs = lake.create_table("shop.theirs", ROWS)
    own = lake.create_table("shop.own", ROWS)
    for table in (theirs, own):
        table.append(ROWS)
    iceberg = lake.table("shop.theirs").iceberg
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    named = [snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(iceberg.io))]
    for path in named:
        table = lake.table("shop.own")
        current = table.iceberg.current_snapshot()
        assert current is not None
        statistics = StatisticsFile(
            snapshot_id=current.snapshot_id,
            statistics_path=path,
            file_size_in_bytes=os.path.getsize(path.removeprefix("file://")),
            file_footer_size_in_bytes=4,
            blob_metadata=[],
        )
        with table._writing() as writing, writing.update_statistics() as update:
            update.set_statistics(statistics)
        table.append(ROWS)
    age(tmp_path / "lake")
    before = lake.table("shop.theirs").scan().to_arrow().num_rows
    lake.maintenance.vacuum(grace="1 minute")
    assert tl.open(tmp_path / "lake").table("shop.theirs").scan().to_arrow().num_rows == before
    assert lake.maintenance.fsck(files=True).is_sound
